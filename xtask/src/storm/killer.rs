//! Kills and stops servers at random, and starts and continues them again.
//!
//! **How.** At random times a random server that runs is hit. Either it is killed (`kill -9`) and
//! started again after 0 to 500 ms, or it is stopped (`SIGSTOP`) and continued after 0 to 1500 ms.
//! Several servers can be down or stopped at the same time. A server that is starting can be hit
//! too. A server that ends by itself is reported, and started again as a service manager would.

use std::time::Duration;

use bmi_report::stats::Random;
use rustix::process::Signal;

use super::client::Clock;
use super::cluster::Cluster;
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
    cluster: &'a mut Cluster,
    clock: Clock,
    random: Random,
    due: Vec<Option<Due>>,
    pub(super) blows: Blows,
    /// The number of servers that were killed.
    pub(super) kills: u32,
    log: Box<dyn FnMut(String) + 'a>,
}

impl<'a> Killer<'a> {
    /// Creates the killer. It writes a line for each of its deeds to `log`.
    pub(super) fn new(
        cluster: &'a mut Cluster,
        clock: Clock,
        random: Random,
        log: impl FnMut(String) + 'a,
    ) -> Killer<'a> {
        let due = vec![None; cluster.len()];
        Killer { cluster, clock, random, due, blows: Blows::default(), kills: 0, log: Box::new(log) }
    }

    /// Kills until `kills` servers were killed or until `end_us`. The mean time between two blows
    /// is `every_us`. Calls `progress` with the number of kills now and then. All servers were
    /// started when it returns.
    pub(super) fn run(
        &mut self,
        kills: u32,
        every_us: u64,
        end_us: u64,
        mut progress: impl FnMut(u32),
    ) -> Result<(), String> {
        let mut next_us = self.clock.now_us() + every_us;
        while self.kills < kills && self.clock.now_us() < end_us {
            if self.clock.now_us() >= next_us {
                self.blow()?;
                next_us += self.random.below(2 * every_us as usize) as u64;
            }
            self.look()?;
            progress(self.kills);
            self.clock.sleep(LOOK_AGAIN);
        }
        while self.due.iter().any(Option::is_some) {
            self.look()?;
            self.clock.sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Hits a server.
    fn blow(&mut self) -> Result<(), String> {
        let running: Vec<usize> = (0..self.cluster.len()).filter(|index| self.due[*index].is_none()).collect();
        let Some(index) = running.get(self.random.below(running.len().max(1))).copied() else { return Ok(()) };
        let name = Cluster::name(index);
        let now_us = self.clock.now_us();
        // A stop is seen by more commands than a kill, so kills are more frequent.
        if self.random.below(5) < 3 {
            self.note(&format!("kill {name}"));
            self.cluster.kill(index)?;
            self.kills += 1;
            *self.blows.kills.entry(name).or_default() += 1;
            self.due[index] = Some(Due::Start(now_us + self.random.below(DOWN_US) as u64));
        } else {
            self.note(&format!("stop {name}"));
            self.cluster.signal(index, Signal::STOP)?;
            *self.blows.stops.entry(name).or_default() += 1;
            self.due[index] = Some(Due::Continue(now_us + self.random.below(STOPPED_US) as u64));
        }
        Ok(())
    }

    /// Starts and continues servers whose time has come, and looks for servers that have ended.
    pub(super) fn look(&mut self) -> Result<(), String> {
        let now_us = self.clock.now_us();
        for index in 0..self.due.len() {
            let name = Cluster::name(index);
            match self.due[index] {
                Some(Due::Start(at)) if at <= now_us => {
                    self.note(&format!("start {name}"));
                    self.cluster.start_server(index)?;
                    self.due[index] = None;
                }
                Some(Due::Continue(at)) if at <= now_us => {
                    self.note(&format!("continue {name}"));
                    self.cluster.signal(index, Signal::CONT)?;
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

    /// Writes a line to the log.
    pub(super) fn note(&mut self, text: &str) {
        (self.log)(format!("{:.3} s {text}", self.clock.now_us() as f64 / 1e6));
    }
}
