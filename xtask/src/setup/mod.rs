//! Installs what a bare machine lacks: components of the toolchain, other toolchains, packages of
//! Debian.
//!
//! | module | what |
//! |---|---|
//! | `packages` | the table of packages, each with its probe |
//! | `programs` | programs on the path, and what they answer |
//! | `emulator`, `kernel` | probes for the machine of `cargo xtask rxe`: QEMU, and the kernel that it boots |

pub(crate) mod emulator;
pub(crate) mod kernel;
mod packages;
mod programs;

use std::path::Path;
use std::time::Duration;

use self::packages::{PACKAGES, Package};
use self::programs::answers;
use crate::command::{Failure, Invocation};

pub(crate) use self::packages::Need;
pub(crate) use self::programs::program;

/// Components of the toolchain, each with the cargo command that tells whether it is there.
const COMPONENTS: &[(&str, &str)] = &[("rustfmt", "fmt --version"), ("clippy", "clippy --version")];

/// Time limit for a download over a slow link.
const LIMIT: Duration = Duration::from_secs(600);

/// Installs missing components of the toolchain and missing packages. It does not look for a
/// linker, because this program was built with one.
pub(crate) fn set_up(root: &Path) -> Result<(), Failure> {
    for (component, probe) in COMPONENTS {
        if !Invocation::cargo(root, probe).succeeds() {
            eprintln!("installing {component}");
            Invocation::new(root, "rustup", &format!("component add {component}")).run_aside(LIMIT)?;
        }
    }
    install(root, Need::Tests)
}

/// Installs the toolchain of a version, with the standard libraries of `targets`, and a C compiler
/// for aarch64. Nothing is linked for those targets, so no linker is needed.
pub(crate) fn set_up_toolchain(root: &Path, version: &str, targets: &[&str]) -> Result<(), Failure> {
    if targets.iter().all(|target| compiles_for(root, version, target)) {
        return Ok(());
    }
    if !answers("rustup", &["--version"], "rustup") {
        return Err(Failure::new("there is no rustup here, which brings other toolchains; see https://rustup.rs"));
    }
    eprintln!("installing Rust {version} for {}", targets.join(", "));
    let targets_of = targets.iter().flat_map(|target| ["--target".to_owned(), (*target).to_owned()]);
    Invocation::new(root, "rustup", &format!("toolchain install {version} --profile minimal --no-self-update"))
        .args(&targets_of.collect::<Vec<_>>())
        .run_aside(LIMIT)?;
    match targets.iter().find(|target| !compiles_for(root, version, target)) {
        Some(target) => Err(Failure::new(format!("Rust {version} was installed, but does not compile for {target}"))),
        None => Ok(()),
    }
}

/// Returns whether the toolchain of a version is installed, has cargo, and compiles for a target.
fn compiles_for(root: &Path, version: &str, target: &str) -> bool {
    let run = |args: &str, more: &[String]| {
        Invocation::new(root, "rustup", &format!("run {version} {args}")).args(more).succeeds()
    };
    // Standard input is empty, so the crate that is compiled is empty too. It needs the standard
    // library all the same. Not to /dev/null: rustc makes a file and renames it to that.
    let probe = format!("rustc --crate-name probe --crate-type lib --emit metadata --target {target} - --out-dir");
    let folder = crate::target(root).join("portable");
    run("cargo --version", &[]) && run(&probe, &[folder.to_string_lossy().into_owned()])
}

/// Installs what is missing of the packages for one purpose.
pub(crate) fn install(root: &Path, need: Need) -> Result<(), Failure> {
    let packages = || PACKAGES.iter().filter(|package| package.needs.contains(&need));
    let missing: Vec<&Package> = packages().filter(|package| !package.is_there()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for package in &missing {
        eprintln!("missing: package {} ({})", package.name, package.why);
    }
    let names = missing.iter().map(|package| package.name).collect::<Vec<_>>().join(" ");
    if !is_root() {
        return Err(Failure::new(format!("as root: apt-get install {names}")));
    }
    let failed = |why: Failure| Failure::new(format!("the Debian packages {names} cannot be installed: {why}"));
    Invocation::new(root, "apt-get", "update -q").run_aside(LIMIT).map_err(failed)?;
    Invocation::new(root, "apt-get", &format!("install -y -q --no-install-recommends {names}"))
        .env("DEBIAN_FRONTEND", "noninteractive")
        .run_aside(LIMIT)
        .map_err(failed)?;
    match packages().find(|package| !package.is_there()) {
        Some(Package { name, why, .. }) => {
            Err(Failure::new(format!("package {name} was installed, but its probe still fails ({why})")))
        }
        None => Ok(()),
    }
}

/// Returns true if `cargo nextest` is installed. Without it, `cargo test` runs the same tests.
pub(crate) fn has_nextest(root: &Path) -> bool {
    Invocation::cargo(root, "nextest --version").succeeds()
}

/// Returns true if the user is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
