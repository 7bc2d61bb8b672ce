//! Installs what a bare machine lacks: components of the toolchain, packages of Debian.
//!
//! **How to add a package.** One line in [`PACKAGES`] or [`MACHINE_PACKAGES`]: its name, what it is for, how to see that it is there. As root it is
//! installed; otherwise the step fails with the command to type.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{Failure, Invocation};
use crate::rxe::{Kernel, machine};

/// A package of Debian that a step needs beside the toolchain.
struct Package {
    name: &'static str,
    why: &'static str,
    is_there: fn() -> bool,
}

const PACKAGES: &[Package] =
    &[Package { name: "gcc", why: "the toolchain links with cc", is_there: || program("cc").is_some() }];

/// What `cargo xtask rxe` builds its machine from.
const MACHINE_PACKAGES: &[Package] = &[
    Package { name: "qemu-system-x86", why: "the emulator", is_there: || program("qemu-system-x86_64").is_some() },
    Package { name: "linux-image-amd64", why: "a kernel with Soft-RoCE", is_there: || Kernel::installed().is_some() },
    Package { name: "busybox-static", why: "the machine's shell", is_there: || program("busybox").is_some() },
    Package { name: "kmod", why: "modprobe and insmod", is_there: || program("modprobe").is_some() },
    Package { name: "binutils", why: "strip", is_there: || program("strip").is_some() },
    Package {
        name: "iproute2",
        why: "ip, tc, rdma",
        is_there: || ["ip", "tc", "rdma"].iter().all(|name| program(name).is_some()),
    },
    Package { name: "ibverbs-providers", why: "the driver of Soft-RoCE", is_there: || machine::provider().is_some() },
    Package {
        name: "ibverbs-utils",
        why: "ibv_devinfo, ibv_rc_pingpong",
        is_there: || program("ibv_devinfo").is_some(),
    },
    Package { name: "perftest", why: "what verbs are measured against", is_there: || program("ib_send_lat").is_some() },
];

/// What the crate `ibverbs` is built with, the independent peer of the tests in that machine.
const PEER_PACKAGES: &[Package] = &[
    Package { name: "cmake", why: "builds a part of ibverbs", is_there: || program("cmake").is_some() },
    Package { name: "libclang-dev", why: "reads the headers of verbs", is_there: has_libclang },
    Package {
        name: "libibverbs-dev",
        why: "the headers of verbs",
        is_there: || Path::new("/usr/include/infiniband/verbs.h").exists(),
    },
];

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
    install(root, PACKAGES)
}

/// Installs what the emulated machine is made of.
pub(crate) fn set_up_machine(root: &Path) -> Result<(), Failure> {
    install(root, MACHINE_PACKAGES)
}

/// Installs what building the independent peer needs.
pub(crate) fn set_up_peer(root: &Path) -> Result<(), Failure> {
    install(root, PEER_PACKAGES)
}

fn install(root: &Path, packages: &[Package]) -> Result<(), Failure> {
    let missing: Vec<&Package> = packages.iter().filter(|package| !(package.is_there)()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for package in &missing {
        println!("missing: package {} ({})", package.name, package.why);
    }
    let names = missing.iter().map(|package| package.name).collect::<Vec<_>>().join(" ");
    if !is_root() {
        return Err(Failure::new(format!("as root: apt-get install {names}")));
    }
    let failed = |why: Failure| Failure::new(format!("the Debian packages {names} cannot be installed: {why}"));
    Invocation::new(root, "apt-get", "update -q").run(LIMIT).map_err(failed)?;
    Invocation::new(root, "apt-get", &format!("install -y -q --no-install-recommends {names}"))
        .env("DEBIAN_FRONTEND", "noninteractive")
        .run(LIMIT)
        .map_err(failed)?;
    match packages.iter().find(|package| !(package.is_there)()) {
        Some(package) => {
            Err(Failure::new(format!("package {} was installed, but {} is not there", package.name, package.why)))
        }
        None => Ok(()),
    }
}

/// Whether `cargo nextest` is installed; without it `cargo test` does the same work.
pub(crate) fn has_nextest(root: &Path) -> bool {
    Invocation::cargo(root, "nextest --version").succeeds()
}

/// Where a program is. The folders of the administrator are searched too: not everybody has them on the path.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administrator = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(administrator).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Debian keeps it in a folder named for its version.
fn has_libclang() -> bool {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    folders
        .filter(|folder| folder.file_name().to_string_lossy().starts_with("llvm-"))
        .filter_map(|folder| std::fs::read_dir(folder.path().join("lib")).ok())
        .flat_map(|files| files.flatten())
        .any(|file| file.file_name().to_string_lossy().starts_with("libclang") && file.path().exists())
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
        assert!(program("sh").is_some());
        assert!(program("no-such-program").is_none());
    }
}
