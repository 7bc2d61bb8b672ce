//! Installs what a bare machine lacks: components of the toolchain, other toolchains, packages of
//! Debian.
//!
//! **Probes.** Each package has a probe that tells whether the machine has what the package
//! provides. A program is *used*: it runs, and its answer is read. A program of the same name may
//! be a smaller one (busybox has a `modprobe` and an `ip`), or a shim that fails when it is called.
//! Libraries and headers are asked of dpkg. The name of a file proves little there: it may belong
//! to another package (`libclang-cpp.so` is not libclang), or be only one half of what is needed.
//!
//! **How to add a package.** Add its name, what it is for and its probe to [`PACKAGES`]. It is
//! installed if the user is root. Otherwise the step fails and prints the command to type.
//! Recommended packages are not installed. If one is needed, list it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::command::{Failure, Invocation};
use crate::rxe::{Kernel, machine};

/// What a package is needed for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Need {
    /// Programs that the tests run.
    Tests,
    /// The machine of `cargo xtask rxe`.
    Machine,
    /// Building the crate `ibverbs`, which the tests use as an independent peer in that machine.
    Peer,
    /// `cargo xtask compare` and the program `message_cost`, which count instructions.
    Counting,
    /// Namespaces and cables of `cargo xtask pair`.
    Pair,
    /// The programs of others with which `cargo xtask pair --check` measures.
    PairCheck,
}
use Need::{Counting, Machine, Pair, PairCheck, Peer, Tests};

/// A Debian package that is needed besides the toolchain.
struct Package {
    name: &'static str,
    needs: &'static [Need],
    why: &'static str,
    probe: Probe,
}

/// How to find out whether a machine has what a package provides.
enum Probe {
    /// Each of these programs answers to these arguments with this word.
    Answers(&'static [&'static str], &'static [&'static str], &'static str),
    /// This function returns true.
    Works(fn() -> bool),
    /// dpkg knows it.
    Installed,
}
use Probe::{Answers, Installed, Works};

#[rustfmt::skip]
const PACKAGES: &[Package] = &[
    Package { name: "git", needs: &[Tests], why: "checks out what is compared", probe: Answers(&["git"], &["--version"], "git version") },
    Package { name: "qemu-system-x86", needs: &[Machine], why: "the emulator", probe: Works(|| machine::obstacle().is_none()) },
    Package { name: "linux-image-amd64", needs: &[Machine], why: "a kernel with Soft-RoCE", probe: Works(|| Kernel::installed().is_some()) },
    Package { name: "busybox-static", needs: &[Machine], why: "the machine's first shell", probe: Works(has_applets) },
    Package { name: "kmod", needs: &[Machine], why: "modprobe", probe: Answers(&["modprobe"], &["--version"], "kmod version") },
    Package { name: "iproute2", needs: &[Machine, Pair], why: "ip, tc, rdma", probe: Answers(&["ip", "tc", "rdma"], &["-V"], "iproute2") },
    Package { name: "ibverbs-providers", needs: &[Machine], why: "the driver of Soft-RoCE", probe: Installed },
    Package { name: "ibverbs-utils", needs: &[Machine], why: "ibv_devinfo, ibv_rc_pingpong", probe: Installed },
    // `perftest` ends `--version` with status 1.
    Package { name: "perftest", needs: &[Machine], why: "what verbs are measured against", probe: Answers(&["ib_send_lat", "ib_write_bw"], &["--version"], "Version") },
    Package { name: "cmake", needs: &[Peer], why: "builds a part of ibverbs", probe: Answers(&["cmake"], &["--version"], "cmake version") },
    // cmake recommends the next one. The build of rdma-core looks for the others.
    Package { name: "make", needs: &[Peer], why: "is called by cmake", probe: Answers(&["make"], &["--version"], "GNU Make") },
    Package { name: "python3-minimal", needs: &[Peer], why: "is called by that build", probe: Answers(&["python3"], &["--version"], "Python 3") },
    Package { name: "pkg-config", needs: &[Peer], why: "finds libnl", probe: Answers(&["pkg-config"], &["--help"], "--exists") },
    Package { name: "libnl-route-3-dev", needs: &[Peer], why: "is linked with by that build", probe: Installed },
    Package { name: "libclang-dev", needs: &[Peer], why: "reads the headers of verbs", probe: Installed },
    Package { name: "libibverbs-dev", needs: &[Peer], why: "the headers of verbs, and the library to link with", probe: Installed },
    // The program `valgrind` only starts the tool, so `valgrind --version` does not show that the
    // tool is there.
    Package { name: "valgrind", needs: &[Counting], why: "counts instructions", probe: Works(has_callgrind) },
    Package { name: "iperf3", needs: &[PairCheck], why: "measures bandwidth", probe: Answers(&["iperf3"], &["--version"], "iperf 3") },
    Package { name: "sockperf", needs: &[PairCheck], why: "measures latency", probe: Answers(&["sockperf"], &["--version"], "sockperf") },
];

impl Package {
    fn is_there(&self) -> bool {
        match self.probe {
            Answers(programs, args, word) => programs.iter().all(|name| answers(name, args, word)),
            Works(works) => works(),
            Installed => {
                said("dpkg-query", &["-W", "-f", "${db:Status-Status}", self.name]).as_deref() == Some("installed")
            }
        }
    }
}

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
    install(root, Tests)
}

/// Installs the toolchain of a version, with the standard libraries of `targets`. Nothing is
/// compiled for those targets but metadata, so no linker and no C compiler for them is needed.
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

/// Returns the path of an executable file. It is looked for on `PATH`, and in the administrator's
/// directories, which are not on every user's path.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administrator = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    program_in(std::env::split_paths(&path).chain(administrator), name)
}

fn program_in(mut folders: impl Iterator<Item = PathBuf>, name: &str) -> Option<PathBuf> {
    folders.find_map(|folder| Some(folder.join(name)).filter(|file| is_executable(file)))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Returns what a program prints on both streams. Returns `None` if there is no such program or it
/// cannot be started.
fn said(name: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program(name)?).args(args).stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Returns true if a program of this name runs and its answer contains `word`. The exit status does
/// not count.
fn answers(name: &str, args: &[&str], word: &str) -> bool {
    said(name, args).is_some_and(|text| text.contains(word))
}

/// Returns true if busybox has the programs that the machine takes from it.
fn has_applets() -> bool {
    let applets = said("busybox", &["--list"]).unwrap_or_default();
    APPLETS.iter().all(|name| applets.lines().any(|applet| applet == *name))
}

const APPLETS: &[&str] = &["sh", "mount", "insmod", "unxz", "switch_root", "cpio", "poweroff"];

fn has_callgrind() -> bool {
    let args = ["--tool=callgrind", "--callgrind-out-file=/dev/null", "/bin/true"];
    let Some(path) = program("valgrind") else { return false };
    let ended = Command::new(path).args(args).stdin(Stdio::null()).output();
    ended.is_ok_and(|output| output.status.success())
}

/// Returns true if the user is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(program("sh").is_some());
        assert!(program("no-such-program").is_none());
    }

    #[test]
    fn a_file_or_a_folder_of_a_programs_name_is_no_program() {
        let scratch = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            let path = scratch.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        file("a/tool", 0o644);
        file("b/tool/readme", 0o644);
        file("c/tool", 0o755);
        let folders = ["a", "b", "c"].map(|name| scratch.path().join(name));
        assert_eq!(program_in(folders.clone().into_iter(), "tool"), Some(scratch.path().join("c/tool")));
        assert_eq!(program_in(folders[..2].iter().cloned(), "tool"), None);
    }

    /// The list of applets has the programs that the scripts call by name.
    #[test]
    fn the_scripts_name_the_applets() {
        let scripts =
            concat!(include_str!("rxe/init.sh"), include_str!("rxe/inside.sh"), include_str!("rxe/machine.rs"));
        let words: Vec<&str> = scripts.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        assert!(APPLETS.iter().all(|applet| words.contains(applet)));
    }

    #[test]
    fn a_program_of_the_same_name_gives_another_answer() {
        assert!(answers("sh", &["-c", "echo iproute2-6.1"], "iproute2"));
        assert!(!answers("sh", &["-c", "echo BusyBox v1.35"], "iproute2"));
        assert!(!answers("no-such-program", &[], ""));
    }

    #[test]
    fn each_purpose_has_its_packages() {
        for need in [Tests, Machine, Peer, Counting, Pair, PairCheck] {
            assert!(PACKAGES.iter().any(|package| package.needs.contains(&need)), "{need:?}");
        }
        let unknown = Package { name: "no-such-package", needs: &[Tests], why: "", probe: Installed };
        assert!(!unknown.is_there());
    }
}
