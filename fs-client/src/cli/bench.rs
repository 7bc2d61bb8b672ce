//! The command `bench`: makes a job of the options, gathers the hosts, runs it and shows the
//! report.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use crate::TransportChoice;
use bmi_report::{Report, host, text};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::args::Global;
use super::args::bench::{Bench, IoArgs, LocalArgs, MountArgs, RepeatArgs, RunArgs};
use super::manager;
use super::output::Output;
use crate::bench::door::Key;
use crate::bench::event::Event;
use crate::bench::follower::{self, Joiner};
use crate::bench::job::{Cluster, Copying, Io, Job, MOST_TASKS, Meta, Phase, Work};
use crate::bench::leader::{Ended, Leader};
use crate::bench::mount;
use crate::bench::outcome::Outcome;
use crate::bench::run::Plan;
use crate::bench::token::{Token, VARIABLE};
use crate::program::{INTERRUPTED, Stop, complain, mount_program, random_id};

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
        Bench::Mount(args) => return mount(args, output),
        Bench::Io { io, run } => (run, io_plan(global, io, run)?),
        Bench::Meta { files, unique_dir, depth, in_flight, data, run } => {
            let meta = |in_flight, bytes| {
                Work::Meta(Meta { files: *files, unique: *unique_dir, depth: *depth, in_flight, bytes })
            };
            let works = in_flight.iter().flat_map(|number| data.iter().map(move |bytes| meta(*number, *bytes)));
            (run, plan(global, run, works.collect(), None)?)
        }
        Bench::Copy { size, local, run } => {
            (run, plan(global, run, vec![Work::Copy(Copying { size: *size })], Some(local))?)
        }
        Bench::All { size, quick, verify, local, run } => {
            let works = all(if *quick { 16 } else { 1 }, *size, *verify);
            (run, plan(global, run, works, Some(local))?)
        }
    };
    plan.job.check().map_err(Stop::usage)?;
    run.report.check().map_err(Stop::failed)?;
    let (began, leader) = (began(), Leader::new());
    let events = leader.sender();
    // If the run is over, the process is about to end.
    interrupt_on_signals(move || drop(events.send(Event::Interrupted)))?;
    let outcome = lead(&plan, run, leader, output)?;
    show(&plan, run, &outcome, began, output)
}

fn join(address: &str, joiner: Joiner, output: &mut Output) -> Result<(), Stop> {
    let phases = follower::join(address, joiner).map_err(Stop::failed)?;
    output.field("phases", json!(phases));
    output.summary(format!("took part in {phases} phases"));
    Ok(())
}

/// Measures a mounted directory.
fn mount(args: &MountArgs, output: &mut Output) -> Result<(), Stop> {
    if args.block == 0 || !args.block.is_multiple_of(4 << 10) {
        return Err(Stop::usage("the file of a task has a multiple of 4K"));
    }
    args.report.check().map_err(Stop::failed)?;
    let plan = mount::Plan {
        dir: args.dir.clone(),
        beside: args.beside.clone(),
        program: mount_program(),
        tasks: if args.tasks == 1 { vec![1] } else { vec![1, args.tasks] },
        files: args.files,
        block: args.block,
        rounds: args.repeat.rounds,
        at_most: args.repeat.duration,
        seed: args.repeat.seed.unwrap_or_else(bmi_report::stats::seed),
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    interrupt_on_signals(move || stopped.store(true, Ordering::Relaxed))?;
    let bar = output.steps(plan.steps());
    let measured = plan.run(&stop, |what| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    });
    bar.finish_and_clear();
    let (report, ended) = measured.map_err(Stop::failed)?;
    match ended {
        Some(Ended::Interrupted) => {
            complain("interrupted; this is what was measured so far");
            output.interrupted();
        }
        Some(Ended::Failed(why)) => output.failure(why),
        None => {}
    }
    output.fields(&report)?;
    output.line(mount::render(&report).trim_end());
    args.report.write(&report).map_err(Stop::failed)
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
    if io.overwrite && existing {
        return Err(Stop::usage("--overwrite is for a run that writes; --read alone does not"));
    }
    if existing && io.verify && run.repeat.seed.is_none() {
        return Err(Stop::usage("--read --verify needs the --seed of the run that wrote the files"));
    }
    let work = |transfer, in_flight, view| Io {
        transfer,
        block: io.block,
        segments: io.segments,
        pieces: io.pieces,
        view,
        in_flight,
        shared: !io.file_per_task,
        random: io.random,
        overwrite: io.overwrite,
        sync: io.sync,
        verify: io.verify,
        existing,
    };
    let transfers = io.transfer.iter();
    let works = transfers.flat_map(|transfer| io.in_flight.iter().map(move |number| (*transfer, *number)));
    let ways: &[bool] = if io.view { &[false, true] } else { &[false] };
    let works =
        works.flat_map(|(transfer, number)| ways.iter().map(move |view| Work::Io(work(transfer, number, *view))));
    let plan = plan(global, run, works.collect(), None)?;
    if io.keep && plan.job.works.len() > 1 {
        return Err(Stop::usage(
            "--keep leaves one file: name one --transfer and one number --in-flight, and no --view",
        ));
    }
    let mut phases = vec![Phase::Open];
    phases.extend(io.overwrite.then_some(Phase::Fill));
    phases.extend((both || io.write).then_some(Phase::Write));
    phases.extend((both || io.read).then_some(Phase::Read));
    let (mut job, dir) = (plan.job, run.path.to_string());
    if io.no_reorder {
        job.shift = 0;
    }
    if existing {
        dir.clone_into(&mut job.dir);
    }
    let phases = vec![phases; job.works.len()];
    Ok(Plan { job, phases, keep: io.keep, existing, ..plan })
}

/// Returns what `bench all` measures, with a part of the usual files and bytes.
fn all(part: u64, size: u64, verify: bool) -> Vec<Work> {
    let meta =
        |files, in_flight| Work::Meta(Meta { files: files / part, unique: false, depth: 0, in_flight, bytes: 0 });
    let io = |transfer, block, pieces, in_flight| {
        let (segments, shared, random, overwrite) = (1, true, true, true);
        let (sync, existing, view, block) = (false, false, false, block / part);
        let layout = Io {
            transfer,
            block,
            segments,
            pieces,
            view,
            in_flight,
            shared,
            random,
            overwrite,
            sync,
            verify,
            existing,
        };
        Work::Io(layout)
    };
    vec![
        meta(1 << 10, 1),
        meta(4 << 10, 64),
        io(4 << 10, 16 << 20, 1, 1),
        io(4 << 10, 32 << 20, 1, 16),
        io(64 << 10, 128 << 20, 1, 1),
        io(64 << 10, 256 << 20, 1, 16),
        io(256 << 10, 128 << 20, 64, 1),
        Work::Copy(Copying { size: size / part }),
    ]
}

/// Returns the usual phases of a work.
fn phases(work: &Work) -> Vec<Phase> {
    match work {
        Work::Io(io) => {
            let fill = io.overwrite.then_some(Phase::Fill);
            [Phase::Open].into_iter().chain(fill).chain([Phase::Write, Phase::Read]).collect()
        }
        Work::Meta(_) => vec![Phase::Create, Phase::Stat, Phase::List, Phase::Remove],
        Work::Copy(_) => vec![Phase::Put, Phase::Clear, Phase::PutSynced, Phase::Get, Phase::Check],
    }
}

fn plan(global: &Global, run: &RunArgs, works: Vec<Work>, local: Option<&LocalArgs>) -> Result<Plan, Stop> {
    let hosts = run.wait_for.saturating_add(1);
    if hosts > MOST_HOSTS {
        return Err(Stop::usage(format!("a run has at most {MOST_HOSTS} hosts")));
    }
    let tasks = run.tasks.min(MOST_TASKS + 1);
    let all = tasks * hosts as u32;
    let overs: Vec<String> = global.over.iter().map(named).collect();
    if (1..overs.len()).any(|index| overs[..index].contains(&overs[index])) {
        return Err(Stop::usage("--over names a transport twice"));
    }
    let own = Cluster { name: "this".to_owned(), manager: manager(global)?.to_string() };
    let others = run.beside.iter().map(|(name, addr)| Cluster { name: name.clone(), manager: addr.to_string() });
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let job = Job {
        clusters: std::iter::once(own).chain(others).collect(),
        overs,
        busy: global.busy,
        timeout_ms: millis(global.timeout),
        retry_ms: millis(global.retry_for),
        seed: run.repeat.seed.unwrap_or_else(bmi_report::stats::seed),
        dir: run.path.join(format!("pvfs-bench-{:016x}", random_id()? as u64))?.to_string(),
        tasks,
        all,
        first: 0,
        shift: if hosts == 1 { 1 % all.max(1) } else { tasks },
        local: local.and_then(|local| local.local.clone()),
        works,
    };
    let phases = job.works.iter().map(phases).collect();
    let RunArgs { plain, repeat: RepeatArgs { rounds, duration: at_most, .. }, .. } = *run;
    if plain && all > 1 {
        return Err(Stop::usage("--plain is for one task: a plain program has one connection, or copies one file"));
    }
    Ok(Plan { job, phases, rounds, at_most, keep: false, existing: false, plain, servers: run.server_pid.clone() })
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
        Ended::Interrupted => Stop(INTERRUPTED, "interrupted before anything was measured".to_owned()),
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
fn interrupt_on_signals(interrupt_run: impl Fn() + Send + 'static) -> Result<(), Stop> {
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
                std::process::exit(INTERRUPTED.into());
            }
            interrupt_run();
        }
    };
    Builder::new().name("signals".into()).spawn(body)?;
    Ok(())
}

// ---- the report -------------------------------------------------------------------------------

fn show(plan: &Plan, run: &RunArgs, outcome: &Outcome, began: u64, output: &mut Output) -> Result<(), Stop> {
    let report = outcome.report(began, std::env::args().collect());
    outcome.failures.iter().for_each(|failure| output.failure(failure));
    if outcome.interrupted {
        complain("interrupted; this is what was measured so far");
        output.interrupted();
    }
    let kept = (plan.keep && outcome.rounds > 0).then_some(&plan.job.dir);
    print(&report, kept, output)?;
    run.report.write(&report).map_err(Stop::failed)
}

fn print(report: &Report, kept: Option<&String>, output: &mut Output) -> Result<(), Stop> {
    output.fields(report)?;
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
