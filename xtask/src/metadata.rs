//! The workspace as cargo describes it: crates, their features and their targets, and the programs
//! that it builds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use crate::command::{Failure, Invocation};

/// A crate.
#[derive(Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// The lowest version of Rust that builds it.
    pub(crate) rust_version: Option<String>,
    /// The registries that it may be published to; `None` for any. Empty for programs that stay in
    /// this workspace.
    publish: Option<Vec<String>>,
    /// What each feature enables.
    pub(crate) features: BTreeMap<String, Vec<String>>,
    pub(crate) targets: Vec<Target>,
}

/// A library, program or test.
#[derive(Deserialize)]
pub(crate) struct Target {
    pub(crate) name: String,
    /// `lib`, `bin`, `test` and so on.
    pub(crate) kind: Vec<String>,
}

impl Package {
    /// Returns true for the crates that other projects use: all that may be published.
    pub(crate) fn is_public(&self) -> bool {
        self.publish.as_ref().is_none_or(|registries| !registries.is_empty())
    }

    /// Returns the names of its programs.
    pub(crate) fn programs(self) -> impl Iterator<Item = String> {
        let is_program = |target: &Target| target.kind.iter().any(|kind| kind == "bin");
        self.targets.into_iter().filter(is_program).map(|target| target.name)
    }
}

/// Cargo only reads manifests.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the crates of the workspace with this root.
pub(crate) fn packages(root: &Path) -> Result<Vec<Package>, Failure> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    let output = Invocation::cargo(root, "metadata --no-deps --format-version 1").output(LIMIT)?;
    let metadata: Metadata =
        serde_json::from_str(&output).map_err(|error| Failure::new(format!("cargo metadata: {error}")))?;
    Ok(metadata.packages)
}

/// Returns all features of all crates, in the form that `--features` takes.
///
/// Each step that builds uses these features and selects the whole workspace. Cargo enables the
/// features of a dependency that the selected crates ask for. Another selection would build the
/// same crates again with other features.
pub(crate) fn features(root: &Path) -> Result<String, Failure> {
    let packages = packages(root)?;
    let all =
        packages.iter().flat_map(|package| package.features.keys().map(|name| format!("{}/{name}", package.name)));
    Ok(all.collect::<Vec<_>>().join(","))
}

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

impl Built {
    /// Returns true for the unit tests of a library.
    pub(crate) fn is_unit_tests(&self) -> bool {
        self.is_test && self.name == self.package.replace('-', "_")
    }
}

/// Time limit for a build. A cold one on two slow cores takes much less.
const BUILD_LIMIT: Duration = Duration::from_secs(2400);

/// Runs cargo with `args` and returns the programs that its report names.
pub(crate) fn build(root: &Path, args: &str, more: &[String]) -> Result<Vec<Built>, Failure> {
    let args = format!("{args} --message-format json-render-diagnostics");
    Ok(Invocation::cargo(root, &args).args(more).output(BUILD_LIMIT)?.lines().filter_map(built).collect())
}

/// Builds every library, program and test of the workspace, together with [`features`]. They are
/// selected together, because the crates that only tests depend on enable more features.
pub(crate) const BUILD: &str = "build --workspace --lib --bins --tests --examples";

/// Returns the path at which [`BUILD`] puts a program.
pub(crate) fn program(root: &Path, name: &str) -> PathBuf {
    crate::target(root).join("debug").join(name)
}

/// A line of cargo's report.
#[derive(Deserialize)]
struct Message {
    reason: String,
    /// The manifest of the crate: `…/Cargo.toml`.
    manifest_path: Option<PathBuf>,
    executable: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
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
        let library = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"x"},"profile":{"test":false},"executable":null}"#;
        assert!(super::built(library).is_none());
        assert!(super::built(r#"{"reason":"build-finished","success":true}"#).is_none());
        assert!(super::built("   Compiling").is_none());
    }
}
