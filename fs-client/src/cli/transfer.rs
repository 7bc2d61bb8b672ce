//! Commands that transfer data: `put get cat`.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::copy::{Copied, Copier, Progress};
use crate::{CacheHints, Client, CreateOptions, FsPath};
use indicatif::ProgressBar;
use serde_json::json;

use super::args::{LayoutArgs, TransferArgs};
use super::namespace::into_dir;
use super::output::{Output, one_line, transferred};
use crate::program::{Stop, complain};

const DEFAULT_BLOCK: usize = 4 << 20;
const DEFAULT_WINDOW: usize = 4;

/// The failures of single files, which were printed when they happened.
type Failures = Arc<Mutex<Vec<String>>>;

/// Options of `put`.
pub(crate) struct Put {
    pub(crate) layout: LayoutArgs,
    pub(crate) transfer: TransferArgs,
    pub(crate) mode: Option<u32>,
    pub(crate) no_sync: bool,
}

fn copier(client: &Client, block: usize, window: usize, bar: ProgressBar) -> Result<(Copier, Failures), Stop> {
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

fn block_of(args: &TransferArgs) -> usize {
    usize::try_from(args.block_size).unwrap_or(DEFAULT_BLOCK)
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
    how: &Put,
    output: &mut Output,
) -> Result<(), Stop> {
    let (bar, args, layout) = (output.bar(), &how.transfer, &how.layout);
    let (mut copier, failures) = copier(client, block_of(args), args.window as usize, bar.clone())?;
    (copier.sync, copier.mode, copier.resume) = (!how.no_sync, how.mode, args.resume);
    copier.hints = hints(args);
    copier.create = CreateOptions {
        strip_size: layout.strip_size.unwrap_or(0).into(),
        servers: layout.servers.unwrap_or(0),
        ..CreateOptions::default()
    };
    if sources.len() > 1 && args.no_target_directory {
        return Err(Stop::usage("several sources need a directory as their target; leave out -T"));
    }
    if sources.len() > 1 && client.lookup(target).await?.handle.dir().is_none() {
        return Err(Stop::failed(format!("put to {target}: not a directory, and there are several sources")));
    }
    let (start, mut total) = (client.endpoint().now(), Copied::default());
    for source in sources {
        match put_one(client, &copier, source, target, args).await {
            Ok(copied) => total += copied,
            Err(Stop(_, error)) => bar.suspend(|| output.failure(error)),
        }
    }
    bar.finish_and_clear();
    output.printed_failures(take(&failures));
    report("put", &total, client.endpoint().now().since(start), output)
}

async fn put_one(
    client: &Client,
    copier: &Copier,
    source: &Path,
    target: &FsPath,
    args: &TransferArgs,
) -> Result<Copied, Stop> {
    if source == Path::new("-") {
        if client.lookup(target).await.is_ok_and(|entry| entry.handle.dir().is_some()) {
            return Err(Stop::failed(format!("put - {target}: is a directory; standard input needs a file name")));
        }
        let stdin = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        return Ok(copier.put_stream(stdin, target).await?);
    }
    let local = |error: std::io::Error| Stop::failed(format!("{}: {error}", source.display()));
    let is_dir = std::fs::metadata(source).map_err(local)?.is_dir();
    if is_dir && !args.recursive {
        return Err(Stop::failed(format!("{}: is a directory; put it with -r", source.display())));
    }
    if args.no_target_directory {
        return Ok(if is_dir {
            copier.put_tree(source, target).await
        } else {
            copier.put_file(source, target).await?
        });
    }
    // `.` and `..` also have a name after they are resolved.
    let name = match source.file_name() {
        Some(name) => name.to_owned(),
        None => source.canonicalize().map_err(local)?.file_name().unwrap_or_default().to_owned(),
    };
    let name = name.to_str().ok_or_else(|| Stop::failed(format!("{}: the name is not UTF-8", source.display())))?;
    let to = into_dir(client, target, (!name.is_empty()).then_some(name.into())).await?;
    Ok(if is_dir { copier.put_tree(source, &to).await } else { copier.put_file(source, &to).await? })
}

pub(crate) async fn get(
    client: &Client,
    source: &FsPath,
    target: &Path,
    args: &TransferArgs,
    output: &mut Output,
) -> Result<(), Stop> {
    let bar = output.bar();
    let (mut copier, failures) = copier(client, block_of(args), args.window as usize, bar.clone())?;
    (copier.resume, copier.hints) = (args.resume, hints(args));
    let is_dir = client.lookup(source).await?.handle.dir().is_some();
    if is_dir && !args.recursive {
        return Err(Stop::failed(format!("get {source}: is a directory; get it with -r")));
    }
    let start = client.endpoint().now();
    if target == Path::new("-") {
        if is_dir {
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
    let copied = if is_dir { Ok(copier.get_tree(source, &to).await) } else { copier.get_file(source, &to).await };
    bar.finish_and_clear();
    output.printed_failures(take(&failures));
    report("get", &copied?, client.endpoint().now().since(start), output)
}

pub(crate) async fn cat(client: &Client, paths: &[FsPath], output: &mut Output) -> Result<(), Stop> {
    let (copier, _) = copier(client, DEFAULT_BLOCK, DEFAULT_WINDOW, ProgressBar::hidden())?;
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
