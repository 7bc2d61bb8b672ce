//! The honest clients: one over each transport, which work during the whole run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use super::process::{Process, Shared};
use super::report::Latency;
use super::spec::Over;

/// An operation of an honest client.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sample {
    begin_us: u64,
    took_us: u64,
    /// What failed, and why.
    failed: Option<String>,
}

/// A client over one transport.
pub(super) struct Honest {
    process: Process,
    samples: Arc<Mutex<Vec<Sample>>>,
}

impl Honest {
    pub(super) fn start(programs: &Path, manager: &str, over: Over, guard: &Shared) -> Result<Honest, String> {
        let mut command = Command::new(programs.join("honest"));
        command.args([manager, &format!("/honest-{over}")]).env_remove("BMI_MUTANT");
        // Its standard input stays open as long as the process is held here.
        let mut process = Process::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()), guard)?;
        let out = process.child().stdout.take().ok_or("an honest client has no output")?;
        let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let into = samples.clone();
        let read = move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                into.lock().unwrap_or_else(PoisonError::into_inner).extend(parse(&line));
            }
        };
        std::thread::Builder::new().spawn(read).map_err(|error| error.to_string())?;
        Ok(Honest { process, samples })
    }

    /// Fails if the client has ended by itself.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.process.has_ended() { Err("an honest client has ended by itself".to_owned()) } else { Ok(()) }
    }

    /// Returns the number of operations that were done.
    pub(super) fn len(&self) -> usize {
        self.samples.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns what the client noticed of the operations that began in `window`.
    pub(super) fn latency(&self, window: (u64, u64)) -> Latency {
        let samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        summary(samples.iter().filter(|sample| (window.0..window.1).contains(&sample.begin_us)))
    }
}

fn summary<'a>(samples: impl Iterator<Item = &'a Sample>) -> Latency {
    let (mut times, mut reasons) = (Vec::new(), BTreeMap::<String, u64>::new());
    for sample in samples {
        match &sample.failed {
            None => times.push(sample.took_us),
            Some(why) => *reasons.entry(why.clone()).or_default() += 1,
        }
    }
    times.sort_unstable();
    let quantile = |percent: usize| {
        let at = (times.len() * percent).div_ceil(100).saturating_sub(1);
        times.get(at).copied().unwrap_or(0)
    };
    let (p50_us, p99_us, max_us) = (quantile(50), quantile(99), quantile(100));
    Latency { operations: times.len() as u64, failed: reasons.values().sum(), p50_us, p99_us, max_us, reasons }
}

/// Reads a line: begin, duration, operation, `ok` or `failed` with the reason.
fn parse(line: &str) -> Option<Sample> {
    let mut words = line.splitn(5, ' ');
    let (begin_us, took_us) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let name = words.next()?;
    let failed = match words.next()? {
        "ok" => None,
        _ => Some(format!("{name}: {}", words.next().unwrap_or("no reason"))),
    };
    Some(Sample { begin_us, took_us, failed })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_summed_up() {
        let samples: Vec<_> = (1..=100).filter_map(|at| parse(&format!("{at} {} stat ok", at * 10))).collect();
        let latency = summary(samples.iter());
        assert_eq!((latency.operations, latency.p50_us, latency.p99_us, latency.max_us), (100, 500, 990, 1000));
        let failed = parse("5 6 put failed no such file").unwrap();
        assert_eq!(failed.failed.as_deref(), Some("put: no such file"));
        let latency = summary([failed].iter());
        assert_eq!((latency.operations, latency.failed, latency.p99_us), (0, 1, 0));
        assert!(parse("").is_none() && parse("x 1 stat ok").is_none() && parse("1 2 stat").is_none());
    }
}
