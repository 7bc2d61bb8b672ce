//! The command line of `pvfs bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use fs_client::FsPath;

use super::size;

pub(super) const BENCH: &str = "\
Examples:
  pvfs bench io                              write and read 64 MiB, five rounds
  pvfs bench io --tasks 8 --shared           eight tasks in one file, as IOR without -F
  pvfs bench io --over tcp,shm               two transports, in turns
  pvfs bench io --transfer 4K --random --verify
  pvfs bench meta --files 10000 --tasks 4    create, stat, list, remove, as mdtest
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

Files and blocks are those of IOR. The layout of a shared file with two tasks and two segments:
  | block of task 0 | block of task 1 | block of task 0 | block of task 1 |
Bandwidth is that of all tasks together, from the first begin to the last end. Opening files is not
part of it. With --verify, making and comparing the bytes is.";

const JOIN: &str = "\
Examples:
  PVFS_BENCH_TOKEN=0123456789abcdef0123456789abcdef pvfs bench join a:7077
  pvfs bench join a:7077 --token-file token

No option has the token itself, because all users of a host see each other's command lines. On the
host of the leader, the same user needs none.";

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
        #[command(flatten)]
        run: RunArgs,
    },
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

/// What `bench io` does.
#[derive(Clone, Debug, Args)]
pub(crate) struct IoArgs {
    /// Bytes of one operation
    #[arg(long, short = 't', value_name = "SIZE", default_value = "1M", value_parser = size::bytes)]
    pub(crate) transfer: u64,
    /// Contiguous bytes of a task, a multiple of the transfer
    #[arg(long, short = 'b', value_name = "SIZE", default_value = "64M", value_parser = size::bytes)]
    pub(crate) block: u64,
    /// How often the blocks of all tasks are repeated
    #[arg(long, short = 's', value_name = "N", default_value_t = 1)]
    pub(crate) segments: u64,
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
    /// How often everything is measured
    #[arg(long, short = 'i', value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: u32,
    /// Begin no further round after this time
    #[arg(long, value_name = "TIME", value_parser = size::duration)]
    pub(crate) duration: Option<Duration>,
    /// The seed of the bytes and of the random orders; the default is another one for each run
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Where the directory of the files is made
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) path: FsPath,
    /// Also write the report as JSON, for other programs and for later comparisons
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Also write the report as a page with pictures
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Also write the report as a table for spreadsheets
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
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
