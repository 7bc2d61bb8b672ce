//! Shrinks a plan that fails to a smaller one that still fails.
//!
//! **How.** First, events are left out: halves, quarters, down to single ones, as in delta
//! debugging. Only the complements are tried, which also finds a bug that needs a single event.
//! Then the rest is made simpler, one number at a time: rounder and earlier times, shorter
//! durations, smaller counts. Both steps are repeated until nothing more helps or the budget is
//! spent.

use crate::faults::{At, Fault, Plan};

/// Returns the smallest plan found for which `fails` returns true, and the number of runs it took.
/// `plan` is assumed to fail.
pub(super) fn shrink(plan: &Plan, budget: u64, fails: impl FnMut(&Plan) -> bool) -> (Plan, u64) {
    let mut hunt = Hunt { best: plan.clone(), budget, runs: 0, fails };
    if hunt.budget > 0 && !hunt.best.events.is_empty() {
        // A failure that has nothing to do with faults needs no other runs.
        let nothing = Plan::NONE;
        if !hunt.tries(nothing) {
            while hunt.leave_out() | hunt.simplify() {}
        }
    }
    (hunt.best, hunt.runs)
}

struct Hunt<F> {
    best: Plan,
    budget: u64,
    runs: u64,
    fails: F,
}

impl<F: FnMut(&Plan) -> bool> Hunt<F> {
    /// Keeps `plan` if it fails. Returns whether it does.
    fn tries(&mut self, plan: Plan) -> bool {
        if self.runs >= self.budget {
            return false;
        }
        self.runs += 1;
        let fails = (self.fails)(&plan);
        if fails {
            self.best = plan;
        }
        fails
    }

    /// Leaves events out. Returns whether any could be left out.
    fn leave_out(&mut self) -> bool {
        let mut any = false;
        let mut size = self.best.events.len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            while at < self.best.events.len() && self.best.events.len() > 1 {
                let mut events = self.best.events.clone();
                events.drain(at..(at + size).min(events.len()));
                if self.tries(Plan { events }) {
                    any = true;
                } else {
                    at += size;
                }
            }
            size /= 2;
        }
        any
    }

    /// Makes events simpler. Returns whether any could be made simpler.
    fn simplify(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.best.events.len() {
            // Take the first candidate that helps, then continue from it. The list is in order of
            // simplicity.
            while simpler(&self.best.events[at]).into_iter().any(|candidate| {
                let mut events = self.best.events.clone();
                events[at] = candidate;
                self.tries(Plan { events })
            }) {
                any = true;
            }
        }
        any
    }
}

/// Returns numbers that are simpler than `value`, the simplest first: small, or round.
fn simpler_numbers(value: u64, least: u64) -> Vec<u64> {
    let mut candidates = vec![least, value / 2];
    for unit in [10_000, 1_000, 100] {
        candidates.push(value / unit * unit);
    }
    candidates.retain(|candidate| *candidate < value && *candidate >= least);
    candidates.sort_unstable();
    candidates.dedup();
    candidates
}

fn simpler(event: &At) -> Vec<At> {
    let mut simpler: Vec<At> =
        simpler_numbers(event.at_us, 0).into_iter().map(|at_us| At { at_us, ..event.clone() }).collect();
    let mut fault = event.fault.clone();
    if let Some(duration) = fault.duration() {
        let shorter = simpler_numbers(*duration, 1);
        simpler.extend(shorter.into_iter().map(|shorter| {
            let mut event = event.clone();
            event.fault.duration().into_iter().for_each(|duration| *duration = shorter);
            event
        }));
    }
    let mut with = |fault: Fault| simpler.push(At { at_us: event.at_us, fault });
    match &event.fault {
        Fault::Delay { a, b, by_us, for_us, salt } => simpler_numbers(*by_us, 1).into_iter().for_each(|by_us| {
            with(Fault::Delay { a: a.clone(), b: b.clone(), by_us, for_us: *for_us, salt: *salt });
        }),
        Fault::Lossy { a, b, percent, for_us, salt } if *percent < 100 => {
            with(Fault::Lossy { a: a.clone(), b: b.clone(), percent: 100, for_us: *for_us, salt: *salt });
        }
        Fault::Registrations { node, count } if *count > 1 => {
            with(Fault::Registrations { node: node.clone(), count: 1 });
        }
        _ => {}
    }
    simpler
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(at_us: u64) -> At {
        At { at_us, fault: Fault::Cut { a: "a".into(), b: "b".into() } }
    }

    fn pause(at_us: u64, for_us: u64) -> At {
        At { at_us, fault: Fault::Pause { node: "a".into(), for_us } }
    }

    #[test]
    fn two_events_that_matter_among_fifty_are_found_and_made_simple() {
        let mut events: Vec<At> = (0..48).map(|n| cut(n * 7 + 3)).collect();
        events.insert(20, pause(12_345, 6_789));
        events.push(pause(54_321, 999));
        // Fails with a pause of at least a millisecond and another one after it.
        let fails = |plan: &Plan| {
            let long = |event: &&At| matches!(event.fault, Fault::Pause { for_us, .. } if for_us >= 1000);
            let first = plan.events.iter().find(long).map(|event| event.at_us);
            let later =
                |event: &At| matches!(event.fault, Fault::Pause { .. }) && first.is_some_and(|at| event.at_us > at);
            plan.events.iter().any(later)
        };
        let (plan, runs) = shrink(&Plan { events }, 200, fails);
        assert_eq!(plan.events.len(), 2, "{plan}");
        assert!(runs < 200 && plan.events[0].at_us == 0 && plan.events[1].fault.for_us() == 1, "{plan}");
    }

    #[test]
    fn what_fails_without_faults_has_none_and_the_budget_is_kept() {
        let plan = Plan { events: (0..10).map(cut).collect() };
        assert_eq!(shrink(&plan, 100, |_| true), (Plan::NONE, 1));
        assert_eq!(shrink(&plan, 5, |plan| plan.events.len() > 8).1, 5);
    }
}
