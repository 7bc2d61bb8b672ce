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
//! **How fast is this machine?** The same machine took 1.4 to 1.6 times the processor time for the
//! same work from one day to the next, because others used its caches, its memory and its clock. So
//! there is a second of [fixed work](gauge) on all processors before each large step and at the
//! end, whose time on the day of the budget is in the budget too. A run on a slower machine may
//! take so much more, up to [`SLOWEST`] times. Half of the work waits for memory: a day on which
//! everything was compiled in 1.4 times the time was no slower for work that stays in the caches.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The budget, in seconds of processor time.
#[derive(Deserialize)]
pub(crate) struct Budget {
    /// Of a whole run.
    pub(crate) sum: f64,
    /// Of the [fixed work](gauge), on the machine of the budget. The work was changed later, so
    /// this is its time on a day on which clippy and rustdoc took 1.42 times as long, divided by
    /// 1.42.
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
    /// The processor times of the [fixed work](gauge).
    pub(crate) gauges: Vec<f64>,
}

impl Run {
    /// Returns the mean time of the fixed work.
    pub(crate) fn gauge(&self) -> f64 {
        self.gauges.iter().sum::<f64>() / self.gauges.len().max(1) as f64
    }
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
/// Before a step of so many seconds, it is measured how fast the machine is.
const LARGE: f64 = 100.0;

impl Budget {
    /// Returns the committed budget.
    pub(crate) fn committed() -> Budget {
        serde_json::from_str(include_str!("../budget.json")).expect("a test parses it")
    }

    /// Returns the part of its budget that a step has taken, for people.
    pub(crate) fn share(&self, step: &str, seconds: f64) -> String {
        self.steps.get(step).map_or_else(String::new, |allowed| format!("{:.0} %", 100.0 * seconds / allowed))
    }

    /// Returns true for a step in whose time a machine may become slower.
    pub(crate) fn is_large(&self, step: &str) -> bool {
        self.steps.get(step).is_some_and(|seconds| *seconds > LARGE)
    }

    /// Judges a run.
    pub(crate) fn judge(&self, seconds: f64, run: &Run) -> Verdict {
        let slower = (run.gauge() / self.gauge).clamp(1.0, SLOWEST);
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
/// allocations, comparisons, searches in maps, and reading what is in no cache. Returns its
/// processor time on one of them.
pub(crate) fn gauge() -> f64 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let begin = crate::cpu::seconds();
    std::thread::scope(|scope| {
        for _ in 0..processors {
            scope.spawn(|| std::hint::black_box((work(ROUNDS), walk(WALKED))));
        }
    });
    (crate::cpu::seconds() - begin) / processors as f64
}

/// Takes about half a second in the development profile.
const ROUNDS: u32 = 10;
/// Takes about as long, if memory answers after 200 ns.
const WALKED: u32 = 2_000_000;
/// Numbers in the memory that is walked through: 64 MiB.
const PLACES: usize = 16 << 20;

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

/// Reads numbers of a large memory. Where each is follows from the one before.
fn walk(steps: u32) -> usize {
    let memory = std::hint::black_box(vec![1_u32; PLACES]);
    // A row of numbers that repeats after PLACES of them (Knuth, TAOCP 2, 3.2.1.2).
    (0..steps).fold(0, |at, _| (at * 1_664_525 + memory[at] as usize) % PLACES)
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
            let gauges = vec![(slower - 0.1) * budget.gauge, (slower + 0.1) * budget.gauge];
            budget.judge(times * budget.sum, &Run { is_whole, is_cold, is_on_usual_machine, gauges })
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
