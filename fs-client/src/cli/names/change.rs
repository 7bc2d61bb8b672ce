//! Commands that change names and files: `mkdir rm mv ln layout touch truncate`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::{Client, CreateOptions, DefaultLayout, ErrorCode, FsPath, RemoveKind, SetAttr};
use bstr::BStr;
use serde_json::json;

use crate::cli::args::LayoutArgs;
use crate::cli::output::Output;
use crate::cli::{size, time};
use crate::program::{Stop, printable};

pub(crate) async fn mkdir(client: &Client, paths: &[FsPath], parents: bool, output: &mut Output) -> Result<(), Stop> {
    let mut made = Vec::new();
    for path in paths {
        let result = if parents { client.mkdir_all(path).await } else { client.mkdir(path).await.map(drop) };
        match result {
            Ok(()) => made.push(path.to_string()),
            Err(error) => output.failure(error),
        }
    }
    output.field("made", json!(made));
    Ok(())
}

pub(crate) async fn rm(
    client: &Client,
    paths: &[FsPath],
    recursive: bool,
    force: bool,
    output: &mut Output,
) -> Result<(), Stop> {
    let mut removed = Vec::new();
    for path in paths {
        if path.is_root() {
            output.failure("remove /: the root directory cannot be removed");
            continue;
        }
        let result = if recursive { client.remove_all(path).await } else { client.remove(path, RemoveKind::Any).await };
        match result {
            Ok(()) => removed.push(path.to_string()),
            Err(error) if force && error.code() == ErrorCode::NotFound => {}
            Err(error) => output.failure(error),
        }
    }
    output.field("removed", json!(removed));
    Ok(())
}

pub(crate) async fn mv(client: &Client, from: &FsPath, to: &FsPath, output: &mut Output) -> Result<(), Stop> {
    let to = into_dir(client, to, from.name()).await?;
    client.rename(from, &to).await?;
    output.fields(&json!({ "from": from.to_string(), "to": to.to_string() }))
}

pub(crate) async fn truncate(client: &Client, path: &FsPath, size: u64, output: &mut Output) -> Result<(), Stop> {
    client.truncate(path, size).await?;
    output.fields(&json!({ "path": path.to_string(), "size": size }))
}

/// Returns `target/name` if the target is an existing directory, else the target itself.
pub(crate) async fn into_dir(client: &Client, target: &FsPath, name: Option<&BStr>) -> Result<FsPath, Stop> {
    let is_dir = match client.lookup(target).await {
        Ok(entry) => entry.handle.dir().is_some(),
        Err(error) if error.code() == ErrorCode::NotFound => false,
        Err(error) => return Err(error.into()),
    };
    Ok(match name {
        Some(name) if is_dir => target.join(name)?,
        _ => target.clone(),
    })
}

pub(crate) async fn ln(
    client: &Client,
    target: OsString,
    link: &FsPath,
    symbolic: bool,
    force: bool,
    output: &mut Output,
) -> Result<(), Stop> {
    let name = Path::new(&target).file_name().map(OsStr::as_bytes);
    let link = into_dir(client, link, name.map(BStr::new)).await?;
    output.fields(&json!({ "target": target.to_string_lossy(), "link": link.to_string() }))?;
    let owner = client.owner();
    if symbolic {
        let target = target.into_vec();
        match force {
            true => client.symlink_over(&link, target, owner).await?,
            false => client.symlink(&link, target, owner).await?,
        };
        return Ok(());
    }
    let file: FsPath = BStr::new(target.as_bytes()).try_into().map_err(|error| Stop::usage(format!("{error}")))?;
    let entry = client.lookup(&file).await?;
    if force && client.lookup(&link).await.is_ok_and(|there| there.handle == entry.handle) {
        return Err(Stop::failed(format!("ln {file} {link}: they are the same file")));
    }
    match force {
        true => client.link_over(&file, &link).await?,
        false => client.link(&file, &link).await?,
    };
    Ok(())
}

pub(crate) async fn layout(
    client: &Client,
    paths: &[FsPath],
    args: &LayoutArgs,
    default: bool,
    output: &mut Output,
) -> Result<(), Stop> {
    let wanted = DefaultLayout { strip_size: args.strip_size.unwrap_or(0).into(), servers: args.servers.unwrap_or(0) };
    let sets = default || wanted != DefaultLayout::default();
    let mut layouts = Vec::new();
    for path in paths {
        let layout = async {
            if sets {
                client.set_default_layout(path, wanted).await?;
            }
            client.default_layout(path).await
        };
        match layout.await {
            Ok(DefaultLayout { strip_size, servers }) => {
                let or = |is_default: bool, text: String| if is_default { "the default".into() } else { text };
                let strip = or(strip_size == 0, size::show_exact(strip_size));
                output.line(format!(
                    "{}: strip size {strip}, servers {}",
                    printable(path),
                    or(servers == 0, servers.to_string())
                ));
                layouts.push(json!({ "path": path.to_string(), "strip_size": strip_size, "servers": servers }));
            }
            Err(error) => output.failure(error),
        }
    }
    output.field("layouts", json!(layouts));
    Ok(())
}

pub(crate) async fn touch(
    client: &Client,
    paths: &[FsPath],
    reference: Option<&FsPath>,
    given_ns: Option<u64>,
    no_create: bool,
    output: &mut Output,
) -> Result<(), Stop> {
    let (atime_ns, mtime_ns) = match reference {
        Some(path) => {
            let attr = client.stat(path).await?.attr;
            (attr.atime_ns, attr.mtime_ns)
        }
        None => {
            let time = given_ns.unwrap_or_else(time::now_ns);
            (time, time)
        }
    };
    let set = SetAttr { atime_ns: Some(atime_ns), mtime_ns: Some(mtime_ns), ..SetAttr::default() };
    let mut touched = Vec::new();
    for path in paths {
        let result = match client.setattr(path, set).await {
            Err(error) if error.code() == ErrorCode::NotFound && no_create => continue,
            Err(error) if error.code() == ErrorCode::NotFound => {
                let how = CreateOptions { exclusive: false, ..CreateOptions::default() };
                match client.create(path, how).await {
                    Ok(file) => client.setattr(&FsPath::of(file.handle()), set).await,
                    Err(error) => Err(error),
                }
            }
            result => result,
        };
        match result {
            Ok(_) => touched.push(path.to_string()),
            Err(error) => output.failure(error),
        }
    }
    output.field("touched", json!(touched));
    Ok(())
}
