//! What `put`, `get`, `rm -r` and `truncate` leave behind when something goes wrong: real
//! processes, of which some are killed, stopped or replaced in the middle.
//!
//! No test needs a certain speed. Where an event must happen in the middle of a command, the test
//! waits for a sign of it, or holds the command at a pipe.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};

use bmi::Scheme;
use fs_client::{ClientOptions, CreateOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::bodies::{assert_same_tree, eventually, options, path, pattern, stores, striped, with_client};
use crate::support::cluster::{Cluster, complaint};

/// Enough for servers that come back on a busy machine.
const PATIENT: &str = "60s";

#[expect(clippy::disallowed_methods, reason = "the processes that are waited for have no endpoint here")]
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Runs a command that may wait for servers and print that it does. It must succeed.
fn patient(cluster: &Cluster, args: &[&str]) {
    let output = cluster.run(&[args, &["--retry-for", PATIENT]].concat());
    assert!(output.status.success(), "pvfs {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the bytes of a file of the cluster.
fn content(cluster: &Cluster, name: &str) -> Vec<u8> {
    let output = cluster.run(&["cat", name, "--retry-for", PATIENT]);
    assert!(output.status.success(), "cat {name}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn count(cluster: &Cluster, field: &str) -> u64 {
    cluster.json(&["statfs"])[field].as_u64().unwrap()
}

/// Waits until the I/O servers have removed what is not used any more.
fn until_removed(cluster: &Cluster) {
    eventually("the datafiles of removed files are removed", || count(cluster, "orphaned_datafiles") == 0);
}

fn stat(cluster: &Cluster, name: &str) -> Value {
    cluster.json(&["stat", name])["files"][0].clone()
}

/// Returns the strip size and the number of servers of a file.
fn layout(stat: &Value) -> (u64, u64) {
    let distribution = &stat["distribution"];
    (distribution["strip_size"].as_u64().unwrap(), distribution["servers"].as_u64().unwrap())
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Starts a command whose input and output are pipes.
fn piped(cluster: &Cluster, args: &[&str]) -> Child {
    let mut command = cluster.command(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

// ---- whole files --------------------------------------------------------------------------------

/// Replays a bug: with a server down, `put --servers 4` over a file cut it off at the other servers
/// and failed. When the server was back, `get` returned zeros and old bytes, and exit status 0.
#[test]
fn a_put_that_misses_a_server_leaves_the_old_file() {
    let mut cluster = Cluster::start(4);
    let (old, new) = (pattern(1_000_000, 1), pattern(700_000, 2));
    fs::write(cluster.path("new"), &new).unwrap();
    stores(&cluster, "/f", &old);
    cluster.kill_server(2);
    let line = complaint(&cluster.run(&["put", "--servers", "4", "new", "/f"]), 1);
    assert!(line.contains("(iod 1)"), "{line}");
    cluster.start_server(2);
    assert!(content(&cluster, "/f") == old);
    assert_eq!(count(&cluster, "nameless_files"), 0, "the new one was abandoned");
    // If nobody asks for four servers, those that are up do.
    cluster.kill_server(2);
    patient(&cluster, &["put", "new", "/f"]);
    assert_eq!(layout(&stat(&cluster, "/f")).1, 3);
    assert!(content(&cluster, "/f") == new);
}

/// Replays a bug: a `put` that was killed left a part of the new file under the name, and the old
/// one was gone.
#[test]
fn a_put_that_is_killed_leaves_the_old_file() {
    let cluster = Cluster::start(2);
    let (old, part) = (pattern(300_000, 1), pattern(8 << 20, 2));
    stores(&cluster, "/f", &old);
    assert!(Command::new("mkfifo").arg(cluster.path("fifo")).status().unwrap().success());
    for (source, target) in [("-", "/f"), ("fifo", "/f"), ("fifo", "/new")] {
        let mut put = piped(&cluster, &["put", source, target, "--block-size", "64K"]);
        let write = |mut pipe: &mut dyn Write| (&mut pipe).write_all(&part).unwrap();
        // It has taken more than a pipe holds, so it is in the middle.
        match source {
            "-" => write(put.stdin.as_mut().unwrap()),
            _ => write(&mut fs::OpenOptions::new().write(true).open(cluster.path("fifo")).unwrap()),
        }
        put.kill().unwrap();
        put.wait().unwrap();
        assert_eq!(cluster.ok(&["ls"]), "f\n", "{source} {target}");
        assert!(content(&cluster, "/f") == old, "{source} {target}");
    }
}

/// Replays a bug: a `put` that met a full disk had cut the old file off before. The disk is a limit
/// on the size of files here, which the second server has.
#[test]
fn a_put_that_meets_a_full_disk_leaves_the_old_file() {
    let mut cluster = Cluster::start(2);
    let old = pattern(300_000, 1);
    fs::write(cluster.path("old"), &old).unwrap();
    fs::write(cluster.path("large"), pattern(8 << 20, 2)).unwrap();
    cluster.ok(&["put", "old", "/f"]);
    cluster.kill_server(2);
    cluster.try_start_server_after("trap '' XFSZ; ulimit -f 2000", 2, &[]).unwrap();
    let line = complaint(&cluster.run(&["put", "large", "/f", "--servers", "2", "--retry-for", PATIENT]), 1);
    assert!(line.contains("(iod 1)") && line.contains("too large"), "{line}");
    assert!(content(&cluster, "/f") == old);
    assert_eq!((cluster.ok(&["ls"]).as_str(), count(&cluster, "nameless_files")), ("f\n", 0));
    // A tree goes on with what fits.
    fs::create_dir(cluster.path("tree")).unwrap();
    for name in ["old", "large"] {
        fs::copy(cluster.path(name), cluster.path("tree").join(name)).unwrap();
    }
    let output = cluster.run(&["put", "-r", "tree", "/tree", "--servers", "2", "--retry-for", PATIENT]);
    assert!(complaint(&output, 1).contains("too large"));
    assert_eq!(cluster.ok(&["ls", "/tree"]), "old\n");
}

/// Replays a bug: two `put` to one name wrote into the same file, and left bytes of both.
#[test]
fn of_two_puts_to_one_name_one_whole_file_is_left() {
    let cluster = Cluster::start(3);
    let versions = [pattern(600_000, 1), pattern(900_000, 2)];
    for (name, bytes) in ["a", "b"].iter().zip(&versions) {
        fs::write(cluster.path(name), bytes).unwrap();
    }
    for round in 0..20 {
        let mut both = ["a", "b"].map(|name| {
            let args = ["-q", "put", name, "/f", "--block-size", "64K", "--no-sync", "--retry-for", PATIENT];
            cluster.command(&args).spawn().unwrap()
        });
        assert!(both.iter_mut().all(|put| put.wait().unwrap().success()), "round {round}");
        assert!(versions.contains(&content(&cluster, "/f")), "round {round}");
    }
    assert_eq!((count(&cluster, "files"), count(&cluster, "nameless_files")), (1, 0));
}

/// Replays a bug: a `get` to a pipe from a file that was replaced meanwhile ended with bytes of the
/// new file, or with zeros, and exit status 0.
#[test]
fn a_stream_of_a_file_that_is_replaced_fails() {
    let cluster = Cluster::start(3);
    let (old, new) = (pattern(8 << 20, 1), pattern(9 << 20, 2));
    stores(&cluster, "/f", &old);
    let mut get = piped(&cluster, &["get", "/f", "-", "--block-size", "64K", "--window", "2"]);
    let mut bytes = vec![0; 100_000];
    get.stdout.as_mut().unwrap().read_exact(&mut bytes).unwrap();
    stores(&cluster, "/f", &new);
    until_removed(&cluster);
    get.stdout.as_mut().unwrap().read_to_end(&mut bytes).unwrap();
    let line = complaint(&get.wait_with_output().unwrap(), 1);
    assert!(line.contains("stale handle") && line.contains("removed or replaced"), "{line}");
    assert!(bytes.len() < old.len() && old.starts_with(&bytes), "{} bytes, all of the old file", bytes.len());
}

/// Returns the size of the unnamed file in `dir` that a process writes to; 0 if there is none.
fn fetched_bytes(process: &Child, dir: &Path) -> u64 {
    let Ok(open) = fs::read_dir(format!("/proc/{}/fd", process.id())) else { return 0 };
    let paths = open.flatten().map(|entry| entry.path());
    let here = |fd: &std::path::PathBuf| fs::read_link(fd).is_ok_and(|target| target.starts_with(dir));
    paths.filter(here).filter_map(|fd| fs::metadata(fd).ok()).filter(|is| is.is_file()).map(|is| is.len()).sum()
}

/// Replays the same bug with a `get` to a file. It fetches the new file then. It is stopped in the
/// middle while the file is replaced.
#[test]
fn a_get_of_a_file_that_is_replaced_fetches_one_whole_file() {
    let cluster = Cluster::start(3);
    let size = 8 << 20;
    let versions = [pattern(size, 1), pattern(size, 2)];
    for (name, bytes) in ["0", "1"].iter().zip(&versions) {
        fs::write(cluster.path(name), bytes).unwrap();
    }
    let into = cluster.path("into");
    fs::create_dir(&into).unwrap();
    cluster.ok(&["put", "0", "/f"]);
    let mut round = 0;
    loop {
        round += 1;
        let args = ["-q", "get", "/f", "into/f", "--block-size", "64K", "--window", "1"];
        let mut get = cluster.command(&args).spawn().unwrap();
        eventually("the fetch begins", || fetched_bytes(&get, &into) > 0 || get.try_wait().unwrap().is_some());
        let in_the_middle = get.try_wait().unwrap().is_none() && {
            kill_process(Pid::from_child(&get), Signal::STOP).unwrap();
            (1..size as u64).contains(&fetched_bytes(&get, &into))
        };
        cluster.ok(&["put", &(round % 2).to_string(), "/f"]);
        until_removed(&cluster);
        let _ = kill_process(Pid::from_child(&get), Signal::CONT);
        assert!(get.wait().unwrap().success());
        let found = fs::read(into.join("f")).unwrap();
        if in_the_middle {
            assert!(found == versions[round % 2], "most of the old one was gone");
            break;
        }
        assert!(versions.contains(&found));
        assert!(round < 100, "never stopped in the middle");
    }
}

// ---- trees --------------------------------------------------------------------------------------

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
    assert!(text.contains("6 files, 3 directories") && text.contains("4 FAILED"), "{text}");
    for (lines, part) in [(1, "a/dangling"), (1, "not UTF-8"), (1, "pipe"), (1, "/t/source/a/b"), (4, "pvfs: ")] {
        assert_eq!(errors.lines().filter(|line| line.contains(part)).count(), lines, "{part}: {errors}");
    }
    let document = cluster.run(&["--json", "put", "-r", "source", "/t"]);
    let document: Value = serde_json::from_slice(&document.stdout).unwrap();
    assert_eq!((&document["failed"], document["errors"].as_array().unwrap().len()), (&4.into(), 4));
    assert_eq!(cluster.ok(&["ls", "/t/source/a"]), "b\ns1\ns4\ns7\n");
    assert!(content(&cluster, "/t/source/a/s7") == fs::read(source.join("a/s7")).unwrap());
    assert_eq!(count(&cluster, "nameless_files"), 0);
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

/// A replaced file keeps its mode, owner and layout, unless others are asked for. The modification
/// time is that of the content.
#[test]
fn a_replaced_file_keeps_mode_owner_and_layout() {
    let cluster = Cluster::start(3);
    fs::write(cluster.path("f"), pattern(300_000, 1)).unwrap();
    fs::set_permissions(cluster.path("f"), Permissions::from_mode(0o640)).unwrap();
    let file = fs::OpenOptions::new().append(true).open(cluster.path("f")).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789)).unwrap();
    create_as(&cluster, "/f", 1234, 567);
    let facts = || {
        let stat = stat(&cluster, "/f");
        let number = |field: &str| stat[field].as_u64().unwrap();
        let (strip_size, servers) = layout(&stat);
        (stat["mode"].as_str().unwrap().to_owned(), number("uid"), number("gid"), strip_size, servers)
    };
    let is = |mode: &str, strip_size, servers| (mode.to_owned(), 1234, 567, strip_size, servers);
    assert_eq!(facts(), is("0604", 16 << 10, 2));
    cluster.ok(&["put", "f", "/f"]);
    assert_eq!(facts(), is("0604", 16 << 10, 2));
    assert_eq!(stat(&cluster, "/f")["mtime_ns"], 1_000_000_000_123_456_789_u64);
    assert!(cluster.ok(&["stat", "/f"]).contains("modified 2001-09-09 01:46:40"));
    cluster.ok(&["put", "f", "/f", "--mode", "751", "--strip-size", "32K", "--servers", "3"]);
    assert_eq!(facts(), is("0751", 32 << 10, 3));
    cluster.ok(&["put", "f", "/f"]);
    assert_eq!(facts(), is("0751", 32 << 10, 3));
    // A new file has the mode of the local one.
    cluster.ok(&["put", "f", "/g"]);
    assert_eq!(stat(&cluster, "/g")["mode"], "0640");
    cluster.ok(&["get", "/f", "back"]);
    let back = fs::metadata(cluster.path("back")).unwrap();
    assert_eq!(back.modified().unwrap(), UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789));
    assert_eq!(back.permissions().mode() & 0o777, 0o751 & !umask());
}

fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(line.trim(), 8).unwrap()
}

/// Creates a file of another user, with mode 604 and strips of 16 KiB on two servers.
fn create_as(cluster: &Cluster, name: &str, uid: u32, gid: u32) {
    let options = ClientOptions { uid, gid, ..options() };
    with_client(Scheme::Tcp, &cluster.manager.parse().unwrap(), options, async |client| {
        let create = CreateOptions { mode: 0o604, ..striped(16 << 10, 2) };
        client.create(&path(name), create).await.unwrap();
    });
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

// ---- servers that are down ----------------------------------------------------------------------

/// Replays a bug: a command that waited for a server said nothing at all, or once for each request.
#[test]
fn a_server_that_is_waited_for_is_named_once() {
    let mut cluster = Cluster::start(2);
    let bytes = pattern(2_000_000, 1);
    stores(&cluster, "/f", &bytes);
    for (index, name) in [(1, "(iod 0)"), (0, "(manager)")] {
        cluster.kill_server(index);
        let args = ["get", "/f", "back", "--block-size", "64K", "--retry-for", PATIENT];
        let mut get = piped(&cluster, &args);
        let mut errors = BufReader::new(get.stderr.take().unwrap());
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        assert!(line.starts_with("pvfs: waiting ") && line.contains(name), "{line}");
        // Those that ask how the servers are do not wait for them.
        for args in [&["ping"], &["statfs"]] {
            let line = complaint(&cluster.run(&[&args[..], &["--retry-for", PATIENT]].concat()), 1);
            assert!(line.contains(name) && !line.contains("waiting"), "{line}");
        }
        cluster.start_server(index);
        line.clear();
        errors.read_to_string(&mut line).unwrap();
        assert!(get.wait().unwrap().success() && line.is_empty(), "{line}");
        assert!(fs::read(cluster.path("back")).unwrap() == bytes);
    }
}

/// Replays a bug: a truncation with a server down changed the size at the others, and the file was
/// a mixture when the server was back.
#[test]
fn a_truncation_that_misses_a_server_changes_nothing() {
    let mut cluster = Cluster::start(3);
    let bytes = pattern(1_000_000, 1);
    fs::write(cluster.path("f"), &bytes).unwrap();
    cluster.ok(&["put", "f", "/f", "--servers", "3"]);
    cluster.kill_server(2);
    // The second one finds what the first one has left.
    for size in ["100K", "2M"] {
        let line = complaint(&cluster.run(&["truncate", "/f", size]), 1);
        assert!(line.contains("iod 1"), "{line}");
    }
    cluster.start_server(2);
    assert!(content(&cluster, "/f") == bytes);
    patient(&cluster, &["truncate", "/f", "300000"]);
    assert!(content(&cluster, "/f") == bytes[..300_000]);
    patient(&cluster, &["truncate", "/f", "600K"]);
    // Replays a bug: just after a start of the manager, the servers counted as down.
    for size in ["700K", "600K"] {
        cluster.kill_server(0);
        cluster.start_server(0);
        cluster.ok(&["truncate", "/f", size]);
    }
    let longer = content(&cluster, "/f");
    assert!(longer.len() == 600 << 10 && longer[..300_000] == bytes[..300_000]);
    assert!(longer[300_000..].iter().all(|byte| *byte == 0));
}

/// Replays a bug: the manager removed the files without a name of a client that had only lost its
/// connection.
#[test]
fn a_file_without_a_name_outlasts_a_restart_of_the_manager() {
    let mut cluster = Cluster::start(2);
    let bytes = pattern(6 << 20, 1);
    let mut put = piped(&cluster, &["put", "-", "/f", "--block-size", "64K", "--retry-for", PATIENT]);
    let mut input = put.stdin.take().unwrap();
    let (first, rest) = bytes.split_at(bytes.len() / 2);
    input.write_all(first).unwrap();
    for round in 0..2 {
        assert_eq!((count(&cluster, "nameless_files"), count(&cluster, "files")), (1, 0), "round {round}");
        assert_eq!(cluster.ok(&["ls"]), "");
        cluster.kill_server(0);
        cluster.start_server(0);
    }
    input.write_all(rest).unwrap();
    drop(input);
    let output = put.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(content(&cluster, "/f") == bytes);
    assert_eq!((count(&cluster, "nameless_files"), count(&cluster, "files")), (0, 1));
}
