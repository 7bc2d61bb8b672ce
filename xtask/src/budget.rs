//! What the test command may cost: the processor time of each step and of all together, and whether
//! a run has kept to it.
//!
//! **Why a failure.** A step that is a little slower is noticed by nobody, and a hundred of them
//! make a check that nobody runs. `xtask/budget.json` is part of the tree, so whoever makes the
//! check dearer changes a number there and says why.
//!
//! **When it can fail.** The numbers are for a machine of the kind that CI has: Linux on x86_64
//! with two processors, and nothing built before. On another machine, or where cargo finds what it
//! built the last time, a run costs something else, and is only warned of. Whether nothing was
//! built is seen by a program that the step `build` makes and nothing before it.
//!
//! **How fast is this machine?** The same machine took 1.6 times the processor time for the same
//! work from one day to the next, because others used its caches and its clock. So a run begins
//! with a second of [fixed work](gauge) on all processors, whose time on the day of the budget is
//! in the budget too. A run on a slower machine may take so much more, up to [`SLOWEST`] times.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The budget, in seconds of processor time.
#[derive(Deserialize)]
pub(crate) struct Budget {
    /// Of a whole run.
    pub(crate) sum: f64,
    /// Of the [fixed work](gauge), on the machine of the budget.
    pub(crate) gauge: f64,
    /// Of each step that is part of every run, and of building this program.
    steps: BTreeMap<String, f64>,
}

/// What is known of a run.
pub(crate) struct Run {
    /// True if every usual step ran.
    pub(crate) is_whole: bool,
    /// True if nothing was built when it began.
    pub(crate) is_cold: bool,
    /// True if the machine is of the kind that the budget is for.
    pub(crate) is_on_usual_machine: bool,
    /// The processor time of the [fixed work](gauge).
    pub(crate) gauge: f64,
}

/// What to do about a run that took too much.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    Kept,
    Warned(String),
    Failed(String),
}

/// A run may take so many times the sum before that is a failure: the same run takes some percent
/// more or less, and more on a machine that others use too.
const TOLERANCE: f64 = 1.25;
/// A machine that is slower by more than this makes no run dearer.
const SLOWEST: f64 = 2.0;

impl Budget {
    /// Returns the committed budget.
    pub(crate) fn committed() -> Budget {
        serde_json::from_str(include_str!("../budget.json")).expect("a test parses it")
    }

    /// Returns the part of its budget that a step has taken, for people.
    pub(crate) fn share(&self, step: &str, seconds: f64) -> String {
        self.steps.get(step).map_or_else(String::new, |allowed| format!("{:.0} %", 100.0 * seconds / allowed))
    }

    /// Judges a run.
    pub(crate) fn judge(&self, seconds: f64, run: &Run) -> Verdict {
        let slower = (run.gauge / self.gauge).clamp(1.0, SLOWEST);
        let most = TOLERANCE * self.sum * slower;
        if !run.is_whole || seconds <= most {
            return Verdict::Kept;
        }
        let text = format!(
            "{seconds:.0} s of processor time are more than {TOLERANCE} times the budget of {:.0} s \
             (xtask/budget.json), on a machine that is {slower:.2} times as slow",
            self.sum
        );
        match (run.is_cold, run.is_on_usual_machine) {
            (true, true) => Verdict::Failed(text),
            (false, _) => Verdict::Warned(format!("{text}; part of it was built before")),
            (_, false) => Verdict::Warned(format!("{text}, which is for two processors of x86_64")),
        }
    }
}

/// Returns true on a machine of the kind that the budget is for.
pub(crate) fn is_usual_machine() -> bool {
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    (std::env::consts::OS, std::env::consts::ARCH, processors) == ("linux", "x86_64", 2)
}

/// Does a fixed piece of work on every processor at once, of the kind that a compiler does: small
/// allocations, comparisons, searches in maps. Returns its processor time on one of them.
pub(crate) fn gauge() -> f64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let begin = crate::cpu::seconds();
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| std::hint::black_box(work(GAUGE_ROUNDS)));
        }
    });
    (crate::cpu::seconds() - begin) / processors as f64
}

/// Takes about a second in the development profile.
const GAUGE_ROUNDS: u32 = 40;

fn work(rounds: u32) -> usize {
    let mut found = 0;
    for round in 0..rounds {
        let word = |number: u32| format!("{:08x}", number.wrapping_mul(0x9E37_79B9) ^ round);
        let mut words: Vec<String> = (0..20_000).map(word).collect();
        words.sort_unstable();
        let map: BTreeMap<&str, usize> = words.iter().enumerate().map(|(place, word)| (word.as_str(), place)).collect();
        found += (0..20_000).filter(|number| map.contains_key(word(3 * number).as_str())).count();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::steps::{STEPS, When};

    #[test]
    fn each_usual_step_has_its_part_of_the_sum() {
        let budget = Budget::committed();
        let steps: Vec<&str> = budget.steps.keys().map(String::as_str).collect();
        let mut usual: Vec<&str> =
            STEPS.iter().filter(|step| step.when == When::Always).map(|step| step.name).collect();
        usual.push("(xtask)");
        usual.sort_unstable();
        assert_eq!(steps, usual);
        assert_eq!(budget.steps.values().sum::<f64>(), budget.sum);
        assert_eq!(budget.share("rustdoc", budget.steps["rustdoc"]), "100 %");
        assert_eq!(budget.share("miri", 1.0), "");
    }

    #[test]
    fn only_a_whole_cold_run_on_a_usual_machine_fails() {
        let budget = Budget::committed();
        let on = |slower: f64, times: f64, is_whole, is_cold, is_on_usual_machine| {
            let gauge = slower * budget.gauge;
            budget.judge(times * budget.sum, &Run { is_whole, is_cold, is_on_usual_machine, gauge })
        };
        let judge = |times, is_whole, is_cold, is_usual| on(1.0, times, is_whole, is_cold, is_usual);
        assert!(matches!(judge(1.26, true, true, true), Verdict::Failed(why) if why.contains("budget.json")));
        assert_eq!(judge(1.24, true, true, true), Verdict::Kept);
        assert_eq!(judge(9.0, false, true, true), Verdict::Kept);
        assert!(matches!(judge(1.26, true, false, true), Verdict::Warned(_)));
        assert!(matches!(judge(1.26, true, true, false), Verdict::Warned(_)));
        // A slower machine may take longer, but not any time. A faster one is no stricter.
        assert_eq!([on(1.5, 1.8, true, true, true), on(0.5, 1.2, true, true, true)], [Verdict::Kept, Verdict::Kept]);
        assert!(matches!(on(9.0, 2.6, true, true, true), Verdict::Failed(_)));
    }
}
