//! The two hosts: network namespaces, and programs in them.
//!
//! **Invariants**
//! 1. A namespace has no name. The kernel removes it with the last process and the last descriptor
//!    that is in it, and its devices with it. Only one that the user keeps gets a name.
//! 2. This program itself stays in the network of the machine.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::thread::UnshareFlags;

use super::tun;
use crate::command::Invocation;
use crate::setup;

/// The network device at each end of the cable.
pub(super) const DEVICE: &str = "cable";

/// A host.
pub(super) struct Host {
    namespace: File,
}

impl Host {
    /// Makes a host with its loopback device.
    pub(super) fn make() -> Result<Host, String> {
        let failed = |error: std::io::Error| format!("there is no network namespace: {error}");
        // A thread alone leaves, and its namespace is kept by the descriptor.
        let leave = || {
            tun::leave(UnshareFlags::NEWNET)?;
            File::open("/proc/thread-self/ns/net")
        };
        let made = std::thread::scope(|scope| scope.spawn(leave).join());
        let namespace = made.map_err(|_| "a thread has panicked".to_owned())?.map_err(failed)?;
        let host = Host { namespace };
        host.run("ip", "link set lo up")?;
        Ok(host)
    }

    /// Returns the path by which other programs open the namespace.
    pub(super) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd())
    }

    /// Runs `ip` or `tc` in the host with the words of `args`. The error is what it says.
    pub(super) fn run(&self, program: &str, args: &str) -> Result<(), String> {
        run_by(&format!("nsenter --net={}", self.path()), program, args)
    }

    /// Returns a command that runs a program in the host, under the id of the child.
    pub(super) fn command(&self, program: &str, args: &[String]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(self.words(program)).args(args);
        command
    }

    /// Returns a program of the host whose time is limited.
    pub(super) fn limited(&self, program: &str, args: &[String]) -> Invocation {
        Invocation::new(Path::new("."), "nsenter", "").args(&self.words(program)).args(args)
    }

    /// The arguments of `nsenter` before those of a program. The program finds the devices of its
    /// host in `/sys`, and not those of the machine.
    fn words(&self, program: &str) -> [String; 8] {
        const SYS: &str = "mount -t sysfs sysfs /sys && exec \"$0\" \"$@\"";
        [&format!("--net={}", self.path()), "--", "unshare", "--mount", "sh", "-c", SYS, program].map(str::to_owned)
    }

    /// Gives the namespace a name, by which it stays.
    pub(super) fn keep(&self, name: &str) -> Result<(), String> {
        let ip = setup::program("ip").unwrap_or_else(|| "ip".into());
        // `ip` takes the namespace of a process that is in it.
        let attach = format!("exec {} netns attach {name} $$", ip.display());
        let status = Command::new("nsenter").args([&format!("--net={}", self.path()), "sh", "-c", &attach]).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("`ip netns attach {name}`: {status}")),
            Err(error) => Err(format!("`ip netns attach {name}` cannot be started: {error}")),
        }
    }

    /// Returns true if a process is inside. One that has ended is in none.
    pub(super) fn has(&self, pid: u32) -> bool {
        let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let own = fs::metadata(format!("/proc/{pid}/ns/net")).ok().map(identity);
        own.is_some() && own == self.namespace.metadata().ok().map(identity)
    }
}

/// Runs a program of this machine with the words of `args`. The error is what it says.
pub(super) fn run(program: &str, args: &str) -> Result<(), String> {
    run_by("", program, args)
}

/// Runs a program by another one that is given its path and its arguments.
fn run_by(by: &str, program: &str, args: &str) -> Result<(), String> {
    let path = setup::program(program).ok_or_else(|| format!("there is no program `{program}` (iproute2)"))?;
    let path = path.to_string_lossy();
    let mut words = by.split_whitespace().chain([&*path]).chain(args.split_whitespace());
    let output = Command::new(words.next().unwrap_or_default()).args(words).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("`{program}` cannot be started: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(format!("`{program} {args}`: {said}"))
}

/// Counts the sockets that serve in the namespace of a process: listeners of TCP, and all of UDP.
pub(super) fn listeners(pid: u32) -> usize {
    let table = |name| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let tcp: usize = ["tcp", "tcp6"].iter().map(|name| count_listeners(&table(name))).sum();
    let udp = ["udp", "udp6"].iter().map(|name| table(name).lines().skip(1).count());
    tcp + udp.sum::<usize>()
}

/// Reads a table of proc(5), *net/tcp*: the fourth field is the state, and 0A means LISTEN.
fn count_listeners(table: &str) -> usize {
    table.lines().skip(1).filter(|line| line.split_whitespace().nth(3) == Some("0A")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_counted_in_the_table_of_the_system() {
        const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue\n";
        let connected = "   0: 0100007F:1F90 0100007F:0A0A 01 00000000:00000000\n";
        let listener = "   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000\n";
        assert_eq!(count_listeners(&format!("{HEAD}{connected}")), 0);
        assert_eq!(count_listeners(&format!("{HEAD}{connected}{listener}{listener}")), 2);
    }

    #[test]
    fn what_ip_refuses_is_told() {
        let why = run("ip", "no-such-object").unwrap_err();
        assert!(why.starts_with("`ip no-such-object`: ") || why.contains("iproute2"), "{why}");
    }
}
