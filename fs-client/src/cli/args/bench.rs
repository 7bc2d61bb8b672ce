//! The command line of `pvfs bench`.

use std::path::PathBuf;
use std::time::Duration;

use crate::FsPath;
use bmi::Addr;
use bmi_report::output::ReportArgs;
use clap::{Args, Subcommand};

use crate::cli::size;

pub(super) const BENCH: &str = "\
Examples:
  pvfs bench io                              write and read 64 MiB, five rounds
  pvfs bench io --tasks 8 --shared           eight tasks in one file, as IOR without -F
  pvfs bench io --over tcp,shm               two transports, in turns
  pvfs bench io --transfer 4K --random --verify
  pvfs bench meta --files 10000 --tasks 4    create, stat, list, remove, as mdtest
  pvfs bench copy --size 1G                  put and get
  pvfs bench all --over tcp,shm              one client: names, small accesses, lists, copies
  pvfs bench all --plain                     beside plain sockets and local copies
  pvfs bench mount /mnt                      a mounted directory, beside a pass-through and tmpfs
  pvfsd scratch -- pvfs bench all            without a cluster: with one that lasts as long
  pvfs bench io --wait-for 1 --listen :7077  wait for another host, where one runs the command
                                             that this one prints: pvfs bench join

Everything is in a new directory, which is removed in the end. Ctrl-C ends a run and shows what was
measured so far; a second Ctrl-C ends it at once.

Each run has a token, which the other hosts must have to join. It is drawn and printed with
--wait-for. To choose it, set PVFS_BENCH_TOKEN on all hosts.

Exit status: 0 done, 1 an operation failed or something else was read than was written, 2 the
command line is wrong, 130 interrupted.";

const IO: &str = "\
Examples:
  pvfs bench io --transfer 1M --block 256M --tasks 4 --shared
  pvfs bench io --write --keep --verify --seed 7 --path /data
  pvfs bench io --read --verify --seed 7 --path /data/pvfs-bench-0123456789abcdef

  pvfs bench io -t 4K,64K -b 16M --random --overwrite --in-flight 1,16
  pvfs bench io -t 256K --pieces 64          lists of 64 pieces with gaps, in the file and in memory
  pvfs bench io -t 1M --pieces 2048 --view   lists beside a type and a view, pieces of 512 bytes
  pvfs bench io -N 8 --beside 2-loops=tcp://h:7100    another cluster, in turns

Files and blocks are those of IOR. The layout of a shared file with two tasks and two segments:
  | block of task 0 | block of task 1 | block of task 0 | block of task 1 |
Bandwidth is that of all tasks together, from the first begin to the last end. Opening files is not
part of it. With --verify, making and comparing the bytes is. The time of each operation is in the
percentiles.

With --pieces, four transfers share a range of the file, a piece of each in turns, so that all bytes
are accessed once. In memory, pieces are as far apart as they are long.";

const JOIN: &str = "\
Examples:
  PVFS_BENCH_TOKEN=0123456789abcdef0123456789abcdef pvfs bench join a:7077
  pvfs bench join a:7077 --token-file token

No option has the token itself, because all users of a host see each other's command lines. On the
host of the leader, the same user needs none.";

const ALL: &str = "\
Examples:
  pvfs bench all --over tcp,shm --rounds 9
  pvfsd scratch -- pvfs bench all --over tcp,shm --size 1G

Rows, all of one client on each host, unless there are more --tasks:
  create, stat, list, remove   files in one directory, one operation at a time, and 64
  write, read                  4K and 64K at random places of a file that is there, one at a time,
                               and 16
  write, read of pieces        64 pieces of 4K in one operation
  put, put and sync, get       a whole file, as the commands do";

const MOUNT: &str = "\
Examples:
  pvfs bench mount /mnt                      with 1 and with 8 tasks; some minutes
  pvfs bench mount /mnt --files 1000 --block 4M --rounds 9
  pvfs bench mount /mnt --tasks 1 --report mount.json

Any directory will do. Places, in turns:
  mount          a new directory in DIR
  pass-through   a directory of tmpfs behind pvfs-mount's protocol code, without a file system: what
                 it takes is the kernel's part. Left out without root or /dev/fuse
  tmpfs          a new directory of --beside
Rows, each with one task and with --tasks of them, which are threads:
  write, read    a file of each task in order, in transfers of 1M, and up to 1024 transfers of 4K
                 and of 64K at random places; through the page cache and with O_DIRECT. A write ends
                 with fsync
  create, stat, ls -l, remove   --files in one directory, which every task lists as a whole
  write a tree   a tenth as many small files, as tar unpacks them
The ratio is the rate of the mount divided by that of the pass-through: 1 is as fast.";

/// Parses another cluster.
fn beside(text: &str) -> Result<(String, Addr), String> {
    let (name, addr) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or("write NAME=ADDRESS")?;
    Ok((name.to_owned(), addr.parse().map_err(|error: bmi::Error| error.to_string())?))
}

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// Measure writes and reads of data, as IOR does
    #[command(after_help = IO)]
    Io {
        #[command(flatten)]
        io: IoArgs,
        #[command(flatten)]
        run: RunArgs,
    },
    /// Measure the creation, query, listing and removal of files, as mdtest does
    #[command(after_help = "Example:\n  pvfs bench meta --files 1000 --tasks 8 --unique-dir")]
    Meta {
        /// Files of each task
        #[arg(long, value_name = "N", default_value_t = 1000)]
        files: u64,
        /// A directory for each task, instead of one for all
        #[arg(long)]
        unique_dir: bool,
        /// Directories between the one of the run and the files
        #[arg(long, value_name = "N", default_value_t = 0)]
        depth: u32,
        /// Operations of a task that are in flight; several numbers are measured in turns: 1,64
        #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
        in_flight: Vec<u32>,
        /// Bytes, up to 64K, that are written to each file after it was created; several numbers
        /// are measured in turns: 0,4K
        #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "0", value_parser = size::bytes)]
        data: Vec<u64>,
        #[command(flatten)]
        run: RunArgs,
    },
    /// Measure how fast local files are stored, with and without the servers' disks, and fetched
    #[command(after_help = "Example:\n  pvfs bench copy --size 1G --local /data")]
    Copy {
        /// Bytes of the file of each task
        #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size::bytes)]
        size: u64,
        #[command(flatten)]
        local: LocalArgs,
        #[command(flatten)]
        run: RunArgs,
    },
    /// Measure what programs usually do: names, small accesses at random places, lists, copies
    #[command(after_help = ALL)]
    All {
        /// Bytes of the file that is copied
        #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = size::bytes)]
        size: u64,
        /// A sixteenth of the files and bytes
        #[arg(long)]
        quick: bool,
        /// Compare what is read; copies are always compared
        #[arg(long, short = 'R')]
        verify: bool,
        #[command(flatten)]
        local: LocalArgs,
        #[command(flatten)]
        run: RunArgs,
    },
    /// Measure a mounted directory, beside a pass-through of the same protocol and memory
    #[command(after_help = MOUNT)]
    Mount(MountArgs),
    /// Take part in a run that `pvfs bench … --wait-for` leads on another host
    #[command(after_help = JOIN)]
    Join {
        /// Where the leader listens: host:port; it prints that
        address: String,
        /// The name of this host in the report; the default is its own
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// A file whose first line is the token of the run, - for standard input; the default is
        /// the environment variable PVFS_BENCH_TOKEN
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
    },
}

/// How often a benchmark is repeated.
#[derive(Clone, Debug, Args)]
pub(crate) struct RepeatArgs {
    /// How often everything is measured
    #[arg(long, short = 'i', value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: u32,
    /// Begin no further round after this time
    #[arg(long, value_name = "TIME", value_parser = size::duration)]
    pub(crate) duration: Option<Duration>,
    /// The seed of the bytes and of the random orders; the default is another one for each run
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

/// What `bench mount` does.
#[derive(Clone, Debug, Args)]
pub(crate) struct MountArgs {
    /// A directory of the mount
    pub(crate) dir: PathBuf,
    /// Where the directories beside it are made
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    pub(crate) beside: PathBuf,
    /// The larger number of tasks
    #[arg(long, short = 'N', value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) tasks: u32,
    /// Files of all tasks together
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub(crate) files: u64,
    /// Bytes of the file of a task, a multiple of 4K
    #[arg(long, short = 'b', value_name = "SIZE", default_value = "16M", value_parser = size::bytes)]
    pub(crate) block: u64,
    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// Where local files are.
#[derive(Clone, Debug, Args)]
pub(crate) struct LocalArgs {
    /// Where local files are made, on each host; the default is in memory
    #[arg(long, value_name = "DIR")]
    pub(crate) local: Option<String>,
}

/// What `bench io` does.
#[derive(Clone, Debug, Args)]
pub(crate) struct IoArgs {
    /// Bytes of one operation; several sizes are measured in turns: 4K,64K
    #[arg(long, short = 't', value_name = "SIZE", value_delimiter = ',', default_value = "1M", value_parser = size::bytes)]
    pub(crate) transfer: Vec<u64>,
    /// Contiguous bytes of a task, a multiple of the transfer
    #[arg(long, short = 'b', value_name = "SIZE", default_value = "64M", value_parser = size::bytes)]
    pub(crate) block: u64,
    /// How often the blocks of all tasks are repeated
    #[arg(long, short = 's', value_name = "N", default_value_t = 1)]
    pub(crate) segments: u64,
    /// Pieces of a transfer, with gaps in the file and in memory
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) pieces: u64,
    /// Measure the same with the pieces named by a type and a view of the file, too
    #[arg(long)]
    pub(crate) view: bool,
    /// Operations of a task that are in flight; several numbers are measured in turns: 1,16
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub(crate) in_flight: Vec<u32>,
    /// One file for all tasks, the default
    #[arg(long, conflicts_with = "file_per_task")]
    pub(crate) shared: bool,
    /// A file for each task
    #[arg(long, short = 'F')]
    pub(crate) file_per_task: bool,
    /// Only write; with --read also read
    #[arg(long, short = 'w')]
    pub(crate) write: bool,
    /// Only read, from the directory --path that an earlier run has kept; with --write also write
    #[arg(long, short = 'r')]
    pub(crate) read: bool,
    /// Do the transfers of a task in random order
    #[arg(long, short = 'z')]
    pub(crate) random: bool,
    /// Write everything once before it is measured, so that no file grows meanwhile
    #[arg(long, short = 'E')]
    pub(crate) overwrite: bool,
    /// Wait for the servers' disks at the end of the write phase
    #[arg(long, short = 'e')]
    pub(crate) sync: bool,
    /// Write bytes that depend on their place, and compare what is read
    #[arg(long, short = 'R')]
    pub(crate) verify: bool,
    /// Let each task read what it wrote itself, and not what a task of the next host wrote
    #[arg(long)]
    pub(crate) no_reorder: bool,
    /// Leave the files
    #[arg(long, short = 'k')]
    pub(crate) keep: bool,
}

/// Options of every run.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Tasks on each host, each with a connection of its own
    #[arg(long, short = 'N', value_name = "N", default_value_t = 1)]
    pub(crate) tasks: u32,
    #[command(flatten)]
    pub(crate) repeat: RepeatArgs,
    /// Where the directory of the files is made
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) path: FsPath,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
    /// Another cluster, measured in turns with the first one
    #[arg(long, value_name = "NAME=ADDRESS", value_parser = beside)]
    pub(crate) beside: Vec<(String, Addr)>,
    /// Measure plain programs beside one task, in turns with it: sockets of this host that exchange
    /// requests and data one at a time, and copies of local files
    #[arg(long)]
    pub(crate) plain: bool,
    /// Processes of servers on this host: the report has their processor time, too
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub(crate) server_pid: Vec<u32>,
    /// Begin when this many other hosts have joined; start `pvfs bench join` on each
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) wait_for: usize,
    /// Where this host listens for others: address:port, or :port; the default is any free port
    #[arg(long, value_name = "ADDRESS", default_value = ":0")]
    pub(crate) listen: String,
    /// A file whose first line is the token that hosts need to join, - for standard input; the
    /// default is the environment variable PVFS_BENCH_TOKEN, else a new one
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
}
