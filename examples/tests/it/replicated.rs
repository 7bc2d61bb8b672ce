//! The program `replicated` as several processes.

use std::path::Path;
use std::process::Command;

use crate::program::{Server, fail, private_dir, succeed};

fn replicated(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_replicated"));
    command.args(arguments);
    command
}

/// Starts the replica `name`.
fn replica(dir: &Path, name: &str, addr: &str) -> Server {
    Server::start(replicated(&["replica", addr]).arg(dir.join(name)))
}

/// Writes and reads while replicas are lost and come back. `addrs` are the addresses to listen at.
fn survive(dir: &Path, addrs: [&str; 3]) {
    let start = |index: usize, addr: &str| replica(dir, &index.to_string(), addr);
    let replicas = |servers: [&Server; 3]| servers.map(|server| server.addr.clone());
    let put =
        |value: &str, all: &[String]| succeed(replicated(&["put", "--patience-ms", "5000", "key", value]).args(all));
    let get = |all: &[String]| succeed(replicated(&["get", "key"]).args(all));

    let [a, b, c] = [0, 1, 2].map(|index| start(index, addrs[index]));
    let all = replicas([&a, &b, &c]);
    let missing = fail(replicated(&["get", "key"]).args(&all));
    assert!(missing.contains("there is no block key"), "{missing}");
    assert_eq!(put("one", &all), "version 1\n");
    drop(a);
    assert_eq!(get(&all), "one\n");
    assert_eq!(put("two", &all), "version 2\n");

    // A replica comes back with its old block, and one that has the new block is lost.
    let a = start(0, addrs[0]);
    let all = replicas([&a, &b, &c]);
    drop(b);
    assert_eq!(get(&all), "two\n");
    drop(c);
    let lost = fail(replicated(&["get", "key"]).args(&all));
    assert!(lost.contains("1 of 3 replicas answered, 2 are needed"), "{lost}");

    // The get wrote the new block back to the replica that had the old one.
    assert_eq!(get(std::slice::from_ref(&a.addr)), "two\n");
}

#[test]
fn a_store_goes_on_when_a_replica_is_lost_over_tcp() {
    survive(private_dir().path(), ["tcp://127.0.0.1:0"; 3]);
}

#[test]
fn a_store_goes_on_when_a_replica_is_lost_over_shared_memory() {
    let dir = private_dir();
    let addrs = ["a", "b", "c"].map(|name| format!("shm://{}/{name}", dir.path().display()));
    survive(dir.path(), addrs.each_ref().map(String::as_str));
}
