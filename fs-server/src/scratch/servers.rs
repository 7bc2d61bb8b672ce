//! A scratch cluster in a process of its own, as another program starts it.
//!
//! **Why.** Servers that are threads of the client's process share its address space. In a process
//! of their own they show what a transport between processes costs.
//!
//! The servers end when their standard input does. So they end with this program, however it ends.

use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use bmi::{Addr, Scheme};

/// The servers. Dropping them stops them.
#[derive(Debug)]
pub struct Servers {
    child: Child,
    manager: Addr,
}

impl Servers {
    /// Starts a manager and `iods` I/O servers that listen over `scheme`. `options` are more
    /// options of `pvfsd scratch`.
    ///
    /// # Errors
    /// If there is no program `pvfsd`, or a server does not start. The text says what to do.
    pub fn start(scheme: Scheme, iods: usize, options: &[&str]) -> io::Result<Servers> {
        let mut command = Command::new(pvfsd()?);
        command.args(["scratch", "--over", scheme.as_str(), "--iods", &iods.to_string()]).args(options);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let lines = child.stdout.take().map(|out| BufReader::new(out).lines().map_while(Result::ok));
        let manager = lines.into_iter().flatten().find_map(|line| line.strip_prefix("manager ")?.parse().ok());
        match manager {
            Some(manager) => Ok(Servers { child, manager }),
            None => {
                let status = child.wait()?;
                Err(io::Error::other(format!("the servers did not come up over {scheme} ({status}); they said why")))
            }
        }
    }

    /// Returns the manager's address.
    pub fn manager(&self) -> &Addr {
        &self.manager
    }

    /// Returns the process of the servers.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    /// Stops the servers in an orderly way.
    ///
    /// # Errors
    /// If one ends with an error.
    pub fn stop(mut self) -> io::Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("the servers ended with {status}"))) }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // They have said on standard error what went wrong.
        let _ = self.child.wait();
    }
}

/// Returns the path of the servers' program: the value of the environment variable `PVFSD`, or else
/// the file beside this program.
fn pvfsd() -> io::Result<PathBuf> {
    let program = match std::env::var_os("PVFSD") {
        Some(given) => given.into(),
        None => std::env::current_exe()?.with_file_name("pvfsd"),
    };
    if program.is_file() {
        return Ok(program);
    }
    let what = "is not there: build it with `cargo build --release -p fs-server` (without --release for a debug build)";
    Err(io::Error::new(io::ErrorKind::NotFound, format!("{} {what}", program.display())))
}
