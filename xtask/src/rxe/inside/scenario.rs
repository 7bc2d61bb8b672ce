//! The table of scenarios: several processes that work together. They run in the machine besides
//! the test programs, and each is reported as a test.
//!
//! **How to add one.** Write a function that takes a [`Scene`] and returns an error as text, and
//! add a line to [`SCENARIOS`].

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use super::process::{self, Finished, captured, command};
use super::{Channel, await_some, cluster_bench, files, main_job, measure, pair, perf, perf_ratios, perftest};
use crate::rxe::build::{MEASURE, PERF_IN_RELEASE};
use crate::rxe::wire::Report;

/// A scenario.
pub(crate) struct Scenario {
    /// The group in the report.
    pub(crate) group: &'static str,
    /// The name, a statement that is true if the scenario passes.
    pub(crate) name: &'static str,
    /// The programs that it needs, in `/bin`.
    pub(crate) programs: &'static [&'static str],
    /// Runs it.
    pub(crate) run: fn(&Scene<'_>) -> Result<(), String>,
    /// True if it runs with all others. Otherwise it runs only if it is asked for.
    pub(crate) usual: bool,
}

/// All scenarios, in the order in which they run.
#[rustfmt::skip]
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario { group: "machine", name: "perftest sends to itself", programs: PERFTEST, run: perftest::once, usual: true },
    Scenario { group: "machine", name: "ping-pong of libibverbs has the right bytes", programs: EXAMPLES, run: perftest::ping_pong, usual: true },
    Scenario { group: "files", name: "a tree is stored and read back", programs: FILES, run: files::tree, usual: true },
    Scenario { group: "files", name: "a tree is stored and read back with caches", programs: FILES, run: files::cached_tree, usual: true },
    Scenario { group: "files", name: "several clients at once", programs: FILES, run: files::several_clients, usual: true },
    Scenario { group: "files", name: "a server killed in the middle of a put ends it, and comes back", programs: FILES, run: files::killed_server, usual: true },
    Scenario { group: "files", name: "clients killed in the middle of transfers harm nobody", programs: FILES, run: files::killed_clients, usual: true },
    Scenario { group: "main-job", name: "ib against tcp", programs: &["ab", "pvfsd"], run: main_job::ib_against_tcp, usual: true },
    Scenario { group: "perf", name: "bmi-perf measures everything over ib and tcp", programs: &["bmi-perf"], run: perf::every_test, usual: true },
    Scenario { group: "perf", name: "pvfs bench measures a cluster over ib", programs: FILES, run: cluster_bench::over_ib, usual: true },
    Scenario { group: "bench", name: "ratios to perftest", programs: MEASURED, run: measure::ratios, usual: false },
    Scenario { group: "bench", name: "bmi-perf is within 10 % of perftest where both measure the same", programs: PERF_RATIOS, run: perf_ratios::beside_perftest, usual: false },
    Scenario { group: "bench", name: "the client's processor time in a stream", programs: &["ab", "pvfsd"], run: main_job::stream, usual: false },
    // The first scenario of this group is the server of the others.
    Scenario { group: PAIR, name: "serving", programs: FILES, run: pair::serve, usual: true },
    Scenario { group: PAIR, name: "files go both ways with 0.5 % loss", programs: FILES, run: pair::transfer, usual: true },
];

/// The group of the test with two machines.
pub(crate) const PAIR: &str = "two-machines";
const FILES: &[&str] = &["pvfsd", "pvfs"];
const EXAMPLES: &[&str] = &["ibv_rc_pingpong"];
const PERFTEST: &[&str] = &["ib_send_lat"];
const MEASURED: &[&str] =
    &["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_send_bw", "ib_write_bw", "ib_read_bw", MEASURE];
const PERF_RATIOS: &[&str] =
    &["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_send_bw", "ib_write_bw", "ib_read_bw", PERF_IN_RELEASE];

/// Finds a scenario.
pub(crate) fn find(group: &str, name: &str) -> Option<&'static Scenario> {
    SCENARIOS.iter().find(|scenario| scenario.group == group && scenario.name == name)
}

/// The tools of a scenario.
pub(crate) struct Scene<'a> {
    /// The environment of the programs that it runs.
    pub(crate) env: &'a [(String, String)],
    /// The channel for notes to people.
    pub(crate) channel: &'a Channel,
}

/// Time limit for one program that a scenario runs.
pub(crate) const PROGRAM_LIMIT: Duration = Duration::from_secs(60);

/// A process that a scenario started. It is killed when this value is dropped.
pub(crate) struct Running {
    child: Child,
    /// Its command line, for people.
    pub(crate) words: String,
    output: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Scene<'_> {
    /// Runs a program to its end.
    pub(crate) fn finish(&self, words: &[&str]) -> Finished {
        captured(command(words, self.env), PROGRAM_LIMIT)
    }

    /// Runs a program that must succeed, and returns its output.
    pub(crate) fn ok(&self, words: &[&str]) -> Result<String, String> {
        let finished = self.finish(words);
        match finished.status {
            0 => Ok(finished.output),
            status => Err(format!("{}: status {status}\n{}", words.join(" "), finished.output)),
        }
    }

    /// Starts a program and returns while it runs.
    pub(crate) fn start(&self, words: &[&str]) -> Result<Running, String> {
        let line = words.join(" ");
        let failed = |error: std::io::Error| format!("{line}: {error}");
        let output = PathBuf::from(format!("/tmp/.started-{}", self.count()));
        let file = fs::File::create(&output).map_err(failed)?;
        let mut command = command(words, self.env);
        command.stdout(file.try_clone().map_err(failed)?).stderr(file).stdin(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        Ok(Running { child, words: line, output })
    }

    /// Reports a line for people.
    pub(crate) fn note(&self, line: String) {
        self.channel.report(Report::Note(line));
    }

    /// Returns a number that it has not returned before.
    fn count(&self) -> u64 {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

impl Running {
    /// Returns the output up to now.
    pub(crate) fn output(&self) -> String {
        fs::read(&self.output).map_or_else(|_| String::new(), |bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns once the process has printed `text`.
    pub(crate) fn await_output(&self, text: &str) -> Result<(), String> {
        await_some(&format!("{:?} of `{}`", text, self.words), || self.output().contains(text).then_some(()))
            .map_err(|why| format!("{why}; it said:\n{}", self.output()))
    }

    /// Kills the process, as `kill -9` does.
    pub(crate) fn kill(mut self) -> Result<(), String> {
        self.child
            .kill()
            .and_then(|()| self.child.wait().map(|_| ()))
            .map_err(|error| format!("{}: {error}", self.words))
    }

    /// Waits for the end of the process, and kills it at the limit.
    pub(crate) fn finish(mut self, limit: Duration) -> Finished {
        let status = process::wait(&mut self.child, limit).unwrap_or(process::LIMIT_STATUS);
        Finished { status, output: self.output() }
    }
}
