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

use std::collections::BTreeMap;

use serde::Deserialize;

/// The budget, in seconds of processor time.
#[derive(Deserialize)]
pub(crate) struct Budget {
    /// Of a whole run.
    pub(crate) sum: f64,
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
        let most = TOLERANCE * self.sum;
        if !run.is_whole || seconds <= most {
            return Verdict::Kept;
        }
        let text = format!(
            "{seconds:.0} s of processor time are more than {TOLERANCE} times the budget of {:.0} s (xtask/budget.json)",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_usual_step_has_its_part_of_the_sum() {
        let budget = Budget::committed();
        let steps: Vec<&str> = budget.steps.keys().map(String::as_str).collect();
        let mut usual: Vec<&str> =
            crate::steps::STEPS.iter().filter(|step| step.always).map(|step| step.name).collect();
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
        let judge = |times: f64, is_whole, is_cold, is_on_usual_machine| {
            budget.judge(times * budget.sum, &Run { is_whole, is_cold, is_on_usual_machine })
        };
        assert!(matches!(judge(1.26, true, true, true), Verdict::Failed(why) if why.contains("budget.json")));
        assert_eq!(judge(1.24, true, true, true), Verdict::Kept);
        assert_eq!(judge(9.0, false, true, true), Verdict::Kept);
        assert!(matches!(judge(1.26, true, false, true), Verdict::Warned(_)));
        assert!(matches!(judge(1.26, true, true, false), Verdict::Warned(_)));
    }
}
