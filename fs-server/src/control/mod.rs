//! The servers of one machine as a whole: `pvfsd run`, `start`, `stop` and `status`.
//!
//! **Why.** A small cluster should be one command, in the background, with logs in files. Yet
//! nothing may depend on a file with a process id: such a file goes stale. A server runs if its
//! directory is locked, and its process is the one that holds the lock ([`crate::store::holder`]).
//! So these commands also find servers that were started by hand or by a service manager.
//!
//! **Invariants**
//! 1. The manager starts first and stops first. An I/O server reports to the manager when it
//!    starts. The manager asks I/O servers to do what its own requests need, so it finishes these
//!    requests while the I/O servers still run. An I/O server that runs on needs no manager.
//! 2. A signal reaches only a process that holds the lock: `stop` opens the process first and looks
//!    at the lock again afterwards.
//! 3. A server that runs already is never started again, and one that does not run is no error for
//!    `stop`. Each command can be repeated.
//!
//! | module | contents |
//! |---|---|
//! | `run` | servers as threads of this process |
//! | `start` | servers as processes in the background |
//! | `stop` | ends the processes |
//! | `report` | what the commands print |
//! | `log` | the log files |
//!
//! **Tests** with processes are in `fs-client/tests/it/commands/control.rs`.

mod log;
mod report;
mod run;
mod start;
mod stop;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bmi::Addr;

use crate::config::Config;
use crate::store::{self, Holder};

pub(crate) use report::Report;
pub(crate) use run::run;
pub(crate) use start::{Launch, start};
pub(crate) use stop::stop;

use report::{Entry, State};

/// The name of a server on the command line, in reports and of its log: `manager`, `iod0`, `iod1`.
/// The order is the one in which servers are started and stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ServerName {
    Manager,
    Iod(usize),
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // `pad`, so that the caller can align names.
            ServerName::Manager => f.pad("manager"),
            ServerName::Iod(index) => f.pad(&format!("iod{index}")),
        }
    }
}

impl FromStr for ServerName {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerName, String> {
        let index = |digits: &str| {
            let digits = digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(digits)?;
            digits.parse().ok().map(ServerName::Iod)
        };
        match text {
            "manager" => Ok(ServerName::Manager),
            _ => {
                text.strip_prefix("iod").and_then(index).ok_or_else(|| "servers are manager, iod0, iod1, …".to_owned())
            }
        }
    }
}

/// A server of the configuration.
#[derive(Debug)]
struct Member {
    name: ServerName,
    /// Its data directory, whose lock it holds while it runs.
    dir: PathBuf,
    addrs: Vec<Addr>,
}

impl Member {
    /// Returns the process that holds the lock on the server's directory.
    fn holder(&self) -> Result<Holder, String> {
        store::holder(&self.dir).map_err(|error| format!("{}: directory {}: {error}", self.name, self.dir.display()))
    }
}

/// The servers of the configuration and the place of their logs.
#[derive(Debug)]
pub(crate) struct Cluster {
    members: Vec<Member>,
    logs: PathBuf,
}

impl Cluster {
    pub(crate) fn new(config: &Config) -> Cluster {
        let addrs = config.cluster.manager.all().to_vec();
        let mut members = vec![Member { name: ServerName::Manager, dir: config.storage.manager.clone(), addrs }];
        members.extend(config.cluster.iods.iter().enumerate().map(|(index, addrs)| Member {
            name: ServerName::Iod(index),
            dir: config.iod_dir(index),
            addrs: addrs.all().to_vec(),
        }));
        Cluster { members, logs: config.logs_dir() }
    }

    /// Returns the servers with these names, each one once and in order; all servers if there is no
    /// name.
    ///
    /// # Errors
    /// A name that is not in the configuration, with those that are.
    pub(crate) fn select(&self, names: &[ServerName]) -> Result<Vec<ServerName>, String> {
        let all = || self.members.iter().map(|member| member.name);
        if let Some(unknown) = names.iter().find(|name| !all().any(|known| known == **name)) {
            let iods = self.members.len() - 1;
            return Err(format!(
                "there is no {unknown}; the configuration has a manager and {iods} I/O servers, from iod0"
            ));
        }
        Ok(all().filter(|name| names.is_empty() || names.contains(name)).collect())
    }

    fn members<'a>(&'a self, names: &'a [ServerName]) -> impl Iterator<Item = &'a Member> {
        self.members.iter().filter(|member| names.contains(&member.name))
    }

    /// Returns what is known of a server in this state.
    fn entry(&self, member: &Member, state: State, pid: Option<u32>) -> Entry {
        Entry {
            name: member.name.to_string(),
            state,
            pid,
            addresses: member.addrs.iter().map(Addr::to_string).collect(),
            directory: member.dir.display().to_string(),
            log: pid
                .map_or_else(|| log::last(&self.logs, member.name), log::of_process)
                .map(|log| log.display().to_string()),
        }
    }
}

/// Reports which of the servers run.
pub(crate) fn status(cluster: &Cluster, names: &[ServerName]) -> Report {
    let mut report = Report::default();
    for member in cluster.members(names) {
        let (state, pid) = match member.holder() {
            Ok(Holder::Nobody) => (State::Stopped, None),
            Ok(Holder::Process(pid)) => (State::Running, Some(pid)),
            Ok(Holder::Unknown) => (State::Running, None),
            Err(error) => {
                report.errors.push(error);
                (State::Unknown, None)
            }
        };
        report.servers.push(cluster.entry(member, state, pid));
    }
    report
}

/// Joins names for a message.
fn list(names: impl IntoIterator<Item = ServerName>, separator: &str) -> String {
    names.into_iter().map(|name| name.to_string()).collect::<Vec<_>>().join(separator)
}

/// Parses a time such as `500ms`, `30s` or `2m`.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a time; write 500ms, 30s or 2m");
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit_ms = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        _ => return Err(bad()),
    };
    // At most some days, so that adding it to a time cannot overflow.
    let number = number.parse::<u32>().map_err(|_| bad())?;
    match u64::from(number) * unit_ms {
        0 => Err(format!("{text:?} leaves no time at all")),
        ms @ 1..=604_800_000 => Ok(Duration::from_millis(ms)),
        _ => Err(format!("{text:?} is more than a week")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn cluster(dir: &Path) -> Cluster {
        Cluster::new(&Config::parse(&Config::template(dir, 3, 7000, &[bmi::Scheme::Tcp], false).unwrap()).unwrap())
    }

    #[test]
    fn names_are_written_as_they_are_read() {
        for text in ["manager", "iod0", "iod255"] {
            assert_eq!(text.parse::<ServerName>().unwrap().to_string(), text);
        }
        for text in ["", "iod", "iod+1", "iod-1", "iod 1", "Manager", "1"] {
            assert!(text.parse::<ServerName>().unwrap_err().contains("manager, iod0"), "{text}");
        }
        assert_eq!(format!("{:8}|", ServerName::Iod(1)), "iod1    |");
    }

    #[test]
    fn servers_are_selected_once_and_in_order() {
        let cluster = cluster(Path::new("/srv/pvfs"));
        let (manager, iod) = (ServerName::Manager, ServerName::Iod);
        assert_eq!(cluster.select(&[]).unwrap(), [manager, iod(0), iod(1), iod(2)]);
        assert_eq!(cluster.select(&[iod(2), manager, iod(2)]).unwrap(), [manager, iod(2)]);
        let error = cluster.select(&[iod(3)]).unwrap_err();
        assert!(error.contains("no iod3") && error.contains("3 I/O servers"), "{error}");
    }

    #[test]
    fn a_server_runs_while_its_directory_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = cluster(dir.path());
        let states = || status(&cluster, &cluster.select(&[]).unwrap());
        assert!(!states().all_run(), "no directory exists");
        let locked: Vec<_> = cluster
            .members
            .iter()
            .map(|member| {
                std::fs::create_dir(&member.dir).unwrap();
                store::DirLock::take(&member.dir).unwrap()
            })
            .collect();
        let report = states();
        assert!(report.all_run() && report.errors.is_empty());
        assert!(report.servers.iter().all(|server| server.pid == Some(std::process::id())));
        drop(locked);
        assert!(states().servers.iter().all(|server| server.state == State::Stopped && server.pid.is_none()));
        // A file is in the directory's place.
        std::fs::remove_dir(&cluster.members[1].dir).unwrap();
        std::fs::write(&cluster.members[1].dir, "").unwrap();
        let report = states();
        assert!(report.errors.len() == 1 && report.errors[0].starts_with("iod0: directory "), "{report:?}");
    }

    #[test]
    fn times_are_read() {
        for (text, ms) in [("500ms", 500), ("30s", 30_000), ("30", 30_000), ("2m", 120_000)] {
            assert_eq!(time(text), Ok(Duration::from_millis(ms)));
        }
        for text in ["", "s", "-1s", "1.5s", "soon", "0s", "99999999999s", "100000m"] {
            assert!(time(text).unwrap_err().contains(text), "{text}");
        }
    }
}
