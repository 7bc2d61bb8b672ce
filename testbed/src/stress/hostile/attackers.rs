//! The processes of one attack: how they are started, watched and ended.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use testbed::process::{Process, now_us, sleep, until};
use testbed::{Outcome, named};

use super::scene::Scene;
use super::spec::{Done, ENDLESS, Kind, Over, Spec, Target, Task};

/// Threads of a process that sends streams.
const THREADS: usize = 4;
/// Commands that are stopped, for each process of another attack.
const HUNG: usize = 6;
/// A command that has moved this many bytes is in the middle.
const MIDDLE: u64 = 4 << 20;
/// Longest wait for the end of streams.
const STREAMS_LIMIT: Duration = Duration::from_secs(3600);
/// Longest wait until commands are in the middle.
const MIDDLE_LIMIT: Duration = Duration::from_secs(20);

/// What an attack is made of.
pub(super) struct Plan<'a> {
    pub(super) scene: &'a Scene,
    pub(super) kind: Kind,
    pub(super) over: Over,
    pub(super) seed: u64,
    pub(super) processes: usize,
    /// Connections that a process holds.
    pub(super) connections: usize,
    /// Streams of all processes together.
    pub(super) streams: u64,
    /// The least time of the attack.
    pub(super) time: Duration,
}

/// What an attack has done, and its processor time in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attacked {
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
            // Those that linger, and the one in flight.
            kind if kind.is_streams() => self.processes * THREADS * 20,
            _ => self.processes * self.connections,
        }
    }

    /// Runs the attack to its end.
    pub(super) fn run(&self) -> Outcome<Attacked> {
        if self.kind.is_hung() { self.hang() } else { self.attack() }
    }

    fn attack(&self) -> Outcome<Attacked> {
        let task = match self.kind.is_streams() {
            true => Task::Streams {
                streams: self.streams.div_ceil(self.processes as u64),
                least_ms: self.time.as_millis() as u64,
                threads: THREADS,
            },
            false => Task::Hold { connections: self.connections },
        };
        let begin_us = now_us();
        let mut processes = self.start(&task, &self.scene.targets(self.over))?;
        if self.kind.is_streams() {
            if !until(STREAMS_LIMIT, || Ok(processes.iter().all(Process::has_ended)))? {
                return Err("the attackers do not come to an end".into());
            }
        } else {
            for process in &mut processes {
                // It prints an empty line when it has opened all its connections once.
                output(process)?.read_exact(&mut [0])?;
            }
            sleep(self.time);
        }
        let cpu_us = processes.iter().map(Process::cpu_us).sum();
        Ok(Attacked { done: finish(processes)?, cpu_us, window: (begin_us, now_us()) })
    }

    /// Starts attacking processes: this program once more.
    fn start(&self, task: &Task, targets: &[Target]) -> Outcome<Vec<Process>> {
        let start = |number: u64| {
            let (seed, targets, task) = (self.seed.wrapping_add(number), targets.to_vec(), task.clone());
            let spec = serde_json::to_string(&Spec { kind: self.kind, over: self.over, targets, seed, task })?;
            // This program, even if its file was replaced since it started.
            let mut command = Command::new("/proc/self/exe");
            Process::start(command.args(["attacker", &spec]).stdin(Stdio::piped()).stdout(Stdio::piped()))
        };
        (0..self.processes as u64).map(start).collect()
    }

    /// Starts commands, stops each in the middle, and kills them at the end.
    fn hang(&self) -> Outcome<Attacked> {
        let endless = self.scene.dir.join("endless");
        File::create(&endless).and_then(|file| file.set_len(ENDLESS)).map_err(named(endless.display()))?;
        let pvfs = self.scene.pvfs_over(self.over);
        let start = |number: usize| {
            let target = format!("/hung-{}-{number}", self.over);
            let mut command = match self.kind {
                Kind::HungReaders => pvfs.command(&["get", "--window", "64", "/endless", "/dev/null"]),
                _ => pvfs.command(&["put", "--window", "64", "endless", &target]),
            };
            Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()))
        };
        let commands = (0..HUNG * self.processes).map(start).collect::<Outcome<Vec<_>>>()?;
        let mut streams = 0;
        for command in &commands {
            // One that ended or does not come so far is stopped all the same.
            streams += u64::from(until(MIDDLE_LIMIT, || Ok(command.moved() >= MIDDLE || command.has_ended()))?);
            command.signal(Signal::STOP);
        }
        let cpu_us = || commands.iter().map(Process::cpu_us).sum::<u64>();
        let (begin_us, cpu_before_us) = (now_us(), cpu_us());
        sleep(self.time);
        if let Some(command) = commands.iter().find(|command| command.has_ended()) {
            let moved = command.moved();
            return Err(format!("a command that should hang has ended after {moved} bytes").into());
        }
        let bytes = commands.iter().map(Process::moved).sum();
        let (cpu_us, window) = (cpu_us() - cpu_before_us, (begin_us, now_us()));
        Ok(Attacked { done: Done { streams, bytes, refused: 0 }, cpu_us, window })
    }

    /// Runs as many processes as the attack had, which use as much processor time and connect to
    /// nobody, for the time of the plan. Returns when that was.
    pub(super) fn control(&self, attack: &Attacked) -> Outcome<(u64, u64)> {
        let begin_us = now_us();
        let attack_us = (attack.window.1 - attack.window.0).max(1);
        let permille = attack.cpu_us * 1000 / attack_us / self.processes as u64;
        let processes = self.start(&Task::Burn { permille }, &[])?;
        sleep(self.time);
        finish(processes)?;
        Ok((begin_us, now_us()))
    }
}

/// Tells attackers to end, waits for that, and returns what they have done.
fn finish(processes: Vec<Process>) -> Outcome<Done> {
    let mut sum = Done::default();
    for mut process in processes {
        drop(process.stdin.take());
        let mut text = String::new();
        output(&mut process)?.read_to_string(&mut text)?;
        sum += serde_json::from_str(text.trim()).map_err(|_| "an attacker ended before its time")?;
    }
    Ok(sum)
}

fn output(process: &mut Process) -> Outcome<&mut impl Read> {
    Ok(process.stdout.as_mut().ok_or("an attacker has no output")?)
}
