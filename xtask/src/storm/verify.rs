//! What is checked when the storm is over: names, sizes, datafiles, logs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::Storm;
use super::cluster::Cluster;
use super::content::{Content, state_name};
use super::killer::Killer;
use super::report::{Blows, Space, Wrong};

/// Time between two looks at the servers.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// Kinds of operations that each storm must have tested.
const NEEDED: [&str; 4] = ["put new", "put over", "get", "get shared"];
/// The most datafiles without a file that a report lists.
const MOST_UNOWNED: usize = 20;

/// The names with their possible states.
pub(super) type States = BTreeMap<String, BTreeSet<Option<Content>>>;

/// Waits until all servers answer, for at most `limit_us`. Servers that end are started again.
pub(super) fn await_servers(storm: &Storm, killer: &mut Killer<'_>, limit_us: u64) -> Result<(), String> {
    let end_us = storm.clock.now_us() + limit_us;
    loop {
        killer.look()?;
        let ended = storm.client.run(&["statfs"])?;
        killer.note(&format!(
            "{} since {:.3} s: {:?} {}",
            ended.line,
            ended.begin_us as f64 / 1e6,
            ended.verdict,
            ended.errors
        ));
        if ended.is_acknowledged() {
            return Ok(());
        }
        if storm.clock.now_us() > end_us {
            return Err(format!("after {} s not all servers answer: {}", limit_us / 1_000_000, ended.errors));
        }
        storm.clock.sleep(LOOK_AGAIN);
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
pub(super) fn await_quiet(storm: &Storm, states: &States, limit_us: u64) -> Result<Space, String> {
    let begin_us = storm.clock.now_us();
    loop {
        let (mut space, files) = look(storm)?;
        let waited_us = storm.clock.now_us() - begin_us;
        let is_quiet = space.orphans == 0 && space.without_a_name == 0;
        if !is_quiet && waited_us < limit_us {
            storm.clock.sleep(LOOK_AGAIN);
            continue;
        }
        space.quiet_after_s = waited_us as f64 / 1e6;
        if space.orphans != 0 {
            space.unowned = unowned(&storm.dir, &files);
            let text = format!("{} datafiles belong to no file and are not prepared", space.orphans);
            storm.tally().wrong(finding(&text, "", storm));
        }
        if space.without_a_name != 0 {
            let text = format!("{} files are counted by the manager and have no name", space.without_a_name);
            storm.tally().wrong(finding(&text, "", storm));
        }
        compare(storm, states, &files);
        return Ok(space);
    }
}

/// Reports each server that panicked, or ended by itself.
pub(super) fn check_servers(storm: &Storm, cluster: &Cluster, blows: &Blows) {
    for panic in cluster.panics() {
        storm.tally().wrong(finding(&format!("a server panicked: {panic}"), "", storm));
    }
    for line in &blows.ended_by_themselves {
        storm.tally().wrong(finding(&format!("a server ended by itself: {line}"), "", storm));
    }
}

/// Reports a storm that has tested nothing, because no command could succeed.
pub(super) fn check_coverage(storm: &Storm, blows: &Blows) {
    for kind in NEEDED.into_iter().filter(|kind| !storm.tally().has(kind)) {
        storm.tally().wrong(finding(&format!("no `{kind}` was acknowledged, so nothing was tested"), "", storm));
    }
    if blows.kills.is_empty() {
        storm.tally().wrong(finding("no server was killed, so nothing was tested", "", storm));
    }
}

/// Asks for the space and the listing. Nothing changes names any more.
fn look(storm: &Storm) -> Result<(Space, BTreeMap<String, Listed>), String> {
    let ask = |args: &[&str]| {
        let (ended, value) = storm.client.json(args)?;
        value.ok_or_else(|| format!("{} after the storm: {:?} {}", ended.line, ended.verdict, ended.errors))
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
fn listed(listing: &Value) -> Result<BTreeMap<String, Listed>, String> {
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
    let abandoned = storm.abandoned();
    let names = states.keys().chain(files.keys()).filter(|name| !abandoned.contains(*name));
    for name in names.collect::<BTreeSet<_>>() {
        let absent = BTreeSet::from([None]);
        let possible = states.get(name).unwrap_or(&absent);
        let size = files.get(name).map(|file| file.size);
        if !possible.iter().any(|state| state.map(|content| content.size) == size) {
            let text = match (size, states.contains_key(name)) {
                (Some(_), false) => "is listed, and nothing has made it",
                (Some(_), true) => "is listed with a size that is not possible",
                (None, _) => "is not listed",
            };
            let seen = size.map_or(String::new(), |size| format!("{size} bytes"));
            let possible = possible.iter().map(|state| state_name(*state)).collect();
            storm.tally().wrong(Wrong { seen, possible, ..finding(text, name, storm) });
        }
    }
}

/// Returns the datafiles on disk that no listed file has. Those that were prepared have no file on
/// disk.
fn unowned(dir: &Path, files: &BTreeMap<String, Listed>) -> Vec<String> {
    let owned: BTreeSet<&str> = files.values().flat_map(|file| file.datafiles.iter().map(String::as_str)).collect();
    let below = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let servers = below(dir).filter(|path| path.is_dir() && name_of(path).starts_with("iod"));
    let folders = servers.flat_map(|path| below(&path).collect::<Vec<_>>()).filter(|path| path.is_dir());
    let datafiles = folders.flat_map(|path| below(&path).collect::<Vec<_>>());
    let mut unowned: Vec<String> = datafiles
        .filter(|path| !owned.contains(name_of(path).as_str()))
        .map(|path| {
            let len = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            format!("{}, {len} bytes", path.strip_prefix(dir).unwrap_or(&path).display())
        })
        .collect();
    unowned.sort();
    unowned.truncate(MOST_UNOWNED);
    unowned
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn finding(what: &str, name: &str, storm: &Storm) -> Wrong {
    Wrong {
        what: what.to_owned(),
        at_ms: storm.clock.now_us() / 1000,
        worker: "after the storm".to_owned(),
        name: name.to_owned(),
        command: String::new(),
        errors: String::new(),
        possible: Vec::new(),
        seen: String::new(),
        before: Vec::new(),
        saved: None,
    }
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
