//! An `sshd` of the test's own, on a port of the loopback device, with keys that are made for it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::Builder;

use crate::bed::spawn;

/// The directory that `sshd` needs if root runs it. The system makes it when it starts `sshd`.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";
/// How often another port is tried, if somebody else has taken the one that was free.
const ATTEMPTS: u32 = 5;
/// A port at which nothing listens: only root can, and nobody does.
const CLOSED: u16 = 1;

/// A running `sshd`. Its hosts are `b…` and `c…`, which are this host. These fail: `closed…`, where
/// nothing listens; `unknown…`, whose key is not known; and `locked…`, which asks for a password.
pub(crate) struct Sshd {
    child: Child,
    config: PathBuf,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sshd {
    pub(crate) fn start(dir: &Path) -> Sshd {
        for key in ["host", "user", "other"] {
            let mut command = Command::new("ssh-keygen");
            command.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(dir.join(key)).stdin(Stdio::null());
            assert!(spawn(&mut command).wait().unwrap().success(), "ssh-keygen");
        }
        fs::copy(dir.join("user.pub"), dir.join("authorized")).unwrap();
        let host = fs::read_to_string(dir.join("host.pub")).unwrap();
        fs::write(dir.join("known"), format!("this-host {host}")).unwrap();
        if rustix::process::geteuid().is_root() {
            fs::create_dir_all(PRIVILEGE_SEPARATION).unwrap();
        }
        for _ in 0..ATTEMPTS {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = free.local_addr().unwrap().port();
            drop(free);
            if let Some(child) = listen(dir, port) {
                let config = dir.join("ssh_config");
                fs::write(&config, client(dir, port)).unwrap();
                return Sshd { child, config };
            }
        }
        panic!("sshd cannot listen");
    }

    /// Returns the command that reaches the hosts.
    pub(crate) fn ssh(&self) -> String {
        format!("ssh -F {}", self.config.display())
    }
}

/// Starts `sshd`. Returns `None` if it cannot have the port.
fn listen(dir: &Path, port: u16) -> Option<Child> {
    let path = |name: &str| dir.join(name).display().to_string();
    let config = format!(
        "ListenAddress 127.0.0.1\nPort {port}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\n\
         UsePAM no\nPermitRootLogin yes\nPasswordAuthentication yes\nMaxStartups 100\n",
        path("host"),
        path("authorized")
    );
    fs::write(dir.join("sshd_config"), config).unwrap();
    // It must be named by its whole path, because it starts itself again for each connection.
    let mut command = Command::new(program());
    command.args(["-D", "-e", "-f", &path("sshd_config")]).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut child = spawn(&mut command);
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut said = String::new();
    for line in lines.by_ref() {
        if line.starts_with("Server listening on") {
            Builder::new().spawn(move || lines.for_each(drop)).unwrap();
            return Some(child);
        }
        said += &line;
    }
    child.wait().unwrap();
    assert!(said.contains("Address already in use"), "sshd: {said}");
    None
}

fn program() -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.map(|folder| folder.join("sshd")).find(|file| file.is_file());
    found.expect("no sshd: apt-get install openssh-server")
}

/// Returns the configuration of `ssh`. The first line about an option counts.
fn client(dir: &Path, port: u16) -> String {
    let path = |name: &str| dir.join(name).display().to_string();
    format!(
        "Host closed*\n  Port {CLOSED}\nHost unknown*\n  UserKnownHostsFile /dev/null\nHost locked*\n  IdentityFile {}\n\
         Host * !locked*\n  IdentityFile {}\n\
         Host *\n  HostName 127.0.0.1\n  Port {port}\n  HostKeyAlias this-host\n  IdentitiesOnly yes\n  \
         IdentityAgent none\n  UserKnownHostsFile {}\n  GlobalKnownHostsFile none\n",
        path("other"),
        path("user"),
        path("known")
    )
}
