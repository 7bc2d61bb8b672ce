//! The command `pvfs` against real `pvfsd` processes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::support::bodies::{assert_same_tree, fetches, pattern, stores};
use crate::support::cluster::{Cluster, complaint, pvfsd};

#[test]
fn a_tour_of_all_commands() {
    let cluster = Cluster::start(3);
    let source = cluster.path("source");
    fs::create_dir_all(source.join("deep/er")).unwrap();
    for (name, len) in [("empty", 0), ("small", 100), ("deep/medium", 70_000), ("deep/er/large", 9_000_000)] {
        fs::write(source.join(name), pattern(len, len as u64)).unwrap();
    }
    assert_eq!(cluster.ok(&["ping"]).lines().count(), 4);
    cluster.ok(&["mkdir", "-p", "/data/x"]);
    let summary = cluster.ok(&["put", "-r", "source", "/data", "--strip-size", "64K", "--servers", "2"]);
    assert!(summary.starts_with("put: 4 files, 3 directories, "), "{summary}");
    assert_eq!(cluster.ok(&["ls", "/data"]), "source/\nx/\n");
    let long = cluster.ok(&["ls", "-l", "/data/source"]);
    assert!(long.contains("64Kx2") && long.contains("small"), "{long}");
    let all = cluster.json(&["ls", "-l", "-R", "/data"]);
    let large = all["entries"].as_array().unwrap().iter().find(|e| e["name"] == "/data/source/deep/er/large").unwrap();
    assert_eq!(large["size"], 9_000_000);
    assert_eq!(large["distribution"]["strip_size"], 65536);

    cluster.ok(&["get", "-r", "/data/source", "copy"]);
    assert_same_tree(&source, &cluster.path("copy"));
    cluster.ok(&["get", "-q", "/data/source/small"]);
    assert_eq!(fs::read(cluster.path("small")).unwrap(), pattern(100, 100));
    let output = cluster.run(&["cat", "/data/source/small", "/data/source/deep/medium"]);
    assert!(output.stdout == [pattern(100, 100), pattern(70_000, 70_000)].concat());

    let stat = cluster.json(&["stat", "/data/source/deep/medium"]);
    assert_eq!(stat["files"][0]["size"], 70_000);
    assert_eq!(stat["files"][0]["datafiles"].as_array().unwrap().len(), 2);
    assert!(cluster.ok(&["stat", "/data/source/deep/medium"]).contains("(iod "));
    let picture = cluster.ok(&["viewdist", "/data/source/deep/medium"]);
    assert!(picture.contains("A b"), "{picture}");
    let drawn = cluster.json(&["viewdist", "/data/source/deep/medium"]);
    assert_eq!(drawn["strips"].as_array().unwrap().len(), 2);

    cluster.ok(&["mv", "/data/source/small", "/data/x"]);
    assert_eq!(cluster.ok(&["ls", "/data/x"]), "small\n");
    cluster.ok(&["mv", "/data/x/small", "/data/y"]);
    cluster.ok(&["rm", "/data/y"]);
    cluster.ok(&["rm", "-f", "/data/y"]);
    complaint(&cluster.run(&["rm", "/data/y"]), 1);
    complaint(&cluster.run(&["rm", "/data/source"]), 1);
    cluster.ok(&["rm", "-r", "/data"]);
    assert_eq!(cluster.ok(&["ls"]), "");
    let space = cluster.json(&["statfs"]);
    assert_eq!((space["files"].as_u64(), space["servers"].as_array().unwrap().len()), (Some(0), 3));
    // Replays a bug: a disk that several servers share was counted once for each of them.
    assert_eq!(space["capacity"], space["servers"][0]["capacity"]);
    assert!(cluster.ok(&["statfs"]).contains("on 1 disk"));
}

/// No machine has an adapter of this name, whether it has verbs or not.
const NO_ADAPTER: &str = "ib://no_such_adapter/127.0.0.1";

/// Replays a bug: the manager took a size that no server can have, and the command succeeded. No
/// server could carry it out. From then on no file was truncated, removed or created any more.
#[test]
fn a_size_that_no_server_can_have_is_refused_and_changes_nothing() {
    let mut cluster = Cluster::start(2);
    fs::write(cluster.path("source"), pattern(200_000, 1)).unwrap();
    cluster.ok(&["put", "source", "/file", "--servers", "2"]);
    cluster.ok(&["put", "source", "/one", "--servers", "1"]);
    // No file may be longer than 16 MiB, in blocks of 512 bytes. That must not end the server.
    for server in [1, 2] {
        cluster.kill_server(server);
        cluster.try_start_server_after("ulimit -c 0; ulimit -f 32768", server, &[]).unwrap();
    }
    for path in ["/file", "/one"] {
        let line = complaint(&cluster.run(&["truncate", path, "100T", "--retry-for", "10"]), 1);
        assert!(line.contains("too large"), "{line}");
        assert_eq!(cluster.run(&["cat", path]).stdout, pattern(200_000, 1));
    }
    for path in ["/file", "/one"] {
        cluster.ok(&["truncate", path, "1000"]);
        assert_eq!(cluster.run(&["cat", path]).stdout, pattern(1000, 1));
    }
    assert_eq!(cluster.json(&["stat", "/file"])["files"][0]["unfinished_truncations"], json!([]));
}

#[test]
fn a_server_does_without_a_transport_that_cannot_be_opened_and_says_so_once() {
    let two = |tcp: &str, number: usize, _: &Path| format!("[\"{NO_ADAPTER}:{}\", {tcp:?}]", 1 + number);
    let cluster = Cluster::start_with(2, two);
    let config = cluster.path("pvfs.toml");
    for (index, server) in ["manager", "iod0", "iod1"].into_iter().enumerate() {
        let log = fs::read_to_string(cluster.path(&format!("log-{index}"))).unwrap();
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
        assert!(matches!(warnings[..], [one] if one.contains("without") && one.contains("ib")), "{server}: {log}");
    }
    stores(&cluster, "/f", &pattern(500_000, 1));
    let shown = cluster.json(&["servers"]);
    let over: Vec<&str> = shown["servers"].as_array().unwrap().iter().map(|s| s["over"].as_str().unwrap()).collect();
    assert_eq!(over, ["tcp"; 3]);
    let line = complaint(&cluster.run(&["ls", "--over", "ib"]), 1);
    assert!(line.contains("ib"), "{line}");
    let check = Command::new(pvfsd()).arg("--config").arg(&config).arg("check").output().unwrap();
    let text = String::from_utf8(check.stdout).unwrap();
    assert!(check.status.success() && text.contains(NO_ADAPTER) && text.contains("tcp: can be opened"), "{text}");
    // A server whose only address cannot be used does not start.
    let text = fs::read_to_string(&config).unwrap();
    let manager = text.lines().find(|line| line.starts_with("manager = [")).unwrap();
    fs::write(&config, text.replace(manager, &format!("manager = \"{NO_ADAPTER}:1\""))).unwrap();
    let failed = Command::new(pvfsd()).arg("--config").arg(&config).arg("manager").output().unwrap();
    let error = String::from_utf8(failed.stderr).unwrap();
    assert_eq!(failed.status.code(), Some(1), "{error}");
    assert!(error.lines().last().unwrap().starts_with("pvfsd: "), "{error}");
}

/// One server has a cache, and the other has none.
#[test]
fn caches_are_shown_and_take_hints() {
    let mut cluster = Cluster::start(2);
    let (config, memory) = (cluster.path("pvfs.toml"), cluster.path("memory"));
    fs::create_dir(&memory).unwrap();
    let text = fs::read_to_string(&config).unwrap();
    let section =
        format!("[cache]\nservice = \"unifier\"\nmemory = \"8M\"\nviews = \"0\"\nage_ms = 3600000\ndir = {memory:?}\n");
    fs::write(&config, text + &section).unwrap();
    cluster.kill_server(1);
    cluster.start_server(1);
    fs::write(cluster.path("f"), pattern(1_000_000, 1)).unwrap();
    cluster.ok(&["put", "f", "/f", "--no-sync", "--servers", "2", "--cache-policy", "keep", "--cache-unit", "16K"]);
    let shown = cluster.json(&["cache", "--files"]);
    let (own, other) = (&shown["servers"][0], &shown["servers"][1]);
    assert_eq!((&own["service"], &other["service"]), (&json!("unifier"), &json!("normal")));
    let bytes = own["cache"]["written"].as_u64().unwrap();
    assert!(own["cache"]["most"] == 8 << 20 && bytes > 400_000 && own["cache"]["dirty"] == bytes, "{own}");
    assert!(other["cache"].is_null(), "{other}");
    let file = &shown["files"][0];
    assert_eq!(
        (&file["unit"], &file["hints"]["policy"], &file["written"]),
        (&json!(16384), &json!("keep"), &json!(bytes))
    );
    let text = cluster.ok(&["cache", "--files", "3"]);
    let of = |number: usize| text.lines().nth(number).unwrap();
    assert!(of(0).starts_with("server") && of(1).contains("unifier") && of(2).contains("normal"), "{text}");
    assert!(of(5).contains("keep, 16K"), "{text}");
    // A file, of which one server tells something.
    let shown = cluster.json(&["cache", "/f"]);
    assert_eq!((&shown["size"], &shown["coverage"]["cached"]), (&json!(1_000_000), &json!(bytes)));
    assert!(shown["servers"][1]["coverage"].is_null(), "{shown}");
    assert!(cluster.ok(&["cache", "/f"]).contains("100.0 %"), "all that is on the server with a cache");
    complaint(&cluster.run(&["cache", "/none"]), 1);
    // It goes on until nobody reads any more.
    let mut watch = cluster.command(&["cache", "--watch", "10ms"]).stdout(Stdio::piped()).spawn().unwrap();
    let pages = BufReader::new(watch.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert_eq!(pages.filter(|line| line.starts_with("server")).take(3).count(), 3);
    assert!(watch.wait().unwrap().success());
    // A server that is down hides no other.
    cluster.kill_server(2);
    let output = cluster.run(&["cache"]);
    let line = complaint(&output, 1);
    assert!(line.contains("(iod 1)") && String::from_utf8_lossy(&output.stdout).contains("unifier"), "{line}");
}

/// Returns the addresses of a server that listens over TCP and on its own socket.
fn over_shm(tcp: &str, number: usize, dir: &Path) -> String {
    format!("[{tcp:?}, \"shm://{}/sockets/{number}\"]", dir.display())
}

/// Returns the transport used for each server, the manager first.
fn taken(cluster: &Cluster, args: &[&str]) -> Vec<String> {
    let shown = cluster.json(&[&["servers"], args].concat());
    shown["servers"].as_array().unwrap().iter().map(|server| server["over"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn servers_of_this_host_are_reached_over_shared_memory() {
    let mut cluster = Cluster::start_with(2, over_shm);
    assert_eq!(taken(&cluster, &[]), ["shm"; 3]);
    assert_eq!(taken(&cluster, &["--over", "tcp"]), ["tcp"; 3]);
    assert!(cluster.ok(&["servers"]).contains("over shm: on this host"));
    assert!(cluster.ok(&["plan"]).contains("(iod 1): over shm: on this host (shm://"), "the plan says so too");
    assert_eq!(cluster.json(&["plan", "--over", "tcp"])["plans"][0]["over"], "tcp");
    let bytes = pattern(9_000_000, 1);
    ["/f", "/g"].iter().for_each(|name| stores(&cluster, name, &bytes));
    cluster.ok(&["--over", "tcp", "get", "/f", "one"]);
    cluster.ok(&["--over", "shm", "--busy", "get", "/f", "two"]);
    assert!(fs::read(cluster.path("one")).unwrap() == bytes && fs::read(cluster.path("two")).unwrap() == bytes);
    // A socket whose server is gone is not used. When the server comes back, it is used again.
    cluster.kill_server(1);
    let line = complaint(&cluster.run(&["get", "/g", "three"]), 1);
    assert!(line.contains("(iod 0)"), "{line}");
    cluster.start_server(1);
    assert_eq!(taken(&cluster, &[]), ["shm"; 3]);
    fetches(&cluster, "/g", &bytes);
}

/// As on a machine where another cluster's server has a socket of that name. That server must not
/// get this cluster's data.
#[test]
fn a_socket_of_another_server_is_passed_over() {
    let cluster = Cluster::start_with(2, over_shm);
    let socket = |name: &str| cluster.path("sockets").join(name);
    fs::rename(socket("1"), socket("aside")).unwrap();
    fs::rename(socket("2"), socket("1")).unwrap();
    assert_eq!(taken(&cluster, &[]), ["shm", "tcp", "tcp"]);
    let text = cluster.ok(&["servers"]);
    assert!(text.contains("/sockets/1: this is iod 1 of cluster"), "{text}");
    stores(&cluster, "/f", &pattern(500_000, 1));
    fetches(&cluster, "/f", &pattern(500_000, 1));
    let line = complaint(&cluster.run(&["--over", "shm", "get", "/f", "forced"]), 1);
    assert!(line.contains("this is iod 1 of cluster"), "{line}");
}

#[test]
fn a_configuration_is_made_for_several_transports() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| Command::new(pvfsd()).current_dir(dir.path()).args(args).output().unwrap();
    let made = run(&["init", "--dir", "data", "--iods", "2", "--over", "tcp,shm,ib"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let text = String::from_utf8(run(&["check"]).stdout).unwrap();
    for addr in ["tcp://127.0.0.1:7002", "/data/sockets/iod-1", "ib:///127.0.0.1:7005"] {
        assert!(text.contains(addr), "{addr}: {text}");
    }
    // Replays a bug: a transport that was given twice made the configuration unreadable.
    assert!(run(&["init", "--over", "tcp,tcp", "--force"]).status.success());
    assert!(run(&["check"]).status.success());
    let refused = run(&["init", "--over", "tcp,sim", "--force"]);
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(
        refused.status.code() == Some(2) && error.lines().count() == 1 && error.contains("tcp, ib and shm"),
        "{error}"
    );
}

#[test]
fn standard_input_and_output() {
    let cluster = Cluster::start(2);
    let bytes = pattern(10_000_000, 5);
    let mut put = cluster.command(&["put", "-", "/piped"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(put.wait().unwrap().success());
    let output = cluster.run(&["get", "/piped", "-"]);
    assert!(output.status.success() && output.stdout == bytes);
    let output = cluster.run(&["--json", "get", "/piped", "-"]);
    assert!(output.status.success() && output.stdout == bytes, "nothing is added to the file's bytes");
    let line = complaint(&cluster.run(&["put", "--resume", "-", "/piped"]), 1);
    assert!(line.contains("standard input"), "{line}");
    // If the reader has read enough, the command ends silently.
    let mut cat = cluster.command(&["cat", "/piped"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 10];
    let mut stdout = cat.stdout.take().unwrap();
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let output = cat.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(first, bytes[..10]);
}

/// Replays a bug: a file that is not a regular file reports size 0 whatever it contains, and was
/// stored as an empty file.
#[test]
fn a_pipe_with_a_name_is_stored_with_its_bytes() {
    let cluster = Cluster::start(1);
    let made = Command::new("mkfifo").arg(cluster.path("fifo")).status().unwrap();
    assert!(made.success());
    let bytes = pattern(300_000, 6);
    let mut put = cluster.command(&["put", "fifo", "/f"]).stdout(Stdio::null()).spawn().unwrap();
    fs::OpenOptions::new().write(true).open(cluster.path("fifo")).unwrap().write_all(&bytes).unwrap();
    assert!(put.wait().unwrap().success());
    assert!(cluster.run(&["cat", "/f"]).stdout == bytes);
    cluster.ok(&["put", "-q", "/proc/self/status", "/status"]);
    assert!(cluster.ok(&["cat", "/status"]).contains("pvfs"), "a file that says it is empty is not");
}

/// If an error cannot be printed, the exit status still reports it.
#[test]
fn errors_that_cannot_be_printed_keep_their_status() {
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let status = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_pvfs")).args(args).env_remove("PVFS_MANAGER").stderr(full()).status().unwrap()
    };
    assert_eq!(status(&["frobnicate"]).code(), Some(2));
    assert_eq!(status(&["ls"]).code(), Some(2));
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let cluster = Cluster::start(1);
    for (args, why) in [
        (&["frobnicate"][..], "unrecognized subcommand"),
        (&["ls", "relative"], "begins with '/'"),
        (&["put", "x", "/x", "--strip-size", "banana"], "banana"),
        (&["viewdist", "--size", "1M", "--strip-size", "7"], "strip size 7"),
        (&["ls", "--manager", "nonsense"], "scheme://host:port"),
        (&["mv", "/a"], "<TO>"),
        (&["--json", "cache", "--watch"], "one document"),
    ] {
        let line = complaint(&cluster.run(args), 2);
        assert!(line.contains(why), "{args:?}: {line}");
    }
    for (args, why) in [
        (&["ls", "/none"][..], "lookup /none at tcp://"),
        (&["stat", "/none"], "no such file"),
        (&["put", "no-such-file", "/x"], "no-such-file: No such file"),
        (&["put", ".", "/x"], "put it with -r"),
        (&["get", "/"], "get it with -r"),
        (&["mkdir", "/"], "mkdir /"),
        (&["rm", "-r", "/"], "cannot be removed"),
        (&["ls", "-m", "tcp://127.0.0.1:1"], "tcp://127.0.0.1:1 (manager)"),
        (&["ls", "-m", "tcp://no-such-host.invalid:7000", "--timeout", "2s"], "no-such-host.invalid"),
    ] {
        let line = complaint(&cluster.run(args), 1);
        assert!(line.contains(why), "{args:?}: {line}");
    }
    let nowhere = cluster.command(&["ls"]).env_remove("PVFS_MANAGER").output().unwrap();
    assert!(complaint(&nowhere, 2).contains("--manager"));
    let bad = cluster.command(&["ls"]).env("PVFS_MANAGER", "tcp://x").output().unwrap();
    assert!(complaint(&bad, 2).contains("PVFS_MANAGER"));
    assert!(cluster.ok(&["--help"]).contains("Examples:"));
    assert!(cluster.ok(&["put", "--help"]).contains("pvfs put -r src /data"));
    let imagined = Command::new(env!("CARGO_BIN_EXE_pvfs")).args(["viewdist", "--size", "200K"]).output().unwrap();
    assert!(imagined.status.success(), "needs no manager");
}

#[test]
fn a_server_that_is_down_is_named() {
    let mut cluster = Cluster::start(3);
    fs::write(cluster.path("f"), pattern(500_000, 1)).unwrap();
    cluster.ok(&["put", "f", "/f"]);
    cluster.kill_server(2);
    // A new file avoids it, unless the number of servers was asked for.
    cluster.ok(&["put", "f", "/avoids"]);
    cluster.ok(&["rm", "/avoids"]);
    let put = &["put", "--servers", "3", "f", "/g"][..];
    for args in [put, &["get", "/f", "back"], &["stat", "/f"], &["ping"], &["statfs"]] {
        let line = complaint(&cluster.run(args), 1);
        assert!(line.contains("(iod 1)"), "{args:?}: {line}");
    }
    assert!(cluster.ok(&["ls"]).starts_with("f\n"), "names need the manager only");
    let listed = cluster.run(&["ls", "-l"]);
    let (names, errors) = (String::from_utf8(listed.stdout).unwrap(), String::from_utf8(listed.stderr).unwrap());
    assert!(listed.status.code() == Some(1) && errors.lines().all(|line| line.contains("(iod 1)")), "{errors}");
    assert!(
        names.lines().all(|line| line.starts_with("-????")) && names.ends_with(" f\n"),
        "what is known is there: {names}"
    );
    cluster.start_server(2);
    fetches(&cluster, "/f", &pattern(500_000, 1));
    cluster.kill_server(0);
    let line = complaint(&cluster.run(&["ls", "--timeout", "2s"]), 1);
    assert!(line.contains("(manager)"), "{line}");
}

#[test]
fn an_iod_killed_in_the_middle_of_a_put_ends_it_and_synced_files_stay() {
    let mut cluster = Cluster::start(3);
    stores(&cluster, "/kept", &pattern(3_000_000, 1));
    // The put reads from a pipe, so it is certainly in progress when the server is killed.
    let mut put = cluster
        .command(&["put", "-", "/torn", "--block-size", "1M", "--timeout", "10s"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = put.stdin.take().unwrap();
    let block = pattern(1 << 20, 2);
    for _ in 0..16 {
        input.write_all(&block).unwrap();
    }
    cluster.kill_server(3);
    // Write until the command has closed its end.
    while input.write_all(&block).is_ok() {}
    drop(input);
    let output = put.wait_with_output().unwrap();
    let line = complaint(&output, 1);
    assert!(line.contains("write of /torn") && line.contains("(iod 2)") && line.contains("bytes "), "{line}");
    cluster.start_server(3);
    fetches(&cluster, "/kept", &pattern(3_000_000, 1));
    assert_eq!(cluster.ok(&["ls"]), "kept\n", "what was not complete has no name");
}
