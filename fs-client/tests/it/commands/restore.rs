//! Backup and restore of a cluster, with real processes.
//!
//! `data/format2` has what a cluster with two I/O servers and directories of format 2 left: the
//! backup that its program wrote, the manager's label, and the files of the I/O servers that are
//! not empty. It has `/dir` with the files `short`, `long`, `sparse` and `empty`, in strips of
//! 4 KiB, and `gone`, which was removed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use testbed::process::Process;

use crate::support::bodies::{copy_tree, eventually};
use crate::support::cluster::Cluster;

/// The bytes of a file: different for each name and position.
fn contents(name: &str) -> Vec<u8> {
    let seed = name.bytes().fold(7u32, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    (0..150_000u32).map(|at| (at.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8).collect()
}

impl Cluster {
    fn put(&self, name: &str) {
        let local = self.path("local").join(name);
        fs::create_dir_all(local.parent().unwrap()).unwrap();
        fs::write(&local, contents(name)).unwrap();
        self.ok(&["-q", "put", local.to_str().unwrap(), &format!("/{name}")]);
    }

    /// Reads a file. Returns whether it could be read. Other bytes than its own are never right.
    fn reads(&self, name: &str) -> bool {
        let output = self.run(&["cat", &format!("/{name}")]);
        if output.status.success() {
            assert!(output.stdout == contents(name), "{name} has other bytes than its own");
        }
        output.status.success()
    }

    fn names(&self) -> Vec<String> {
        self.ok(&["ls", "/"]).lines().map(str::to_owned).collect()
    }

    /// Runs a command of the server program that must succeed.
    fn does(&self, args: &[&str]) -> String {
        let output = self.pvfsd(args);
        assert!(output.status.success(), "pvfsd {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command of the server program that must fail with status 1. Returns its errors.
    fn refuses(&self, args: &[&str]) -> String {
        let output = self.pvfsd(args);
        assert_eq!(output.status.code(), Some(1), "pvfsd {args:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    fn stop(&mut self, servers: impl IntoIterator<Item = usize>) {
        servers.into_iter().for_each(|index| self.kill_server(index));
    }

    /// Starts the manager without waiting until it serves.
    fn spawn_manager(&self, options: &[&str]) -> Process {
        let mut command = testbed::cluster::Cluster::pvfsd(self);
        command.arg("manager").args(options).stdout(Stdio::piped());
        Process::start(command.stderr(fs::File::create(self.path("log-0")).unwrap())).unwrap()
    }

    /// Waits until the I/O servers have this number of datafiles that are not empty: those of
    /// removed files are gone.
    fn settles(&self, expected: usize) {
        let in_dir = |dir: &Path| fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        let is_full = |file: &PathBuf| fs::metadata(file).is_ok_and(|file| file.len() > 0);
        let full = |server: &str| {
            let dirs = in_dir(&self.path(server)).into_iter().filter(|path| path.is_dir());
            dirs.flat_map(|dir| in_dir(&dir)).filter(is_full).count()
        };
        eventually("removed datafiles are gone", || full("iod0") + full("iod1") == expected);
    }

    /// Waits for the report about restored metadata.
    fn report(&self) -> String {
        let complete = || {
            let files = fs::read_dir(self.path("manager")).unwrap().map(|entry| entry.unwrap().path());
            let mut reports: Vec<PathBuf> =
                files.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("restored-")).collect();
            reports.sort();
            let text = fs::read_to_string(reports.last()?).unwrap();
            text.contains("\n# complete: ").then_some(text)
        };
        eventually("the report is complete", || complete().is_some());
        complete().unwrap()
    }
}

#[test]
fn a_backup_of_a_busy_manager_is_restored_and_nothing_is_mixed_up() {
    let mut cluster = Cluster::start(2);
    let files: Vec<String> = (0..20).map(|number| format!("file{number:02}")).collect();
    files.iter().for_each(|name| cluster.put(name));
    let (done, backup) = (AtomicBool::new(false), cluster.path("backup"));
    let backup = backup.to_str().unwrap();
    let during = std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut names = Vec::new();
            while !done.load(Ordering::Relaxed) && names.len() < 500 {
                names.push(format!("during{}", names.len()));
                cluster.put(names.last().unwrap());
            }
            names
        });
        eventually("files are put", || cluster.path("local/during1").exists());
        let said = cluster.does(&["backup", backup]);
        done.store(true, Ordering::Relaxed);
        assert!(said.starts_with("backed up cluster ") && said.contains(" objects, "), "{said}");
        busy.join().unwrap()
    });
    assert!(cluster.refuses(&["backup", backup]).contains("--force writes over it"));
    let later: Vec<String> = (0..5).map(|number| format!("later{number}")).collect();
    later.iter().for_each(|name| cluster.put(name));
    cluster.ok(&["rm", "/file00"]);
    cluster.ok(&["rm", "/file01"]);
    cluster.settles(2 * cluster.names().len());
    cluster.put("file02x");
    cluster.stop([0, 1, 2]);

    fs::rename(cluster.path("manager"), cluster.path("lost")).unwrap();
    let error = cluster.try_start_server(0, &[]).unwrap_err();
    assert!(error.contains("it does not exist: is that disk mounted?"), "{error}");
    let said = cluster.does(&["restore", backup]);
    assert!(said.contains("pvfsd manager --restored"), "{said}");
    assert!(cluster.refuses(&["restore", backup]).contains("move this one away"));
    let error = cluster.try_start_server(0, &[]).unwrap_err();
    assert!(error.contains("start it with `pvfsd manager --restored`"), "{error}");
    cluster.start_server(1);
    cluster.start_server(2);
    cluster.start_server_with(0, &["--restored", "--threads", "2"]);

    // What was removed since is back by name, but cannot be read.
    let readable: Vec<bool> = files.iter().map(|name| cluster.reads(name)).collect();
    assert!(!readable[0] && !readable[1] && readable[2..].iter().all(|reads| *reads), "{readable:?}");
    let names = cluster.names();
    assert!(later.iter().all(|name| !names.contains(name)), "{names:?}");
    for name in names.iter().filter(|name| name.starts_with("during")) {
        // The last one may have been in progress.
        assert!(cluster.reads(name) || Some(name) == names.iter().rfind(|name| name.starts_with("during")));
    }
    // New files get datafiles of their own, whatever was forgotten.
    let new: Vec<String> = (0..30).map(|number| format!("new{number:02}")).collect();
    new.iter().for_each(|name| cluster.put(name));
    assert!(new.iter().chain(&files[2..]).all(|name| cluster.reads(name)));

    let report = cluster.report();
    for path in ["\"/file00\"", "\"/file01\""] {
        let count = report.lines().filter(|line| line.starts_with("missing") && line.ends_with(path)).count();
        assert_eq!(count, 2, "a datafile at each server: {report}");
    }
    assert!(!report.contains("/new") && !report.contains("\"/file02\""), "{report}");
    // The datafiles of the files that are gone by name are kept.
    let with_data: Vec<&str> =
        report.lines().filter(|line| line.starts_with("unowned") && !line.ends_with("  0 bytes")).collect();
    assert!(with_data.len() >= 2 * later.len(), "{report}");
    for line in with_data {
        let words: Vec<&str> = line.split_whitespace().collect();
        let handle = words[2];
        let path = cluster.path(&format!("{}/{}/{handle}", words[1], &handle[12..14]));
        assert_eq!(fs::metadata(&path).unwrap().len().to_string(), words[3], "{}", path.display());
    }
    assert!(!during.is_empty());
    // The next start is a usual one.
    cluster.kill_server(0);
    cluster.start_server(0);
    assert!(new.iter().chain(&files[2..]).all(|name| cluster.reads(name)));
}

#[test]
fn a_backup_that_is_cut_or_damaged_is_refused_and_leaves_nothing() {
    let mut cluster = Cluster::start(1);
    (0..3).for_each(|number| cluster.put(&format!("file{number}")));
    let backup = cluster.path("backup");
    cluster.does(&["backup", backup.to_str().unwrap()]);
    cluster.stop([0, 1]);
    fs::rename(cluster.path("manager"), cluster.path("lost")).unwrap();
    let whole = fs::read(&backup).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    let (half, longer) = (whole[..whole.len() / 2].to_vec(), [&whole[..], b"x"].concat());
    for (bytes, why) in [
        (damaged, "it is damaged"),
        (half, "it is cut off"),
        (longer, "it is damaged"),
        (b"something else".to_vec(), "it is not a backup"),
    ] {
        let other = cluster.path("other");
        fs::write(&other, bytes).unwrap();
        let error = cluster.refuses(&["restore", other.to_str().unwrap()]);
        assert!(error.contains(why) && error.lines().count() == 1, "{error}");
        assert!(!cluster.path("manager").exists());
    }
    cluster.does(&["restore", backup.to_str().unwrap()]);
    cluster.start_server(1);
    cluster.start_server_with(0, &["--restored"]);
    assert!((0..3).all(|number| cluster.reads(&format!("file{number}"))));
}

#[test]
fn a_restored_manager_waits_for_every_server_and_refuses_an_empty_disk() {
    let mut cluster = Cluster::start(2);
    cluster.put("file");
    let backup = cluster.path("backup");
    cluster.does(&["backup", backup.to_str().unwrap()]);
    cluster.stop([0, 2]);
    fs::rename(cluster.path("manager"), cluster.path("lost")).unwrap();
    cluster.does(&["restore", backup.to_str().unwrap()]);
    let mut manager = cluster.spawn_manager(&["--restored", "--threads", "2"]);
    let mut lines = BufReader::new(manager.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The server that runs reports by itself. The other one may report over another event loop.
    assert!(lines.any(|line| line == "waiting for iod1"));
    let output = cluster.run(&["--timeout", "500ms", "ls", "/"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("waits until all I/O servers have reported"), "{errors}");
    // The disk of the other one is not mounted.
    fs::rename(cluster.path("iod1"), cluster.path("unmounted")).unwrap();
    fs::create_dir(cluster.path("iod1")).unwrap();
    let error = cluster.try_start_server(2, &[]).unwrap_err();
    assert!(error.contains("is that disk mounted?"), "{error}");
    fs::remove_dir(cluster.path("iod1")).unwrap();
    fs::rename(cluster.path("unmounted"), cluster.path("iod1")).unwrap();
    cluster.start_server(2);
    assert!(lines.any(|line| line == "serving"));
    assert!(lines.any(|line| line.starts_with("compared: 0 datafiles missing")));
    cluster.servers[0] = Some(manager);
    assert!(cluster.reads("file"));
}

/// Replays a bug: a manager that was restored from an older copy assigned handles again. A file of
/// 100,000 bytes came back with another file's tail.
#[test]
fn an_old_copy_of_the_managers_directory_is_noticed() {
    let mut cluster = Cluster::start(2);
    cluster.put("early");
    cluster.kill_server(0);
    copy_tree(&cluster.path("manager"), &cluster.path("copy"));
    cluster.start_server(0);
    (0..5).for_each(|number| cluster.put(&format!("late{number}")));
    cluster.kill_server(0);
    fs::rename(cluster.path("manager"), cluster.path("newest")).unwrap();
    fs::rename(cluster.path("copy"), cluster.path("manager")).unwrap();
    let refused = |cluster: &Cluster| {
        let status = cluster.spawn_manager(&[]).wait().unwrap();
        let log = fs::read_to_string(cluster.path("log-0")).unwrap();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("has gone back in time") && log.contains("pvfsd manager --restored"), "{log}");
    };
    refused(&cluster);
    // The newest one can still be used.
    fs::rename(cluster.path("manager"), cluster.path("copy")).unwrap();
    fs::rename(cluster.path("newest"), cluster.path("manager")).unwrap();
    cluster.start_server(0);
    assert!((0..5).all(|number| cluster.reads(&format!("late{number}"))));
    cluster.kill_server(0);
    fs::remove_dir_all(cluster.path("manager")).unwrap();
    fs::rename(cluster.path("copy"), cluster.path("manager")).unwrap();
    refused(&cluster);
    cluster.start_server_with(0, &["--restored"]);
    assert!(cluster.reads("early") && cluster.names() == ["early"]);
    (0..5).for_each(|number| cluster.put(&format!("new{number}")));
    assert!((0..5).all(|number| cluster.reads(&format!("new{number}"))) && cluster.reads("early"));
    assert!(cluster.report().lines().any(|line| line.starts_with("unowned") && !line.ends_with("  0 bytes")));
}

#[test]
fn a_cluster_of_format_2_is_refused_by_name_and_comes_over_in_its_backup() {
    let mut cluster = Cluster::start(2);
    cluster.stop([0, 1, 2]);
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/format2");
    for server in ["manager", "iod0", "iod1"] {
        fs::remove_dir_all(cluster.path(server)).unwrap();
        copy_tree(&data.join(server), &cluster.path(server));
    }
    // The manager's label is all that is read before the directory is refused.
    fs::write(cluster.path("manager/metadata.redb"), b"of format 2").unwrap();
    let error = cluster.try_start_server(0, &[]).unwrap_err();
    assert!(error.contains("format 2, and this program uses format 4") && error.contains("`pvfsd restore`"), "{error}");
    assert_eq!(fs::read(cluster.path("manager/metadata.redb")).unwrap(), b"of format 2");

    fs::rename(cluster.path("manager"), cluster.path("manager-of-format-2")).unwrap();
    cluster.does(&["restore", data.join("backup").to_str().unwrap()]);
    let mut manager = cluster.spawn_manager(&["--restored"]);
    (1..=2).for_each(|index| cluster.start_server(index));
    let serves = BufReader::new(manager.stdout.take().unwrap()).lines().map_while(Result::ok).any(|l| l == "serving");
    assert!(serves, "{}", fs::read_to_string(cluster.path("log-0")).unwrap());
    cluster.servers[0] = Some(manager);

    assert_eq!(cluster.ok(&["ls", "/dir"]).lines().collect::<Vec<_>>(), ["empty", "long", "short", "sparse"]);
    let long = (1..=2500).map(|number| format!("{number}\n")).collect::<String>();
    let sparse = [vec![0; 20_000], b"end\n".to_vec()].concat();
    let files =
        [("short", b"a short file\n".to_vec()), ("long", long.into()), ("sparse", sparse), ("empty", Vec::new())];
    for (name, bytes) in files {
        let output = cluster.run(&["cat", &format!("/dir/{name}")]);
        assert!(
            output.status.success() && output.stdout == bytes,
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    cluster.put("new");
    assert!(cluster.reads("new"));
    for server in ["manager", "iod0", "iod1"] {
        let label = fs::read_to_string(cluster.path(server).join("identity.toml")).unwrap();
        assert!(label.contains("\nformat = 4\n"), "{label}");
    }
}
