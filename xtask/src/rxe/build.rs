//! Builds the programs that run in the machine, with cargo.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::command::{Failure, Invocation};
use crate::steps;

/// A program that cargo has built.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    /// The name of the target: of the file in `tests/`, of the library, or of the program.
    pub(crate) name: String,
    /// The name of its crate.
    pub(crate) package: String,
    /// The path of the program.
    pub(crate) path: PathBuf,
    /// True for a test program.
    pub(crate) is_test: bool,
}

/// Time limit. A cold build on two slow cores takes much less.
const LIMIT: Duration = Duration::from_secs(2400);

/// Runs cargo with `args` and returns the programs that its report names.
fn cargo(root: &Path, args: &str, more: &[String]) -> Result<Vec<Built>, Failure> {
    let args = format!("{args} --message-format json-render-diagnostics");
    Ok(Invocation::cargo(root, &args).args(more).output(LIMIT)?.lines().filter_map(built).collect())
}

/// Builds all programs and all tests, as the step `build` does, so that nothing is built twice.
/// Returns the tests of `bmi-ib` that need a device.
pub(crate) fn tests(root: &Path) -> Result<Vec<Built>, Failure> {
    let all = cargo(root, steps::BUILD, &["--features".into(), steps::features(root)?])?;
    // The tests in the library need none. They run with all others.
    Ok(all.into_iter().filter(|one| one.is_test && one.package == "bmi-ib" && one.name != "bmi_ib").collect())
}

/// Builds the program whose figures are compared, in release.
pub(crate) fn measuring_program(root: &Path) -> Result<(), Failure> {
    let args = "build --release --package bmi-perf --bin bmi-perf";
    cargo(root, args, &[]).map(drop)
}

/// Builds the test programs of the independent peer. It is outside the workspace, because the
/// project does not need what the peer is built with.
pub(crate) fn peer(root: &Path) -> Result<Vec<Built>, Failure> {
    const PEER: &str = "bmi-ib/peer";
    let target = crate::target(root).join("rxe-peer");
    let args = format!("test --no-run --manifest-path {PEER}/Cargo.toml --target-dir {}", target.display());
    // Its library is empty, and so is the test program of the library.
    cargo(root, &args, &[]).map(|built| built.into_iter().filter(|one| one.is_test && one.name == "peer").collect())
}

/// A line of cargo's report.
#[derive(Deserialize)]
struct Message {
    reason: String,
    /// The manifest of the crate: `…/Cargo.toml`.
    manifest_path: Option<PathBuf>,
    executable: Option<PathBuf>,
    target: Option<BuiltTarget>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct BuiltTarget {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Returns the program in a line of cargo's report, if it names one.
fn built(line: &str) -> Option<Built> {
    let message: Message = serde_json::from_str(line).ok()?;
    if message.reason != "compiler-artifact" {
        return None;
    }
    // Each crate of the workspace is in a directory with its own name.
    let package = message.manifest_path?.parent()?.file_name()?.to_string_lossy().into_owned();
    Some(Built { name: message.target?.name, package, path: message.executable?, is_test: message.profile?.test })
}

#[cfg(test)]
mod tests {
    #[test]
    fn programs_are_found_in_what_cargo_reports() {
        let line = r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"faults"},"profile":{"test":true},
            "manifest_path":"/w/bmi-ib/Cargo.toml","executable":"/t/debug/deps/faults-1"}"#;
        let built = super::built(line).unwrap();
        assert_eq!(
            (built.name.as_str(), built.package.as_str(), built.path.to_str(), built.is_test),
            ("faults", "bmi-ib", Some("/t/debug/deps/faults-1"), true)
        );
        let library =
            r#"{"reason":"compiler-artifact","target":{"name":"x"},"profile":{"test":false},"executable":null}"#;
        assert!(super::built(library).is_none());
        assert!(super::built(r#"{"reason":"build-finished","success":true}"#).is_none());
        assert!(super::built("   Compiling").is_none());
    }
}
