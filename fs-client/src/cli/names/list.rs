//! Commands that show names with their attributes: `ls stat`.

use std::fmt::Display;

use crate::{Client, DirEntry, ErrorCode, FsPath, Handle, Kind, Stat};
use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};

use super::walk::AT_ONCE;
use crate::cli::output::{Output, show_mode};
use crate::cli::size;
use crate::cli::time::show_time;
use crate::program::{Stop, printable};

pub(crate) async fn ls(
    client: &Client,
    path: &FsPath,
    long: bool,
    recursive: bool,
    output: &mut Output,
) -> Result<(), Stop> {
    let mut listed = Vec::new();
    let entry = client.lookup(path).await?;
    let mut dirs = Vec::new();
    match entry.handle {
        Handle::Dir(_) => dirs.push(path.clone()),
        Handle::File(_) | Handle::Symlink(_) => {
            let name = path.name().unwrap_or_default().to_owned();
            let entries = vec![DirEntry { name, handle: entry.handle }];
            let parent = path.parent().unwrap_or_else(FsPath::root);
            list(client, &parent, &entries, long, false, output, &mut listed).await?;
        }
    }
    while let Some(dir) = dirs.pop() {
        if recursive {
            output.line(format!("{}:", printable(&dir)));
        }
        let entries = client.readdir(&dir).await?;
        list(client, &dir, &entries, long, recursive, output, &mut listed).await?;
        if recursive {
            output.line("");
            for entry in entries.iter().rev().filter(|entry| entry.handle.dir().is_some()) {
                dirs.push(dir.join(&entry.name)?);
            }
        }
    }
    output.field("entries", json!(listed));
    Ok(())
}

async fn list(
    client: &Client,
    dir: &FsPath,
    entries: &[DirEntry],
    long: bool,
    full: bool,
    output: &mut Output,
    listed: &mut Vec<Value>,
) -> Result<(), Stop> {
    let shown = |entry: &DirEntry, path: &FsPath| if full { path.to_string() } else { entry.name.to_string() };
    let paths = entries.iter().map(|entry| dir.join(&entry.name)).collect::<Result<Vec<_>, _>>()?;
    if !long {
        for (entry, path) in entries.iter().zip(&paths) {
            output.line(format!("{}{}", printable(&entry.name), mark(entry.handle.kind())));
            listed.push(json!({ "name": shown(entry, path), "kind": word(entry.handle.kind()) }));
        }
        return Ok(());
    }
    let get = async |(entry, path): (&DirEntry, &FsPath)| client.getattr(path, entry.handle).await;
    let mut stats = stream::iter(entries.iter().zip(&paths)).map(get).buffered(AT_ONCE);
    let mut index = 0;
    while let Some(stat) = stats.next().await {
        let (entry, path) = (&entries[index], &paths[index]);
        index += 1;
        match stat {
            Ok(stat) => {
                output.line(long_line(&stat, &entry.name));
                listed.push(stat_json(shown(entry, path), &stat));
            }
            // Removed since the directory was read, so it is not listed.
            Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) => {}
            // The name is still known.
            Err(error) => {
                output.line(unknown_line(entry.handle.kind(), &entry.name));
                output.failure(error);
            }
        }
    }
    Ok(())
}

/// Formats a line like [`long_line`] for an entry whose attributes could not be read.
fn unknown_line(kind: Kind, name: impl Display) -> String {
    let (first, mark) = (&show_mode(kind, 0)[..1], mark(kind));
    format!("{first}????????? {:>5} {:>5} {:>14} {:>8} {:19} {}{mark}", '?', '?', '?', '?', '?', printable(name))
}

/// Returns what is printed behind a name.
fn mark(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "",
        Kind::Dir => "/",
        Kind::Symlink => "@",
    }
}

/// Returns the word for a kind in JSON.
fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "file",
        Kind::Dir => "directory",
        Kind::Symlink => "symlink",
    }
}

fn long_line(stat: &Stat, name: impl Display) -> String {
    let mode = show_mode(stat.attr.kind, stat.attr.mode);
    let layout = match &stat.distribution {
        Some(distribution) => format!("{}x{}", size::show_exact(distribution.strip_size()), distribution.servers()),
        None => "-".to_owned(),
    };
    let mark = match &stat.target {
        Some(target) => format!(" -> {}", printable(target)),
        None => mark(stat.attr.kind).to_owned(),
    };
    let (size, time) = (stat.attr.size, show_time(stat.attr.mtime_ns));
    format!("{mode} {:>5} {:>5} {size:>14} {layout:>8} {time} {}{mark}", stat.attr.uid, stat.attr.gid, printable(name))
}

fn stat_json(name: impl Display, stat: &Stat) -> Value {
    let attr = &stat.attr;
    let mut value = json!({
        "name": name.to_string(),
        "kind": word(attr.kind),
        "handle": stat.handle.to_string(),
        "mode": format!("{:04o}", attr.mode),
        "uid": attr.uid,
        "gid": attr.gid,
        "size": attr.size,
        "nlink": attr.nlink,
        "atime_ns": attr.atime_ns,
        "mtime_ns": attr.mtime_ns,
        "ctime_ns": attr.ctime_ns,
    });
    if let Some(distribution) = &stat.distribution {
        value["distribution"] = json!({
            "kind": "simple_stripe",
            "strip_size": distribution.strip_size(),
            "servers": distribution.servers(),
        });
        let datafile = |datafile: &crate::Datafile| json!({ "server": datafile.server.to_string(), "handle": datafile.handle.to_string(), "size": datafile.size });
        value["datafiles"] = stat.datafiles.iter().map(datafile).collect();
        let unfinished =
            |one: &crate::Unfinished| json!({ "server": one.server.to_string(), "size": one.size, "error": one.error });
        value["unfinished_truncations"] = stat.unfinished.iter().map(unfinished).collect();
    }
    value
}

pub(crate) async fn stat(client: &Client, paths: &[FsPath], output: &mut Output) -> Result<(), Stop> {
    let mut all = Vec::new();
    for path in paths {
        let stat = match client.stat(path).await {
            Ok(stat) => stat,
            Err(error) => {
                output.failure(error);
                continue;
            }
        };
        let attr = &stat.attr;
        let unit = if attr.kind == Kind::Dir { "entries" } else { "bytes" };
        output.line(format!("{}: {} {unit}, {}", printable(path), attr.size, stat.handle));
        let mode = show_mode(attr.kind, attr.mode);
        output.line(format!(
            "  mode {mode} ({:04o}), uid {}, gid {}, {} links",
            attr.mode, attr.uid, attr.gid, attr.nlink
        ));
        output.line(format!("  modified {} UTC, changed {} UTC", show_time(attr.mtime_ns), show_time(attr.ctime_ns)));
        if let Some(distribution) = &stat.distribution {
            let strip = size::show_exact(distribution.strip_size());
            output.line(format!("  simple_stripe, strips of {strip}, {} servers", distribution.servers()));
            for datafile in &stat.datafiles {
                output.line(format!("    {}: {}, {} bytes", datafile.server, datafile.handle, datafile.size));
            }
            for one in &stat.unfinished {
                let why = one.error.as_deref().unwrap_or("it has not answered yet");
                output.line(format!(
                    "  not carried out at {}: its datafile is to have {} bytes: {why}",
                    one.server, one.size
                ));
            }
        }
        all.push(stat_json(path, &stat));
    }
    output.field("files", json!(all));
    Ok(())
}
