//! What connects to the port of a leader and does not belong to its run, and hosts that reach
//! something else than a leader.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;

use serde_json::json;

use super::bed::{Bed, finish, report, spawn};
use super::hosts::Played;

#[test]
fn strangers_and_other_versions_are_told_and_hold_up_nobody() {
    let bed = Bed::new();
    let (child, address, mut errors) = bed.leader(&["--rounds", "1"]);
    // One that says nothing stays connected.
    let silent = Played::connect(&address);
    let mut newer = Played::connect(&address);
    newer.say(&json!({"pvfs_bench": 6, "anything": 1}));
    assert_eq!(newer.hear()["refused"], "version 6 of the benchmark's protocol, and this host has version 5");
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert!(line.contains("did not join: version 6"), "{line}");
    let mut stranger = Played::connect(&address);
    stranger.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(stranger.hear()["refused"], "this is no 'pvfs bench join'");
    // Another leader cannot have the same port.
    let second = bed.run(&["bench", "meta", "--wait-for", "1", "--listen", &address]);
    let second_errors = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(1) && second_errors.contains("cannot listen at"), "{second_errors}");
    let joined = bed.run(&["--json", "bench", "join", &address]);
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    let (report, _) = report(&finish(child, errors), 0, "no 'pvfs bench join'");
    assert_eq!(report.rows[0].setup["hosts"], "2");
    drop(silent);
}

#[test]
fn a_follower_says_whom_it_met() {
    let bed = Bed::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for (answer, why) in [
        ("{\"refused\":\"for a reason\"}\n", "refuses this host: for a reason"),
        ("220 mail.example.org ESMTP\n", "no 'pvfs bench' leads there"),
        ("\"welcome\"\n", "the run ended before it began"),
        ("", "the connection was closed"),
    ] {
        let child = spawn(&mut bed.command(&["bench", "join", &address]));
        let mut stream = listener.accept().unwrap().0;
        let mut hello = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut hello).unwrap();
        assert!(hello.contains("\"pvfs_bench\":5"), "{hello}");
        stream.write_all(answer.as_bytes()).unwrap();
        drop(stream);
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && errors.contains(why), "{answer}: {errors}");
    }
}

const TOKEN: &str = "chosen-by-a-user";

#[test]
fn nobody_joins_without_the_token_and_the_run_waits_for_who_has_it() {
    let bed = Bed::new();
    let (child, line, mut errors) = bed.leader_with(TOKEN, &["--rounds", "1"]);
    let address = line.rsplit_once("PVFS_BENCH_TOKEN=… pvfs bench join ").unwrap().1;
    let join = |token: &str, more: &[&str]| {
        let mut command = bed.command(&[&["bench", "join", address], more].concat());
        spawn(command.env("PVFS_BENCH_TOKEN", token)).wait_with_output().unwrap()
    };
    for (token, why) in [("", "it has no token; set PVFS_BENCH_TOKEN"), ("chosen-by-A-user", "is not that of this run")]
    {
        let output = join(token, &[]);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), told.lines().count()), (Some(1), 1), "{told}");
        assert!(told.contains("refuses this host") && told.contains(why), "{told}");
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        assert!(line.contains("did not join") && line.contains(why), "{line}");
    }
    let file = bed.dir.path().join("token");
    let named = ["--token-file", file.to_str().unwrap()];
    for (text, why) in [(None, "No such file"), (Some(""), "there is no token"), (Some("short"), "16 to 128")] {
        text.inspect(|text| fs::write(&file, text).unwrap());
        let output = join(TOKEN, &named);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && told.contains(why), "{told}");
    }
    assert_eq!(join("short", &[]).status.code(), Some(2));
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let joined = join("of-another-run--", &named);
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    let (report, _) = report(&finish(child, errors), 0, "");
    assert_eq!(report.rows[0].setup["hosts"], "2");
}

#[test]
fn a_token_that_was_drawn_is_printed_and_is_read_from_standard_input() {
    let bed = Bed::new();
    let (child, line, errors) = bed.leader_with("", &["--rounds", "1"]);
    let (token, address) = line.rsplit_once(" pvfs bench join ").unwrap();
    let token = token.rsplit_once('=').unwrap().1;
    assert!(token.len() == 32 && token.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
    let mut other = Played::connect(address);
    other.say(&json!({"pvfs_bench": 5, "program": "0", "name": "other", "token": TOKEN}));
    assert_eq!(other.hear()["refused"], "its token is not that of this run");
    let mut command = bed.command(&["bench", "join", address, "--token-file", "-"]);
    let mut joins = spawn(command.stdin(Stdio::piped()));
    joins.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
    assert!(joins.wait_with_output().unwrap().status.success());
    report(&finish(child, errors), 0, "is not that of this run");
}

/// With 64 silent connections, a real follower was told that too many had connected at once.
#[test]
fn a_crowd_of_strangers_holds_up_nobody() {
    let bed = Bed::new();
    let (child, address, errors) = bed.leader(&["--rounds", "1"]);
    let mut crowd: Vec<Played> = (0..200).map(|_| Played::connect(&address)).collect();
    let mut first = Vec::new();
    crowd[0].stream.read_to_end(&mut first).unwrap();
    assert_eq!(String::from_utf8_lossy(&first), "", "the oldest had to go");
    let mut long = Played::connect(&address);
    long.stream.write_all(&[b'x'; 4096]).unwrap();
    assert_eq!(long.hear()["refused"], "a line of more than 4096 bytes");
    let joined = bed.run(&["bench", "join", &address]);
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    let output = finish(child, errors);
    report(&output, 0, "further ones are not reported");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(told.matches("did not join").count(), 8, "{told}");
    drop(crowd);
}
