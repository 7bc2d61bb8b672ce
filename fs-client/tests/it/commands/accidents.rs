//! Accidents around the commands: interrupted transfers, commands that are stopped in the middle
//! (`SIGSTOP`) while others go on, output for programs, and damage in the servers' directories.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use testbed::process::{Process, until};

use crate::support::bodies::{eventually, fetches, names_in, pattern, stores, until_removed};
use crate::support::cluster::{Cluster, complaint, piped};

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
    stores(&cluster, "/f", &pattern(9_000_000, 1));
    fs::create_dir(cluster.path("into")).unwrap();
    for there in [false, true] {
        if there {
            fs::write(cluster.path("into/f"), "old").unwrap();
        }
        let before = names_in(&cluster.path("into"));
        // The disk accepts only four megabytes.
        let line = complaint(&limited(&cluster, "trap '' XFSZ; ulimit -f 8000", "get /f into"), 1);
        assert!(line.contains("into/f") && line.contains("too large"), "{line}");
        assert_eq!(names_in(&cluster.path("into")), before, "there: {there}");
        let killed = limited(&cluster, "ulimit -c 0; ulimit -f 8000", "get /f into");
        assert_eq!(killed.status.code(), None, "killed in the middle by the limit");
        assert_eq!(names_in(&cluster.path("into")), before, "there: {there}");
        if there {
            assert_eq!(fs::read_to_string(cluster.path("into/f")).unwrap(), "old");
        }
    }
    cluster.ok(&["get", "/f", "into"]);
    assert!(fs::read(cluster.path("into/f")).unwrap() == pattern(9_000_000, 1));
    assert_eq!(names_in(&cluster.path("into")), ["f"]);
}

#[test]
fn what_is_no_file_is_written_to_in_order_and_stays() {
    let cluster = Cluster::start(2);
    let bytes = pattern(9_000_000, 2);
    stores(&cluster, "/f", &bytes);
    cluster.ok(&["get", "/f", "/dev/null"]);
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    assert!(Command::new("mkfifo").arg(cluster.path("pipe")).status().unwrap().success());
    let read = fs::File::create(cluster.path("read")).unwrap();
    let mut reader = Command::new("cat").arg(cluster.path("pipe")).stdout(read).spawn().unwrap();
    cluster.ok(&["get", "/f", "pipe"]);
    assert!(reader.wait().unwrap().success());
    assert!(fs::read(cluster.path("read")).unwrap() == bytes);
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
    stores(&cluster, "/f", &pattern(100_000, 1));
    let first = time(&["stat", "/f"]);
    cluster.ok(&["truncate", "/f", "70K"]);
    let second = time(&["stat", "/f"]);
    assert!(second > first, "{second} after {first}");
    let listed = cluster.json(&["ls", "-l"])["entries"][0]["mtime_ns"].as_u64().unwrap();
    assert_eq!(listed, second);
}

// ---- commands that are stopped ------------------------------------------------------------------

/// Number of commands that are stopped.
const STOPPED: usize = 12;
/// Size of the file that they move. It has no bytes on a disk, and no command comes to its end.
const ENDLESS: u64 = 1 << 40;
/// A command that has moved this many bytes is in the middle.
const MIDDLE: u64 = 8 << 20;
/// Time limit of the requests of the other commands.
const TIMEOUT: &str = "8s";

/// Waits until a command has moved `more` bytes.
fn moves(command: &mut Process, more: u64) {
    let end = command.moved() + more;
    let has_moved = || {
        assert_eq!(command.try_wait()?, None, "it goes on without end");
        Ok(command.moved() >= end)
    };
    assert!(until(Duration::from_secs(600), has_moved).unwrap());
}

/// Starts commands, and stops all of them when each is in the middle of its file.
fn stopped(cluster: &Cluster, args: impl Fn(usize) -> Vec<String>) -> Vec<Process> {
    let start = |index| {
        let args = args(index);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        Process::start(cluster.command(&args).stdout(Stdio::null()).stderr(Stdio::null())).unwrap()
    };
    let mut all: Vec<_> = (0..STOPPED).map(start).collect();
    all.iter_mut().for_each(|one| moves(one, MIDDLE));
    all.iter().for_each(|one| one.signal(Signal::STOP));
    all
}

/// Stores and fetches files. No request of it waits for [`TIMEOUT`].
fn others_go_on(cluster: &Cluster) {
    fs::write(cluster.path("f"), pattern(9_000_000, 1)).unwrap();
    for round in 0..4 {
        let (name, copy) = (format!("/f{round}"), format!("copy{round}"));
        cluster.ok(&["--timeout", TIMEOUT, "put", "f", &name]);
        cluster.ok(&["--timeout", TIMEOUT, "get", &name, &copy]);
        assert!(fs::read(cluster.path(&copy)).unwrap() == pattern(9_000_000, 1));
    }
}

/// Replays a bug: the stopped commands kept the buffers of the I/O server, and its places for
/// requests, for 10 to 30 s.
#[test]
fn gets_that_are_stopped_do_not_stop_others() {
    let cluster = Cluster::start(1);
    cluster.ok(&["put", "pvfs.toml", "/endless"]);
    cluster.ok(&["truncate", "/endless", &ENDLESS.to_string()]);
    let get = ["get", "--window", "64", "/endless", "/dev/null"];
    let mut all = stopped(&cluster, |_| get.map(String::from).to_vec());
    others_go_on(&cluster);
    // One that goes on connects again.
    all[0].signal(Signal::CONT);
    moves(&mut all[0], MIDDLE);
}

/// The same bug, with commands whose data the server reads.
#[test]
fn puts_that_are_stopped_do_not_stop_others() {
    let cluster = Cluster::start(1);
    fs::File::create(cluster.path("endless")).unwrap().set_len(ENDLESS).unwrap();
    let put = |index| ["put", "--window", "64", "endless", &format!("/put{index}")].map(String::from).to_vec();
    let _all = stopped(&cluster, put);
    others_go_on(&cluster);
}

/// Returns the file of a datafile in the directory of the first I/O server.
fn on_first(cluster: &Cluster, name: &str) -> PathBuf {
    let stat = cluster.json(&["stat", name]);
    let datafiles = stat["files"][0]["datafiles"].as_array().unwrap();
    let first = datafiles.iter().find(|datafile| datafile["server"].as_str().unwrap().ends_with("(iod 0)")).unwrap();
    let handle = u64::from_str_radix(first["handle"].as_str().unwrap().trim_start_matches("data:"), 16).unwrap();
    cluster.path(&format!("iod0/{:02x}/{handle:016x}", handle >> 8 & 0xff))
}

#[test]
fn a_cluster_is_checked_and_repaired_while_it_serves() {
    let mut cluster = Cluster::start(2);
    for (name, salt) in [("/whole", 1), ("/lost", 2), ("/gone", 3)] {
        stores(&cluster, name, &pattern(300_000, salt));
    }
    let clean = cluster.ok(&["fsck"]);
    assert!(
        clean.starts_with("checked 3 files, 1 directories, ") && clean.ends_with(": nothing is wrong\n"),
        "{clean}"
    );
    let (lost, gone) = (on_first(&cluster, "/lost"), on_first(&cluster, "/gone"));
    cluster.kill_server(1);
    fs::remove_file(lost).unwrap();
    fs::copy(&gone, cluster.path("kept")).unwrap();
    cluster.start_server(1);
    cluster.ok(&["rm", "/gone"]);
    until_removed(&cluster);
    fs::rename(cluster.path("kept"), &gone).unwrap();

    let found = |output: &Output| {
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(1), ""));
        String::from_utf8(output.stdout.clone()).unwrap()
    };
    let text = found(&cluster.run(&["fsck"]));
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("unowned: data:") && lines[1].starts_with("    repair: it becomes /lost+found/iod0-"));
    assert!(lines[2].starts_with("lost: /lost: data:") && lines[2].contains("(iod 0): "), "{text}");
    assert!(lines[3].ends_with(": 2 findings, 1 of which --repair can mend"), "{text}");
    let json: Value = serde_json::from_str(&found(&cluster.run(&["--json", "fsck"]))).unwrap();
    let kinds: Vec<_> = json["findings"].as_array().unwrap().iter().map(|finding| &finding["kind"]).collect();
    assert!(kinds == ["unowned", "lost"] && json["findings"][1]["path"] == "/lost" && json["files"] == 2, "{json}");

    complaint(&cluster.run(&["--json", "fsck", "--repair"]), 2);
    complaint(&cluster.run(&["fsck", "--yes"]), 2);
    let mut asked = piped(&cluster, &["fsck", "--repair"]);
    drop(asked.stdin.take());
    let asked = asked.wait_with_output().unwrap();
    let (text, question) = (String::from_utf8_lossy(&asked.stdout), String::from_utf8_lossy(&asked.stderr));
    assert!(text.ends_with("nothing was changed\n") && question == "repair this? [y/N] ", "{text}{question}");
    cluster.kill_server(2);
    let output = cluster.run(&["fsck", "--repair", "--yes"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && errors.contains("(iod 1) was not checked"), "{errors}");
    assert!(errors.contains("nothing is repaired while a server is missing"), "{errors}");
    assert_eq!(cluster.ok(&["ls", "/"]), "lost\nwhole\n");
    cluster.start_server(2);

    let text = found(&cluster.run(&["fsck", "--repair", "--yes"]));
    assert!(text.ends_with("repaired 1 of 1\n"), "{text}");
    let name = cluster.ok(&["ls", "/lost+found"]);
    let mended = cluster.run(&["cat", &format!("/lost+found/{}", name.trim())]);
    assert!(mended.stdout == fs::read(&gone).unwrap() && mended.stdout.len() > 100_000);
    assert_eq!(found(&cluster.run(&["-q", "fsck"])).lines().count(), 1, "the lost one stays");
    cluster.ok(&["rm", "/lost"]);
    until_removed(&cluster);
    cluster.ok(&["fsck"]);
    fetches(&cluster, "/whole", &pattern(300_000, 1));
}

#[test]
fn damage_that_nobody_reads_is_found_by_a_scrub() {
    let mut cluster = Cluster::start(2);
    stores(&cluster, "/old", &pattern(300_000, 1));
    let errors = cluster.run(&["scrub"]).stderr;
    assert_eq!(String::from_utf8_lossy(&errors).matches("keeps no checksums").count(), 2, "each server says so");
    cluster.configure(|_, tcp| format!("{tcp:?}"), "checksums = true\n").unwrap();
    for index in 1..=2 {
        cluster.kill_server(index);
        cluster.start_server(index);
    }
    stores(&cluster, "/damaged", &pattern(300_000, 2));
    // Those of the old file are made because the first scrub asks for them.
    eventually("all datafiles have checksums", || cluster.json(&["scrub"])["datafiles_with_checksums"] == 4);
    let clean = cluster.ok(&["scrub"]);
    assert!(clean.starts_with("compared ") && clean.ends_with(" of 4 datafiles: no damage\n"), "{clean}");

    let path = on_first(&cluster, "/damaged");
    let mut bytes = fs::read(&path).unwrap();
    bytes[70_000] ^= 1;
    fs::write(&path, bytes).unwrap();
    let output = cluster.run(&["scrub", "--rate", "1G"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && text.ends_with("of 4 datafiles: 1 findings\n"), "{text}");
    assert!(text.starts_with("damaged: /damaged: data:") && text.contains("(iod 0): "), "{text}");
    assert!(text.contains("its bytes from 69632 to 73728 do not match their checksum"), "{text}");
    // The first datafile of the file, or the second one.
    let ranges = ["135168 to 139264", "200704 to 204800"].map(|range| format!("; of the file: {range}\n"));
    assert!(ranges.iter().any(|range| text.contains(range)), "{text}");
    let finding = &cluster.run(&["--json", "scrub"]).stdout;
    let finding: Value = serde_json::from_slice(finding).unwrap();
    assert!(finding["findings"][0]["path"] == "/damaged" && finding["bytes"].as_u64() >= Some(600_000), "{finding}");
    cluster.ok(&["scrub", "--server", "1"]);
    assert!(complaint(&cluster.run(&["scrub", "--server", "2"]), 1).contains("no I/O server 2; there are 2"));

    let line = complaint(&cluster.run(&["get", "/damaged", "."]), 1);
    assert!(line.contains("/damaged") && line.contains("data lost") && line.contains("(iod 0)"), "{line}");
    fetches(&cluster, "/old", &pattern(300_000, 1));
    stores(&cluster, "/damaged", &pattern(300_000, 3));
    until_removed(&cluster);
    cluster.ok(&["scrub"]);
}
