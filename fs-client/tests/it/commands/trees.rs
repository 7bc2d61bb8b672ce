//! What `put -r`, `get -r` and `rm -r` leave behind when a file, a server or another program is in
//! their way: real processes, of which some are killed or stopped in the middle (`put.rs`).

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::bodies::{assert_same_tree, eventually, pattern, until_removed};
use crate::support::cluster::{Cluster, PATIENT, complaint, content, count, patient, piped, stderr};

#[expect(clippy::disallowed_methods, reason = "the processes that are waited for have no endpoint here")]
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Makes a tree of small files, and some of several blocks.
fn tree(at: &Path, small: usize, large: usize) {
    for dir in ["", "a", "a/b", "empty"] {
        fs::create_dir_all(at.join(dir)).unwrap();
    }
    for number in 0..small {
        let dir = ["", "a", "a/b"][number % 3];
        fs::write(at.join(dir).join(format!("s{number}")), pattern(number * 37 % 5000, number as u64)).unwrap();
    }
    for number in 0..large {
        fs::write(at.join("a").join(format!("l{number}")), pattern((3 << 20) + number, number as u64)).unwrap();
    }
}

/// Puts a tree while a server is killed and started again.
fn put_while_restarted(cluster: &mut Cluster, victim: usize) {
    let source = cluster.path("source");
    for round in 0.. {
        let (to, back) = (format!("/{victim}-{round}"), format!("back-{victim}-{round}"));
        let args = ["put", "-r", "source", &to, "--block-size", "256K", "--retry-for", PATIENT];
        let mut put = piped(cluster, &args);
        let mut ended = false;
        eventually("the put begins", || {
            ended = put.try_wait().unwrap().is_some();
            ended || count(cluster, "nameless_files") > 0
        });
        cluster.kill_server(victim);
        pause(300);
        ended |= put.try_wait().unwrap().is_some();
        cluster.start_server(victim);
        let output = put.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        patient(cluster, &["get", "-r", &to, &back]);
        assert_same_tree(&source, &cluster.path(&back));
        assert_eq!(count(cluster, "nameless_files"), 0);
        fs::remove_dir_all(cluster.path(&back)).unwrap();
        if !ended {
            return;
        }
        assert!(round < 20, "the put was never in the middle");
    }
}

/// Replays a bug: a restart of a server ended a `put -r` of thousands of files at the first one,
/// and a write that came in between could be lost without an error.
#[test]
fn a_tree_is_stored_while_servers_are_restarted() {
    let mut cluster = Cluster::start(3);
    tree(&cluster.path("source"), 200, 4);
    put_while_restarted(&mut cluster, 2);
    put_while_restarted(&mut cluster, 0);
}

/// Replays a bug: `put -r` ended at the first file that it could not store.
#[test]
fn a_put_of_a_tree_goes_on_after_failures() {
    let cluster = Cluster::start(2);
    let source = cluster.path("source");
    tree(&source, 9, 0);
    symlink("nowhere", source.join("a/dangling")).unwrap();
    fs::write(source.join(OsStr::from_bytes(b"\xff")), "x").unwrap();
    assert!(Command::new("mkfifo").arg(source.join("pipe")).status().unwrap().success());
    // A file has the place of the directory `a/b`.
    cluster.ok(&["mkdir", "-p", "/t/source/a"]);
    cluster.ok(&["put", "source/s0", "/t/source/a/b"]);
    let output = cluster.run(&["put", "-r", "source", "/t"]);
    let (text, errors) = (String::from_utf8(output.stdout.clone()).unwrap(), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(text.contains("8 files, 3 directories") && text.contains("2 FAILED"), "{text}");
    for (lines, part) in [(1, "pipe"), (1, "/t/source/a/b"), (2, "pvfs: ")] {
        assert_eq!(errors.lines().filter(|line| line.contains(part)).count(), lines, "{part}: {errors}");
    }
    let document = cluster.run(&["--json", "put", "-r", "source", "/t"]);
    let document: Value = serde_json::from_slice(&document.stdout).unwrap();
    assert_eq!((&document["failed"], document["errors"].as_array().unwrap().len()), (&2.into(), 2));
    assert_eq!(cluster.ok(&["ls", "/t/source/a"]), "b\ndangling@\ns1\ns4\ns7\n");
    assert!(cluster.ok(&["ls", "-l", "/t/source/a/dangling"]).ends_with("dangling -> nowhere\n"));
    assert!(content(&cluster, "/t/source/a/s7") == fs::read(source.join("a/s7")).unwrap());
    assert_eq!(count(&cluster, "nameless_files"), 0);
    // Names and links come back as they were, twice.
    for _ in 0..2 {
        cluster.ok(&["get", "-r", "-T", "/t/source", "back"]);
        assert_eq!(fs::read_link(cluster.path("back/a/dangling")).unwrap(), Path::new("nowhere"));
        assert_eq!(fs::read(cluster.path("back").join(OsStr::from_bytes(b"\xff"))).unwrap(), b"x");
    }
}

/// Replays a bug: when the manager was gone for good, the first file of a `put -r` was reported,
/// and the others that were in progress were neither stored nor counted.
#[test]
fn each_file_of_a_tree_is_reported_when_the_manager_is_gone() {
    let mut cluster = Cluster::start(1);
    fs::create_dir(cluster.path("source")).unwrap();
    for number in 0..20 {
        fs::write(cluster.path(&format!("source/{number}")), "").unwrap();
    }
    fs::write(cluster.path("source/last"), "not empty").unwrap();
    // The manager has datafiles in stock then.
    cluster.ok(&["put", "source/last", "/f"]);
    // The last file is not complete before the manager is gone, and the others wait for it.
    let stop = |cluster: &Cluster, signal| {
        kill_process(Pid::from_child(cluster.servers[1].as_ref().unwrap()), signal).unwrap();
    };
    stop(&cluster, Signal::STOP);
    let put = piped(&cluster, &["--json", "put", "-r", "source", "/t", "--window", "1", "--retry-for", "500ms"]);
    eventually("all are in progress", || manager_only_count(&cluster) == 21);
    cluster.kill_server(0);
    stop(&cluster, Signal::CONT);
    let output = put.wait_with_output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &document["failed"], &document["files"]), (Some(1), &21.into(), &0.into()));
}

/// Returns the number of files without a name while an I/O server does not answer.
fn manager_only_count(cluster: &Cluster) -> u64 {
    let output = cluster.run(&["--json", "statfs", "--timeout", "300ms"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["nameless_files"].as_u64().unwrap_or(0)
}

/// Replays a bug: `get -r` ended at the first file that it could not fetch.
#[test]
fn a_get_of_a_tree_goes_on_after_failures() {
    let mut cluster = Cluster::start(3);
    let source = cluster.path("source");
    tree(&source, 12, 0);
    cluster.ok(&["put", "-r", "source", "/one", "--servers", "1"]);
    fs::write(cluster.path("all"), pattern(400_000, 1)).unwrap();
    cluster.ok(&["put", "all", "/one/all", "--servers", "3"]);
    let needs = |entry: &Value| {
        let datafiles = entry["datafiles"].as_array().unwrap();
        datafiles.iter().any(|is| is["size"] != 0 && is["server"].as_str().unwrap().contains("(iod 0)"))
    };
    let listed = cluster.json(&["ls", "-l", "-R", "/one"]);
    let files: Vec<&Value> = listed["entries"].as_array().unwrap().iter().filter(|is| is["kind"] == "file").collect();
    assert!(files.iter().any(|file| needs(file)) && files.iter().any(|file| !needs(file)), "{listed}");
    cluster.kill_server(1);
    let output = cluster.run(&["--json", "get", "-r", "/one", "back"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let failed = files.iter().filter(|file| needs(file)).count();
    assert_eq!((&document["failed"], &document["files"]), (&failed.into(), &(files.len() - failed).into()));
    assert_eq!(stderr(&output).lines().filter(|line| line.contains("(iod 0)")).count(), failed);
    for file in files {
        let name = file["name"].as_str().unwrap().strip_prefix("/one/").unwrap();
        let back = cluster.path("back").join(name);
        assert_eq!(back.exists(), !needs(file), "{name}");
        if name != "all" && !needs(file) {
            assert!(fs::read(back).unwrap() == fs::read(source.join(name)).unwrap(), "{name}");
        }
    }
    let text = cluster.run(&["get", "-r", "/one", "again"]);
    assert!(String::from_utf8(text.stdout).unwrap().contains(&format!("; {failed} FAILED")));
}

/// A transfer that was interrupted is completed: what is there with the same size and time is left
/// out.
#[test]
fn resume_transfers_what_is_missing_or_changed() {
    let cluster = Cluster::start(2);
    let source = cluster.path("source");
    tree(&source, 10, 1);
    let run = |args: &[&str]| {
        let document = cluster.json(&[args, &["-r", "--resume"]].concat());
        ["files", "skipped", "failed"].map(|field| document[field].as_u64().unwrap())
    };
    let (put, get) = (["put", "source", "/"], ["get", "/source", "back"]);
    fs::create_dir(cluster.path("back")).unwrap();
    assert_eq!(run(&put), [11, 0, 0]);
    assert_eq!(run(&put), [0, 11, 0]);
    assert_eq!(run(&get), [11, 0, 0]);
    assert_eq!(run(&get), [0, 11, 0]);
    // One file is missing there; of two others either the size or the time differs.
    let touch = |name: &str, ns: u32| {
        let file = fs::OpenOptions::new().append(true).open(source.join(name)).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::new(1_500_000_000, ns)).unwrap();
    };
    touch("s3", 0);
    assert_eq!(run(&put), [1, 10, 0]);
    fs::write(source.join("s3"), pattern(fs::metadata(source.join("s3")).unwrap().len() as usize, 99)).unwrap();
    touch("s3", 1);
    fs::OpenOptions::new().append(true).open(source.join("a/b/s5")).unwrap().write_all(b"more").unwrap();
    fs::write(source.join("added"), "added").unwrap();
    cluster.ok(&["rm", "/source/a/s1"]);
    assert_eq!(run(&put), [4, 8, 0]);
    assert_eq!(run(&get), [3, 9, 0], "a/s1 is there already");
    assert_same_tree(&source, &cluster.path("back/source"));
    // Somebody changed a file in its place: its time is another one.
    cluster.ok(&["truncate", "/source/s6", "1"]);
    assert_eq!(run(&put), [1, 11, 0]);
    // A target with a new name is a directory the second time. With -T it remains the target.
    for round in [[12, 0, 0], [0, 12, 0]] {
        assert_eq!(run(&["put", "-T", "source", "/renamed"]), round);
        assert_eq!(run(&["get", "-T", "/renamed", "renamed"]), round);
    }
}

/// Replays a bug: `rm -r` removed one file after the other, and ended at the first error.
#[test]
fn a_large_tree_is_removed_while_others_add_to_it() {
    let cluster = Cluster::start(2);
    for dir in 0..10 {
        let dir = cluster.path(&format!("source/{dir}/x/y"));
        fs::create_dir_all(&dir).unwrap();
        (0..100).for_each(|number| fs::write(dir.join(number.to_string()), "x").unwrap());
    }
    fs::create_dir(cluster.path("source/flat")).unwrap();
    (0..1000).for_each(|number| fs::write(cluster.path(&format!("source/flat/{number}")), "").unwrap());
    let put = ["-q", "put", "-r", "source", "/t", "--no-sync", "--servers", "1", "--retry-for", PATIENT];
    cluster.ok(&put);
    assert_eq!(count(&cluster, "files"), 2000);
    cluster.ok(&["rm", "-r", "/t"]);
    assert_eq!((cluster.ok(&["ls"]), count(&cluster, "files")), (String::new(), 0));
    // What is added meanwhile is removed as well, or a directory is not empty and stays with what
    // is above it.
    let mut adding = cluster.command(&put).stderr(Stdio::null()).spawn().unwrap();
    eventually("files are added", || count(&cluster, "files") > 0 || adding.try_wait().unwrap().is_some());
    let removed = cluster.run(&["rm", "-r", "/t"]);
    let line = stderr(&removed);
    match removed.status.code() {
        Some(0) => assert_eq!(line, ""),
        status => assert!(status == Some(1) && line.lines().count() == 1 && line.contains("/t"), "{line}"),
    }
    assert!(matches!(adding.wait().unwrap().code(), Some(0 | 1)));
    cluster.ok(&["rm", "-r", "-f", "/t"]);
    assert_eq!((cluster.ok(&["ls"]), count(&cluster, "files")), (String::new(), 0));
    until_removed(&cluster);
    // One failure does not prevent the others.
    cluster.ok(&["mkdir", "-p", "/a/b", "/c/d"]);
    let line = complaint(&cluster.run(&["rm", "-r", "/a", "/none", "/c"]), 1);
    assert!(line.contains("/none"), "{line}");
    assert_eq!(cluster.ok(&["ls"]), "");
}

/// Replays a bug: `rm -r` overflowed its stack in a deep tree.
#[test]
fn a_deep_tree_is_removed() {
    let cluster = Cluster::start(1);
    let deep = "/d".repeat(1500);
    cluster.ok(&["mkdir", "-p", &deep]);
    // A tree need not be as deep as it can be if each level has 1.4 kB of the stack. A smaller one
    // is not enough to read the command line, if the program is not optimised.
    let line = format!("ulimit -s 2048; exec {} rm -r /d", env!("CARGO_BIN_EXE_pvfs"));
    let removed = Command::new("sh").env("PVFS_MANAGER", &cluster.manager).args(["-c", &line]).output().unwrap();
    assert!(removed.status.success(), "{}: {}", removed.status, stderr(&removed));
    assert_eq!(cluster.ok(&["ls"]), "");
}
