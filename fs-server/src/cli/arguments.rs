//! What the command line of `pvfsd` consists of, and the help that it prints.

use std::path::PathBuf;
use std::time::Duration;

use bmi::Scheme;
use clap::{Args, Parser, Subcommand};

use crate::config::MAX_THREADS;
use crate::control::{self, ServerName};
use crate::scratch::Scratch;

/// The servers of a small parallel file system.
///
/// A cluster is one manager (names, attributes, layouts) and one or more I/O servers (data). All
/// servers read the same configuration. A cluster on this machine is five commands:
///
///   pvfsd init --dir /srv/pvfs   write pvfs.toml
///   pvfsd format                 begin a new cluster, once
///   pvfsd start                  start all servers in the background
///   pvfsd status                 show which of them run, and where their logs are
///   pvfsd stop                   stop them
///
/// To try it, or to measure it, "pvfsd scratch" is enough: a cluster that leaves nothing behind.
///
/// Under a service manager, or on several machines, run each server on its own: "pvfsd manager",
/// "pvfsd iod 0". "pvfs servers" then shows how a client reaches each one.
///
/// A server may listen on several transports at once (tcp, ib, shm). The configuration lists its
/// addresses. An address whose device is missing is skipped with a warning. Only the address by
/// which clients know the server is required: its tcp address, if it has one.
///
/// A server has one event loop, and with "--threads N" or the setting "threads" several, each on a
/// thread of its own. Its connections are spread over them.
///
/// A data directory records which cluster and server it belongs to, and the manager records the
/// directory of each I/O server. A server does not start with the wrong directory, with an old copy
/// of it, or with an empty one in its place. Only "pvfsd format" begins a new cluster. After a disk
/// was lost for good, "pvfsd iod N --replace" begins with an empty one.
///
/// "pvfsd backup FILE" saves the metadata of the running manager. After its disk was lost:
///
///   pvfsd restore FILE           make the manager's directory from the backup
///   pvfsd manager --restored     ask the I/O servers how far they have come, then serve
///
/// A server prints "listening on ADDRESS" for each address, and "serving" when it serves: an I/O
/// server once the manager has confirmed its directory. It logs to standard
/// error (RUST_LOG=debug shows more), and stops cleanly on SIGTERM or SIGINT.
#[derive(Debug, Parser)]
#[command(name = "pvfsd", version, verbatim_doc_comment)]
pub(super) struct Arguments {
    /// The configuration file.
    #[arg(long, short, global = true, default_value = "pvfs.toml")]
    pub(super) config: PathBuf,
    /// Wait for requests by polling continuously: lowest latency, but each server uses a whole
    /// core.
    #[arg(long, global = true)]
    pub(super) busy: bool,
    /// Give each server this many event loops, each on a thread of its own. [default:
    /// limits.threads of the configuration]
    #[arg(long, global = true, value_name = "N", value_parser = threads)]
    pub(super) threads: Option<usize>,
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Run the manager in the foreground.
    Manager {
        /// Start over metadata that was restored: after "pvfsd restore", or after the manager's
        /// directory was copied back by hand.
        ///
        /// First waits until all I/O servers of the configuration have reported how far they have
        /// come, and prints for which it waits. Clients are told to wait. So no number is assigned
        /// again that was assigned after the copy. Then serves. Beside that it compares the
        /// metadata with what the I/O servers have, and writes restored-N.txt into the manager's
        /// directory: files whose datafiles are missing (reading them is an error), and datafiles
        /// that belong to no file (they are kept). Nothing is removed. The option may be given
        /// again.
        #[arg(long)]
        restored: bool,
    },
    /// Run an I/O server in the foreground.
    Iod {
        /// The server's position in the list `iods` of the configuration, from 0.
        index: usize,
        /// Use this directory in place of the one that the server had before: an empty one after
        /// its disk was lost, or an older copy. What only the other directory holds is lost;
        /// reading it is an error.
        #[arg(long)]
        replace: bool,
        /// Start without the cache of a killed server that cannot be taken over: it is gone, or the
        /// store has gone on without it. Prints for each datafile how many acknowledged bytes are
        /// lost, and removes them. A cache that can be taken over is taken over.
        #[arg(long)]
        discard_cache: bool,
    },
    /// Begin a new cluster: draw its number and prepare the manager's directory. Nothing else ever
    /// does that. I/O servers prepare their directories when the manager agrees.
    Format,
    /// Save the metadata of the running manager to a file, while it serves.
    ///
    /// Works from any machine that reaches the manager. The backup is of one moment: names,
    /// attributes, layouts, and which stores the I/O servers have. It does not contain the data of
    /// files. The file gets its name when it is complete and on the disk.
    Backup {
        /// The file.
        file: PathBuf,
        /// Write over an existing file.
        #[arg(long)]
        force: bool,
    },
    /// Shut a user or a host out of the running cluster, and end what it has open.
    ///
    /// The holder of any certificate with this name is refused at once by the manager, and within
    /// two seconds by the I/O servers that the manager reaches, until --undo. Then revoke the
    /// certificate too: "pvfsd ca revoke". Takes a certificate with the duty admin.
    Revoke {
        /// The name that "pvfsd ca list" shows: user-anna, host-alpha.
        #[arg(value_name = "HOLDER", required_unless_present = "list")]
        name: Option<String>,
        /// Let the holder in again.
        #[arg(long)]
        undo: bool,
        /// List who is shut out.
        #[arg(long, conflicts_with_all = ["name", "undo"])]
        list: bool,
        /// With --list: print one JSON document.
        #[arg(long)]
        json: bool,
    },
    /// Make the manager's directory from a backup, on the manager's machine.
    ///
    /// The directory must be missing or empty: move what is left of the old one away. The whole
    /// backup is checked first. The cluster stays the same. Then "pvfsd manager --restored" starts
    /// the manager; without the option it does not start.
    Restore {
        /// A file that "pvfsd backup" has written.
        file: PathBuf,
    },
    /// Run several servers in the foreground, in one process.
    ///
    /// Prints "NAME: listening on ADDRESS" for each address. When one server fails, all stop.
    /// SIGTERM and SIGINT stop the manager first, then the I/O servers.
    Run(Servers),
    /// Start servers in the background, and wait until they are ready.
    ///
    /// Starts the manager, then the I/O servers. A server that runs already is left alone: it is
    /// recognised by the lock on its directory. Each server logs to NAME.log in the directory
    /// "storage.logs" of the configuration. If one does not become ready, the end of its log is
    /// shown, the servers after it are not started, and those that run are left running. Exit
    /// status: 0 if all run, 1 if not.
    Start {
        #[command(flatten)]
        servers: Servers,
        /// Run the servers in one process, which logs to pvfsd.log. It takes less memory. But they
        /// can only be stopped together, and all end when one fails.
        #[arg(long)]
        one_process: bool,
        #[command(flatten)]
        patience: Patience,
        #[command(flatten)]
        output: Output,
    },
    /// Stop servers on this machine, however they were started.
    ///
    /// Finds each process by the lock on its server's directory, and sends it SIGTERM. The manager
    /// stops first: it finishes its requests while the I/O servers still answer. A server that does
    /// not run is no error. Exit status: 0 if none runs any more, 1 otherwise.
    Stop {
        #[command(flatten)]
        servers: Servers,
        #[command(flatten)]
        patience: Patience,
        /// Kill a process that has not ended in time, as "kill -9" does. What was acknowledged
        /// stays stored.
        #[arg(long)]
        kill: bool,
        #[command(flatten)]
        output: Output,
    },
    /// Show which servers run on this machine: process, addresses, data directory, log.
    ///
    /// A server runs if a process holds the lock on its directory. Exit status: 0 if all run, 3 if
    /// some do not, 1 if that cannot be found out.
    Status {
        #[command(flatten)]
        servers: Servers,
        #[command(flatten)]
        output: Output,
    },
    /// Write a commented configuration for a cluster on this machine.
    Init {
        /// The directory for the servers' data.
        #[arg(long, default_value = "pvfs-data")]
        dir: PathBuf,
        /// The number of I/O servers.
        #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
        iods: u16,
        /// The manager's port; the I/O servers use the following ones.
        #[arg(long, default_value_t = 7000, value_parser = clap::value_parser!(u16).range(1..=65000))]
        port: u16,
        /// The transports that each server listens on: tcp, ib, shm, or several of them.
        #[arg(long, value_delimiter = ',', default_value = "tcp", value_parser = scheme)]
        over: Vec<Scheme>,
        /// The I/O servers keep checksums of what they store.
        #[arg(long)]
        checksums: bool,
        /// Make an authority and certificates in the directory too: all that goes over a network is
        /// TLS, servers and users prove who they are, and your programs find your certificate in
        /// ~/.config/pvfs.
        #[arg(long)]
        secure: bool,
        /// Write units of systemd too, to this directory [without one: /etc/systemd/system]. A
        /// configuration that is there stays.
        #[arg(long, value_name = "UNITS", num_args = 0..=1, default_missing_value = super::units::DIR)]
        systemd: Option<PathBuf>,
        /// Overwrite an existing configuration; with --systemd, existing units.
        #[arg(long)]
        force: bool,
    },
    /// Make certificates for the servers and users of a cluster, without another authority.
    ///
    /// For a cluster of one manager and one I/O server, and a user who may save the metadata:
    ///
    ///   pvfsd ca init /root/pvfs-ca
    ///   pvfsd ca issue --dir /root/pvfs-ca manager --at a.example --at 10.0.0.1
    ///   pvfsd ca issue --dir /root/pvfs-ca iod 0 --at b.example
    ///   pvfsd ca issue --dir /root/pvfs-ca user anna --may backup
    ///   pvfsd ca list --dir /root/pvfs-ca
    ///
    /// The files, and where each belongs:
    ///
    ///   authority.pem                      every server and user: whom they trust
    ///   issued/NAME.pem, issued/NAME.key   the server or user of that name, and nobody else
    ///   revoked.pem                        every server, again after each "revoke"
    ///   authority.key                      stays here. Whoever has it can be anybody
    ///
    /// The keys must stay secret; all else may be read by everybody. The directory and the keys are
    /// refused if other users can read them. Keep a copy of the directory where it is as safe. A
    /// key in "issued" is needed by its holder alone: move it there, and nothing here misses it.
    /// The authority's key is needed to issue and to revoke only, and may be on a medium of its own
    /// meanwhile.
    ///
    /// If the authority's key is lost, nothing can be issued or revoked any more. What was issued
    /// is good until it expires. Make a new authority in another directory, and issue all
    /// certificates anew. Meanwhile servers can trust both: a file of roots may hold several
    /// certificates, one after another (cat old/authority.pem new/authority.pem). If it was stolen,
    /// do the same, and trust the old one no longer than you must.
    #[command(verbatim_doc_comment)]
    Ca {
        #[command(subcommand)]
        command: super::ca::Ca,
    },
    /// Check the configuration and print a summary.
    Check,
    /// Run a command with a new cluster on this machine, and leave nothing of it.
    ///
    /// Needs no configuration. The servers are threads of this process, on free ports of the
    /// loopback. Their data is in a new directory, in memory if possible, which is removed in the
    /// end. Without a command, the manager's addresses are printed, and the cluster lasts until the
    /// standard input ends, or SIGTERM or SIGINT comes. Exit status: that of the command.
    ///
    ///   pvfsd scratch -- pvfs bench all
    ///   pvfsd scratch --iods 1 --threads 2 --over tcp -- sh -c 'pvfs put a.bin / && pvfs ls -l'
    #[command(verbatim_doc_comment)]
    Scratch(Scratch),
    #[command(flatten)]
    Manual(cli_manual::Manual),
}

/// The servers that a command is about.
#[derive(Debug, Args)]
pub(super) struct Servers {
    /// The servers: manager, iod0, iod1, … [default: all of the configuration]
    #[arg(value_name = "SERVER")]
    pub(super) servers: Vec<ServerName>,
}

/// How long a command waits.
#[derive(Debug, Args)]
pub(super) struct Patience {
    /// Longest wait, first for the manager and then for the I/O servers: 500ms, 30s, 2m.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = control::time)]
    pub(super) timeout: Duration,
}

/// How a command prints its result.
#[derive(Debug, Args)]
pub(super) struct Output {
    /// Print one JSON document instead of a line for each server.
    #[arg(long)]
    pub(super) json: bool,
}

/// Parses a transport that servers on a real machine can listen on.
fn scheme(text: &str) -> Result<Scheme, String> {
    let known = [Scheme::Tcp, Scheme::Ib, Scheme::Shm].into_iter().find(|scheme| scheme.as_str() == text);
    known.ok_or_else(|| "the transports are tcp, ib and shm".to_owned())
}

/// Parses a number of event loops.
fn threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (1..=MAX_THREADS).contains(number));
    number.ok_or_else(|| format!("a server has from 1 to {MAX_THREADS} event loops"))
}
