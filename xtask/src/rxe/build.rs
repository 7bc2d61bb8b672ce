//! Builds the programs that run in the machine, with cargo.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::command::{Failure, Invocation};
use crate::metadata::{self, Target};
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

/// Builds the programs that the tests run: the servers, the command, and the A/B run. They are
/// built as in the test command's own steps.
pub(crate) fn programs(root: &Path) -> Result<Vec<Built>, Failure> {
    all(root).map(|all| all.into_iter().filter(|one| !one.is_test).collect())
}

/// Builds all programs, and the tests that need no device.
fn all(root: &Path) -> Result<Vec<Built>, Failure> {
    cargo(root, steps::BUILD, &["--features".into(), steps::features(root)?])
}

/// The crate whose tests run in the machine.
const TESTED: &str = "bmi-ib";

/// Builds the test programs of `bmi-ib`: its unit tests, and the tests that need a device.
pub(crate) fn tests(root: &Path) -> Result<Vec<Built>, Failure> {
    let ours = |one: &Built| one.is_test && one.package == TESTED;
    let unit_tests = all(root)?.into_iter().filter(|one| ours(one));
    // Select the whole workspace, and in it the tests with these names. Then their dependencies
    // have the same features as in the other steps, and are built already.
    let names = device_tests(root)?;
    let mut args: Vec<String> = names.iter().flat_map(|name| ["--test".to_owned(), name.clone()]).collect();
    args.extend(["--features".to_owned(), format!("{},{TESTED}/{}", steps::features(root)?, steps::DEVICE_TESTS)]);
    let device_tests = cargo(root, "test --no-run --workspace", &args)?;
    let is_named = |one: &Built| names.contains(&one.name);
    Ok(unit_tests.chain(device_tests.into_iter().filter(|one| ours(one) && is_named(one))).collect())
}

/// Returns the names of the tests that need a device. Cargo builds them only with the feature.
fn device_tests(root: &Path) -> Result<Vec<String>, Failure> {
    let packages = metadata::packages(root)?.into_iter().filter(|package| package.name == TESTED);
    let needs_device = |target: &Target| target.required_features.iter().any(|one| one == steps::DEVICE_TESTS);
    let targets = packages.flat_map(|package| package.targets).filter(needs_device);
    Ok(targets.map(|target| target.name).collect())
}

/// Builds the programs whose figures are compared, in release: the one of `bmi-ib` that measures
/// our verbs, and `bmi-perf`, which gets the name [`PERF_IN_RELEASE`].
pub(crate) fn measure(root: &Path) -> Result<Vec<Built>, Failure> {
    let args = format!("build --release --package bmi-ib --package {PERF} --bin {MEASURE} --bin {PERF}");
    let renamed = |one: Built| match one.name == PERF {
        true => Built { name: PERF_IN_RELEASE.into(), ..one },
        false => one,
    };
    Ok(cargo(root, &args, &[])?.into_iter().map(renamed).collect())
}

/// The name of the program that measures our verbs.
pub(crate) const MEASURE: &str = "ib_measure";
/// The program that measures the library between two hosts, and its crate.
const PERF: &str = "bmi-perf";
/// The name of its release build in the machine. The usual scenarios run it as it is built for
/// tests.
pub(crate) const PERF_IN_RELEASE: &str = "bmi-perf-release";

/// Builds the test programs of the independent peer. It is outside the workspace, because the
/// project does not need what the peer is built with.
pub(crate) fn peer(root: &Path) -> Result<Vec<Built>, Failure> {
    let target = crate::target(root).join("rxe-peer");
    let args = format!("test --no-run --manifest-path {PEER}/Cargo.toml --target-dir {}", target.display());
    // Its library is empty, and so is the test program of the library.
    cargo(root, &args, &[]).map(|built| built.into_iter().filter(|one| one.is_test && one.name == "peer").collect())
}

/// The directory of the independent peer.
pub(crate) const PEER: &str = "bmi-ib/peer";

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
