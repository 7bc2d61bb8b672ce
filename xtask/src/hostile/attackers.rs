//! The processes of one attack: how they are started, watched and ended.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::clock::{now_us, sleep, until};
use super::process::{Process, Shared};
use super::spec::{Done, Kind, Over, Spec, Target, Task};

/// Threads of a process that sends streams.
pub(super) const THREADS: usize = 4;
/// Commands that are stopped, for each process of another attack.
const HUNG: usize = 6;
/// A command that has moved this many bytes is in the middle.
const MIDDLE: u64 = 4 << 20;
/// The size of what they move. It has no bytes on a disk, and no command comes to its end.
pub(super) const ENDLESS: u64 = 1 << 40;
/// Longest wait for the end of streams.
const STREAMS_LIMIT: Duration = Duration::from_secs(3600);
/// Longest wait until commands are in the middle.
const MIDDLE_LIMIT: Duration = Duration::from_secs(20);

/// What an attack is made of.
pub(super) struct Plan<'a> {
    pub(super) kind: Kind,
    pub(super) over: Over,
    pub(super) targets: Vec<Target>,
    pub(super) seed: u64,
    pub(super) processes: usize,
    /// Connections that a process holds.
    pub(super) connections: usize,
    /// Streams of all processes together.
    pub(super) streams: u64,
    /// The least time of the attack.
    pub(super) time: Duration,
    pub(super) pvfs: &'a Path,
    /// The directory for local files.
    pub(super) dir: &'a Path,
    pub(super) manager: &'a str,
    pub(super) guard: &'a Shared,
}

/// What an attack has done, and its processor time in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) done: Done,
    pub(super) cpu_us: u64,
    /// The time of the attack. It begins when commands that hang are stopped.
    pub(super) window: (u64, u64),
}

impl Plan<'_> {
    /// Returns the most connections that the attackers have at a time.
    pub(super) fn most_connections(&self) -> usize {
        match self.kind {
            kind if kind.is_hung() => HUNG * self.processes,
            // Those that linger, and the one under way.
            kind if kind.is_streams() => self.processes * THREADS * 20,
            _ => self.processes * self.connections,
        }
    }

    /// Runs the attack to its end.
    pub(super) fn run(&self) -> Result<Outcome, String> {
        if self.kind.is_hung() { self.hang() } else { self.attack() }
    }

    fn attack(&self) -> Result<Outcome, String> {
        let task = match self.kind.is_streams() {
            true => Task::Streams {
                streams: self.streams.div_ceil(self.processes as u64),
                least_ms: self.time.as_millis() as u64,
                threads: THREADS,
            },
            false => Task::Hold { connections: self.connections },
        };
        let begin_us = now_us();
        let processes = (0..self.processes as u64).map(|number| self.attacker(task.clone(), number));
        let mut processes = processes.collect::<Result<Vec<_>, _>>()?;
        match self.kind.is_streams() {
            false => {
                processes.iter_mut().try_for_each(Process::await_line)?;
                sleep(self.time);
            }
            true => {
                let have_ended = || Ok(processes.iter().all(Process::has_ended));
                if !until(STREAMS_LIMIT, have_ended)? {
                    return Err("the attackers do not come to an end".to_owned());
                }
            }
        }
        let cpu_us = processes.iter().map(Process::cpu_us).sum();
        let mut done = Done::default();
        for process in processes {
            done += process.finish()?;
        }
        Ok(Outcome { done, cpu_us, window: (begin_us, now_us()) })
    }

    fn attacker(&self, task: Task, number: u64) -> Result<Process, String> {
        let (kind, over, targets) = (self.kind, self.over, self.targets.clone());
        Process::attacker(&Spec { kind, over, targets, seed: self.seed.wrapping_add(number), task }, self.guard)
    }

    /// Starts commands, stops each in the middle, and kills them at the end.
    fn hang(&self) -> Result<Outcome, String> {
        let count = HUNG * self.processes;
        let endless = self.endless();
        let file = File::create(&endless).and_then(|file| file.set_len(ENDLESS));
        file.map_err(|error| format!("{}: {error}", endless.display()))?;
        let commands = (0..count).map(|number| self.command(number)).collect::<Result<Vec<_>, _>>()?;
        let mut hung = 0;
        for command in &commands {
            // One that ended or does not come so far is stopped all the same.
            hung += u64::from(until(MIDDLE_LIMIT, || Ok(command.moved() >= MIDDLE || command.has_ended()))?);
            command.signal(Signal::STOP);
        }
        let (begin_us, cpu_before_us) = (now_us(), commands.iter().map(Process::cpu_us).sum::<u64>());
        sleep(self.time);
        if let Some(command) = commands.iter().find(|command| command.has_ended()) {
            let moved = command.moved();
            return Err(format!("a command that should hang has ended after {moved} bytes"));
        }
        let bytes = commands.iter().map(Process::moved).sum();
        let cpu_us = commands.iter().map(Process::cpu_us).sum::<u64>() - cpu_before_us;
        Ok(Outcome { done: Done { streams: hung, bytes, refused: 0 }, cpu_us, window: (begin_us, now_us()) })
    }

    /// Returns the path of a file that no command can store to its end.
    fn endless(&self) -> PathBuf {
        self.dir.join("endless")
    }

    fn command(&self, number: usize) -> Result<Process, String> {
        let mut command = Command::new(self.pvfs);
        command.args(["--manager", self.manager, "--over", &self.over.to_string(), "-q"]);
        match self.kind {
            Kind::HungReaders => command.args(["get", "--window", "64", "/endless", "/dev/null"]),
            _ => {
                let target = format!("/hung-{}-{number}", self.over);
                command.args(["put", "--window", "64"]).arg(self.endless()).arg(target)
            }
        };
        command.env_remove("PVFS_LOG").env_remove("BMI_MUTANT");
        Process::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()), self.guard)
    }

    /// Runs as many processes as the attack had, which use as much processor time and connect to
    /// nobody, for the time of the plan.
    pub(super) fn control(&self, attack: Outcome) -> Result<(), String> {
        let attack_us = (attack.window.1 - attack.window.0).max(1);
        let permille = attack.cpu_us * 1000 / attack_us / self.processes as u64;
        let plan = Plan { targets: Vec::new(), ..*self };
        let burn = |number| plan.attacker(Task::Burn { permille }, number);
        let processes = (0..self.processes as u64).map(burn).collect::<Result<Vec<_>, _>>()?;
        sleep(self.time);
        processes.into_iter().try_for_each(|process| process.finish().map(drop))
    }
}
