//! The commands on names, attributes and space: `chmod chown ln touch du df`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::support::bodies::{pattern, stores};
use crate::support::cluster::{Cluster, complaint, content};

fn stat(cluster: &Cluster, path: &str) -> Value {
    cluster.json(&["stat", path])["files"][0].clone()
}

/// A directory `/d` with a file, a directory with another one, and a link.
fn small_tree() -> Cluster {
    let cluster = Cluster::start(2);
    cluster.ok(&["mkdir", "-p", "/d/sub"]);
    cluster.ok(&["touch", "/d/f", "/d/sub/g"]);
    cluster.ok(&["ln", "-s", "f", "/d/link"]);
    cluster
}

#[test]
fn chmod_takes_octal_and_words_for_one_and_for_all() {
    let cluster = small_tree();
    let modes = || ["/d", "/d/f", "/d/sub/g", "/d/link"].map(|path| stat(&cluster, path)["mode"].clone());
    let link = modes()[3].clone();
    cluster.ok(&["chmod", "640", "/d/f", "/d/sub/g"]);
    cluster.ok(&["chmod", "u+x,g-r", "/d/f"]);
    cluster.ok(&["chmod", "-R", "g+w", "/d/f"]);
    assert_eq!(modes()[1..3], ["0720", "0640"]);
    let changed = cluster.json(&["chmod", "-R", "a=rX,u+w", "/d"]);
    assert_eq!(changed["changed"], 2, "the directories had these bits");
    assert_eq!(modes(), ["0755".into(), "0755".into(), "0644".into(), link]);
    // One that fails does not stop the others, and a link has no bits.
    let line = complaint(&cluster.run(&["chmod", "600", "/none", "/d/f"]), 1);
    assert!(line.contains("/none") && modes()[1] == "0600", "{line}");
    let line = complaint(&cluster.run(&["chmod", "600", "/d/link"]), 1);
    assert!(line.contains("name what it leads to"), "{line}");
}

#[test]
fn chown_takes_numbers_and_names() {
    let cluster = small_tree();
    let owner = |path: &str| ["uid", "gid"].map(|field| stat(&cluster, path)[field].as_u64().unwrap());
    cluster.ok(&["chmod", "6755", "/d/f"]);
    cluster.ok(&["chown", "12:34", "/d/f"]);
    assert_eq!((owner("/d/f"), stat(&cluster, "/d/f")["mode"].as_str()), ([12, 34], Some("0755")));
    cluster.ok(&["chown", ":56", "/d/f"]);
    assert_eq!(owner("/d/f"), [12, 56]);
    assert_eq!(cluster.json(&["chown", "-R", "root:7", "/d"])["changed"], 5);
    for path in ["/d", "/d/f", "/d/sub/g", "/d/link"] {
        assert_eq!(owner(path), [0, 7], "{path}");
    }
    let line = complaint(&cluster.run(&["chown", "no such user", "/d"]), 2);
    assert!(line.contains("write its number"), "{line}");
}

#[test]
fn ln_gives_names_and_replaces_them_in_one_step() {
    let cluster = Cluster::start(2);
    let bytes = pattern(100_000, 1);
    stores(&cluster, "/a", &bytes);
    stores(&cluster, "/b", b"b");
    cluster.ok(&["mkdir", "/d"]);
    cluster.ok(&["ln", "/a", "/d"]);
    assert_eq!((content(&cluster, "/d/a") == bytes, stat(&cluster, "/a")["nlink"].as_u64()), (true, Some(2)));
    // What is there stays, unless it is to be replaced.
    let line = complaint(&cluster.run(&["ln", "/a", "/b"]), 1);
    assert!(line.contains("exists") && content(&cluster, "/b") == b"b", "{line}");
    cluster.ok(&["ln", "-f", "/a", "/b"]);
    assert_eq!((content(&cluster, "/b") == bytes, stat(&cluster, "/a")["nlink"].as_u64()), (true, Some(3)));
    let line = complaint(&cluster.run(&["ln", "-f", "/a", "/b"]), 1);
    assert!(line.contains("the same file"), "{line}");
    complaint(&cluster.run(&["ln", "/d", "/e"]), 1);
    // A link's target is any bytes, and need not be there.
    let target = OsStr::from_bytes(b"../\xff");
    for old in ["/s", "/b"] {
        let made = cluster.command(&["ln", "-s", "-f"]).arg(target).arg(old).output().unwrap();
        assert!(made.status.success());
        cluster.ok(&["get", "-a", old, "fetched"]);
        assert_eq!(fs::read_link(cluster.path("fetched")).unwrap(), target);
    }
    let line = complaint(&cluster.run(&["ln", "-s", "x", "/s"]), 1);
    assert!(line.contains("exists"), "{line}");
    cluster.ok(&["mkdir", "-p", "/d/x"]);
    complaint(&cluster.run(&["ln", "-s", "-f", "x", "/d"]), 1);
    assert_eq!(cluster.ok(&["ls", "-R"]), "/:\na\nb@\nd/\ns@\n\n/d:\na\nx/\n\n/d/x:\n\n", "nothing else is left");
}

#[test]
fn a_directory_says_how_its_new_files_are_striped() {
    let cluster = Cluster::start(4);
    cluster.ok(&["mkdir", "/d"]);
    assert_eq!(cluster.ok(&["layout", "/d"]), "/d: strip size the default, servers the default\n");
    let set = cluster.ok(&["layout", "/d", "--strip-size", "8K", "--servers", "2"]);
    assert_eq!(set, "/d: strip size 8K, servers 2\n");
    cluster.ok(&["mkdir", "/d/e"]);
    let bytes = pattern(100_000, 2);
    let striped = |path: &str| {
        stores(&cluster, path, &bytes);
        assert!(content(&cluster, path) == bytes, "{path}");
        let distribution = &stat(&cluster, path)["distribution"];
        (distribution["strip_size"].as_u64(), distribution["servers"].as_u64())
    };
    assert_eq!(striped("/d/e/f"), (Some(8 << 10), Some(2)), "the directory took it over");
    assert_eq!(striped("/f"), (Some(64 << 10), Some(4)));
    let line = complaint(&cluster.run(&["layout", "/f", "--servers", "1"]), 1);
    assert!(line.contains("for directories"), "{line}");
    cluster.ok(&["layout", "/d", "--default"]);
    assert_eq!(cluster.ok(&["layout", "/d", "--default"]), "/d: strip size the default, servers the default\n");
    assert_eq!(striped("/d/later"), (Some(64 << 10), Some(4)));
    complaint(&cluster.run(&["layout", "/none"]), 1);
    complaint(&cluster.run(&["layout", "/none", "--default"]), 1);
}

#[test]
fn touch_creates_and_sets_times() {
    let cluster = Cluster::start(2);
    let times = |path: &str| ["atime_ns", "mtime_ns"].map(|field| stat(&cluster, path)[field].as_u64().unwrap());
    let bytes = pattern(1000, 1);
    stores(&cluster, "/old", &bytes);
    let before = times("/old");
    cluster.ok(&["touch", "/new", "/old"]);
    assert_eq!((stat(&cluster, "/new")["size"].as_u64(), content(&cluster, "/old") == bytes), (Some(0), true));
    assert!(times("/old")[1] > before[1] && times("/old") == times("/new"), "one time for all");
    stores(&cluster, "/reference", &bytes);
    let touched = cluster.json(&["touch", "-c", "-r", "/reference", "/new", "/none"]);
    assert_eq!((times("/new"), &touched["touched"]), (times("/reference"), &serde_json::json!(["/new"])));
    cluster.ok(&["touch", "--reference", "/reference", "/made"]);
    assert_eq!(times("/made"), times("/reference"));
    for (how, at) in [("-d", "2026-11-28T12:00:00.5Z"), ("--date", "@1795867200.5"), ("-t", "202611281200.00")] {
        cluster.ok(&["touch", how, at, "/new"]);
        let ns = 1_795_867_200_500_000_000 - u64::from(how == "-t") * 500_000_000;
        assert_eq!(times("/new"), [ns; 2], "{how} {at}");
    }
    complaint(&cluster.run(&["touch", "-d", "tomorrow", "/new"]), 2);
    complaint(&cluster.run(&["touch", "/none/x"]), 1);
    assert_eq!(cluster.ok(&["ls"]), "made\nnew\nold\nreference\n");
}

#[test]
fn du_sums_up_trees_and_df_shows_what_is_left() {
    let mut cluster = Cluster::start(2);
    let tree = cluster.path("tree");
    fs::create_dir_all(tree.join("a/deep")).unwrap();
    fs::create_dir(tree.join("a-b")).unwrap();
    for (name, len) in [("top", 1000), ("a/one", 65_536), ("a/deep/two", 24), ("a-b/three", 7)] {
        fs::write(tree.join(name), pattern(len, 1)).unwrap();
    }
    symlink("one", tree.join("a/link")).unwrap();
    cluster.ok(&["put", "-q", "-r", "tree", "/"]);
    cluster.ok(&["ln", "/tree/a/one", "/tree/a-b/again"]);
    cluster.ok(&["truncate", "/tree/top", "2000"]);
    let sums = cluster.json(&["du", "/tree/a", "/tree/a-b"]);
    let sums: Vec<_> = sums["sums"].as_array().unwrap().iter().map(|sum| (&sum["name"], &sum["bytes"])).collect();
    let text = format!("{sums:?}");
    assert!(sums[..2] == [(&"/tree/a/deep".into(), &24.into()), (&"/tree/a".into(), &65_560.into())], "{text}");
    assert!(sums[2..] == [(&"/tree/a-b".into(), &7.into())], "a file with two names counts once: {text}");
    assert_eq!(cluster.ok(&["du", "-s", "/tree", "/tree/top"]), "67567\t/tree\n2000\t/tree/top\n");
    assert_eq!(cluster.ok(&["du", "-h", "/tree/a/one"]), "64K\t/tree/a/one\n");
    assert_eq!(cluster.ok(&["du"]).lines().last(), Some("67567\t/"));
    complaint(&cluster.run(&["du", "/none"]), 1);
    for name in ["du", "df"] {
        assert!(cluster.ok(&[name, "--help"]).contains("Examples:"));
    }
    let (table, space) = (cluster.ok(&["df"]), cluster.json(&["df"]));
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((lines.len(), lines[0][1], lines[2][1]), (5, "size", "(iod"), "{table}");
    let sum = &lines[3];
    assert_eq!((sum[0], sum[3], sum[4]), ("all,", "disk", space["capacity"].to_string().as_str()), "{table}");
    let short = cluster.ok(&["statfs", "-h"]);
    assert!(short.lines().nth(1).unwrap().split_whitespace().nth(3).unwrap().ends_with(['M', 'G', 'T']), "{short}");
    // What is known is shown.
    cluster.kill_server(1);
    let output = cluster.run(&["df"]);
    let line = complaint(&output, 1);
    assert!(line.contains("(iod 0)") && String::from_utf8_lossy(&output.stdout).contains("(iod 1)"), "{line}");
}
