//! Runs two machines at the same time, joined by a socket. The first one serves, and the second one
//! tests.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::inside::scenario::{self, SCENARIOS, Scenario};
use super::machine::{Folder, Machine, Spec};
use super::report::Reporter;
use super::suite::{CPUS, own_program, programs};
use super::wire::{Job, Plan, Record, Report, Verdict};
use super::{Kernel, Link};
use crate::command::Failure;

/// Time limit for both machines.
const LIMIT: Duration = Duration::from_secs(300);
/// The memory of each machine, in MiB.
const MEMORY_MIB: u32 = 1024;

/// Boots both machines and reports their results.
pub(crate) fn run(
    root: &Path,
    kernel: &Kernel,
    env: &[(String, String)],
    reporter: &mut Reporter,
) -> Result<(), Failure> {
    let scenarios: Vec<&Scenario> = SCENARIOS.iter().filter(|scenario| scenario.group == scenario::PAIR).collect();
    let names: Vec<&str> = scenarios.iter().flat_map(|scenario| scenario.programs).copied().collect();
    let mut programs = programs(root, &names)?;
    programs.push(own_program(root)?);
    let folder = Folder::new("pair")?;
    let start = |index: u8, side: &[&Scenario]| {
        let jobs = side.iter().map(|one| Job::Scenario { group: one.group.into(), name: one.name.into() }).collect();
        let plan = Plan { jobs, env: env.to_vec() };
        let socket = |index: u8| folder.path().join(format!("link-{index}"));
        let spec = Spec {
            kernel,
            link: Link::Pair { own: socket(index), peer: socket(1 - index), index },
            plan: Some(&plan),
            programs: &programs,
            // With a single processor, Soft-RoCE starves the kernel's own threads while it sends
            // lost packets again.
            cpus: CPUS,
            memory_mib: MEMORY_MIB,
            limit: LIMIT,
        };
        Machine::start(&spec, &format!("pair-{index}"))
    };
    let (serving, using) = scenarios.split_at(1);
    let (server, user) = (start(0, serving)?, start(1, using)?);
    follow(server, user, reporter)
}

/// Follows both machines to their ends. If the second one fails, stops the server, and does not
/// report that as a failure of the server.
fn follow(server: Machine, user: Machine, reporter: &mut Reporter) -> Result<(), Failure> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = std::thread::Builder::new().name("server".into()).spawn_scoped(scope, || {
            let mut said = Vec::new();
            (server.follow(&mut |record| said.push(record), Some(&stop)), said)
        });
        let server = server.map_err(|error| Failure::new(format!("a thread cannot be started: {error}")))?;
        let mut gave_up = false;
        let end = user.follow(
            &mut |record| {
                gave_up |= matches!(record, Record::Report(Report::Ended { verdict: Verdict::Failed, .. }));
                reporter.take(record);
            },
            None,
        );
        if let Err(failure) = end {
            gave_up = true;
            reporter.stopped(&failure.reason);
        }
        stop.store(gave_up, Ordering::Relaxed);
        let (end, said) = server.join().unwrap_or_else(|_| (Err(Failure::new("its thread panicked")), Vec::new()));
        let is_over = said.iter().any(|record| matches!(record, Record::Report(Report::Ended { .. })));
        if !gave_up || is_over {
            said.into_iter().for_each(|record| reporter.take(record));
        }
        match end {
            Err(failure) if !gave_up => reporter.stopped(&failure.reason),
            _ => {}
        }
        Ok(())
    })
}
