//! The workspace as cargo describes it: crates, their features and their targets.

use std::collections::BTreeMap;
use std::path::Path;
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
