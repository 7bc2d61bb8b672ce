//! Copies that keep all attributes and links (`put -a`, `get -a`, `cp -a`), and copies within the
//! cluster.

use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;

use crate::support::bodies::{assert_same_tree, pattern, stores};
use crate::support::cluster::{Cluster, complaint, content, count};

/// Makes a tree with modes, old times, a link, and a file of two names in two directories.
fn tree(at: &Path) {
    fs::create_dir_all(at.join("open/deep")).unwrap();
    fs::create_dir(at.join("shut")).unwrap();
    for (name, len, mode) in [("open/one", 300_000, 0o640), ("open/deep/two", 0, 0o4711), ("shut/three", 10, 0o400)] {
        fs::write(at.join(name), pattern(len, 1)).unwrap();
        fs::set_permissions(at.join(name), Permissions::from_mode(mode)).unwrap();
    }
    fs::hard_link(at.join("open/one"), at.join("shut/again")).unwrap();
    symlink("../shut", at.join("open/link")).unwrap();
    for (name, seconds) in [("open/one", 1), ("open/deep/two", 2), ("open/deep", 3), ("open", 4), ("shut", 5), ("", 6)]
    {
        let time = |nanos| UNIX_EPOCH + Duration::new(1_000_000_000 + seconds, nanos);
        let times = FileTimes::new().set_modified(time(123_456_789)).set_accessed(time(987_654_321));
        File::open(at.join(name)).unwrap().set_times(times).unwrap();
    }
    fs::set_permissions(at.join("shut"), Permissions::from_mode(0o2510)).unwrap();
}

/// What is at and below a directory.
fn all_of(root: &Path) -> BTreeMap<PathBuf, Metadata> {
    let (mut all, mut left) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(path) = left.pop() {
        let metadata = fs::symlink_metadata(&path).unwrap();
        if metadata.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        all.insert(path.strip_prefix(root).unwrap().to_owned(), metadata);
    }
    all
}

fn kept(metadata: &Metadata) -> impl PartialEq + std::fmt::Debug {
    let times = (metadata.mtime(), metadata.mtime_nsec());
    let links = if metadata.is_dir() { 0 } else { metadata.nlink() };
    (metadata.mode(), metadata.uid(), metadata.gid(), times, links, fs::FileType::is_symlink(&metadata.file_type()))
}

/// Returns what is below a directory of the cluster, without what belongs to each copy alone.
fn listed(cluster: &Cluster, root: &str) -> Vec<Value> {
    let listed = cluster.json(&["ls", "-l", "-R", root]);
    let entry = |entry: &Value| {
        let name = entry["name"].as_str().unwrap().strip_prefix(root).unwrap();
        let fields = ["kind", "mode", "uid", "gid", "size", "nlink", "atime_ns", "mtime_ns"];
        serde_json::json!([name, fields.map(|field| entry[field].clone())])
    };
    listed["entries"].as_array().unwrap().iter().map(entry).collect()
}

fn counts(cluster: &Cluster, args: &[&str]) -> [u64; 3] {
    let document = cluster.json(args);
    ["files", "skipped", "failed"].map(|field| document[field].as_u64().unwrap())
}

#[test]
fn archives_keep_modes_times_owners_and_links() {
    let cluster = Cluster::start(2);
    let source = cluster.path("source");
    tree(&source);
    let before = all_of(&source);
    let put = ["put", "-a", "-T", "source", "/t"];
    assert_eq!(counts(&cluster, &put), [5, 0, 0]);
    let stored = listed(&cluster, "/t");
    let one = stored.iter().find(|entry| entry[0] == "/open/one").unwrap();
    assert_eq!((&one[1][1], &one[1][5]), (&"0640".into(), &2.into()), "{one}");
    assert_eq!((&one[1][6], &one[1][7]), (&1_000_000_001_987_654_321u64.into(), &1_000_000_001_123_456_789u64.into()));
    // The same again leaves out what is complete, and keeps names of one file together.
    assert_eq!(counts(&cluster, &[&put[..], &["--resume"]].concat()), [0, 5, 0]);
    assert_eq!(listed(&cluster, "/t"), stored);
    // In the cluster, at first the tree and then what is missing of it.
    for (copied, skipped) in [(5, 0), (1, 4)] {
        assert_eq!(counts(&cluster, &["cp", "-a", "-T", "--resume", "/t", "/u"]), [copied, skipped, 0]);
        assert_eq!(listed(&cluster, "/u"), stored);
        cluster.ok(&["rm", "/u/open/deep/two"]);
    }
    // Back on this machine.
    for result in [[5, 0, 0], [0, 5, 0]] {
        assert_eq!(counts(&cluster, &["get", "-a", "-T", "--resume", "/t", "back"]), result);
        let after = all_of(&cluster.path("back"));
        assert!(before.keys().eq(after.keys()), "{after:?}");
        for (path, metadata) in &before {
            assert_eq!(kept(metadata), kept(&after[path]), "{}", path.display());
        }
        assert_eq!(after[Path::new("open/one")].ino(), after[Path::new("shut/again")].ino());
        assert_eq!(after[Path::new("open/one")].atime(), 1_000_000_001);
    }
    assert_eq!(fs::read(cluster.path("back/shut/again")).unwrap(), pattern(300_000, 1));
}

/// Who may not give files away gets his own, and none that would run with his rights.
#[test]
fn owners_are_kept_where_the_system_permits_it() {
    let cluster = Cluster::start(1);
    stores(&cluster, "/f", b"x");
    cluster.ok(&["chown", "12345:54321", "/f"]);
    cluster.ok(&["chmod", "6751", "/f"]);
    cluster.ok(&["get", "-q", "-a", "/f", "f"]);
    cluster.ok(&["cp", "-q", "-a", "/f", "/g"]);
    let (own, is) = (fs::metadata(cluster.path("pvfs.toml")).unwrap(), fs::metadata(cluster.path("f")).unwrap());
    let got = (is.uid(), is.mode() & 0o7777);
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(got, if is_root { (12345, 0o6751) } else { (own.uid(), 0o751) });
    let copy = &cluster.json(&["stat", "/g"])["files"][0];
    assert_eq!((&copy["uid"], &copy["gid"], &copy["mode"]), (&12345.into(), &54321.into(), &"6751".into()));
    // A copy without -a belongs to who makes it, and gives nobody his rights.
    cluster.ok(&["cp", "-q", "/f", "/h"]);
    let copy = &cluster.json(&["stat", "/h"])["files"][0];
    assert_eq!((&copy["uid"], &copy["mode"]), (&own.uid().into(), &"0751".into()));
}

#[test]
fn cp_copies_files_and_trees_within_the_cluster() {
    let cluster = Cluster::start(3);
    let bytes = pattern(9_000_001, 1);
    stores(&cluster, "/large", &bytes);
    stores(&cluster, "/empty", b"");
    cluster.ok(&["mkdir", "/d"]);
    let summary = cluster.ok(&["cp", "/large", "/empty", "/d", "--block-size", "1M"]);
    assert!(summary.starts_with("cp: 2 files, 8.6 MiB in "), "{summary}");
    assert!(content(&cluster, "/d/large") == bytes && content(&cluster, "/d/empty").is_empty());
    cluster.ok(&["cp", "-q", "/large", "/striped", "--servers", "2", "--strip-size", "4K"]);
    assert!(cluster.ok(&["ls", "-l", "/striped"]).contains("4Kx2") && content(&cluster, "/striped") == bytes);
    // Also in place of a file.
    cluster.ok(&["cp", "-q", "/empty", "/striped"]);
    assert!(content(&cluster, "/striped").is_empty());
    tree(&cluster.path("source"));
    cluster.ok(&["put", "-q", "-r", "source", "/"]);
    cluster.ok(&["cp", "-q", "-r", "/source", "/d"]);
    cluster.ok(&["get", "-q", "-r", "/d/source", "back"]);
    assert_same_tree(&cluster.path("source"), &cluster.path("back"));
    cluster.ok(&["ln", "/large", "/same"]);
    for (args, why) in [
        (&["/large", "/large"][..], "the same"),
        (&["/large", "/same"], "the same"),
        (&["-r", "-T", "/d", "/d"], "the same"),
        (&["-r", "/d", "/d/source"], "into itself"),
        (&["/d", "/e"], "copy it with -r"),
        (&["/d/source/open/link", "/e"], "copy it with -r"),
        (&["/none", "/e"], "/none"),
        (&["/large", "/empty", "/same"], "not a directory"),
    ] {
        let line = complaint(&cluster.run(&[&["cp"], args].concat()), 1);
        assert!(line.contains(why), "{args:?}: {line}");
    }
    let listed = "d/\nempty\nlarge\nsame\nsource/\nstriped\n";
    assert_eq!((cluster.ok(&["ls"]).as_str(), content(&cluster, "/same") == bytes), (listed, true));
}

#[test]
fn a_copy_that_fails_leaves_nothing() {
    let mut cluster = Cluster::start(2);
    stores(&cluster, "/f", &pattern(500_000, 1));
    stores(&cluster, "/old", b"old");
    cluster.kill_server(2);
    for target in ["/g", "/old"] {
        let line = complaint(&cluster.run(&["cp", "/f", target]), 1);
        assert!(line.contains("(iod 1)"), "{line}");
    }
    cluster.start_server(2);
    assert_eq!((cluster.ok(&["ls"]).as_str(), content(&cluster, "/old")), ("f\nold\n", b"old".to_vec()));
    assert_eq!(count(&cluster, "nameless_files"), 0);
}
