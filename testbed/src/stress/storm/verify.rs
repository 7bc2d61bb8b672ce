//! What is checked when the storm is over: names, sizes, datafiles, logs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use testbed::Outcome;
use testbed::names::{Content, state_name};
use testbed::process::sleep;

use super::Storm;
use super::killer::Killer;
use super::report::{Space, Wrong};

/// Longest wait for all servers to answer.
const START_LIMIT_US: u64 = 60_000_000;
/// Time between two looks at the servers.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Kinds of operations that each storm must have tested.
const NEEDED: [&str; 4] = ["put new", "put over", "get", "get shared"];
/// The most datafiles without a file that a report lists.
const MOST_UNOWNED: usize = 20;

/// The names with their possible states.
pub(super) type States = BTreeMap<String, BTreeSet<Option<Content>>>;

/// Waits until all servers answer. Servers that end are started again.
pub(super) fn await_servers(storm: &Storm, killer: &mut Killer<'_>) -> Outcome {
    let end_us = storm.now_us() + START_LIMIT_US;
    loop {
        killer.look()?;
        let ended = storm.run(&storm.pvfs, &["statfs"])?;
        let (line, begin_s) = (&ended.line, ended.begin_us as f64 / 1e6);
        killer.note(&format!("{line} since {begin_s:.3} s: {:?} {}", ended.verdict, ended.errors));
        if ended.is_acknowledged() {
            return Ok(());
        }
        if storm.now_us() > end_us {
            let limit_s = START_LIMIT_US / 1_000_000;
            return Err(format!("after {limit_s} s not all servers answer: {}", ended.errors).into());
        }
        sleep(LOOK_AGAIN);
    }
}

/// A file of the listing.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    size: u64,
    /// The names of its datafiles on disk.
    datafiles: Vec<String>,
}

/// Waits until there are no orphans, for at most `limit_us`, and returns what is there then.
pub(super) fn await_quiet(storm: &Storm, states: &States, limit_us: u64) -> Outcome<Space> {
    let begin_us = storm.now_us();
    let (mut space, files) = loop {
        let (space, files) = look(storm)?;
        let is_quiet = space.orphans == 0 && space.without_a_name == 0;
        if is_quiet || storm.now_us() - begin_us >= limit_us {
            break (space, files);
        }
        sleep(LOOK_AGAIN);
    };
    space.quiet_after_s = (storm.now_us() - begin_us) as f64 / 1e6;
    if space.orphans != 0 {
        space.unowned = unowned(&storm.dir, &files);
        wrong(storm, &format!("{} datafiles belong to no file and are not prepared", space.orphans));
    }
    if space.without_a_name != 0 {
        wrong(storm, &format!("{} files are counted by the manager and have no name", space.without_a_name));
    }
    compare(storm, states, &files);
    Ok(space)
}

/// Reports each server that panicked or ended by itself, and a storm that has tested nothing,
/// because no command could succeed.
pub(super) fn check_servers(storm: &Storm, killer: &Killer<'_>) {
    for panic in killer.cluster.panics() {
        wrong(storm, &format!("a server panicked: {panic}"));
    }
    for line in &killer.blows.ended_by_themselves {
        wrong(storm, &format!("a server ended by itself: {line}"));
    }
    let missing: Vec<&str> = NEEDED.into_iter().filter(|kind| !storm.tally().has(kind)).collect();
    for kind in missing {
        wrong(storm, &format!("no `{kind}` was acknowledged, so nothing was tested"));
    }
    if killer.blows.kills.is_empty() {
        wrong(storm, "no server was killed, so nothing was tested");
    }
}

/// Asks for the space and the listing. Nothing changes names any more.
fn look(storm: &Storm) -> Outcome<(Space, BTreeMap<String, Listed>)> {
    let ask = |args: &[&str]| -> Outcome<Value> {
        let (ended, value) = storm.pvfs.json(args)?;
        Ok(value.ok_or_else(|| format!("{} after the storm: {:?} {}", ended.line, ended.verdict, ended.errors))?)
    };
    let (space, listing) = (ask(&["statfs"])?, ask(&["ls", "-l", "-R", "/"])?);
    let files = listed(&listing)?;
    let number = |value: &Value, field: &str| {
        value[field].as_u64().ok_or_else(|| format!("`pvfs --json statfs` has no number `{field}`"))
    };
    let servers = space["servers"].as_array().ok_or("`pvfs --json statfs` has no servers")?;
    let datafiles = servers.iter().map(|server| number(server, "datafiles")).sum::<Result<u64, String>>()?;
    let prepared = number(&space, "prepared_datafiles")?;
    let of_files = files.values().map(|file| file.datafiles.len() as u64).sum();
    let space = Space {
        datafiles,
        prepared,
        of_files,
        orphans: datafiles.cast_signed() - (prepared + of_files).cast_signed(),
        files: files.len() as u64,
        without_a_name: number(&space, "files")?.cast_signed() - files.len() as i64,
        ..Space::default()
    };
    Ok((space, files))
}

/// Reads the files of a listing.
fn listed(listing: &Value) -> Outcome<BTreeMap<String, Listed>> {
    let entries = listing["entries"].as_array().ok_or("`pvfs --json ls` has no entries")?;
    let mut files = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry["kind"] == "file") {
        let name = entry["name"].as_str().ok_or("`pvfs --json ls` has an entry without a name")?;
        let datafiles = entry["datafiles"].as_array().ok_or("`pvfs --json ls -l` shows no datafiles")?;
        let handle = |datafile: &Value| {
            let handle = datafile["handle"].as_str().unwrap_or_default();
            handle.rsplit(':').next().unwrap_or_default().to_owned()
        };
        let datafiles = datafiles.iter().map(handle).collect();
        files.insert(name.to_owned(), Listed { size: entry["size"].as_u64().unwrap_or(u64::MAX), datafiles });
    }
    Ok(files)
}

/// Compares the listing with the models.
fn compare(storm: &Storm, states: &States, files: &BTreeMap<String, Listed>) {
    let abandoned = super::locked(&storm.abandoned);
    let names = states.keys().chain(files.keys()).filter(|name| !abandoned.contains(*name));
    for name in names.collect::<BTreeSet<_>>() {
        let absent = BTreeSet::from([None]);
        let possible = states.get(name).unwrap_or(&absent);
        let size = files.get(name).map(|file| file.size);
        if !possible.iter().any(|state| state.map(|content| content.size) == size) {
            let what = match (size, states.contains_key(name)) {
                (Some(_), false) => "is listed, and nothing has made it",
                (Some(_), true) => "is listed with a size that is not possible",
                (None, _) => "is not listed",
            };
            let seen = size.map_or(String::new(), |size| format!("{size} bytes"));
            let possible = possible.iter().map(|state| state_name(*state)).collect();
            storm.tally().wrong(Wrong { name: name.clone(), seen, possible, ..finding(storm, what) });
        }
    }
}

/// Returns the datafiles on disk that no listed file has. Those that were prepared have no file on
/// disk.
fn unowned(dir: &Path, files: &BTreeMap<String, Listed>) -> Vec<String> {
    let owned: BTreeSet<&str> = files.values().flat_map(|file| file.datafiles.iter().map(String::as_str)).collect();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let below = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let datafiles = below(dir.to_owned()).filter(|path| name(path).starts_with("iod")).flat_map(below).flat_map(below);
    let mut unowned: Vec<String> = datafiles
        .filter(|path| !owned.contains(name(path).as_str()))
        .map(|path| {
            let len = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            format!("{}, {len} bytes", path.strip_prefix(dir).unwrap_or(&path).display())
        })
        .collect();
    unowned.sort();
    unowned.truncate(MOST_UNOWNED);
    unowned
}

fn wrong(storm: &Storm, what: &str) {
    storm.tally().wrong(finding(storm, what));
}

fn finding(storm: &Storm, what: &str) -> Wrong {
    let at_ms = storm.now_us() / 1000;
    Wrong { what: what.to_owned(), at_ms, worker: "after the storm".to_owned(), ..Wrong::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_listing_have_sizes_and_the_names_of_their_datafiles() {
        let text = r#"{"entries": [
            {"name": "/d", "kind": "directory", "size": 1},
            {"name": "/d/a", "kind": "file", "size": 7, "datafiles": [{"server": "x", "handle": "data:00ff", "size": 7}]}
        ]}"#;
        let files = listed(&serde_json::from_str(text).unwrap()).unwrap();
        assert_eq!(files, BTreeMap::from([("/d/a".into(), Listed { size: 7, datafiles: vec!["00ff".into()] })]));
        assert!(listed(&serde_json::from_str("{}").unwrap()).is_err());
    }
}
