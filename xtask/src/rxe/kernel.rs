//! The kernel that the machine boots, and its modules in the order in which they must be loaded.
//!
//! **Why** Debian's own: `linux-image-amd64` has Soft-RoCE as a module on every machine where the package can be installed, whatever kernel runs
//! there. The running kernel is often another one, without it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::Failure;

/// A kernel with modules.
pub(crate) struct Kernel {
    /// The compressed kernel.
    pub(crate) image: PathBuf,
    version: String,
}

/// What every machine loads. Without `crc32_generic` adding the device fails, with no reason given.
pub(crate) const MODULES: &[&str] =
    &["virtio_pci", "virtio_console", "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm", "rdma_cm"];
/// The link between the two ends of one machine.
pub(crate) const MODULES_ALONE: &[&str] = &["veth"];
/// The link between two machines, with loss.
pub(crate) const MODULES_PAIR: &[&str] = &["virtio_net", "sch_netem"];

impl Kernel {
    /// The newest one that is installed on this machine.
    pub(crate) fn installed() -> Option<Kernel> {
        Kernel::newest(Path::new("/boot"), Path::new("/lib/modules"))
    }

    /// The newest kernel in `boot` (`/boot`) that has its modules beside it in `modules` (`/lib/modules`).
    fn newest(boot: &Path, modules: &Path) -> Option<Kernel> {
        let entries = boot.read_dir().ok()?;
        entries
            .flatten()
            .filter_map(|entry| {
                let version = entry.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_owned();
                let usable = version.ends_with("-amd64") && modules.join(&version).join("modules.dep").is_file();
                usable.then(|| Kernel { image: entry.path(), version })
            })
            .max_by_key(|kernel| numbers(&kernel.version))
    }

    /// The files of `names` and of all that they need, each once, in the order of loading.
    pub(crate) fn modules(&self, names: &[&str]) -> Result<Vec<PathBuf>, Failure> {
        let mut files = Vec::new();
        for name in names {
            let output = Command::new(crate::setup::program("modprobe").unwrap_or_else(|| "modprobe".into()))
                .args(["-S", &self.version, "--show-depends", name])
                .output()
                .map_err(|error| Failure::new(format!("modprobe cannot be started: {error}")))?;
            if !output.status.success() {
                let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                return Err(Failure::new(format!("kernel {} has no module {name}: {why}", self.version)));
            }
            for file in files_of(&String::from_utf8_lossy(&output.stdout)) {
                if !files.contains(&file) {
                    files.push(file);
                }
            }
        }
        Ok(files)
    }
}

/// The files in what `modprobe --show-depends` prints: `insmod FILE OPTIONS`, or `builtin NAME` for what needs no loading.
fn files_of(output: &str) -> Vec<PathBuf> {
    output
        .lines()
        .filter_map(|line| line.trim().strip_prefix("insmod ")?.split_whitespace().next())
        .map(PathBuf::from)
        .collect()
}

/// The numbers of a version, so that `6.10.0-9` is newer than `6.9.0-12`.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_so_by_number() {
        let mut versions = ["6.9.0-12-amd64", "6.10.0-9-amd64", "6.1.0-56-amd64"];
        versions.sort_by_key(|version| numbers(version));
        assert_eq!(versions, ["6.1.0-56-amd64", "6.9.0-12-amd64", "6.10.0-9-amd64"]);
    }

    #[test]
    fn a_builtin_module_needs_no_file() {
        let output =
            "builtin crc32c\ninsmod /lib/modules/6/kernel/a.ko.xz \ninsmod /lib/modules/6/kernel/b.ko option=1\n";
        assert_eq!(
            files_of(output),
            ["/lib/modules/6/kernel/a.ko.xz", "/lib/modules/6/kernel/b.ko"].map(PathBuf::from)
        );
    }

    #[test]
    fn a_folder_without_kernels_has_none() {
        assert!(Kernel::newest(Path::new("/proc/self/fd"), Path::new("/proc")).is_none());
    }
}
