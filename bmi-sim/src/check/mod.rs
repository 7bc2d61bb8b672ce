//! Checks a protocol: runs a test in a world of some nodes, over many seeds, each with its own
//! faults.
//!
//! **Why.** A protocol fails in the rare case: a loss between two messages, a restart in the
//! middle, or both at once. A test names the nodes, the faults and the seeds, and states what must
//! hold. This module does the rest.
//!
//! ```
//! use bmi_core::{Config, Memory};
//! use bmi_sim::check;
//! use bmi_sim::faults::{Kind, Swarm};
//! use std::time::Duration;
//!
//! let faults = Swarm::of(&[Kind::Cut, Kind::Delay]);
//! let report = check::sweep("echo").nodes(2).seeds(0..20).faults(faults).run(|world| async move {
//!     // A program that runs whenever its node is up, also after a crash.
//!     world.nodes[0].boot(|node| async move {
//!         let server = node.endpoint(Config::default()).expect("a node that is up");
//!         server.listen(&node.addr(1)).expect("the port is free");
//!         loop {
//!             let request = server.next_unexpected().await;
//!             let (reply, soon) = (request.bytes().to_vec(), server.within(Duration::from_millis(10)));
//!             let _ = request.peer().send(request.tag(), reply, soon).await;
//!         }
//!     });
//!     // Liveness: once the faults are over, an echo must come.
//!     world.calm().await;
//!     let client = world.nodes[1].endpoint(Config::default())?;
//!     let second = Duration::from_secs(1);
//!     let peer = client.connect(&world.nodes[0].addr(1), client.within(second)).await?;
//!     let echo = Memory::zeroed(5)?;
//!     let reply = peer.recv(7, &echo, peer.within(second));
//!     peer.send_unexpected(7, b"hello".to_vec(), peer.within(second)).await?;
//!     reply.await?;
//!     assert_eq!(echo.to_vec(), b"hello");
//!     Ok::<(), bmi_core::Error>(())
//! });
//! assert_eq!(report.seeds, 20);
//! ```
//!
//! **What counts as a failure**
//!
//! - An error that the test returns.
//! - A panic, in the test or in any task of the world.
//! - A stall: no task can go on, tasks wake each other without end, or virtual time or events run
//!   out.
//! - A leak: some time after the test's end, an endpoint still holds operations, slots, parked
//!   messages, exposures or work.
//! - A run that differs from its repetition. Every so many seeds, a seed is run twice.
//!
//! **What a failure reports.** It reports the seed, the cause, the plan of faults, the messages
//! around the faults and before the failure ([`Failure::messages`], at most forty lines), and one
//! command that runs just that. The plan is shrunk to the few events that are needed to fail in the
//! same way. The command sets variables that every sweep reads:
//!
//! | variable | meaning |
//! |---|---|
//! | `BMI_SEED=17` | only this seed |
//! | `BMI_PLAN='{"events":[…]}'` | these faults, whatever the seed says ([`Plan`]); with `BMI_SEED` |
//! | `BMI_SEEDS=1000..5000`, `BMI_SEEDS=300` | these seeds, or so many, instead of the test's own: a longer sweep |
//! | `BMI_SHRINK=0` | a failure is not shrunk |
//!
//! **Invariants**
//! 1. A run depends on the test, the seed and the plan, and on nothing else.
//! 2. Shrinking ends: the number of its runs is bounded.
//!
//! **Source.** Delta debugging: Zeller, Hildebrandt, Simplifying and Isolating Failure-Inducing
//! Input (2002).
//!
//! Tested by `tests/it/simulator/check.rs`; `examples/src/ledger.rs` finds a planted bug.

mod case;
mod failure;
mod front;
mod messages;
mod panic_hook;
mod shrink;

use std::fmt::Display;
use std::future::Future;
use std::ops::Range;
use std::time::Duration;

pub use case::Case;
pub use failure::{Failure, Report, Why};
pub use front::test;

use crate::config::SimConfig;
use crate::faults::{Plan, Swarm};
use crate::world::World;

/// The return value of a test: nothing, or a result.
pub trait Verdict {
    /// Returns the test's error, if it failed.
    ///
    /// # Errors
    /// The test's own error, as a text.
    fn verdict(self) -> Result<(), String>;
}

impl Verdict for () {
    fn verdict(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: Display> Verdict for Result<(), E> {
    fn verdict(self) -> Result<(), String> {
        self.map_err(|error| error.to_string())
    }
}

/// Returns the seeds of a test that has a loop of its own: those that the environment asks for, as
/// for a [`Sweep`], or the `usual` ones.
///
/// # Panics
/// If a variable of the environment cannot be parsed.
pub fn seeds(usual: Range<u64>) -> Range<u64> {
    Wishes::from_env().seeds.unwrap_or(usual)
}

/// Begins a sweep called `name`: two nodes, a hundred seeds, no faults.
pub fn sweep(name: &str) -> Sweep {
    Sweep {
        name: name.to_owned(),
        nodes: node_names(2),
        seeds: 0..100,
        swarm: Swarm::none(),
        settings: Box::new(SimConfig::drawn),
        limit: Duration::from_secs(600),
        settle: Duration::from_secs(3),
        events: 20_000_000,
        shrink: 200,
        twice_every: 16,
        leaks: true,
    }
}

fn node_names(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("n{index}")).collect()
}

/// A sweep over seeds. [`sweep`] makes one, and [`Sweep::run`] runs it.
pub struct Sweep {
    name: String,
    nodes: Vec<String>,
    seeds: Range<u64>,
    swarm: Swarm,
    settings: Box<dyn Fn(u64) -> SimConfig>,
    limit: Duration,
    settle: Duration,
    events: u64,
    shrink: u64,
    twice_every: u64,
    leaks: bool,
}

impl Sweep {
    /// Uses a world of `count` nodes: `n0`, `n1` and so on.
    #[must_use]
    pub fn nodes(mut self, count: usize) -> Sweep {
        self.nodes = node_names(count);
        self
    }

    /// Uses a world of nodes with these names.
    #[must_use]
    pub fn named(mut self, names: &[&str]) -> Sweep {
        self.nodes = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// Sets the seeds. The variable `BMI_SEEDS` overrides them.
    #[must_use]
    pub fn seeds(mut self, seeds: Range<u64>) -> Sweep {
        self.seeds = seeds;
        self
    }

    /// Sets the faults that each seed draws from.
    #[must_use]
    pub fn faults(mut self, swarm: Swarm) -> Sweep {
        self.swarm = swarm;
        self
    }

    /// Sets the world's settings for a seed. The default is [`SimConfig::drawn`].
    #[must_use]
    pub fn settings(mut self, settings: impl Fn(u64) -> SimConfig + 'static) -> Sweep {
        self.settings = Box::new(settings);
        self
    }

    /// Sets the virtual time after which a test has stalled. The default is ten minutes.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Sweep {
        self.limit = limit;
        self
    }

    /// Sets the virtual time between the end of the test, or of the faults, and the check for
    /// leaks. The default is three seconds, which is longer than
    /// [`Config::fence_grace`](bmi_core::Config::fence_grace).
    #[must_use]
    pub fn settle(mut self, settle: Duration) -> Sweep {
        self.settle = settle;
        self
    }

    /// Sets the number of events after which a test has stalled. The default is twenty million.
    #[must_use]
    pub fn events(mut self, most: u64) -> Sweep {
        self.events = most;
        self
    }

    /// Sets the number of runs that shrinking may take. The default is 200.
    #[must_use]
    pub fn shrink(mut self, runs: u64) -> Sweep {
        self.shrink = runs;
        self
    }

    /// Runs one of every `seeds` seeds twice. The default is 16.
    #[must_use]
    pub fn twice_every(mut self, seeds: u64) -> Sweep {
        self.twice_every = seeds.max(1);
        self
    }

    /// Skips the check for leaks, for programs that leave receives posted.
    #[must_use]
    pub fn ignoring_leaks(mut self) -> Sweep {
        self.leaks = false;
        self
    }

    /// Runs the test for every seed.
    ///
    /// # Panics
    /// At the first seed that fails, with the [`Failure`] as the message. Also if a variable of the
    /// environment cannot be parsed.
    pub fn run<V: Verdict, F: Future<Output = V>>(&self, test: impl Fn(Case) -> F) -> Report {
        match self.try_run(test) {
            Ok(report) => report,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// Runs the test for every seed.
    ///
    /// # Errors
    /// The first failure, shrunk.
    ///
    /// # Panics
    /// If a variable of the environment cannot be parsed.
    pub fn try_run<V: Verdict, F: Future<Output = V>>(&self, test: impl Fn(Case) -> F) -> Result<Report, Box<Failure>> {
        let wishes = Wishes::from_env();
        let seeds = wishes.seeds.clone().unwrap_or(self.seeds.clone());
        let mut report = Report { name: self.name.clone(), seeds: 0, faults: 0, events: 0, digest: 0 };
        for seed in seeds {
            let plan = wishes.plan.clone().unwrap_or_else(|| Plan::draw(seed, &self.swarm, &self.nodes));
            let mut end = self.once(seed, &plan, false, &test);
            if end.result.is_ok() && (seed % self.twice_every == 0 || wishes.plan.is_some()) {
                let again = self.once(seed, &plan, false, &test);
                if let Err(why) = again.result {
                    end.result = Err(Why::Again(Box::new(why)));
                } else if (again.digest, again.events) != (end.digest, end.events) {
                    end.result = Err(Why::Differs(end.digest, again.digest));
                }
            }
            match end.result {
                Ok(()) => report.add(&plan, end.events, end.digest),
                Err(why) => return Err(Box::new(self.failure(seed, plan, why, wishes.shrink, &test))),
            }
        }
        Ok(report)
    }

    fn failure<V: Verdict, F: Future<Output = V>>(
        &self,
        seed: u64,
        plan: Plan,
        why: Why,
        shrinks: bool,
        test: &impl Fn(Case) -> F,
    ) -> Failure {
        let repeats = !matches!(why, Why::Differs(..) | Why::Again(..));
        let budget = if shrinks && repeats { self.shrink } else { 0 };
        let mut last = why.clone();
        let (shrunk, runs) = shrink::shrink(&plan, budget, |plan| match self.once(seed, plan, false, test).result {
            Err(other) if other.is_like(&why) => {
                last = other;
                true
            }
            _ => false,
        });
        // Once more, and recorded. A run that ends in another way has nothing to say about this
        // one.
        let recorded = self.once(seed, &shrunk, true, test);
        let messages = match recorded.result {
            Err(again) if again.is_like(&last) => recorded.messages,
            _ => Vec::new(),
        };
        Failure { name: self.name.clone(), seed, why, drawn: plan, shrunk, shrunk_why: last, runs, messages }
    }

    /// Runs one seed with one plan. Records the messages if `records` is set.
    fn once<V: Verdict, F: Future<Output = V>>(
        &self,
        seed: u64,
        plan: &Plan,
        records: bool,
        test: &impl Fn(Case) -> F,
    ) -> End {
        let config = SimConfig { time_limit: self.limit, event_limit: self.events, ..(self.settings)(seed) };
        let world = World::with(config);
        if records {
            messages::record(&world);
        }
        let case = Case::new(&world, seed, &self.nodes, plan);
        plan.apply(&world);
        let result = panic_hook::catch(|| {
            let ended = world.try_block_on(test(case)).map_err(|stalled| Why::Stalled(stalled.to_string()))?;
            ended.verdict().map_err(Why::Error)?;
            let calm = bmi_core::Time::ZERO + Duration::from_micros(plan.end_us());
            let settled = world.now().max(calm) + self.settle;
            world.try_run_until(settled).map_err(|stalled| Why::Stalled(stalled.to_string()))?;
            if !self.leaks {
                return Ok(());
            }
            let leaks = world.leaks();
            if leaks.is_empty() { Ok(()) } else { Err(Why::Leaked(leaks.join("\n"))) }
        });
        let result = result.unwrap_or_else(|text| Err(Why::Panicked(text)));
        let (digest, events) = (world.digest(), world.events());
        let messages = messages::report(&world, result.as_ref().err());
        // Tasks are dropped here, and may panic as well.
        let dropped = panic_hook::catch(|| drop(world));
        End { result: result.and(dropped.map_err(Why::Panicked)), digest, events, messages }
    }
}

/// The result of one run.
struct End {
    result: Result<(), Why>,
    digest: u64,
    events: u64,
    /// The lines of the report, if the run was recorded.
    messages: Vec<String>,
}

/// The settings that the environment asks for.
struct Wishes {
    seeds: Option<Range<u64>>,
    plan: Option<Plan>,
    shrink: bool,
}

impl Wishes {
    fn from_env() -> Wishes {
        let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        let number = |name: &str, text: &str| {
            text.trim().parse::<u64>().unwrap_or_else(|error| panic!("{name}={text}: {error}"))
        };
        let one = text("BMI_SEED").map(|text| number("BMI_SEED", &text)).map(|seed| seed..seed + 1);
        let many = text("BMI_SEEDS").map(|text| {
            let (from, to) = text.split_once("..").unwrap_or(("0", &text));
            number("BMI_SEEDS", from)..number("BMI_SEEDS", to)
        });
        let plan = text("BMI_PLAN").map(|text| text.parse().unwrap_or_else(|error| panic!("BMI_PLAN: {error}")));
        assert!(plan.is_none() || one.is_some(), "BMI_PLAN needs BMI_SEED beside it");
        Wishes { seeds: one.or(many), plan, shrink: text("BMI_SHRINK").is_none_or(|text| text != "0") }
    }
}
