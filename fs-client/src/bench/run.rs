//! Rounds of a benchmark.
//!
//! **Why in random order.** What changes slowly, as the load of the machines or the age of a disk,
//! then affects all transports alike. A row's values of the same round can be compared.
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

/// What to do.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) job: Job,
    /// The phases of a step, without those that make and remove.
    pub(crate) phases: Vec<Phase>,
    pub(crate) rounds: u32,
    /// No round begins after this time.
    pub(crate) at_most: Option<Duration>,
    /// Leave the files of the last step.
    pub(crate) keep: bool,
    /// The files are there already.
    pub(crate) existing: bool,
}

impl Plan {
    /// Returns the number of phases that are measured.
    pub(crate) fn steps(&self) -> u64 {
        let measured = self.phases.iter().filter(|phase| phase.test().is_some()).count() as u64;
        measured * self.job.overs.len() as u64 * u64::from(self.rounds)
    }

    /// Runs everything. `say` is told before each phase that is measured.
    pub(crate) fn run(&self, leader: &mut Leader, ready: &[Ready], say: impl FnMut(&str)) -> Outcome {
        let mut run =
            Run { plan: self, leader, outcome: Outcome::new(&self.job, ready, &self.phases), made: None, say };
        let ended = run.rounds();
        run.note(ended);
        let end =
            (!self.existing && (!self.keep || run.outcome.rounds == 0)).then_some(Order { phase: Phase::End, over: 0 });
        let closed = run.leader.close(end);
        run.note(closed);
        run.outcome
    }
}

struct Run<'a, S> {
    plan: &'a Plan,
    leader: &'a mut Leader,
    outcome: Outcome,
    /// The transport over which the files were made that are there now.
    made: Option<usize>,
    say: S,
}

impl<S: FnMut(&str)> Run<'_, S> {
    fn rounds(&mut self) -> Result<(), Ended> {
        let begun = self.leader.now();
        if !self.plan.existing {
            self.leader.phase(Order { phase: Phase::Begin, over: 0 })?;
        }
        let mut random = Random::new(self.plan.job.seed);
        let mut overs: Vec<usize> = (0..self.plan.job.overs.len()).collect();
        for round in 0..self.plan.rounds {
            if round > 0 && self.plan.at_most.is_some_and(|most| self.leader.now().since(begun) >= most) {
                break;
            }
            random.shuffle(&mut overs);
            for over in &overs {
                self.step(round, *over)?;
            }
            self.outcome.rounds += 1;
        }
        Ok(())
    }

    fn step(&mut self, round: u32, over: usize) -> Result<(), Ended> {
        if !self.plan.existing {
            if let Some(over) = self.made.take() {
                self.leader.phase(Order { phase: Phase::Unmake, over })?;
            }
            self.leader.phase(Order { phase: Phase::Make, over })?;
            self.made = Some(over);
        }
        for phase in &self.plan.phases {
            let order = Order { phase: *phase, over };
            if let Some(test) = phase.test() {
                let label = self.outcome.label(over);
                (self.say)(&format!("round {} of {}: {test} over {label}", round + 1, self.plan.rounds));
            }
            let (took, part) = self.leader.phase(order)?;
            self.outcome.add(round, (*phase, over), took, &part);
            if let Some(complaint) = part.complaint() {
                self.outcome.failures.push(complaint);
            }
        }
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
