//! Checks that the same sweeps have the same digests in debug and in release. A run in the
//! simulator may depend on its seed and on nothing else, so it must not depend on the compiler's
//! optimisations.
//!
//! Sweeps print a line that begins with `check` and ends with their digest
//! (`bmi_sim::check::Report`).

use std::path::Path;
use std::time::Duration;

use crate::command::{Failure, Invocation};
use crate::totals::Totals;

/// Test programs whose sweeps are compared.
const PROGRAMS: [(&str, &str); 2] = [("bmi-sim", "it"), ("fs-server", "cluster")];
/// Seeds of each sweep.
const SEEDS: &str = "0..30";
/// Time limit for building in release and running. A cold build on two slow cores takes some
/// minutes.
const LIMIT: Duration = Duration::from_secs(1200);

/// The step of the test command.
pub(crate) fn step(root: &Path) -> Result<Totals, Failure> {
    let mut totals = Totals::NONE;
    let (debug, release) = (lines(root, "")?, lines(root, " --release")?);
    if debug.len() < PROGRAMS.len() || debug.len() != release.len() {
        let text = format!("{} sweeps said their digest in debug, {} in release", debug.len(), release.len());
        return Err(Failure::new(text));
    }
    for (debug, release) in debug.iter().zip(&release) {
        println!("{debug}");
        if debug != release {
            return Err(Failure::new(format!("in debug and in release a run differs:\n  {debug}\n  {release}")));
        }
        totals += Totals::PASSED;
    }
    Ok(totals)
}

/// Returns the lines with digests that the sweeps print, in order.
fn lines(root: &Path, profile: &str) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    for (package, test) in PROGRAMS {
        let command = format!("test{profile} --package {package} --test {test} digests -- --nocapture");
        let output = Invocation::cargo(root, &command).env("BMI_SEEDS", SEEDS).output(LIMIT)?;
        lines.extend(
            output.lines().filter(|line| line.contains("check \"") && line.contains("digest")).map(str::to_owned),
        );
    }
    Ok(lines)
}
