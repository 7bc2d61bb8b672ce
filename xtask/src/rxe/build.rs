//! What runs in the machine is built here, by cargo.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::command::{Failure, Invocation};
use crate::steps;

/// A program that cargo has built.
#[derive(Clone, Debug)]
pub(crate) struct Built {
    /// The target's name: that of the file in `tests/`, of the library, of the program.
    pub(crate) name: String,
    /// Where it is.
    pub(crate) path: PathBuf,
    /// Whether it is a test program.
    pub(crate) is_test: bool,
}

/// A cold build on two slow cores lies far below.
const LIMIT: Duration = Duration::from_secs(1200);

/// Runs cargo with `args` and returns the programs that it names.
pub(crate) fn cargo(root: &Path, args: &str) -> Result<Vec<Built>, Failure> {
    let args = format!("{args} --message-format json-render-diagnostics");
    Ok(Invocation::cargo(root, &args).output(LIMIT)?.lines().filter_map(built).collect())
}

/// The programs of the tests: the servers, the command, the A/B run, as the test command's own steps build them.
pub(crate) fn programs(root: &Path) -> Result<Vec<Built>, Failure> {
    let features = steps::features(root)?.join(",");
    cargo(root, &format!("build --workspace --bins --features {features}"))
}

/// The test programs of `bmi-ib` that need a device. What they are made of has the features that it has in the other tests.
pub(crate) fn tests(root: &Path) -> Result<Vec<Built>, Failure> {
    const MADE_OF: &[&str] = &["bmi-core/", "bmi-conformance/"];
    let features = steps::features(root)?;
    let shared = features.iter().filter(|feature| MADE_OF.iter().any(|of| feature.starts_with(of)));
    let features = shared.map(|feature| format!(",{feature}")).collect::<String>();
    let device_tests = steps::DEVICE_TESTS;
    cargo(root, &format!("test --no-run --package bmi-ib --features bmi-ib/{device_tests}{features}")).map(only_tests)
}

/// The program that measures our verbs, a program of `bmi-ib`; in release, because its figures are compared.
pub(crate) fn measure(root: &Path) -> Result<Vec<Built>, Failure> {
    cargo(root, &format!("build --release --package bmi-ib --bin {MEASURE}"))
}

/// Its name.
pub(crate) const MEASURE: &str = "ib_measure";

/// The test programs of the independent peer. It stands outside the workspace, because what it needs is not needed to build the project.
pub(crate) fn peer(root: &Path) -> Result<Vec<Built>, Failure> {
    let target = crate::target(root).join("rxe-peer");
    let args = format!("test --no-run --manifest-path {PEER}/Cargo.toml --target-dir {}", target.display());
    // Its library is empty, and so is the library's test program.
    cargo(root, &args).map(|built| built.into_iter().filter(|one| one.is_test && one.name == "peer").collect())
}

/// Where the independent peer stands.
pub(crate) const PEER: &str = "bmi-ib/peer";

fn only_tests(built: Vec<Built>) -> Vec<Built> {
    built.into_iter().filter(|one| one.is_test).collect()
}

/// A line of cargo's report.
#[derive(Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// The program in a line of cargo's report, if it names one.
fn built(line: &str) -> Option<Built> {
    let message: Message = serde_json::from_str(line).ok()?;
    if message.reason != "compiler-artifact" {
        return None;
    }
    Some(Built { name: message.target?.name, path: message.executable?, is_test: message.profile?.test })
}

#[cfg(test)]
mod tests {
    #[test]
    fn programs_are_found_in_what_cargo_reports() {
        let line = r#"{"reason":"compiler-artifact","target":{"kind":["test"],"name":"faults"},"profile":{"test":true},
            "executable":"/t/debug/deps/faults-1"}"#;
        let built = super::built(line).unwrap();
        assert_eq!(
            (built.name.as_str(), built.path.to_str(), built.is_test),
            ("faults", Some("/t/debug/deps/faults-1"), true)
        );
        let library =
            r#"{"reason":"compiler-artifact","target":{"name":"x"},"profile":{"test":false},"executable":null}"#;
        assert!(super::built(library).is_none());
        assert!(super::built(r#"{"reason":"build-finished","success":true}"#).is_none());
        assert!(super::built("   Compiling").is_none());
    }
}
