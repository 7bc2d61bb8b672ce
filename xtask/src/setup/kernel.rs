//! Finds the kernel that the machine boots, and its modules in the order in which they must be
//! loaded.
//!
//! **Why** Debian's own kernel: `linux-image-amd64` has Soft-RoCE as a module, on every machine
//! where the package can be installed. The kernel that runs there is often another one, without
//! Soft-RoCE.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::programs::program;
use crate::command::Failure;

/// A kernel with modules.
pub(crate) struct Kernel {
    /// The compressed kernel.
    pub(crate) image: PathBuf,
    version: String,
}

/// The modules with which the machine reaches the files of the host.
pub(crate) const MODULES_FIRST: &[&str] = &["virtio_pci", "9pnet_virtio", "9p"];
/// The modules that it loads from there. Without `crc32_generic`, adding the device fails, and the
/// kernel gives no reason.
#[rustfmt::skip]
pub(crate) const MODULES: &[&str] = &[
    "virtio_console", "crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm", "rdma_cm", "veth", "tun", "virtio_net",
    "sch_netem", "sch_tbf",
];

impl Kernel {
    /// Returns the newest kernel that is installed on the host.
    pub(crate) fn installed() -> Option<Kernel> {
        Kernel::newest(Path::new("/boot"), Path::new("/lib/modules"))
    }

    /// Returns the newest kernel in `boot` (`/boot`) with every module that a machine loads in
    /// `modules` (`/lib/modules`). Kernels for clouds (`-cloud-amd64`) have similar names and no
    /// Soft-RoCE.
    fn newest(boot: &Path, modules: &Path) -> Option<Kernel> {
        let entries = boot.read_dir().ok()?;
        entries
            .flatten()
            .filter_map(|entry| {
                let version = entry.file_name().to_str()?.strip_prefix("vmlinuz-")?.to_owned();
                let usable = version.ends_with("-amd64") && has_modules(&modules.join(&version));
                usable.then(|| Kernel { image: entry.path(), version })
            })
            .max_by_key(|kernel| numbers(&kernel.version))
    }

    /// Returns the files of `names` and of all modules that they need, each once, in the order of
    /// loading.
    pub(crate) fn modules(&self, names: &[&str]) -> Result<Vec<PathBuf>, Failure> {
        let mut files = Vec::new();
        for name in names {
            let output = Command::new(program("modprobe").unwrap_or_else(|| "modprobe".into()))
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

/// Returns true if a directory of modules has all modules that the machines load, as files or built
/// into the kernel.
fn has_modules(folder: &Path) -> bool {
    let list = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let (files, builtin) = (list("modules.dep"), list("modules.builtin"));
    // `kernel/drivers/net/veth.ko.xz: modules that it needs`
    let files = files.lines().filter_map(|line| line.split(':').next()).filter(|path| folder.join(path).is_file());
    // `kernel/lib/crc32c.ko`. Names of files have hyphens or underscores.
    let name = |path: &str| Some(path.rsplit('/').next()?.split(".ko").next()?.replace('-', "_"));
    let there: BTreeSet<String> = files.chain(builtin.lines()).filter_map(name).collect();
    [MODULES_FIRST, MODULES].concat().iter().all(|module| there.contains(*module))
}

/// Returns the files in the output of `modprobe --show-depends`: `insmod FILE OPTIONS`, or
/// `builtin NAME` for a module that needs no loading.
fn files_of(output: &str) -> Vec<PathBuf> {
    output
        .lines()
        .filter_map(|line| line.trim().strip_prefix("insmod ")?.split_whitespace().next())
        .map(PathBuf::from)
        .collect()
}

/// Returns the numbers of a version, so that `6.10.0-9` is newer than `6.9.0-12`.
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
    fn a_kernel_without_soft_roce_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let (boot, modules) = (folder.path().join("boot"), folder.path().join("modules"));
        let all = [MODULES_FIRST, MODULES].concat();
        let install = |version: &str, names: &[&str]| {
            std::fs::create_dir_all(modules.join(version)).unwrap();
            std::fs::create_dir_all(&boot).unwrap();
            std::fs::write(boot.join(format!("vmlinuz-{version}")), "").unwrap();
            let files: Vec<String> = names.iter().map(|name| format!("{}.ko.xz", name.replace('_', "-"))).collect();
            files.iter().for_each(|file| std::fs::write(modules.join(version).join(file), "").unwrap());
            let lines: String = files.iter().map(|file| format!("{file}: a.ko\n")).collect();
            std::fs::write(modules.join(version).join("modules.dep"), lines).unwrap();
        };
        install("6.1.0-30-cloud-amd64", &all[1..]);
        assert!(Kernel::newest(&boot, &modules).is_none());
        install("6.1.0-29-amd64", &all[1..]);
        std::fs::write(modules.join("6.1.0-29-amd64/modules.builtin"), format!("kernel/{}.ko\n", all[0])).unwrap();
        let found = Kernel::newest(&boot, &modules).map(|kernel| kernel.version);
        assert_eq!(found.as_deref(), Some("6.1.0-29-amd64"));
    }

    #[test]
    fn a_folder_without_kernels_has_none() {
        assert!(Kernel::newest(Path::new("/proc/self/fd"), Path::new("/proc")).is_none());
    }
}
