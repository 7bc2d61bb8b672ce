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
