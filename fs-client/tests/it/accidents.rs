//! Accidents around the commands: interrupted transfers, and output for programs.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::bodies::pattern;
use crate::cluster::{Cluster, complaint};

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

/// Replays a bug: a file that was written again kept its time of creation.
#[test]
fn a_file_that_is_written_to_has_a_new_time() {
    let cluster = Cluster::start(2);
    let time = |args: &[&str]| cluster.json(args)["files"][0]["mtime_ns"].as_u64().unwrap();
    fs::write(cluster.path("f"), pattern(100_000, 1)).unwrap();
    cluster.ok(&["put", "f", "/f"]);
    let first = time(&["stat", "/f"]);
    cluster.ok(&["truncate", "/f", "70K"]);
    let second = time(&["stat", "/f"]);
    assert!(second > first, "{second} after {first}");
    let listed = cluster.json(&["ls", "-l"])["entries"][0]["mtime_ns"].as_u64().unwrap();
    assert_eq!(listed, second);
}

#[test]
fn put_and_get_keep_the_modification_time() {
    let cluster = Cluster::start(2);
    let modified = |name: &str| fs::metadata(cluster.path(name)).unwrap().modified().unwrap();
    let file = fs::File::create(cluster.path("f")).unwrap();
    fs::write(cluster.path("f"), pattern(100_000, 1)).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789)).unwrap();
    cluster.ok(&["put", "f", "/f"]);
    assert!(cluster.ok(&["stat", "/f"]).contains("modified 2001-09-09 01:46:40"));
    cluster.ok(&["get", "/f", "back"]);
    assert_eq!(modified("back"), modified("f"));
}
