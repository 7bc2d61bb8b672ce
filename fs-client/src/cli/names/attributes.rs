//! Commands that change attributes: `chmod chown`.

use crate::{Client, Error, ErrorCode, FsPath, Handle, SetAttr};
use fs_proto::ManagerRequest;
use rustix::fs::Mode;
use rustix::process::umask;
use serde_json::json;

use super::walk::walk;
use crate::cli::args::{ModeChange, Owner};
use crate::cli::output::Output;
use crate::program::Stop;

pub(crate) async fn chmod(
    client: &Client,
    change: &ModeChange,
    paths: &[FsPath],
    recursive: bool,
    output: &mut Output,
) -> Result<(), Stop> {
    // It can only be read by setting it.
    let masked = umask(Mode::empty());
    umask(masked);
    let set = async |path: &FsPath, handle: Handle| {
        if let Handle::Symlink(_) = handle {
            let text = format!("{path} is a symbolic link, which has no bits of its own; name what it leads to");
            return if paths.contains(path) { Err(Error::new(ErrorCode::Invalid, text)) } else { Ok(false) };
        }
        let mode = client.ask_entry(ManagerRequest::Getattr { handle, open: false }).await?.attr.mode;
        let changed = change.apply(mode, handle.dir().is_some(), masked.bits());
        if changed != mode {
            let set = SetAttr { mode: Some(changed), ..SetAttr::default() };
            client.ask_entry(ManagerRequest::Setattr { handle, set }).await?;
        }
        Ok(changed != mode)
    };
    set_all(client, "chmod", paths, recursive, set, output).await;
    Ok(())
}

pub(crate) async fn chown(
    client: &Client,
    Owner { uid, gid }: Owner,
    paths: &[FsPath],
    recursive: bool,
    output: &mut Output,
) -> Result<(), Stop> {
    let set = SetAttr { uid, gid, ..SetAttr::default() };
    let set = async |_: &FsPath, handle: Handle| {
        client.ask_entry(ManagerRequest::Setattr { handle, set }).await.map(|_| true)
    };
    set_all(client, "chown", paths, recursive, set, output).await;
    Ok(())
}

/// Sets something of all paths, and counts those that `set` has changed.
async fn set_all(
    client: &Client,
    what: &str,
    paths: &[FsPath],
    recursive: bool,
    set: impl AsyncFn(&FsPath, Handle) -> Result<bool, Error>,
    output: &mut Output,
) {
    let mut changed = 0u64;
    for path in paths {
        let done = |at: &FsPath, result: Result<bool, Error>| match result {
            Ok(is_changed) => changed += u64::from(is_changed),
            Err(error) => output.failure(error.during(format!("{what} {at}"))),
        };
        walk(client, path, recursive, &set, done).await;
    }
    output.field("changed", json!(changed));
}
