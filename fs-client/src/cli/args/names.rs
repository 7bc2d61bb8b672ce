//! The commands on names and attributes: their options and help texts.

use std::ffi::OsString;

use clap::{ArgAction, Args, Subcommand};

use super::LayoutArgs;
use super::mode::ModeChange;
use super::owner::Owner;
use crate::FsPath;
use crate::cli::{size, time};

const LN: &str = "\
Examples:
  pvfs ln /data/a /data/b         /data/b is the same file as /data/a from now on
  pvfs ln -s a /data/latest       a link; a mount follows it, from the directory that it is in
  pvfs ln -s -f b /data/latest    the link leads to b: it is replaced in one step

A symbolic link is followed by programs on a mount. There, a target that begins with / is a path of
that machine. The commands of pvfs follow no links.";

const LAYOUT: &str = "\
Examples:
  pvfs layout /data                                    how new files there are striped
  pvfs layout /data --strip-size 1M --servers 4        at most 4 servers, fewer while others are down
  pvfs layout /logs --servers 1
  pvfs layout /data --default                          as the cluster's default again

What is not given is the cluster's default, whatever it was before. It holds for files that are
created from now on, also by mounts, unless --strip-size or --servers of put or cp says otherwise.
Directories that are created there take it over. It is the extended attribute user.pvfs.layout of
the directory; on a mount:
  setfattr -n user.pvfs.layout -v 'strip=1M servers=4' /mnt/data";

const TOUCH: &str = "\
Examples:
  pvfs touch /data/done                          creates it, or sets its times
  pvfs touch -c -r /data/a /data/b               gives b the times of a, if there is a b
  pvfs touch -d 2026-11-28T12:00:00Z /data/a     or @1795867200
  pvfs touch -t 202611281200 /data/a

A time of -d without Z or an offset is in UTC too, as all times that pvfs shows.";

const CHMOD: &str = "\
Examples:
  pvfs chmod 640 /data/a
  pvfs chmod u+x,go-w /data/run.sh
  pvfs chmod -R a=rX,u+w /data      X is x for directories, and for files that somebody may run

A change is any of u, g, o and a (owner, group, others, all), one of + - =, and any of r w x X s t,
or one of u, g, o to copy from. Without the first part it is for all, less the bits of the umask.
Modes are kept; only mounts and local copies check them.";

const CHOWN: &str = "\
Examples:
  pvfs chown alice /data/a
  pvfs chown -R alice:users /data
  pvfs chown 1000:100 /data/a      numbers need no account on this machine
  pvfs chown alice: /data/a        also the group that alice logs in with

The set-user and set-group bits of files are cleared. Nobody checks who changes an owner.";

const DU: &str = "\
Examples:
  pvfs du -s -h /data              one line: 1.5G  /data
  pvfs du -h /data                 also each directory below, the sum last
  pvfs --json du /data

These are the sizes of files, also where they have holes. A file with several names counts once. What
the disks of the servers have is shown by pvfs df. -h is no help here; use --help.";

const DF: &str = "\
Examples:
  pvfs df -h
  pvfs --json df                   also counts of files, and of what is to be removed

Servers on one disk count once in the last line. -h is no help here; use --help.";

/// Commands on names, attributes and space.
#[derive(Debug, Subcommand)]
pub(crate) enum Names {
    /// List a directory
    #[command(after_help = "Examples:\n  pvfs ls\n  pvfs ls -l /data\n  pvfs ls -R /data")]
    Ls {
        /// The directory or file to list
        #[arg(default_value = "/")]
        path: FsPath,
        /// Also show kind, permissions, size, strip size and number of servers
        #[arg(long, short)]
        long: bool,
        /// Also list everything below
        #[arg(long, short = 'R')]
        recursive: bool,
    },

    /// Create directories
    #[command(after_help = "Example:\n  pvfs mkdir -p /data/run-1/raw")]
    Mkdir {
        /// The directories
        #[arg(required = true)]
        paths: Vec<FsPath>,
        /// Create missing parents; existing directories are not an error
        #[arg(long, short)]
        parents: bool,
    },

    /// Show attributes, distribution and datafiles
    #[command(after_help = "Example:\n  pvfs stat /data/a.bin")]
    Stat {
        /// The files and directories
        #[arg(required = true)]
        paths: Vec<FsPath>,
    },

    /// Remove files and empty directories
    #[command(after_help = "Examples:\n  pvfs rm /data/a.bin\n  pvfs rm -r /data/run-1")]
    Rm {
        /// The files and directories to remove
        #[arg(required = true)]
        paths: Vec<FsPath>,
        /// Remove directories with everything below them
        #[arg(long, short)]
        recursive: bool,
        /// Ignore names that do not exist
        #[arg(long, short)]
        force: bool,
    },

    /// Rename, or move into a directory
    #[command(
        after_help = "Examples:\n  pvfs mv /data/a /data/b     replaces a file /data/b\n  pvfs mv /data/a /old        into the directory /old"
    )]
    Mv {
        /// The file or directory to rename
        from: FsPath,
        /// The new name, or an existing directory
        to: FsPath,
    },

    /// Give a file one more name, or create a symbolic link
    #[command(after_help = LN)]
    Ln {
        /// The file that gets one more name; with -s what the link leads to, as it is
        target: OsString,
        /// The new name, or an existing directory
        link: FsPath,
        /// Create a symbolic link
        #[arg(long, short)]
        symbolic: bool,
        /// Replace a file or a link of that name, in one step
        #[arg(long, short)]
        force: bool,
    },

    /// Show or set how new files of a directory are striped
    #[command(after_help = LAYOUT)]
    Layout {
        /// The directories
        #[arg(required = true)]
        paths: Vec<FsPath>,
        #[command(flatten)]
        layout: LayoutArgs,
        /// As the cluster's default again
        #[arg(long, conflicts_with_all = ["strip_size", "servers"])]
        default: bool,
    },

    /// Set the times of files to now; files that are not there are created, empty
    #[command(after_help = TOUCH)]
    Touch {
        /// The files and directories
        #[arg(required = true)]
        paths: Vec<FsPath>,
        /// Take the times of this file or directory of the cluster instead
        #[arg(long, short, value_name = "PATH", conflicts_with_all = ["date", "stamp"])]
        reference: Option<FsPath>,
        /// Take this time: @SECONDS since 1970, or as in 2026-11-28T12:00:00.5+01:00
        #[arg(long, short, value_name = "TIME", value_parser = time::date, conflicts_with = "stamp")]
        date: Option<u64>,
        /// Take this time, in UTC: [[CC]YY]MMDDhhmm[.ss]
        #[arg(long, short = 't', value_name = "STAMP", value_parser = time::stamp)]
        stamp: Option<u64>,
        /// Create nothing
        #[arg(long, short = 'c')]
        no_create: bool,
    },

    /// Cut a file off, or extend it with zeros
    #[command(after_help = "Examples:\n  pvfs truncate /data/a.bin 1M\n  pvfs truncate /logs/today 0")]
    Truncate {
        /// The file
        path: FsPath,
        /// Its new size, such as 64K
        #[arg(value_parser = size::bytes)]
        size: u64,
    },

    /// Change permission bits
    #[command(after_help = CHMOD)]
    Chmod {
        /// The bits, in octal (755) or as changes (u+x,go-w)
        #[arg(allow_hyphen_values = true)]
        mode: ModeChange,
        /// The files and directories
        #[arg(required = true)]
        paths: Vec<FsPath>,
        /// Also change everything below, except symbolic links
        #[arg(long, short = 'R')]
        recursive: bool,
    },

    /// Change owner and group
    #[command(after_help = CHOWN)]
    Chown {
        /// USER, USER:GROUP or :GROUP, as numbers or as names that this machine knows
        owner: Owner,
        /// The files and directories; symbolic links are changed themselves
        #[arg(required = true)]
        paths: Vec<FsPath>,
        /// Also change everything below
        #[arg(long, short = 'R')]
        recursive: bool,
    },

    /// Sum up the sizes of the files of a tree, in bytes
    #[command(disable_help_flag = true, after_help = DU)]
    Du {
        /// The directories and files
        #[arg(default_value = "/")]
        paths: Vec<FsPath>,
        /// Only the sum of each path, not of the directories below
        #[arg(long, short)]
        summarize: bool,
        #[command(flatten)]
        sizes: Sizes,
    },

    /// Show space in use and left on every server, in bytes
    #[command(disable_help_flag = true, visible_alias = "statfs", after_help = DF)]
    Df {
        #[command(flatten)]
        sizes: Sizes,
    },
}

/// How sizes are shown. `-h` is taken by them, as in `du` and `df` elsewhere.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Sizes {
    /// Show sizes such as 64K or 1.5G, in powers of 1024
    #[arg(long, short = 'h')]
    human_readable: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

impl Sizes {
    /// Formats a size.
    pub(crate) fn show(self, bytes: u64) -> String {
        if self.human_readable { size::show_short(bytes) } else { bytes.to_string() }
    }
}
