//! The part of this program that runs inside the machine. `init.sh` starts it. It carries out the
//! plan and reports over a port of its own.
//!
//! **Invariants**
//! 1. Every job ends. A program that takes longer than its limit is killed, with all processes that
//!    it started.
//! 2. A job leaves no process behind for the next one.
//! 3. Each test runs in a process of its own. If one hangs or dies, the report names it, and the
//!    other tests keep their results.

mod cluster_bench;
mod files;
mod main_job;
mod measure;
mod pair;
mod perf;
mod perf_ratios;
mod perftest;
mod process;
pub(crate) mod scenario;
mod tests;

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::wire::{Job, Plan, Record, Report, Verdict};
use process::LIMIT_STATUS;

/// The path of the plan.
pub(crate) const PLAN: &str = "/etc/plan.json";
/// The name of the port for the reports.
pub(crate) const PORT: &str = "bmi.reports";
/// The file with the machine's own address on the link of the device.
pub(crate) const ADDRESS_FILE: &str = "/etc/address";
/// The RDMA device.
pub(crate) const DEVICE: &str = "rxe0";

/// The channel of the reports. Clones write to the same port, one record at a time.
#[derive(Clone)]
pub(crate) struct Channel(Arc<Mutex<File>>);

impl Channel {
    fn send(&self, record: &Record) {
        let mut port = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = record.write(&mut *port) {
            // Only the console is left.
            eprintln!("inside: a report is lost: {error}");
        }
    }

    fn report(&self, report: Report) {
        self.send(&Record::Report(report));
    }

    /// Runs `test` as a test with this name, and reports its result.
    #[expect(clippy::disallowed_methods, reason = "tells a person how long it took")]
    fn test(&self, group: &str, name: &str, test: impl FnOnce() -> (Verdict, String)) {
        self.report(Report::Begun { group: group.into(), name: name.into() });
        let begin = Instant::now();
        let (verdict, output) = test();
        let seconds = begin.elapsed().as_secs_f64();
        self.report(Report::Ended { group: group.into(), name: name.into(), verdict, seconds, output });
    }
}

/// Carries out the plan.
pub(crate) fn main() -> ExitCode {
    match carry_out() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("inside: {why}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out() -> Result<(), String> {
    process::baseline();
    let port = await_some("the port for reports", port)?;
    let port = OpenOptions::new().write(true).open(&port).map_err(|error| format!("{}: {error}", port.display()))?;
    let channel = Channel(Arc::new(Mutex::new(port)));
    let text = fs::read(PLAN).map_err(|error| format!("{PLAN}: {error}"))?;
    let plan: Plan = serde_json::from_slice(&text).map_err(|error| format!("{PLAN}: {error}"))?;
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    if let Err(why) = await_some("an active port with an IPv4 GID", || gid_index(DEVICE)) {
        channel.test("machine", "the device comes up", || (Verdict::Failed, why));
    } else {
        channel.report(Report::Up { kernel });
        for job in &plan.jobs {
            carry_out_job(job, &plan, &channel);
            process::end_leftovers();
        }
    }
    channel.report(Report::Done);
    Ok(())
}

fn carry_out_job(job: &Job, plan: &Plan, channel: &Channel) {
    match job {
        Job::Program { args, limit_s } => {
            let status = process::streamed(args, &plan.env, Duration::from_secs(*limit_s), channel);
            if status == LIMIT_STATUS {
                channel.send(&Record::Err(format!("killed: it took longer than {limit_s} s\n").into_bytes()));
            }
            channel.report(Report::Exited(status));
        }
        Job::Tests { group, program, filter, limit_s, workers } => {
            let limit = Duration::from_secs(*limit_s);
            let program = tests::Program { group, path: program, env: &plan.env, limit, workers: *workers };
            program.run(filter.as_deref(), channel);
        }
        Job::Scenario { group, name } => channel.test(group, name, || {
            let Some(scenario) = scenario::find(group, name) else {
                return (Verdict::Failed, "there is no such scenario".into());
            };
            match (scenario.run)(&scenario::Scene { env: &plan.env, channel }) {
                Ok(()) => (Verdict::Passed, String::new()),
                Err(why) => (Verdict::Failed, why),
            }
        }),
    }
}

/// Returns the device of the port with the name [`PORT`].
fn port() -> Option<PathBuf> {
    let ports = fs::read_dir("/sys/class/virtio-ports").ok()?;
    ports.flatten().find_map(|port| {
        let name = fs::read_to_string(port.path().join("name")).ok()?;
        (name.trim() == PORT).then(|| Path::new("/dev").join(port.file_name()))
    })
}

/// Returns the index of the RoCE v2 GID that holds an IPv4 address, once the port of the device is
/// active.
fn gid_index(device: &str) -> Option<usize> {
    let port = Path::new("/sys/class/infiniband").join(device).join("ports/1");
    let read = |name: String| fs::read_to_string(port.join(name)).unwrap_or_default();
    if !read("state".into()).contains("ACTIVE") {
        return None;
    }
    // Search by content: how many GIDs come before it depends on the kernel's settings for IPv6.
    (0..16).find(|index| {
        read(format!("gids/{index}")).contains(":0000:ffff:") && read(format!("gid_attrs/types/{index}")).contains("v2")
    })
}

/// Calls `ask` until it returns a value, because the kernel creates devices and addresses with a
/// delay.
#[expect(clippy::disallowed_methods, reason = "waits for the kernel, with a limit")]
fn await_some<T>(what: &str, ask: impl Fn() -> Option<T>) -> Result<T, String> {
    const LIMIT: Duration = Duration::from_secs(30);
    let end = Instant::now() + LIMIT;
    loop {
        if let Some(answer) = ask() {
            return Ok(answer);
        }
        if Instant::now() >= end {
            return Err(format!("waited {} s for {what}", LIMIT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
