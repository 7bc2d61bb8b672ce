//! Clusters whose directories vanish, are swapped, copied or damaged, and connections to the wrong
//! server, with real processes. A command either gets the right bytes or fails.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::support::bodies::{copy_tree, fetches, names_in, pattern, stores};
use crate::support::cluster::{self, Cluster, complaint};

const SIZE: usize = 300_000;

/// Stores files of different contents under these names.
fn put_all(cluster: &Cluster, names: &[String]) {
    for (name, salt) in names.iter().zip(1..) {
        stores(cluster, &format!("/{name}"), &pattern(SIZE, salt));
    }
}

/// Checks that the files are as they were stored.
fn check_all(cluster: &Cluster, names: &[String]) {
    check_from(cluster, names, 1);
}

/// As [`check_all`], for files of which the first one was stored as number `first`.
fn check_from(cluster: &Cluster, names: &[String], first: u64) {
    for (name, salt) in names.iter().zip(first..) {
        fetches(cluster, &format!("/{name}"), &pattern(SIZE, salt));
    }
}

fn named(what: &str, count: usize) -> Vec<String> {
    (0..count).map(|index| format!("{what}{index}")).collect()
}

/// Starts a server that must refuse its directory. Returns why.
fn refused(cluster: &mut Cluster, index: usize, options: &[&str]) -> String {
    cluster.try_start_server(index, options).expect_err("it must not serve")
}

/// Replays a bug: a manager whose disk was not mounted began anew, and assigned the handles of live
/// datafiles to new files.
#[test]
fn a_manager_whose_disk_is_not_mounted_does_not_start() {
    let mut cluster = Cluster::start(2);
    let old = named("old", 10);
    put_all(&cluster, &old);
    cluster.kill_server(0);
    fs::rename(cluster.path("manager"), cluster.path("aside")).unwrap();
    for there in [false, true] {
        if there {
            fs::create_dir(cluster.path("manager")).unwrap();
        }
        let why = refused(&mut cluster, 0, &[]);
        assert!(why.contains("is that disk mounted?") && why.contains("pvfsd format"), "{why}");
        assert_eq!(cluster.path("manager").exists(), there, "it is left as it was");
    }
    assert_eq!(names_in(&cluster.path("manager")), [""; 0]);
    // Nor does a cluster begin anew while the I/O servers have data.
    let formatted = cluster.pvfsd(&["format"]);
    assert_eq!(formatted.status.code(), Some(1));
    assert!(String::from_utf8(formatted.stderr).unwrap().contains("is in use"));
    // A directory without its database is no better.
    fs::remove_dir(cluster.path("manager")).unwrap();
    copy_tree(&cluster.path("aside"), &cluster.path("manager"));
    fs::remove_file(cluster.path("manager/metadata.redb")).unwrap();
    let why = refused(&mut cluster, 0, &[]);
    assert!(why.contains("metadata.redb is gone") && why.contains("mounted"), "{why}");
    fs::remove_dir_all(cluster.path("manager")).unwrap();
    fs::rename(cluster.path("aside"), cluster.path("manager")).unwrap();
    cluster.start_server(0);
    put_all(&cluster, &named("new", 10));
    cluster.ok(&["rm", "/new0", "/new1", "/new2", "/new3", "/new4"]);
    check_all(&cluster, &old);
}

/// Replays a bug: an I/O server served an empty directory until the manager, which was down, had
/// refused it. A running `get` ended with status 0, and many of its bytes were zeros.
#[test]
fn an_io_server_whose_disk_is_not_mounted_does_not_serve() {
    let mut cluster = Cluster::start(2);
    let bytes = pattern(64 << 20, 7);
    stores(&cluster, "/big", &bytes);
    let mut get = cluster.command(&["get", "/big", "-", "--block-size", "64K", "--window", "1"]);
    let mut get = get.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = get.stdout.take().unwrap();
    let mut first = vec![0; 100_000];
    out.read_exact(&mut first).unwrap();
    // It waits for its reader now.
    cluster.kill_server(0);
    cluster.kill_server(2);
    fs::rename(cluster.path("iod1"), cluster.path("aside")).unwrap();
    let config = cluster.path("pvfs.toml");
    let mut empty = std::process::Command::new(cluster::pvfsd())
        .arg("--config")
        .arg(&config)
        .args(["iod", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).unwrap();
    let output = get.wait_with_output().unwrap();
    let line = complaint(&output, 1);
    assert!(line.contains("iod 1"), "{line}");
    assert!(bytes.starts_with(&[first, rest].concat()), "what it wrote is right");
    empty.kill().unwrap();
    empty.wait().unwrap();
    // It may have made the directory, to lock it.
    if cluster.path("iod1").exists() {
        assert_eq!(names_in(&cluster.path("iod1")), [""; 0], "nothing was written in the place of the disk");
    }
    // With the manager it is refused.
    cluster.start_server(0);
    let why = refused(&mut cluster, 2, &[]);
    assert!(why.contains("is that disk mounted?") && why.contains("--replace"), "{why}");
    let _ = fs::remove_dir(cluster.path("iod1"));
    assert!(refused(&mut cluster, 2, &[]).contains("is that disk mounted?"));
    assert!(!cluster.path("iod1").exists(), "a directory that was made to be locked is removed");
    fs::rename(cluster.path("aside"), cluster.path("iod1")).unwrap();
    cluster.start_server(2);
    fetches(&cluster, "/big", &bytes);
}

#[test]
fn swapped_copied_and_foreign_directories_are_refused_and_left_as_they_were() {
    let mut cluster = Cluster::start(2);
    let dir = cluster.dir.path().to_owned();
    let rename = |from: &str, to: &str| fs::rename(dir.join(from), dir.join(to)).unwrap();
    let files = named("f", 4);
    put_all(&cluster, &files);
    let busy = cluster.pvfsd(&["iod", "0"]);
    assert!(String::from_utf8(busy.stderr).unwrap().contains("another server is at work on it"));
    cluster.kill_server(1);
    cluster.kill_server(2);
    rename("iod0", "aside");
    rename("iod1", "iod0");
    let why = refused(&mut cluster, 1, &[]);
    assert!(why.contains("belongs to iod 1") && why.contains("not to iod 0"), "{why}");
    rename("iod0", "iod1");
    // A directory with somebody's files.
    fs::create_dir(cluster.path("iod0")).unwrap();
    fs::write(cluster.path("iod0/thesis.tex"), "").unwrap();
    let why = refused(&mut cluster, 1, &[]);
    assert!(why.contains("thesis.tex"), "{why}");
    assert_eq!(names_in(&cluster.path("iod0")), ["thesis.tex"]);
    fs::remove_dir_all(cluster.path("iod0")).unwrap();
    rename("aside", "iod0");
    // A copy from before the last start.
    copy_tree(&cluster.path("iod0"), &cluster.path("copy"));
    cluster.start_server(1);
    cluster.kill_server(1);
    rename("iod0", "newest");
    copy_tree(&cluster.path("copy"), &cluster.path("iod0"));
    let again = refused(&mut cluster, 1, &[]);
    assert!(again.contains("gone back in time") && again.contains("--replace"), "{again}");
    fs::remove_dir_all(cluster.path("iod0")).unwrap();
    rename("newest", "iod0");
    cluster.start_server(1);
    cluster.start_server(2);
    check_all(&cluster, &files);
}

/// A disk that is lost for good. What was on it is an error, not zeros, and the server goes on.
#[test]
fn a_lost_disk_is_replaced_and_what_it_held_is_an_error() {
    let mut cluster = Cluster::start(2);
    let files = named("f", 3);
    put_all(&cluster, &files);
    cluster.kill_server(2);
    fs::remove_dir_all(cluster.path("iod1")).unwrap();
    cluster.start_server_with(2, &["--replace"]);
    for name in &files {
        let line = complaint(&cluster.run(&["get", &format!("/{name}"), "back"]), 1);
        assert!(line.contains("data lost") && line.contains("(iod 1)"), "{line}");
    }
    let new = named("new", 3);
    put_all(&cluster, &new);
    check_all(&cluster, &new);
    cluster.ok(&["rm", "/f0", "/f1", "/f2"]);
    // From now on it is the server's directory.
    cluster.kill_server(2);
    cluster.start_server(2);
    check_all(&cluster, &new);
    // Replays a bug: a server whose files were all removed registered as one that never had any.
    cluster.ok(&["rm", "/new0", "/new1", "/new2"]);
    cluster.kill_server(2);
    cluster.start_server(2);
    put_all(&cluster, &new);
    check_all(&cluster, &new);
}

/// Replays a bug: handles are numbers, and those of two clusters are equal. A connection to another
/// cluster's server was not noticed, neither by clients nor when the manager removed orphans.
#[test]
fn a_server_of_another_cluster_is_named_and_not_used() {
    let (mut ours, mut theirs) = (Cluster::start(2), Cluster::start(2));
    let files = named("f", 4);
    put_all(&ours, &files);
    let others: Vec<String> = named("g", 4);
    put_all(&theirs, &others);
    // Their iod 1 is behind the address of ours.
    ours.kill_server(2);
    theirs.kill_server(2);
    let config = |cluster: &Cluster| fs::read_to_string(cluster.path("pvfs.toml")).unwrap();
    let iod1 = |text: &str| text.split('"').filter(|part| part.starts_with("tcp://")).nth(2).unwrap().to_owned();
    let moved = config(&theirs).replace(&iod1(&config(&theirs)), &iod1(&config(&ours)));
    fs::write(theirs.path("pvfs.toml"), moved).unwrap();
    theirs.start_server(2);
    for name in &files {
        let output = ours.run(&["get", &format!("/{name}"), "back"]);
        let line = complaint(&output, 1);
        assert!(line.contains("wrong server") && line.matches("cluster ").count() == 2, "both sides: {line}");
    }
    // The datafiles of these are removed from the right server only.
    ours.ok(&["rm", "/f0", "/f1"]);
    theirs.kill_server(2);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let moved = config(&theirs).replace(&iod1(&config(&theirs)), &format!("tcp://{free}"));
    fs::write(theirs.path("pvfs.toml"), moved).unwrap();
    theirs.kill_server(0);
    theirs.start_server(0);
    theirs.start_server(2);
    check_all(&theirs, &others);
    ours.start_server(2);
    check_from(&ours, &files[2..], 3);
}

/// Returns the path of a datafile.
fn datafile_path(cluster: &Cluster, iod: u64, handle: &str) -> PathBuf {
    let number = u64::from_str_radix(handle.trim_start_matches("data:"), 16).unwrap();
    cluster.path(&format!("iod{iod}/{:02x}/{number:016x}", (number >> 8) & 0xff))
}

/// Replays a bug: a datafile that was missing, or was cut off, read as zeros with status 0.
#[test]
fn a_missing_or_cut_datafile_is_an_error() {
    let mut cluster = Cluster::start(2);
    let files = named("f", 3);
    put_all(&cluster, &files);
    stores(&cluster, "/synced", &pattern(SIZE, 4));
    let datafile = |name: &str| {
        let stat = cluster.json(&["stat", name]);
        let datafile = stat["files"][0]["datafiles"][1].clone();
        let server = datafile["server"].as_str().unwrap().to_owned();
        let iod = server.split("(iod ").nth(1).unwrap().trim_end_matches(')').parse().unwrap();
        datafile_path(&cluster, iod, datafile["handle"].as_str().unwrap())
    };
    let paths: Vec<PathBuf> = ["/f0", "/f1", "/f2", "/synced"].iter().map(|name| datafile(name)).collect();
    for server in [1, 2] {
        cluster.kill_server(server);
    }
    let cut = |path: &Path, size: u64| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(size).unwrap();
    fs::remove_file(&paths[0]).unwrap();
    cut(&paths[1], 100);
    cut(&paths[3], 0);
    for server in [1, 2] {
        cluster.start_server(server);
    }
    for name in ["/f0", "/f1", "/synced"] {
        let line = complaint(&cluster.run(&["get", name, "back"]), 1);
        assert!(line.contains("data lost"), "{name}: {line}");
    }
    // Nor is a wrong size shown.
    let line = complaint(&cluster.run(&["stat", "/f1"]), 1);
    assert!(line.contains("data lost"), "{line}");
    check_from(&cluster, &files[2..], 3);
    cluster.ok(&["rm", "/f0", "/f1", "/synced"]);
}

/// Replays a bug: 1,000 bytes on one server could not be read while another server was down.
#[test]
fn a_file_is_read_without_the_servers_that_hold_none_of_it() {
    let mut cluster = Cluster::start(3);
    std::fs::write(cluster.path("few"), pattern(1000, 1)).unwrap();
    cluster.ok(&["put", "--servers", "3", "few", "/small"]);
    let stat = cluster.json(&["stat", "/small"]);
    let first = stat["files"][0]["datafiles"][0]["server"].as_str().unwrap().to_owned();
    let dead: Vec<usize> = (0..3).filter(|iod| !first.contains(&format!("(iod {iod})"))).collect();
    for iod in &dead {
        cluster.kill_server(iod + 1);
    }
    fetches(&cluster, "/small", &pattern(1000, 1));
    // New files avoid the dead servers, unless a number is asked for.
    let longer = [pattern(1000, 1), pattern(200_000, 2)].concat();
    stores(&cluster, "/new", &longer);
    assert_eq!(cluster.json(&["stat", "/new"])["files"][0]["datafiles"].as_array().unwrap().len(), 1);
    let line = complaint(&cluster.run(&["put", "--servers", "3", "--strip-size", "4K", "stored", "/three"]), 1);
    assert!(line.contains("(iod"), "{line}");
    for iod in dead {
        cluster.start_server(iod + 1);
    }
    cluster.ok(&["put", "stored", "/all"]);
    assert_eq!(cluster.json(&["stat", "/all"])["files"][0]["datafiles"].as_array().unwrap().len(), 3);
    // A write withdraws the size.
    stores(&cluster, "/small", &longer);
    fetches(&cluster, "/small", &longer);
}
