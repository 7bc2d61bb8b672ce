//! Rounds of a benchmark.
//!
//! **Why in random order.** What changes slowly, as the load of the machines or the age of a disk,
//! then affects all lanes alike. A row's values of the same round can be compared.
//!
//! **Invariants**
//! 1. Every step writes new files. Those of the step before are removed, outside of what is
//!    measured.
//! 2. However a run ends, its directory is removed, unless it is to be kept. A run that reads what
//!    is there already makes and removes nothing.

use std::time::Duration;

use bmi_report::stats::Random;

use super::job::{Job, Order, Phase, Ready};
use super::leader::{Ended, Leader};
use super::outcome::Outcome;
use super::task::partner;
use super::usage::Usage;

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) job: Job,
    /// The phases of a step of each work, without those that make and remove.
    pub(crate) phases: Vec<Vec<Phase>>,
    pub(crate) rounds: u32,
    /// No round begins after this time.
    pub(crate) at_most: Option<Duration>,
    /// Leave the files of the last step.
    pub(crate) keep: bool,
    /// The files are there already.
    pub(crate) existing: bool,
    /// Measure plain programs beside the lanes.
    pub(crate) plain: bool,
    /// Processes of this host whose use of it is measured: servers.
    pub(crate) servers: Vec<u32>,
}

impl Plan {
    /// Returns the number of phases that are measured.
    pub(crate) fn steps(&self) -> u64 {
        self.measured().len() as u64 * u64::from(self.rounds)
    }

    /// Returns what is measured in each round. What differs only in its lane follows each other.
    fn measured(&self) -> Vec<Order> {
        let works = self.phases.iter().enumerate();
        let phases = works.flat_map(|(work, phases)| phases.iter().map(move |phase| (work, *phase)));
        let measured = phases.filter(|(_, phase)| phase.test().is_some());
        measured.flat_map(|(work, phase)| (0..self.job.lanes()).map(move |lane| Order { phase, work, lane })).collect()
    }

    /// Returns an order for each of the clusters.
    fn of_clusters(&self, phase: Phase) -> Vec<Order> {
        let first = (0..self.job.lanes()).step_by(self.job.overs.len());
        first.map(|lane| Order { phase, work: 0, lane }).collect()
    }

    /// Runs everything. `say` is told before each phase that is measured.
    pub(crate) fn run(&self, leader: &mut Leader, ready: &[Ready], say: impl FnMut(&str)) -> Outcome {
        let mut run =
            Run { plan: self, leader, outcome: Outcome::new(&self.job, ready, self.measured()), made: None, say };
        let ended = run.rounds();
        run.note(ended);
        let is_kept = self.existing || (self.keep && run.outcome.rounds > 0);
        let closed = run.leader.close(if is_kept { Vec::new() } else { self.of_clusters(Phase::End) });
        run.note(closed);
        run.outcome
    }
}

struct Run<'a, S> {
    plan: &'a Plan,
    leader: &'a mut Leader,
    outcome: Outcome,
    /// The work and the lane that made the files that are there now.
    made: Option<(usize, usize)>,
    say: S,
}

impl<S: FnMut(&str)> Run<'_, S> {
    fn rounds(&mut self) -> Result<(), Ended> {
        let begun = self.leader.now();
        if !self.plan.existing {
            for order in self.plan.of_clusters(Phase::Begin) {
                self.leader.phase(order)?;
            }
        }
        let mut random = Random::new(self.plan.job.seed);
        let lanes = self.plan.job.lanes();
        let mut steps: Vec<(usize, usize)> =
            (0..self.plan.phases.len() * lanes).map(|at| (at / lanes, at % lanes)).collect();
        for round in 0..self.plan.rounds {
            if round > 0 && self.plan.at_most.is_some_and(|most| self.leader.now().since(begun) >= most) {
                break;
            }
            random.shuffle(&mut steps);
            for (work, lane) in &steps {
                self.step(round, *work, *lane)?;
            }
            self.outcome.rounds += 1;
        }
        Ok(())
    }

    fn step(&mut self, round: u32, work: usize, lane: usize) -> Result<(), Ended> {
        let of = |phase| Order { phase, work, lane };
        if !self.plan.existing {
            if let Some((work, lane)) = self.made.take() {
                self.leader.phase(Order { phase: Phase::Unmake, work, lane })?;
            }
            self.leader.phase(of(Phase::Make))?;
            self.made = Some((work, lane));
        }
        for phase in &self.plan.phases[work] {
            if let Some(test) = phase.test() {
                let label = self.outcome.label(lane);
                (self.say)(&format!("round {} of {}: {test} over {label}", round + 1, self.plan.rounds));
            }
            let before = Usage::of(&self.plan.servers);
            let (took, part) = self.leader.phase(of(*phase))?;
            let after = Usage::of(&self.plan.servers);
            let servers = Usage { cpu: after.cpu - before.cpu, switches: after.switches - before.switches };
            self.outcome.add(round, of(*phase), took, (&part, servers));
            if let Some(complaint) = part.complaint() {
                self.outcome.failures.push(complaint);
            }
            // Once in a round, in the middle of the lanes as it falls.
            if self.plan.plain && lane == 0 {
                self.partner(round, of(*phase)).map_err(|error| Ended::Failed(format!("a plain program: {error}")))?;
            }
        }
        Ok(())
    }

    /// Measures the plain program beside a phase.
    fn partner(&mut self, round: u32, order: Order) -> std::io::Result<()> {
        let job = &self.plan.job;
        let Some(work) = partner::prepare(job, job.works[order.work], order.phase)? else { return Ok(()) };
        let begun = self.leader.now();
        let done = work()?;
        let took = self.leader.now().since(begun);
        self.outcome.add_partner(round, order, took, &done);
        Ok(())
    }

    fn note(&mut self, ended: Result<(), Ended>) {
        match ended {
            Ok(()) => {}
            Err(Ended::Interrupted) => {
                self.outcome.interrupted = true;
                self.outcome.ended = Some("interrupted by the user".to_owned());
            }
            Err(Ended::Failed(why)) => {
                self.outcome.ended.get_or_insert_with(|| why.clone());
                self.outcome.failures.push(why);
            }
        }
    }
}
