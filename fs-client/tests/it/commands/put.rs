//! What `put`, `get` and `truncate` leave of a file when something goes wrong: real processes, of
//! which some are killed, stopped or replaced in the middle. `trees.rs` has those of whole trees.
//!
//! No test needs a certain speed. Where an event must happen in the middle of a command, the test
//! waits for a sign of it, or holds the command at a pipe.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, UNIX_EPOCH};

use bmi::Scheme;
use fs_client::CreateOptions;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::bodies::{eventually, options, path, pattern, stores, striped, until_removed, with_client};
use crate::support::cluster::{Cluster, PATIENT, complaint, content, count, patient, piped, stderr};

fn stat(cluster: &Cluster, name: &str) -> Value {
    cluster.json(&["stat", name])["files"][0].clone()
}

/// Returns the strip size and the number of servers of a file.
fn layout(stat: &Value) -> (u64, u64) {
    let distribution = &stat["distribution"];
    (distribution["strip_size"].as_u64().unwrap(), distribution["servers"].as_u64().unwrap())
}

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
    with_client(Scheme::Tcp, &cluster.manager.parse().unwrap(), options(), async |client| {
        let create = CreateOptions { mode: 0o604, owner: Some((uid, gid)), ..striped(16 << 10, 2) };
        client.create(&path(name), create).await.unwrap();
    });
}

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
