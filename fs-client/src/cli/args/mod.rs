//! The command line: its options and its help texts.

pub(super) mod bench;
mod mode;
pub(super) mod names;
mod owner;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use crate::{CachePolicy, Error, FsPath, TransportChoice};
use bmi::{Addr, Scheme};
use bstr::BStr;
use clap::builder::{OsStringValueParser, TryMapValueParser, TypedValueParser, ValueParserFactory};
use clap::{Args, Parser, Subcommand};

use super::size;
use bench::{BENCH, Bench};
use names::Names;

pub(super) use mode::ModeChange;
pub(super) use owner::Owner;

const EXAMPLES: &str = "\
Examples:
  export PVFS_MANAGER=tcp://localhost:7000   where the manager listens; or --manager on each call
  pvfs ping                                  is every server there, and how far away?
  pvfs servers                               over which transport is each reached, and why?
  pvfs mkdir -p /data/run-1                  a directory, and those above it
  pvfs put results.bin /data/run-1           a file into a directory
  pvfs put -r src /data --strip-size 1M      a tree, in strips of 1 MiB
  pvfs ls -l /data                           names, sizes, layouts
  pvfs viewdist /data/results.bin            which server holds which bytes
  pvfs cache                                 what the servers have in memory, and how much it helps
  pvfs bench io --tasks 4                    how fast it is, as IOR measures; bench meta as mdtest
  pvfs get -r /data/src copy                 the tree back
  pvfs --json stat /data/results.bin         the same facts for programs

Exit status: 0 done, 1 an operation failed, 2 the command line is wrong.";

const CACHE: &str = "\
Examples:
  pvfs cache                    one line for each I/O server
  pvfs cache --files 20         also the 20 datafiles that were read and written most
  pvfs cache /data/a.bin        how much of a file is in memory; give the path before the options
  pvfs cache --watch 1          every second, until Ctrl-C
  pvfs --json cache --files     the same facts for programs

Columns:
  service        normal: the system caches files, and nothing is known of it; mmap: files are
                 mapped; unifier: the server has a cache of its own, which the rest is about
  most           what the cache may have; resident is what it has taken so far
  cached         bytes of files in it; of these, the disk does not have those that are dirty
  ready          memory that stays registered with the adapters, so that no access waits for that
  hits           of the bytes that were read, those that needed no disk
  ahead used     read ahead of a reader, and then asked for; unused was dropped before
  failed writes  to the disk; the bytes stay in the cache, and the next sync reports the error
  ignored hints  hints of programs that made no sense

The counters, from hits on, begin with the start of the server. With --watch they begin with the
line before. A datafile is one server's part of a file; pvfs stat FILE shows those of a file.";

const SCRUB: &str = "\
Examples:
  pvfs scrub                   all servers at once, 64 MiB a second each
  pvfs scrub --rate 10M        while others need the disks
  pvfs scrub --server 2        one server
  pvfs --json scrub            the same facts for programs

The cluster may be in use. Nothing is changed, except that files without checksums get some. Files
that are being written are left out. Servers keep checksums if storage.checksums is set. What is found:
  damaged               bytes do not match their checksums
  unreadable            the disk does not return them
  lost                  a datafile is missing or was cut off; see also pvfs fsck";

const FSCK: &str = "\
Examples:
  pvfs fsck                    what is wrong; nothing is changed
  pvfs fsck --repair           lists what it will do, and asks
  pvfs fsck --repair --yes     does not ask
  pvfs --json fsck             the same facts for programs

The cluster may be in use. What is found:
  lost                  a datafile of a file is missing, or its server cannot read it
  short, long, size     a datafile or a file is not as long as the manager knows
  unowned               a datafile with bytes that belong to no file; a repair makes it a file in
                        /lost+found
  name, nameless        a name that leads to nothing, something without a name
  ties, counts          link counts, parents, numbers of entries, numbers of files
  twice, spare          a datafile belongs to two files, or is also about to be removed
  unassigned, server, circle, unreadable     see the manual of operation

A repair never removes bytes, and invents none: a file with a lost datafile stays as it is. What
can be read of it can be fetched.

Exit status: 0 nothing is wrong, 1 something was found (also if it was repaired) or failed, 2 the
command line is wrong.";

const CP: &str = "\
Examples:
  pvfs cp /data/a.bin /data/b.bin
  pvfs cp /data/a.bin /data/b.bin /old    into the directory /old
  pvfs cp -r /data/run-1 /data/run-2      a whole tree
  pvfs cp -a -T --resume /data /backup    the same again goes on where it was interrupted
  pvfs cp --servers 4 /data/a /data/a4    another layout; pvfs mv /data/a4 /data/a replaces the first

The bytes go through this machine. A copy keeps the modification time.";

/// Stores, reads and manages files in a parallel file system.
#[derive(Debug, Parser)]
#[command(name = "pvfs", version, about, after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
pub(crate) struct Global {
    /// Address of the manager: tcp://host:port, ib://device/host:port or shm:///path; the default
    /// is the environment variable PVFS_MANAGER
    #[arg(long, short = 'm', global = true, value_name = "ADDR")]
    pub(crate) manager: Option<Addr>,

    /// Transport for reaching the servers: tcp, ib or shm; auto chooses the best working one for
    /// each server: shm on this host, else ib, else tcp; bench compares several: tcp,shm
    #[arg(long, global = true, value_name = "WHICH", default_value = "auto", value_delimiter = ',', value_parser = over)]
    pub(crate) over: Vec<TransportChoice>,

    /// Time limit of a single request: 500ms, 10s, 2m
    #[arg(long, global = true, value_name = "TIME", default_value = "30s", value_parser = size::duration)]
    pub(crate) timeout: Duration,

    /// How long to wait for a server that refuses connections, for instance while it is restarted;
    /// ping, servers, plan, df and cache do not wait
    #[arg(long, global = true, value_name = "TIME", default_value = "5s", value_parser = size::duration_or_none)]
    pub(crate) retry_for: Duration,

    /// Print one JSON document instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Print no progress bar and no summary, only errors
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,

    /// Wait by polling continuously: lowest latency, but uses a whole core
    #[arg(long, global = true)]
    pub(crate) busy: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Check that every server responds, and measure how long it takes
    #[command(after_help = "Example:\n  pvfs ping --count 10")]
    Ping {
        /// Number of pings for each server
        #[arg(long, short, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        count: u32,
    },

    /// Show the transport used for each server, and why it was chosen over the others
    #[command(after_help = "Examples:\n  pvfs servers\n  pvfs servers --over tcp\n  pvfs servers --json")]
    Servers,

    /// Mount the file system on a directory, with the program pvfs-mount
    #[command(
        after_help = "Examples:\n  pvfs mount /mnt\n  pvfs mount /mnt -o soft,timeo=10s,ro\n  pvfs-mount --help    all options"
    )]
    Mount {
        /// The directory
        dir: PathBuf,
        /// Options, separated by commas; pvfs-mount --help lists them
        #[arg(long, short, default_value = "")]
        options: String,
        /// Stay in the foreground
        #[arg(long, short)]
        foreground: bool,
    },

    /// Unmount the file system
    Umount {
        /// The directory
        dir: PathBuf,
    },

    /// Show which path data of each size takes to and from each I/O server, and why
    #[command(after_help = "Examples:\n  pvfs plan\n  pvfs plan --calibrate\n  pvfs plan --json")]
    Plan {
        /// Measure the thresholds first (some milliseconds for each adapter) and use them
        #[arg(long)]
        calibrate: bool,
    },

    #[command(flatten)]
    Names(Names),

    /// Store local files; each gets its name, or replaces a file, when it is complete and on the
    /// disks
    #[command(
        after_help = "Examples:\n  pvfs put a.bin /data            into a directory that is there\n  pvfs put a.bin /data/b.bin      under another name\n  \
                      pvfs put -r src /data           a whole tree, as /data/src\n  pvfs put -r --resume src /data  what is missing of it\n  \
                      pvfs put -a src /data           with owners, times of directories and hard links\n  \
                      tar c . | pvfs put - /all.tar   from standard input"
    )]
    Put {
        /// Local files; with -r also directories; - is standard input
        #[arg(required = true)]
        sources: Vec<PathBuf>,
        /// An existing directory, or the new name
        target: FsPath,
        #[command(flatten)]
        layout: LayoutArgs,
        #[command(flatten)]
        transfer: TransferArgs,
        /// Permission bits, in octal; the default is those of the file that is replaced, else those
        /// of the local file
        #[arg(long, value_name = "MODE", value_parser = mode)]
        mode: Option<u32>,
        /// Do not wait for the servers' disks; a power failure may then lose what was stored
        #[arg(long)]
        no_sync: bool,
    },

    /// Fetch files to the local machine
    #[command(
        after_help = "Examples:\n  pvfs get /data/a.bin            into the current directory\n  pvfs get /data/a.bin b.bin      under another name\n  \
                      pvfs get -r /data/src copy      a whole tree\n  \
                      pvfs get -a --resume -T /data/src copy   what is missing of it, with all attributes\n  pvfs get /all.tar - | tar x     to standard output"
    )]
    Get {
        /// The file or directory to fetch
        source: FsPath,
        /// A local directory, a new name, or - for standard output
        #[arg(default_value = ".")]
        target: PathBuf,
        #[command(flatten)]
        transfer: TransferArgs,
    },

    /// Copy files within the cluster; each copy gets its name when it is complete and on the disks
    #[command(after_help = CP)]
    Cp {
        /// The files; with -r also directories and symbolic links
        #[arg(required = true)]
        sources: Vec<FsPath>,
        /// An existing directory, or the new name
        target: FsPath,
        #[command(flatten)]
        layout: LayoutArgs,
        #[command(flatten)]
        transfer: TransferArgs,
        /// Do not wait for the servers' disks; a power failure may then lose the copies
        #[arg(long)]
        no_sync: bool,
    },

    /// Write files to standard output
    #[command(after_help = "Example:\n  pvfs cat /logs/a /logs/b | grep error")]
    Cat {
        /// The files, in order
        #[arg(required = true)]
        paths: Vec<FsPath>,
    },

    /// Show what the caches of the I/O servers hold, and how well they work
    #[command(after_help = CACHE)]
    Cache {
        /// A file: show how much of it is cached, on each of its servers
        path: Option<FsPath>,
        /// Also show the busiest datafiles of all servers: 10, or another number
        #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10",
            value_parser = clap::value_parser!(u32).range(1..=1000), conflicts_with = "path")]
        files: Option<u32>,
        /// Show it again and again, every 2 seconds or another time; text only
        #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = size::duration)]
        watch: Option<Duration>,
    },

    /// Measure a cluster: bandwidth as IOR, names as mdtest, from one host or several
    #[command(after_help = BENCH)]
    Bench {
        #[command(subcommand)]
        what: Box<Bench>,
    },

    /// Check the whole cluster: names, files and datafiles; changes nothing without --repair
    #[command(after_help = FSCK)]
    Fsck {
        /// List what can be repaired, ask, and repair it; only if all servers are there
        #[arg(long)]
        repair: bool,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },

    /// Let the I/O servers compare what their disks have with its checksums, if they keep any
    #[command(after_help = SCRUB)]
    Scrub {
        /// Most bytes that each server reads in a second
        #[arg(long, value_parser = size::rate, default_value = "64M", value_name = "SIZE")]
        rate: u64,
        /// Only this I/O server
        #[arg(long, value_name = "NUMBER")]
        server: Option<u32>,
    },

    /// Draw which server holds which ranges of a file
    #[command(
        after_help = "Examples:\n  pvfs viewdist /data/a.bin\n  pvfs viewdist --strip-size 64K --servers 4 --size 1M   of a file that is not there yet"
    )]
    Viewdist {
        /// The file
        #[arg(required_unless_present = "size", conflicts_with = "size")]
        path: Option<FsPath>,
        /// Draw an imaginary file of this size instead
        #[arg(long, value_parser = size::bytes, value_name = "SIZE")]
        size: Option<u64>,
        #[command(flatten)]
        layout: LayoutArgs,
        /// Largest number of stripes to draw
        #[arg(long, default_value_t = 16)]
        rows: u64,
    },

    #[command(flatten)]
    Manual(cli_manual::Manual),
}

impl ValueParserFactory for FsPath {
    type Parser = TryMapValueParser<OsStringValueParser, fn(OsString) -> Result<FsPath, Error>>;

    /// Names are bytes in no particular encoding.
    fn value_parser() -> Self::Parser {
        OsStringValueParser::new().try_map(|text| BStr::new(text.as_bytes()).try_into())
    }
}

/// Parses permission bits.
fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| format!("{text} is not a mode in octal, such as 644"))
}

/// Parses the choice of transports.
fn over(text: &str) -> Result<TransportChoice, String> {
    if text == "auto" {
        return Ok(TransportChoice::Auto);
    }
    let known = [Scheme::Tcp, Scheme::Ib, Scheme::Shm].into_iter().find(|scheme| scheme.as_str() == text);
    known.map(TransportChoice::Only).ok_or_else(|| "there are tcp, ib, shm and auto".to_owned())
}

/// Parses a policy of caches.
fn cache_policy(text: &str) -> Result<CachePolicy, String> {
    let known = CachePolicy::KNOWN.iter().find(|policy| policy.as_str() == text);
    known.copied().ok_or_else(|| {
        let names: Vec<&str> = CachePolicy::KNOWN.iter().map(|policy| policy.as_str()).collect();
        format!("there are {}", names.join(", "))
    })
}

/// The layout of a new file.
#[derive(Clone, Debug, Args)]
pub(crate) struct LayoutArgs {
    /// Strip size: bytes on one server before the next server is used, such as 64K or 1M
    #[arg(long, value_name = "SIZE", value_parser = size::strip)]
    pub(crate) strip_size: Option<u32>,
    /// Number of servers to stripe over; the default is all
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) servers: Option<u32>,
}

/// Options of a data transfer.
#[derive(Clone, Debug, Args)]
pub(crate) struct TransferArgs {
    /// Copy directories with everything below them
    #[arg(long, short)]
    pub(crate) recursive: bool,
    /// Copy trees with modes, owners, all times, symbolic and hard links; implies -r. Owners are
    /// left out where the local system refuses them
    #[arg(long, short)]
    pub(crate) archive: bool,
    /// Bytes in one request, such as 4M
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = size::block)]
    pub(crate) block_size: u64,
    /// Number of requests in progress at the same time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) window: u32,
    /// Leave out files that are there already with the same size and modification time. So a tree
    /// that was interrupted goes on with the files that are not complete, each from its beginning
    #[arg(long)]
    pub(crate) resume: bool,
    /// Take the target as the new name, also if it is a directory; for repeating a command whose
    /// target was new with --resume
    #[arg(long, short = 'T')]
    pub(crate) no_target_directory: bool,
    /// Which bytes of the files stay in the caches of the I/O servers: lru, scan-resistant, stream,
    /// keep, none, or default; servers may overrule it
    #[arg(long, value_name = "POLICY", default_value = "default", value_parser = cache_policy)]
    pub(crate) cache_policy: CachePolicy,
    /// Size of a unit of the files in these caches: 4K, 8K, 16K, 32K or 64K; the default is the
    /// servers' own
    #[arg(long, value_name = "SIZE", value_parser = size::cache_unit)]
    pub(crate) cache_unit: Option<u32>,
}

impl TransferArgs {
    /// Returns true if trees are copied.
    pub(crate) fn is_recursive(&self) -> bool {
        self.recursive || self.archive
    }
}

#[cfg(test)]
impl Global {
    /// Returns the options of a command in a test.
    pub(crate) fn for_tests(json: bool) -> Global {
        let line: &[&str] = if json { &["pvfs", "--json", "cache"] } else { &["pvfs", "cache"] };
        Cli::try_parse_from(line).expect("a valid line").global
    }
}

#[cfg(test)]
mod tests;
