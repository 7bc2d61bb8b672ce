//! The honest clients: one over each transport, which work during the whole run.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use testbed::Outcome;
use testbed::process::Process;

use super::report::Latency;
use super::spec::Over;
use crate::measured::Measured;

/// When an operation began, and how long it took or why it failed.
type Sample = (u64, Result<u64, String>);

/// A client over one transport.
pub(super) struct Honest {
    process: Process,
    samples: Arc<Mutex<Vec<Sample>>>,
}

fn locked(samples: &Mutex<Vec<Sample>>) -> MutexGuard<'_, Vec<Sample>> {
    samples.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Honest {
    pub(super) fn start(program: &Path, manager: &str, over: Over) -> Outcome<Honest> {
        let mut command = Command::new(program);
        command.args([manager, &format!("/honest-{over}")]).env_remove("BMI_MUTANT");
        // Its standard input stays open as long as the process is held here.
        let mut process = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let out = process.stdout.take().ok_or("an honest client has no output")?;
        let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let into = samples.clone();
        let read = move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                locked(&into).extend(parse(&line));
            }
        };
        std::thread::Builder::new().spawn(read)?;
        Ok(Honest { process, samples })
    }

    /// Fails if the client has ended by itself.
    pub(super) fn check(&self) -> Outcome {
        if self.process.has_ended() { Err("an honest client has ended by itself".into()) } else { Ok(()) }
    }

    /// Returns what the client noticed of the operations that began in `window`.
    pub(super) fn latency(&self, window: (u64, u64)) -> Latency {
        let mut measured = Measured::default();
        let samples = locked(&self.samples);
        let within = samples.iter().filter(|(begin_us, _)| (window.0..window.1).contains(begin_us));
        within.for_each(|(_, result)| measured.add(result.clone()));
        Latency::of(&measured)
    }
}

/// Reads a line: begin, duration, operation, `ok` or `failed` with the reason.
fn parse(line: &str) -> Option<Sample> {
    let mut words = line.splitn(5, ' ');
    let (begin_us, took_us) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let name = words.next()?;
    let result = match words.next()? {
        "ok" => Ok(took_us),
        _ => Err(format!("{name}: {}", words.next().unwrap_or("no reason"))),
    };
    Some((begin_us, result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_summed_up() {
        let mut measured = Measured::default();
        (1..=101).for_each(|at| measured.add(parse(&format!("{at} {} stat ok", at * 10)).unwrap().1));
        let latency = Latency::of(&measured);
        assert_eq!((latency.operations, latency.p50_us, latency.p99_us, latency.max_us), (101, 510, 1000, 1010));
        measured.add(parse("5 6 put failed no such file").unwrap().1);
        let latency = Latency::of(&measured);
        assert_eq!((latency.operations, latency.failed, latency.reasons["put: no such file"]), (101, 1, 1));
        assert!(parse("").is_none() && parse("x 1 stat ok").is_none() && parse("1 2 stat").is_none());
    }
}
