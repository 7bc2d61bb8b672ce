//! A cluster with certificates: real servers, real commands, and who is let in by whom.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::commands::control::Machine;
use crate::support::bodies::eventually;

/// A cluster that was made with `pvfsd init --secure`.
struct Secure(Machine);

impl Secure {
    fn new(iods: usize) -> Secure {
        Secure(Machine::with(iods, &["--secure"]))
    }

    fn started(iods: usize) -> Secure {
        let cluster = Secure::new(iods);
        cluster.0.ok(&["start"]);
        cluster
    }

    fn certificates(&self) -> PathBuf {
        self.0.path("data/certificates")
    }

    fn authority(&self) -> String {
        self.0.path("data/authority").display().to_string()
    }

    /// Issues a certificate for a user. Returns the environment of his programs.
    fn issue(&self, user: &str, more: &[&str]) -> Vec<(&'static str, PathBuf)> {
        self.0.ok(&[&["ca", "issue", "--dir", &self.authority(), "user", user], more].concat());
        let issued = |end: &str| self.0.path(&format!("data/authority/issued/user-{user}.{end}"));
        let authority = self.certificates().join("authority.pem");
        vec![("BMI_CERTIFICATE", issued("pem")), ("BMI_KEY", issued("key")), ("BMI_AUTHORITIES", authority)]
    }

    fn log(&self, server: &str) -> String {
        fs::read_to_string(self.0.path(&format!("data/logs/{server}.log"))).unwrap()
    }
}

/// Returns what the command prints.
fn ok(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns why the command fails.
fn fails(mut command: Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.lines().count() == 1, "one line: {errors}");
    errors
}

#[test]
fn a_secure_cluster_needs_no_further_thought_and_lets_no_stranger_in() {
    let cluster = Secure::started(2);
    let file = cluster.0.path("file");
    fs::write(&file, vec![7; 300_000]).unwrap();
    let file = file.display().to_string();
    ok(cluster.0.pvfs(&["put", &file, "/file"]));
    assert_eq!(ok(cluster.0.pvfs(&["cat", "/file"])).len(), 300_000);
    let checked = cluster.0.ok(&["check"]);
    assert!(checked.contains("security TLS"), "{checked}");
    // Somebody who has no certificate, and somebody who has one of another authority.
    let mut clear = cluster.0.pvfs(&["ls", "/"]);
    clear.env("PVFS_SECURITY", "off");
    assert!(fails(clear).contains("it requires TLS, and this side has no certificate"));
    let other = Secure::new(1);
    let mut stranger = cluster.0.pvfs(&["ls", "/"]);
    stranger.env("HOME", other.0.path(""));
    let error = fails(stranger);
    assert!(error.contains("of an authority that this side does not trust"), "{error}");
    let log = cluster.log("manager");
    assert!(log.contains("it speaks without TLS, and this side requires it"), "{log}");
    // A cluster without certificates says so.
    let open = Machine::with(1, &[]);
    let checked = open.ok(&["check"]);
    assert!(checked.contains("security none: whoever reaches a port may read and change everything"), "{checked}");
}

#[test]
fn a_server_whose_certificate_is_anothers_takes_no_part() {
    let cluster = Secure::new(2);
    let own = cluster.certificates();
    for end in ["pem", "key"] {
        fs::copy(own.join(format!("iod-0.{end}")), own.join(format!("iod-1.{end}"))).unwrap();
    }
    cluster.0.run(&["start", "--timeout", "3"]);
    eventually("the manager's log", || cluster.log("manager").contains("is not that of iod 1"));
    let states = String::from_utf8(cluster.0.run(&["status"]).stdout).unwrap();
    assert!(states.lines().any(|line| line.starts_with("iod1") && !line.contains("serving")), "{states}");
}

#[test]
fn duties_are_in_the_certificate_and_a_revoked_one_opens_nothing() {
    let cluster = Secure::started(1);
    let ben = cluster.issue("ben", &[]);
    let as_ben = |mut command: Command| {
        command.envs(ben.iter().cloned());
        command
    };
    ok(as_ben(cluster.0.pvfs(&["ls", "/"])));
    let error = fails(as_ben(cluster.0.pvfs(&["fsck"])));
    assert!(error.contains("this takes a certificate with pvfs:may/admin"), "{error}");
    let copy = cluster.0.path("copy").display().to_string();
    let carla = cluster.issue("carla", &["--may", "backup"]);
    let backup = |environment: &[(&'static str, PathBuf)]| {
        let mut command = cluster.0.command(&["backup", &copy]);
        command.envs(environment.iter().cloned());
        command
    };
    let error = fails(backup(&ben));
    assert!(error.contains("this takes a certificate with pvfs:may/backup"), "{error}");
    ok(backup(&carla));
    let log = cluster.log("manager");
    assert!(log.contains("refused duty") && log.contains(r#""event":"duty""#), "{log}");
    cluster.0.ok(&["ca", "revoke", "--dir", &cluster.authority(), "user-ben"]);
    fs::copy(cluster.0.path("data/authority/revoked.pem"), cluster.certificates().join("revoked.pem")).unwrap();
    let manager = cluster.0.pids()[0];
    kill_process(Pid::from_raw(manager.try_into().unwrap()).unwrap(), Signal::HUP).unwrap();
    eventually("the manager to read the list", || cluster.log("manager").contains("again"));
    let error = fails(as_ben(cluster.0.pvfs(&["ls", "/"])));
    assert!(error.contains("the certificate is revoked"), "{error}");
    ok(cluster.0.pvfs(&["ls", "/"]));
}

/// Users over real TLS: their files, somebody who is shut out while he could go on, and logs in
/// which nobody finds a secret.
#[test]
fn a_user_has_his_own_files_and_who_is_shut_out_has_none() {
    let cluster = Secure::new(2);
    let mut start = cluster.0.command(&["start"]);
    start.env("RUST_LOG", "trace");
    ok(start);
    let file = cluster.0.path("file");
    fs::write(&file, vec![7; 300_000]).unwrap();
    let file = file.display().to_string();
    let user = |name: &str, uid: &str| {
        let environment = cluster.issue(name, &["--uid", uid, "--gid", uid]);
        let machine = &cluster.0;
        move |arguments: &[&str]| {
            let mut command = machine.pvfs(arguments);
            command.envs(environment.iter().cloned());
            command
        }
    };
    let (rita, ben) = (user("rita", "4000"), user("ben", "4001"));
    ok(cluster.0.pvfs(&["mkdir", "/d"]));
    ok(cluster.0.pvfs(&["chmod", "1777", "/d"]));
    ok(rita(&["put", "--mode", "600", &file, "/d/f"]));
    assert_eq!(ok(rita(&["cat", "/d/f"])).len(), 300_000);
    let listed = ok(ben(&["ls", "-l", "/d"]));
    assert!(listed.contains("4000"), "{listed}");
    for arguments in [&["cat", "/d/f"][..], &["put", &file, "/d/f"], &["rm", "/d/f"], &["chmod", "777", "/d/f"]] {
        let error = fails(ben(arguments));
        assert!(error.contains("permission denied"), "{arguments:?}: {error}");
    }
    ok(rita(&["chmod", "644", "/d/f"]));
    assert_eq!(ok(ben(&["cat", "/d/f"])).len(), 300_000);
    cluster.0.ok(&["revoke", "user-rita"]);
    assert!(fails(rita(&["cat", "/d/f"])).contains("pvfs:user/rita was shut out"));
    assert!(cluster.0.ok(&["revoke", "--list"]).starts_with("user-rita"));
    let mut refused = cluster.0.command(&["revoke", "user-rita", "--undo"]);
    refused.envs(cluster.issue("carla", &[]));
    assert!(fails(refused).contains("this takes a certificate with pvfs:may/admin"));
    cluster.0.ok(&["revoke", "user-rita", "--undo"]);
    ok(rita(&["rm", "/d/f"]));
    let logs = ["manager", "iod0", "iod1"].map(|server| cluster.log(server));
    assert!(logs[0].contains(r#""request":"revoke pvfs:user/rita""#) && logs[0].contains("TRACE"));
    let keys = [cluster.certificates(), cluster.0.path("data/authority/issued")];
    let keys = keys.iter().flat_map(|dir| fs::read_dir(dir).unwrap()).map(|entry| entry.unwrap().path());
    let keys: Vec<String> = keys
        .filter(|path| path.extension().is_some_and(|end| end == "key"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    assert!(keys.len() > 5);
    for log in &logs {
        for line in keys.iter().flat_map(|key| key.lines().filter(|line| !line.starts_with('-'))) {
            assert!(!log.contains(line), "a private key is in a log");
        }
        // As bytes are printed by `Debug`.
        let bytes = log.lines().find(|line| has_bytes(line));
        assert_eq!(bytes, None, "bytes are in a log");
    }
}

/// Returns true if a line has a list of 16 numbers below 256, one after the other.
fn has_bytes(line: &str) -> bool {
    let mut run = 0;
    line.split([',', '[', ']']).any(|word| {
        run = if word.trim().parse::<u8>().is_ok() { run + 1 } else { 0 };
        run >= 16
    })
}
