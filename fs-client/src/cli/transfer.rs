//! Commands that transfer data: `put cp get cat`.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::copy::{Copied, Copier, Progress};
use crate::{CacheHints, Client, CreateOptions, FsPath, Handle};
use indicatif::ProgressBar;
use serde_json::json;

use super::args::{LayoutArgs, TransferArgs};
use super::names::into_dir;
use super::output::{Output, one_line, transferred};
use crate::program::{Stop, complain};

const DEFAULT_BLOCK: usize = 4 << 20;
const DEFAULT_WINDOW: usize = 4;

/// The failures of single files, which were printed when they happened.
type Failures = Arc<Mutex<Vec<String>>>;

/// Options of `put` and `cp`.
pub(crate) struct Store {
    pub(crate) layout: LayoutArgs,
    pub(crate) transfer: TransferArgs,
    pub(crate) mode: Option<u32>,
    pub(crate) no_sync: bool,
}

fn copier(client: &Client, args: &TransferArgs, bar: ProgressBar) -> Result<(Copier, Failures), Stop> {
    let block = usize::try_from(args.block_size).unwrap_or(DEFAULT_BLOCK);
    let (mut copier, failures) = copier_of(client, block, args.window as usize, bar)?;
    (copier.resume, copier.archive, copier.hints) = (args.resume, args.archive, hints(args));
    Ok((copier, failures))
}

fn copier_of(client: &Client, block: usize, window: usize, bar: ProgressBar) -> Result<(Copier, Failures), Stop> {
    let failures = Failures::default();
    let noted = failures.clone();
    let copier = Copier::new(client.clone(), block, window, move |progress| match progress {
        Progress::File { name, bytes } => {
            bar.inc_length(bytes);
            bar.set_message(name.to_string());
        }
        Progress::Bytes(bytes) => bar.inc(bytes),
        Progress::Again { bytes, .. } => bar.set_position(bar.position().saturating_sub(bytes)),
        Progress::Failed { error } => {
            let line = one_line(&error.to_string());
            bar.suspend(|| complain(&line));
            noted.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
        Progress::Done { .. } => {}
    })?;
    Ok((copier, failures))
}

fn take(failures: &Failures) -> Vec<String> {
    std::mem::take(&mut failures.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the hints for the caches of the servers.
fn hints(args: &TransferArgs) -> CacheHints {
    let TransferArgs { cache_policy: policy, cache_unit: unit, .. } = *args;
    CacheHints { unit, policy, ..CacheHints::default() }
}

pub(crate) async fn put(
    client: &Client,
    sources: &[PathBuf],
    target: &FsPath,
    how: &Store,
    output: &mut Output,
) -> Result<(), Stop> {
    let one = async |copier: &Copier, source: &PathBuf| put_one(client, copier, source, target, &how.transfer).await;
    store(client, "put", sources, target, how, one, output).await
}

pub(crate) async fn cp(
    client: &Client,
    sources: &[FsPath],
    target: &FsPath,
    how: &Store,
    output: &mut Output,
) -> Result<(), Stop> {
    let one = async |copier: &Copier, source: &FsPath| {
        let entry = client.lookup(source).await?;
        check_kind("cp", source, entry.handle, &how.transfer)?;
        let to = match how.transfer.no_target_directory {
            true => target.clone(),
            false => into_dir(client, target, source.name()).await?,
        };
        Ok(copier.copy(source, &to).await?)
    };
    store(client, "cp", sources, target, how, one, output).await
}

/// Stores each of `sources` by `one`.
async fn store<P>(
    client: &Client,
    what: &str,
    sources: &[P],
    target: &FsPath,
    how: &Store,
    one: impl AsyncFn(&Copier, &P) -> Result<Copied, Stop>,
    output: &mut Output,
) -> Result<(), Stop> {
    let (bar, args, layout) = (output.bar(), &how.transfer, &how.layout);
    let (mut copier, failures) = copier(client, args, bar.clone())?;
    (copier.sync, copier.mode) = (!how.no_sync, how.mode);
    copier.create = CreateOptions {
        strip_size: layout.strip_size.unwrap_or(0).into(),
        servers: layout.servers.unwrap_or(0),
        ..CreateOptions::default()
    };
    if sources.len() > 1 && args.no_target_directory {
        return Err(Stop::usage("several sources need a directory as their target; leave out -T"));
    }
    if sources.len() > 1 && client.lookup(target).await?.handle.dir().is_none() {
        return Err(Stop::failed(format!("{what} to {target}: not a directory, and there are several sources")));
    }
    let (start, mut total) = (client.endpoint().now(), Copied::default());
    for source in sources {
        match one(&copier, source).await {
            Ok(copied) => total += copied,
            Err(Stop(_, error)) => bar.suspend(|| output.failure(error)),
        }
    }
    bar.finish_and_clear();
    output.printed_failures(take(&failures));
    report(what, &total, client.endpoint().now().since(start), output)
}

/// Checks that a source in the cluster is a file, or that the options allow what else it is.
fn check_kind(what: &str, source: &FsPath, handle: Handle, args: &TransferArgs) -> Result<(), Stop> {
    let kind = match handle {
        _ if args.is_recursive() => return Ok(()),
        Handle::File(_) => return Ok(()),
        Handle::Dir(_) => "directory",
        Handle::Symlink(_) => "symbolic link",
    };
    let verb = if what == "cp" { "copy" } else { what };
    Err(Stop::failed(format!("{what} {source}: is a {kind}; {verb} it with -r")))
}

async fn put_one(
    client: &Client,
    copier: &Copier,
    source: &Path,
    target: &FsPath,
    args: &TransferArgs,
) -> Result<Copied, Stop> {
    if source == Path::new("-") {
        if args.resume {
            return Err(Stop::failed("put --resume -: standard input has no time to compare; leave --resume out"));
        }
        if client.lookup(target).await.is_ok_and(|entry| entry.handle.dir().is_some()) {
            return Err(Stop::failed(format!("put - {target}: is a directory; standard input needs a file name")));
        }
        let stdin = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        return Ok(copier.put_stream(stdin, target).await?);
    }
    let local = |error: std::io::Error| Stop::failed(format!("{}: {error}", source.display()));
    let is_link = args.archive && source.is_symlink();
    if !is_link && !args.is_recursive() && std::fs::metadata(source).map_err(local)?.is_dir() {
        return Err(Stop::failed(format!("{}: is a directory; put it with -r", source.display())));
    }
    // `.` and `..` also have a name after they are resolved.
    let name = match source.file_name() {
        Some(name) => name.to_owned(),
        None => source.canonicalize().map_err(local)?.file_name().unwrap_or_default().to_owned(),
    };
    let name = (!name.is_empty() && !args.no_target_directory).then_some(name.as_bytes().into());
    let to = match name {
        Some(name) => into_dir(client, target, Some(name)).await?,
        None => target.clone(),
    };
    Ok(copier.put(source, &to).await?)
}

pub(crate) async fn get(
    client: &Client,
    source: &FsPath,
    target: &Path,
    args: &TransferArgs,
    output: &mut Output,
) -> Result<(), Stop> {
    let bar = output.bar();
    let (copier, failures) = copier(client, args, bar.clone())?;
    let handle = client.lookup(source).await?.handle;
    check_kind("get", source, handle, args)?;
    let start = client.endpoint().now();
    if target == Path::new("-") {
        if handle.dir().is_some() {
            return Err(Stop::failed(format!("get {source}: a directory cannot go to standard output")));
        }
        output.raw();
        let copied = to_stdout(&copier, source).await?;
        bar.finish_and_clear();
        tracing::info!("{}", transferred(&copied, client.endpoint().now().since(start)));
        return Ok(());
    }
    let to = match source.name() {
        Some(name) if target.is_dir() && !args.no_target_directory => target.join(OsStr::from_bytes(name)),
        _ => target.to_owned(),
    };
    let copied = match handle {
        Handle::Dir(_) => Ok(copier.get_tree(source, &to).await),
        Handle::File(_) => copier.get_file(source, &to).await,
        Handle::Symlink(_) => copier.get_link(source, &to).await,
    };
    bar.finish_and_clear();
    output.printed_failures(take(&failures));
    report("get", &copied?, client.endpoint().now().since(start), output)
}

pub(crate) async fn cat(client: &Client, paths: &[FsPath], output: &mut Output) -> Result<(), Stop> {
    let (copier, _) = copier_of(client, DEFAULT_BLOCK, DEFAULT_WINDOW, ProgressBar::hidden())?;
    for path in paths {
        if let Err(Stop(_, error)) = to_stdout(&copier, path).await {
            output.failure(error);
        }
    }
    output.raw();
    Ok(())
}

/// Copies a file to standard output. If the reader has gone away, that is not an error.
async fn to_stdout(copier: &Copier, source: &FsPath) -> Result<Copied, Stop> {
    let stdout = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    match copier.get_stream(source, stdout).await {
        Err(error) if error.is_broken_pipe() => Ok(Copied::default()),
        result => Ok(result?),
    }
}

fn report(what: &str, copied: &Copied, took: Duration, output: &mut Output) -> Result<(), Stop> {
    // If nothing was done, print only the errors.
    if copied.files + copied.directories > 0 || !output.has_failures() {
        output.summary(format!("{what}: {}", transferred(copied, took)));
    }
    output.fields(copied)?;
    let seconds = took.as_secs_f64();
    output.fields(&json!({ "seconds": seconds, "bytes_per_second": copied.bytes as f64 / seconds.max(1e-9) }))
}
