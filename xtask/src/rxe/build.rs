//! Builds the programs that run in the machine, with cargo.

use std::path::Path;

use crate::command::Failure;
use crate::metadata::{BUILD, Built, build, features};

/// Builds all programs and all tests, as the step `build` does, so that nothing is built twice.
/// Returns the tests of `bmi-ib` that need a device.
pub(crate) fn tests(root: &Path) -> Result<Vec<Built>, Failure> {
    let all = build(root, BUILD, &["--features".into(), features(root)?])?;
    // The tests in the library need none. They run with all others.
    Ok(all.into_iter().filter(|one| one.package == "bmi-ib" && one.is_test && !one.is_unit_tests()).collect())
}

/// Builds the program whose figures are compared, in release.
pub(crate) fn measuring_program(root: &Path) -> Result<(), Failure> {
    build(root, "build --release --package bmi-perf --bin bmi-perf", &[]).map(drop)
}

/// Builds the test programs of the independent peer. It is outside the workspace, because the
/// project does not need what the peer is built with.
pub(crate) fn peer(root: &Path) -> Result<Vec<Built>, Failure> {
    const PEER: &str = "bmi-ib/peer";
    let target = crate::target(root).join("rxe-peer");
    let args = format!("test --no-run --manifest-path {PEER}/Cargo.toml --target-dir {}", target.display());
    // Its library is empty, and so is the test program of the library.
    build(root, &args, &[]).map(|built| built.into_iter().filter(|one| one.is_test && one.name == "peer").collect())
}
