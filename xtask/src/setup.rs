//! Installs what a bare machine lacks: components of the toolchain, packages of Debian.
//!
//! **How to add a package.** One line in [`PACKAGES`]: the program to look for, the package that has it, what it is for. As root it is
//! installed; otherwise the step fails with the command to type.

use std::path::Path;
use std::time::Duration;

use crate::command::{Failure, Invocation};

/// A program that a step needs beside the toolchain.
struct Package {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

const PACKAGES: &[Package] = &[Package { program: "cc", package: "gcc", why: "the toolchain links with it" }];

/// Components of the toolchain, with the cargo command that tells whether each is there.
const COMPONENTS: &[(&str, &str)] = &[("rustfmt", "fmt --version"), ("clippy", "clippy --version")];

/// A download on a slow line.
const LIMIT: Duration = Duration::from_secs(600);

/// Brings the machine into the state that the steps need. Changes nothing where all is there.
pub(crate) fn set_up(root: &Path) -> Result<(), Failure> {
    for (component, probe) in COMPONENTS {
        if !Invocation::cargo(root, probe).succeeds() {
            println!("installing {component}");
            Invocation::new(root, "rustup", &format!("component add {component}")).run(LIMIT)?;
        }
    }
    let missing: Vec<&Package> = PACKAGES.iter().filter(|package| !on_path(package.program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for package in &missing {
        println!("{} is missing ({}): package {}", package.program, package.why, package.package);
    }
    let names = missing.iter().map(|package| package.package).collect::<Vec<_>>().join(" ");
    if !is_root() {
        return Err(Failure::new(format!("as root: apt-get install {names}")));
    }
    Invocation::new(root, "apt-get", "update -q").run(LIMIT)?;
    Invocation::new(root, "apt-get", &format!("install -y -q --no-install-recommends {names}"))
        .env("DEBIAN_FRONTEND", "noninteractive")
        .run(LIMIT)?;
    Ok(())
}

/// Whether `cargo nextest` is installed; without it `cargo test` does the same work.
pub(crate) fn has_nextest(root: &Path) -> bool {
    Invocation::cargo(root, "nextest --version").succeeds()
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn is_root() -> bool {
    // The owner of /proc/self is the effective user.
    std::os::unix::fs::MetadataExt::uid(&match std::fs::metadata("/proc/self") {
        Ok(metadata) => metadata,
        Err(_) => return false,
    }) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program"));
    }
}
