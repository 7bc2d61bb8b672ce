//! Accidents around the commands: interrupted transfers, wrong or missing data directories, and
//! output for programs.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

#[allow(dead_code, unreachable_pub, reason = "shared by several test programs, each of which uses its part")]
#[path = "support/bodies.rs"]
mod bodies;
#[allow(dead_code, reason = "shared by several test programs, each of which uses its part")]
#[path = "support/cluster.rs"]
mod cluster;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use bodies::pattern;
use cluster::{Cluster, complaint, pvfsd};

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Runs `pvfs` under a shell's limits.
fn limited(cluster: &Cluster, before: &str, args: &str) -> Output {
    let line = format!("{before}; exec {} {args}", env!("CARGO_BIN_EXE_pvfs"));
    let mut command = Command::new("sh");
    command.env("PVFS_MANAGER", &cluster.manager).current_dir(cluster.dir.path()).args(["-c", &line]);
    command.output().unwrap()
}

/// Replays a bug: a failed fetch left a partial file under the target's name, and the previous file
/// was gone.
#[test]
fn a_get_that_fails_or_is_killed_leaves_what_was_there() {
    let cluster = Cluster::start(2);
    fs::write(cluster.path("f"), pattern(9_000_000, 1)).unwrap();
    cluster.ok(&["put", "f", "/f"]);
    fs::create_dir(cluster.path("into")).unwrap();
    for there in [false, true] {
        if there {
            fs::write(cluster.path("into/f"), "old").unwrap();
        }
        let before = names(&cluster.path("into"));
        // The disk accepts only four megabytes.
        let line = complaint(&limited(&cluster, "trap '' XFSZ; ulimit -f 8000", "get /f into"), 1);
        assert!(line.contains("into/f") && line.contains("too large"), "{line}");
        assert_eq!(names(&cluster.path("into")), before, "there: {there}");
        let killed = limited(&cluster, "ulimit -c 0; ulimit -f 8000", "get /f into");
        assert_eq!(killed.status.code(), None, "killed in the middle by the limit");
        assert_eq!(names(&cluster.path("into")), before, "there: {there}");
        if there {
            assert_eq!(fs::read_to_string(cluster.path("into/f")).unwrap(), "old");
        }
    }
    cluster.ok(&["get", "/f", "into"]);
    assert!(fs::read(cluster.path("into/f")).unwrap() == pattern(9_000_000, 1));
    assert_eq!(names(&cluster.path("into")), ["f"]);
}

#[test]
fn what_is_no_file_is_written_to_in_order_and_stays() {
    let cluster = Cluster::start(2);
    let bytes = pattern(9_000_000, 2);
    fs::write(cluster.path("f"), &bytes).unwrap();
    cluster.ok(&["put", "f", "/f"]);
    cluster.ok(&["get", "/f", "/dev/null"]);
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    assert!(Command::new("mkfifo").arg(cluster.path("pipe")).status().unwrap().success());
    let read = fs::File::create(cluster.path("read")).unwrap();
    let mut reader = Command::new("cat").arg(cluster.path("pipe")).stdout(read).spawn().unwrap();
    cluster.ok(&["get", "/f", "pipe"]);
    assert!(reader.wait().unwrap().success());
    assert!(fs::read(cluster.path("read")).unwrap() == bytes);
}

/// Replays a bug: `put -r` and `get -r` of a tree with executable files lost their permissions.
#[test]
fn permissions_survive_put_and_get() {
    let cluster = Cluster::start(1);
    for (name, mode) in [("program", 0o755), ("secret", 0o600), ("empty", 0o711)] {
        fs::write(cluster.path(name), if name == "empty" { "" } else { "x" }).unwrap();
        fs::set_permissions(cluster.path(name), Permissions::from_mode(mode)).unwrap();
        cluster.ok(&["put", name, &format!("/{name}")]);
        cluster.ok(&["get", &format!("/{name}"), "back"]);
        assert_eq!(fs::metadata(cluster.path("back")).unwrap().permissions().mode() & 0o777, mode, "{name}");
        fs::remove_file(cluster.path("back")).unwrap();
    }
}

/// Replays a bug: with `--json`, nothing was printed if the command ended early.
#[test]
fn json_is_one_document_whatever_happens() {
    let cluster = Cluster::start(1);
    for args in [&["ls", "/none"][..], &["get", "/none"], &["ping", "-m", "tcp://127.0.0.1:1"], &["put", "none", "/x"]]
    {
        let output = cluster.run(&[&["--json"], args].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let line = document["errors"][0].as_str().unwrap();
        assert_eq!(String::from_utf8(output.stderr).unwrap(), format!("pvfs: {line}\n"), "{args:?}");
    }
    // The file's bytes are not a document, and not part of one.
    let output = cluster.run(&["--json", "get", "/none", "-"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn names_with_control_codes_stay_on_their_line() {
    let cluster = Cluster::start(1);
    cluster.ok(&["mkdir", "/a\nb", "/\u{1b}[2J"]);
    assert_eq!(cluster.ok(&["ls"]), "\\u{1b}[2J/\na\\nb/\n");
    assert_eq!(cluster.json(&["ls"])["entries"][1]["name"], "a\nb");
    let line = complaint(&cluster.run(&["stat", "/a\nb/c\u{7}"]), 1);
    assert!(!line.trim_end().contains(char::is_control), "{line:?}");
}

/// Runs a server that is expected to stop with an error, and returns its one line.
fn refused(cluster: &Cluster, args: &[&str]) -> String {
    let mut command = Command::new(pvfsd());
    let output = command.current_dir(cluster.dir.path()).env("RUST_LOG", "off").args(args).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.starts_with("pvfsd: ") && errors.lines().count() == 1, "one clear line: {errors}");
    errors
}

/// Replays a bug: a server with the wrong directory answered zeros, and two servers on one
/// directory both served.
#[test]
fn a_server_with_the_wrong_directory_does_not_serve() {
    let mut cluster = Cluster::start(2);
    fs::write(cluster.path("f"), pattern(500_000, 1)).unwrap();
    cluster.ok(&["put", "--sync", "f", "/f"]);
    let config = fs::read_to_string(cluster.path("pvfs.toml")).unwrap();
    let other = |from: &str, to: &str| fs::write(cluster.path("other.toml"), config.replace(from, to)).unwrap();
    other("127.0.0.1", "127.0.0.2");
    for role in [&["manager"][..], &["iod", "0"]] {
        let line = refused(&cluster, &[&["-c", "other.toml"], role].concat());
        assert!(line.contains("another server is at work on it"), "{line}");
    }
    cluster.kill_server(1);
    cluster.kill_server(2);
    // As if the disks had been swapped.
    fs::rename(cluster.path("iod0"), cluster.path("aside")).unwrap();
    fs::rename(cluster.path("iod1"), cluster.path("iod0")).unwrap();
    let line = refused(&cluster, &["iod", "0"]);
    assert!(line.contains("belongs to iod 1, not to iod 0"), "{line}");
    fs::rename(cluster.path("iod0"), cluster.path("iod1")).unwrap();
    // As if a disk were not mounted.
    fs::create_dir(cluster.path("iod0")).unwrap();
    let line = refused(&cluster, &["iod", "0"]);
    assert!(line.contains("not the one that it had before") && line.contains("mounted"), "{line}");
    // A directory with somebody's files.
    fs::rename(cluster.path("iod0"), cluster.path("empty")).unwrap();
    fs::create_dir(cluster.path("iod0")).unwrap();
    fs::write(cluster.path("iod0/thesis.tex"), "").unwrap();
    let line = refused(&cluster, &["iod", "0"]);
    assert!(line.contains("thesis.tex"), "{line}");
    fs::remove_dir_all(cluster.path("iod0")).unwrap();
    fs::rename(cluster.path("aside"), cluster.path("iod0")).unwrap();
    for server in [1, 2] {
        cluster.start_server(server);
    }
    cluster.ok(&["get", "/f", "back"]);
    assert!(fs::read(cluster.path("back")).unwrap() == pattern(500_000, 1));
}

/// A manager that begins with an empty directory assigns the numbers of old datafiles again. New
/// files would then show the data of old ones.
#[test]
fn a_manager_that_lost_its_directory_is_not_given_the_old_data() {
    let mut cluster = Cluster::start(1);
    fs::write(cluster.path("f"), pattern(100_000, 1)).unwrap();
    cluster.ok(&["put", "--sync", "f", "/f"]);
    cluster.kill_server(0);
    cluster.kill_server(1);
    fs::rename(cluster.path("manager"), cluster.path("aside")).unwrap();
    cluster.start_server(0);
    let line = refused(&cluster, &["iod", "0"]);
    assert!(line.contains("holds files that this manager does not know"), "{line}");
    cluster.kill_server(0);
    fs::remove_file(cluster.path("manager/metadata.redb")).unwrap();
    let line = refused(&cluster, &["manager"]);
    assert!(line.contains("metadata.redb is gone"), "{line}");
    fs::remove_dir_all(cluster.path("manager")).unwrap();
    fs::rename(cluster.path("aside"), cluster.path("manager")).unwrap();
    cluster.start_server(0);
    cluster.start_server(1);
    cluster.ok(&["get", "/f", "back"]);
    // The disk is lost for good, and the administrator says so.
    cluster.kill_server(1);
    fs::remove_dir_all(cluster.path("iod0")).unwrap();
    cluster.start_server_with(1, &["--adopt"]);
    assert!(cluster.ok(&["stat", "/f"]).contains("/f: 0 bytes"));
    cluster.ok(&["put", "f", "/g"]);
    cluster.ok(&["get", "/g", "back"]);
    assert!(fs::read(cluster.path("back")).unwrap() == pattern(100_000, 1));
}

/// Replays a bug: a file that was written again kept its time of creation.
#[test]
fn a_file_that_is_written_to_has_a_new_time() {
    let cluster = Cluster::start(2);
    let time = |args: &[&str]| cluster.json(args)["files"][0]["mtime_ns"].as_u64().unwrap();
    fs::write(cluster.path("f"), pattern(100_000, 1)).unwrap();
    cluster.ok(&["put", "f", "/f"]);
    let first = time(&["stat", "/f"]);
    cluster.ok(&["put", "f", "/f"]);
    let second = time(&["stat", "/f"]);
    assert!(second > first, "{second} after {first}");
    let listed = cluster.json(&["ls", "-l"])["entries"][0]["mtime_ns"].as_u64().unwrap();
    assert_eq!(listed, second);
}
