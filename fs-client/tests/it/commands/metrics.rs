//! What `pvfsd` serves of its counters: with real processes, over a real socket.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::support::bodies::eventually;
use crate::support::cluster::pvfsd;

/// The values of a page, by name and labels, and the names of its values.
struct Page {
    values: BTreeMap<String, f64>,
    names: BTreeSet<String>,
}

/// Fetches and parses what a server serves; `None` if it does not serve yet.
fn fetched(addr: &str) -> Option<Page> {
    let mut stream = TcpStream::connect(addr).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    let (mut values, mut names) = (BTreeMap::new(), BTreeSet::new());
    for line in body.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("# ") {
            Some(comment) => {
                let (kind, rest) = comment.split_once(' ').unwrap();
                let name = rest.split(' ').next().unwrap();
                assert!(matches!(kind, "HELP" | "TYPE"), "{line}");
                if kind == "TYPE" {
                    assert!(names.insert(name.to_owned()), "{name} is there once");
                }
            }
            None => {
                let (name, value) = line.rsplit_once(' ').unwrap();
                values.insert(name.to_owned(), value.parse().unwrap());
            }
        }
    }
    Some(Page { values, names })
}

/// Returns the names in a table of a document that begin so.
fn documented(document: &str, begin: &str) -> BTreeSet<String> {
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    rows.map(|(name, _)| name.to_owned()).filter(|name| name.starts_with(begin)).collect()
}

#[test]
fn servers_serve_their_counters() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = testbed::cluster::Cluster::begin(dir.path(), pvfsd(), 1).unwrap();
    let path = dir.path().join("pvfs.toml");
    let host = cluster.tcp[0].trim_start_matches("tcp://").rsplit_once(':').unwrap().0.to_owned();
    let cache = format!("[cache]\nservice = \"unifier\"\nmemory = \"8M\"\ndir = {:?}\n", dir.path());
    // The section at the end is that of the storage.
    let config = fs::read_to_string(&path).unwrap() + "checksums = true\n";
    let config = format!("metrics = \"{host}:9400\"\n{config}{cache}");
    fs::write(&path, config).unwrap();
    (0..2).for_each(|index| cluster.start_server(index).unwrap());
    let (manager, iod) = (format!("{host}:9400"), format!("{host}:9401"));
    let value = |addr: &str, name: &str| fetched(addr).and_then(|page| page.values.get(name).copied());
    eventually("the manager knows its I/O server", || value(&manager, "pvfs_iods_up{server=\"manager\"}") == Some(1.0));
    eventually("the I/O server has created datafiles", || {
        value(&iod, "pvfs_datafiles{server=\"iod0\"}").is_some_and(|datafiles| datafiles > 0.0)
    });
    let pages = [fetched(&manager).unwrap(), fetched(&iod).unwrap()];
    // The I/O server registers, and reports again and again.
    assert!(pages[0].values["pvfs_requests_total{server=\"manager\",request=\"register\"}"] >= 1.0);
    assert_eq!(pages[0].values["pvfs_directories{server=\"manager\"}"], 1.0);
    assert!(pages[1].values["pvfs_requests_total{server=\"iod0\",request=\"create\"}"] >= 1.0);
    assert!(pages[1].values["pvfs_request_seconds_count{server=\"iod0\"}"] >= 1.0);
    assert_eq!(pages[1].values["bmi_engine_peers{endpoint=\"iod0\"}"], 2.0);
    // All names are documented, and no others are.
    let served: BTreeSet<String> = pages.into_iter().flat_map(|page| page.names).collect();
    let own = documented(include_str!("../../../../docs/operating.md"), "pvfs_");
    let engines = documented(include_str!("../../../../docs/embedding.md"), "bmi_engine_");
    assert_eq!(served, own.union(&engines).cloned().collect());
    // What is in the configuration and cannot be had ends the server.
    let output = cluster.pvfsd().args(["manager"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains(&format!("metrics at {manager}")), "{said}");
}
