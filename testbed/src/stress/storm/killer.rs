//! Kills and stops servers at random, and starts and continues them again.
//!
//! **How.** At random times a random server that runs is hit. Either it is killed (`kill -9`) and
//! started again after 0 to 500 ms, or it is stopped (`SIGSTOP`) and continued after 0 to 1500 ms.
//! Several servers can be down or stopped at the same time. A server that is starting can be hit
//! too. A server that ends by itself is reported, and started again as a service manager would.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use bmi_report::stats::Random;
use rustix::process::Signal;
use testbed::cluster::Cluster;
use testbed::process::sleep;
use testbed::{Outcome, named};

use super::Storm;
use super::report::Blows;

/// Longest time until a server that was killed is started again.
const DOWN_US: usize = 500_000;
/// Longest time until a server that was stopped is continued.
const STOPPED_US: usize = 1_500_000;
/// Pause before a server that ended by itself is started again.
const AGAIN_US: u64 = 200_000;
/// How often the servers are looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(3);

/// What is left to do with a server that was hit, and when.
#[derive(Clone, Copy, Debug)]
enum Due {
    Start(u64),
    Continue(u64),
}

pub(super) struct Killer<'a> {
    storm: &'a Storm,
    pub(super) cluster: Cluster,
    services: Services,
    /// How often I/O servers were started.
    starts: u32,
    random: Random,
    due: Vec<Option<Due>>,
    pub(super) blows: Blows,
    /// The number of servers that were killed.
    kills: u32,
    log: File,
}

impl<'a> Killer<'a> {
    /// Starts all servers.
    pub(super) fn start(cluster: Cluster, storm: &'a Storm, services: Services, random: Random) -> Outcome<Killer<'a>> {
        let log = File::create(storm.dir.join("killer.log")).map_err(named("killer.log"))?;
        let (due, blows) = (vec![None; cluster.servers.len()], Blows::default());
        let mut killer = Killer { storm, cluster, services, starts: 0, random, due, blows, kills: 0, log };
        (0..killer.due.len()).try_for_each(|index| killer.start_server(index))?;
        Ok(killer)
    }

    /// Kills until `kills` servers were killed or until `end_us`. The mean time between two blows
    /// is `every_us`. Calls `progress` with the number of kills now and then. All servers were
    /// started when it returns.
    pub(super) fn run(&mut self, kills: u32, every_us: u64, end_us: u64, mut progress: impl FnMut(u32)) -> Outcome {
        let mut next_us = self.storm.now_us() + every_us;
        while self.kills < kills && self.storm.now_us() < end_us {
            if self.storm.now_us() >= next_us {
                self.blow();
                next_us += self.random.below(2 * every_us as usize) as u64;
            }
            self.look()?;
            progress(self.kills);
            sleep(LOOK_AGAIN);
        }
        while self.due.iter().any(Option::is_some) {
            self.look()?;
            sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Hits a server.
    fn blow(&mut self) {
        let running: Vec<usize> = (0..self.cluster.servers.len()).filter(|index| self.due[*index].is_none()).collect();
        let Some(index) = running.get(self.random.below(running.len().max(1))).copied() else { return };
        let name = Cluster::name(index);
        let now_us = self.storm.now_us();
        // A stop is seen by more commands than a kill, so kills are more frequent.
        if self.random.below(5) < 3 {
            self.note(&format!("kill {name}"));
            self.cluster.kill(index);
            self.kills += 1;
            *self.blows.kills.entry(name).or_default() += 1;
            self.due[index] = Some(Due::Start(now_us + self.random.below(DOWN_US) as u64));
        } else {
            self.note(&format!("stop {name}"));
            self.cluster.signal(index, Signal::STOP);
            *self.blows.stops.entry(name).or_default() += 1;
            self.due[index] = Some(Due::Continue(now_us + self.random.below(STOPPED_US) as u64));
        }
    }

    /// Starts and continues servers whose time has come, and looks for servers that have ended.
    pub(super) fn look(&mut self) -> Outcome {
        let now_us = self.storm.now_us();
        for index in 0..self.due.len() {
            let name = Cluster::name(index);
            match self.due[index] {
                Some(Due::Start(at)) if at <= now_us => {
                    self.note(&format!("start {name}"));
                    self.start_server(index)?;
                    self.due[index] = None;
                }
                Some(Due::Continue(at)) if at <= now_us => {
                    self.note(&format!("continue {name}"));
                    self.cluster.signal(index, Signal::CONT);
                    self.due[index] = None;
                }
                Some(_) => {}
                None => {
                    if let Some(status) = self.cluster.ended(index)? {
                        let line = format!("{name}, {status}: {}", self.cluster.last_line(index));
                        self.note(&format!("ended by itself: {line}"));
                        self.blows.ended_by_themselves.push(line);
                        self.due[index] = Some(Due::Start(now_us + AGAIN_US));
                    }
                }
            }
        }
        Ok(())
    }

    fn start_server(&mut self, index: usize) -> Outcome {
        if index > 0 {
            let (service, dir) = (self.services.of(self.starts), &self.storm.dir);
            let cache = format!("[cache]\nservice = {service:?}\nmemory = \"8M\"\ndir = {dir:?}\n");
            self.cluster.configure(|_, tcp| format!("{tcp:?}"), &cache)?;
            self.starts += 1;
        }
        self.cluster.start_server(index)
    }

    /// Writes a line to the log.
    pub(super) fn note(&mut self, text: &str) {
        // The log is for people. The storm goes on without it.
        let _ = writeln!(self.log, "{:.3} s {text}", self.storm.now_us() as f64 / 1e6);
    }
}

/// How I/O servers move data, whenever they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Services {
    /// Through the system's page cache.
    Normal,
    /// Through the system's page cache, from mapped files where that is possible.
    Mmap,
    /// Through a cache of their own.
    Unifier,
    /// The one or the other: a server also takes over what one with a cache has left.
    Mixed,
}

impl Services {
    /// Returns the name of the service for a start.
    fn of(self, start: u32) -> &'static str {
        match self {
            Services::Normal => "normal",
            Services::Mmap => "mmap",
            Services::Mixed if start % 3 == 2 => ["normal", "mmap"][(start / 3 % 2) as usize],
            Services::Unifier | Services::Mixed => "unifier",
        }
    }
}
