//! The command line of `pvfs-mount`. mount(8) runs the program too, under the name `mount.pvfs`:
//! `mount.pvfs ADDR DIR -o a,b=c`.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use bmi::{Addr, Scheme};
use clap::Parser;
use cli_manual::Manual;
use fs_client::TransportChoice;
use rustix::mount::MountFlags;

use crate::fuse::Coherence;

const HELP: &str = "\
Options of -o, separated by commas:
  hard            wait for a server that does not answer, as long as it takes; a process that waits
                  can be killed (the default)
  soft            give up after the time limit: the program gets EIO
  timeo=TIME      the time limit of a request, such as 30s (the default), 500ms or 2m
  coherence=open  an open sees what was closed before it on any mount; names and attributes are up
                  to a second old (the default)
  coherence=strict   nothing is kept, so each access asks the servers; no shared mmap
  coherence=exclusive   no other mount or program changes anything: the kernel keeps all that it
                  reads, and what is written goes to the servers later, at close or fsync at the
                  latest
  over=WHICH      the transport to the servers: auto (the default), tcp, shm or ib
  ro, noexec, suid, dev, noatime, relatime   as in mount(8); suid and dev are off unless given
  allow_other     all users may use it. User ids are believed: whoever reaches the servers reaches
                  all files
  log=FILE        where a daemon writes its messages; without, they are lost
  x-*, _netdev, nofail, defaults, user   are for mount(8), and ignored here

Examples:
  pvfs mount /mnt                               with PVFS_MANAGER or --manager
  pvfs-mount tcp://storage-1:7000 /mnt -f       the same, in the foreground until Ctrl-C
  mount -t pvfs tcp://storage-1:7000 /mnt -o soft,timeo=10s
  pvfs umount /mnt

A line of /etc/fstab, for which the program is also /sbin/mount.pvfs (ln -s):
  tcp://storage-1:7000  /mnt  pvfs  _netdev,nofail  0 0

Exit status: 0 mounted (in the foreground: unmounted), 1 it failed, 2 the command line is wrong.";

/// Mounts the parallel file system
#[derive(Debug, Parser)]
#[command(name = "pvfs-mount", version, about, after_help = HELP)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// For packages
    #[command(subcommand)]
    pub(crate) manual: Option<Manual>,

    /// Address of the manager: tcp://host:port, ib://device/host:port or shm:///path; with
    /// --unmount, the directory
    #[arg(value_name = "ADDR", required = true)]
    pub(crate) manager: Option<String>,

    /// The directory on which it is mounted
    #[arg(required_unless_present_any = ["unmount", "write_back"])]
    pub(crate) dir: Option<PathBuf>,

    /// Options as mount(8) passes them: a,b=c
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,

    /// Stay in the foreground
    #[arg(long, short)]
    pub(crate) foreground: bool,

    /// Mount read-only
    #[arg(short)]
    pub(crate) read_only: bool,

    /// Unmount the directory
    #[arg(long, conflicts_with = "dir")]
    pub(crate) unmount: bool,

    /// Have the kernel write back what it has kept of the mount ADDR
    #[arg(long, hide = true, conflicts_with_all = ["dir", "unmount"])]
    pub(crate) write_back: bool,

    /// Of mount(8): ignore options that are not known
    #[arg(short = 's', hide = true)]
    pub(crate) sloppy: bool,

    /// Of mount(8): no table of mounts
    #[arg(short = 'n', hide = true)]
    pub(crate) no_table: bool,

    /// Of mount(8): the messages are the same
    #[arg(short, hide = true)]
    pub(crate) verbose: bool,

    /// Serve the directory ADDR of this machine instead, until standard input ends
    #[arg(long, hide = true)]
    pub(crate) through: bool,

    /// The daemon, which tells its parent when it has mounted
    #[arg(long, hide = true)]
    pub(crate) daemon: bool,
}

/// How to mount.
#[derive(Debug)]
pub(crate) struct Mount {
    pub(crate) manager: Addr,
    pub(crate) dir: PathBuf,
    pub(crate) is_hard: bool,
    pub(crate) timeout: Duration,
    pub(crate) coherence: Coherence,
    pub(crate) over: TransportChoice,
    pub(crate) log: Option<PathBuf>,
    pub(crate) flags: MountFlags,
    /// Options of the kernel, each after a comma.
    pub(crate) kernel: String,
}

impl Cli {
    /// Reads the options.
    ///
    /// # Errors
    /// A line that tells what is wrong.
    pub(crate) fn mount(&self) -> Result<Mount, String> {
        let manager = self.manager.as_deref().unwrap_or_default();
        let manager = manager.parse().map_err(|error| format!("{manager}: {error}"))?;
        let mut mount = Mount {
            manager,
            dir: self.dir.clone().ok_or("a directory is missing")?,
            is_hard: true,
            timeout: Duration::from_secs(30),
            coherence: Coherence::default(),
            over: TransportChoice::Auto,
            log: None,
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            kernel: String::new(),
        };
        mount.flags.set(MountFlags::RDONLY, self.read_only);
        for option in self.options.iter().filter(|option| !option.is_empty()) {
            mount.take(option, self.sloppy)?;
        }
        Ok(mount)
    }
}

impl Mount {
    fn take(&mut self, option: &str, is_sloppy: bool) -> Result<(), String> {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match (name, value) {
            ("hard", "") => self.is_hard = true,
            ("soft", "") => self.is_hard = false,
            ("timeo", time) => self.timeout = duration(time)?,
            ("coherence", "open") => self.coherence = Coherence::Open,
            ("coherence", "strict") => self.coherence = Coherence::Strict,
            ("coherence", "exclusive") => self.coherence = Coherence::Exclusive,
            ("coherence", _) => return Err(format!("{option}: coherence is open, strict or exclusive")),
            ("over", which) => self.over = over(which)?,
            ("log", file) => self.log = Some(file.into()),
            ("ro", "") => self.flags.insert(MountFlags::RDONLY),
            ("rw", "") => self.flags.remove(MountFlags::RDONLY),
            ("noexec", "") => self.flags.insert(MountFlags::NOEXEC),
            ("exec", "") => self.flags.remove(MountFlags::NOEXEC),
            ("nosuid", "") => self.flags.insert(MountFlags::NOSUID),
            ("suid", "") => self.flags.remove(MountFlags::NOSUID),
            ("nodev", "") => self.flags.insert(MountFlags::NODEV),
            ("dev", "") => self.flags.remove(MountFlags::NODEV),
            ("noatime", "") => self.flags.insert(MountFlags::NOATIME),
            ("relatime", "") => self.flags.insert(MountFlags::RELATIME),
            ("allow_other", "") => write!(self.kernel, ",{option}").map_err(|error| error.to_string())?,
            ("defaults" | "auto" | "noauto" | "user" | "users" | "owner" | "group" | "_netdev" | "nofail", _) => {}
            _ if name.starts_with("x-") || is_sloppy => {}
            _ => return Err(format!("option {option:?} is not known; see 'pvfs-mount --help'")),
        }
        Ok(())
    }
}

/// Parses a time such as `500ms`, `10s` or `2m`.
fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a time; write 500ms, 10s or 2m");
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let ms = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" => 60_000,
        _ => return Err(bad()),
    };
    let time = number.parse::<u64>().ok().and_then(|number| number.checked_mul(ms));
    time.filter(|ms| (10..=86_400_000).contains(ms)).map(Duration::from_millis).ok_or_else(bad)
}

fn over(text: &str) -> Result<TransportChoice, String> {
    let known = Scheme::ALL.into_iter().find(|scheme| scheme.as_str() == text).map(TransportChoice::Only);
    match known {
        Some(choice) => Ok(choice),
        None if text == "auto" => Ok(TransportChoice::Auto),
        None => Err(format!("over={text}: write auto, tcp, shm or ib")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(args: &[&str]) -> Result<Mount, String> {
        let line = ["pvfs-mount", "tcp://h:1", "/mnt"].iter().chain(args);
        Cli::try_parse_from(line).map_err(|error| error.to_string())?.mount()
    }

    #[test]
    fn the_line_of_mount_8_is_read() {
        cli_manual::check(&Cli::command(), tempfile::tempdir().unwrap().path());
        let mount = parsed(&["-o", "rw,soft,timeo=500ms,allow_other,x-systemd.automount,_netdev"]).unwrap();
        assert_eq!(
            (mount.is_hard, mount.timeout, mount.kernel.as_str()),
            (false, Duration::from_millis(500), ",allow_other")
        );
        assert_eq!(mount.flags, MountFlags::NOSUID | MountFlags::NODEV);
        let mount = parsed(&["-n", "-v", "-r", "-o", "suid", "-o", "coherence=strict,over=tcp"]).unwrap();
        assert_eq!(mount.flags, MountFlags::RDONLY | MountFlags::NODEV);
        assert!(
            mount.coherence == Coherence::Strict && mount.is_hard && mount.over == TransportChoice::Only(Scheme::Tcp)
        );
    }

    #[test]
    fn the_last_coherence_that_is_given_counts() {
        let of = |options| parsed(&["-o", options]).map(|mount| mount.coherence);
        assert_eq!(of("rw"), Ok(Coherence::Open));
        assert_eq!(of("coherence=exclusive"), Ok(Coherence::Exclusive));
        assert_eq!(of("coherence=strict,coherence=open"), Ok(Coherence::Open));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (options, why) in
            [("sfot", "sfot"), ("timeo=1h", "a time"), ("timeo=0", "a time"), ("coherence=x", "strict")]
        {
            assert!(parsed(&["-o", options]).unwrap_err().contains(why), "{options}");
        }
        assert!(parsed(&["-s", "-o", "sfot"]).is_ok());
    }
}
