//! The command `bench`: makes a job of the options, gathers the hosts, runs it and shows the
//! report.

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::thread::Builder;
use std::time::Duration;

use bmi_report::{Report, csv, host, html, text};
use fs_client::TransportChoice;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::args::Global;
use super::bench_args::{Bench, IoArgs, RunArgs};
use super::output::{Output, complain};
use super::{Stop, manager, random_id};
use crate::bench::door::Key;
use crate::bench::follower::{self, Joiner};
use crate::bench::job::{Io, Job, MOST_TASKS, Meta, Phase, Work};
use crate::bench::leader::{Ended, Event, Leader};
use crate::bench::outcome::Outcome;
use crate::bench::run::Plan;
use crate::bench::token::{Token, VARIABLE};

/// The most hosts of a run.
const MOST_HOSTS: usize = 1024;

/// Runs the command.
pub(super) fn bench(global: &Global, what: &Bench, output: &mut Output) -> Result<(), Stop> {
    let (run, plan) = match what {
        Bench::Join { address, name, token_file } => {
            let (name, token) = (name.clone().unwrap_or_else(host::name), Token::given(token_file.as_deref())?);
            let manager = manager(global).ok().map(|addr| addr.to_string());
            return join(address, Joiner { name, token, manager }, output);
        }
        Bench::Io { io, run } => (run, io_plan(global, io, run)?),
        Bench::Meta { files, unique_dir, depth, run } => {
            let meta = Meta { files: *files, unique: *unique_dir, depth: *depth };
            (run, meta_plan(global, meta, run)?)
        }
    };
    plan.job.check().map_err(Stop::usage)?;
    let files = [&run.report, &run.html, &run.csv];
    files.into_iter().flatten().try_for_each(|path| is_writable(path))?;
    let (began, leader) = (began(), Leader::new());
    interrupt_on_signals(leader.sender())?;
    let outcome = lead(&plan, run, leader, output)?;
    show(&plan, run, &outcome, began, output)
}

fn join(address: &str, joiner: Joiner, output: &mut Output) -> Result<(), Stop> {
    let phases = follower::join(address, joiner).map_err(Stop::failed)?;
    output.field("phases", json!(phases));
    output.summary(format!("took part in {phases} phases"));
    Ok(())
}

// ---- the plan ---------------------------------------------------------------------------------

fn io_plan(global: &Global, io: &IoArgs, run: &RunArgs) -> Result<Plan, Stop> {
    let both = io.read == io.write;
    let existing = io.read && !io.write;
    if existing && run.path.is_root() {
        return Err(Stop::usage("--read alone needs --path: the directory that an earlier run has kept"));
    }
    if io.verify && io.write && !both && !io.keep {
        return Err(Stop::usage(
            "--verify compares what is read, and --write alone reads nothing; say --keep, or --read",
        ));
    }
    if io.keep && existing {
        return Err(Stop::usage("--keep is for files that this run writes; --read alone removes nothing"));
    }
    if existing && io.verify && run.seed.is_none() {
        return Err(Stop::usage("--read --verify needs the --seed of the run that wrote the files"));
    }
    let work = Io {
        transfer: io.transfer,
        block: io.block,
        segments: io.segments,
        shared: !io.file_per_task,
        random: io.random,
        sync: io.sync,
        verify: io.verify,
        existing,
    };
    let mut phases = vec![Phase::Open];
    phases.extend((both || io.write).then_some(Phase::Write));
    phases.extend((both || io.read).then_some(Phase::Read));
    let job = job(global, run, Work::Io(work), existing, !io.no_reorder)?;
    let Plan { job, rounds, at_most, .. } = plan(job, run);
    Ok(Plan { job, phases, rounds, at_most, keep: io.keep, existing })
}

fn meta_plan(global: &Global, meta: Meta, run: &RunArgs) -> Result<Plan, Stop> {
    let job = job(global, run, Work::Meta(meta), false, true)?;
    Ok(Plan { phases: vec![Phase::Create, Phase::Stat, Phase::List, Phase::Remove], ..plan(job, run) })
}

fn plan(job: Job, run: &RunArgs) -> Plan {
    let RunArgs { rounds, duration: at_most, .. } = *run;
    Plan { job, phases: Vec::new(), rounds, at_most, keep: false, existing: false }
}

fn job(global: &Global, run: &RunArgs, work: Work, existing: bool, reorder: bool) -> Result<Job, Stop> {
    let hosts = run.wait_for.saturating_add(1);
    if hosts > MOST_HOSTS {
        return Err(Stop::usage(format!("a run has at most {MOST_HOSTS} hosts")));
    }
    let tasks = run.tasks.min(MOST_TASKS + 1);
    let all = tasks * hosts as u32;
    let shift = match (reorder, hosts) {
        (false, _) => 0,
        (true, 1) => 1 % all.max(1),
        (true, _) => tasks,
    };
    let overs: Vec<String> = global.over.iter().map(named).collect();
    if (1..overs.len()).any(|index| overs[..index].contains(&overs[index])) {
        return Err(Stop::usage("--over names a transport twice"));
    }
    let dir =
        if existing { run.path.clone() } else { run.path.join(&format!("pvfs-bench-{:016x}", random_id()? as u64))? };
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Ok(Job {
        manager: manager(global)?.to_string(),
        overs,
        busy: global.busy,
        timeout_ms: millis(global.timeout),
        retry_ms: millis(global.retry_for),
        seed: run.seed.unwrap_or_else(bmi_report::stats::seed),
        dir: dir.as_str().to_owned(),
        tasks,
        all,
        first: 0,
        shift,
        work,
    })
}

fn named(over: &TransportChoice) -> String {
    match over {
        TransportChoice::Auto => "auto".to_owned(),
        TransportChoice::Only(scheme) => scheme.to_string(),
    }
}

// ---- the run ----------------------------------------------------------------------------------

/// Gathers the hosts and runs the plan. At the end, all hosts are dismissed.
fn lead(plan: &Plan, run: &RunArgs, mut leader: Leader, output: &Output) -> Result<Outcome, Stop> {
    let newcomers = if run.wait_for == 0 {
        Vec::new()
    } else {
        let given = Token::given(run.token_file.as_deref())?;
        let is_chosen = given.is_some();
        let token = given.map_or_else(Token::draw, Ok)?;
        let (listener, address) = listen(&run.listen)?;
        if !output.is_quiet() {
            // A user who has chosen the token knows it, and has perhaps a log that others read.
            let shown = if is_chosen { "…" } else { token.reveal() };
            let many = if run.wait_for == 1 { "one host" } else { &*format!("{} hosts", run.wait_for) };
            complain(&format!("waiting for {many}; there: {VARIABLE}={shown} pvfs bench join {address}"));
        }
        leader.gather(listener, Key { token, is_chosen }, run.wait_for).map_err(ended)?
    };
    let ready = leader.begin(&plan.job, &host::name(), newcomers).map_err(ended)?;
    let bar = output.steps(plan.steps());
    let outcome = plan.run(&mut leader, &ready, |what| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    Ok(outcome)
}

fn ended(why: Ended) -> Stop {
    match why {
        Ended::Interrupted => Stop(super::INTERRUPTED, "interrupted before anything was measured".to_owned()),
        Ended::Failed(why) => Stop::failed(why),
    }
}

/// Listens at `text`. Returns also the address for the other hosts.
fn listen(text: &str) -> Result<(TcpListener, String), Stop> {
    let failed = |error: std::io::Error| Stop::failed(format!("cannot listen at {text}: {error}"));
    let anywhere = text.strip_prefix(':');
    let bound = match anywhere {
        Some(port) => TcpListener::bind(format!("0.0.0.0:{port}")),
        None => TcpListener::bind(text),
    };
    let listener = bound.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    let address =
        if local.ip().is_unspecified() { format!("{}:{}", host::name(), local.port()) } else { local.to_string() };
    Ok((listener, address))
}

/// Ends the run at the first signal, and the process at the second.
fn interrupt_on_signals(events: Sender<Event>) -> Result<(), Stop> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    drop(entered);
    let body = move || {
        for number in 0.. {
            runtime.block_on(async {
                tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {}, _ = hang_up.recv() => {} }
            });
            if number > 0 {
                std::process::exit(super::INTERRUPTED.into());
            }
            // If the run is over, the process is about to end.
            let _ = events.send(Event::Interrupted);
        }
    };
    Builder::new().name("signals".into()).spawn(body)?;
    Ok(())
}

// ---- the report -------------------------------------------------------------------------------

/// Checks before the run that a file can be written after it.
fn is_writable(path: &Path) -> Result<(), Stop> {
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| Stop::failed(format!("{}: {error}", path.display())))
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    std::fs::write(path, text).map_err(|error| Stop::failed(format!("{}: {error}", path.display())))
}

fn show(plan: &Plan, run: &RunArgs, outcome: &Outcome, began: u64, output: &mut Output) -> Result<(), Stop> {
    let report = outcome.report(began, std::env::args().collect());
    outcome.failures.iter().for_each(|failure| output.failure(failure));
    if outcome.interrupted {
        complain("interrupted; this is what was measured so far");
        output.interrupted();
    }
    let kept = (plan.keep && outcome.rounds > 0).then_some(&plan.job.dir);
    print(&report, kept, output)?;
    run.report.iter().try_for_each(|path| write(path, &(report.to_json() + "\n")))?;
    run.html.iter().try_for_each(|path| write(path, &html::render(&report)))?;
    run.csv.iter().try_for_each(|path| write(path, &csv::render(&report)))
}

fn print(report: &Report, kept: Option<&String>, output: &mut Output) -> Result<(), Stop> {
    if let Value::Object(fields) = serde_json::to_value(report).map_err(Stop::failed)? {
        fields.into_iter().for_each(|(name, value)| output.field(&name, value));
    }
    output.line(text::render(report).trim_end());
    if let Some(dir) = kept {
        output.field("kept", json!(dir));
        output.summary(format!("kept {dir}"));
    }
    Ok(())
}

/// Returns the time in seconds since 1970.
fn began() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    u64::try_from(now.tv_sec).unwrap_or_default()
}
