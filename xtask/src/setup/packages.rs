//! The table of packages.
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

use std::process::{Command, Stdio};

use super::emulator;
use super::kernel::Kernel;
use super::programs::{answers, program, said};

/// What a package is needed for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Need {
    /// Programs that the tests run.
    Tests,
    /// The machine of `cargo xtask rxe`.
    Machine,
    /// Compiling for the processors of others.
    Portable,
    /// Building the crate `ibverbs`, which the tests use as an independent peer in that machine.
    Peer,
    /// `cargo xtask compare` and the program `message_cost`, which count instructions.
    Counting,
    /// Namespaces and cables of `cargo xtask pair`.
    Pair,
    /// The programs of others with which `cargo xtask pair --check` measures.
    PairCheck,
    /// The environment of the Python package's tests.
    Python,
    /// The Debian package, which is checked and tried in a bare root.
    Deb,
}
use Need::{Counting, Deb, Machine, Pair, PairCheck, Peer, Portable, Python, Tests};

/// A Debian package that is needed besides the toolchain.
pub(super) struct Package {
    pub(super) name: &'static str,
    pub(super) needs: &'static [Need],
    pub(super) why: &'static str,
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
pub(super) const PACKAGES: &[Package] = &[
    Package { name: "git", needs: &[Tests], why: "checks out what is compared", probe: Answers(&["git"], &["--version"], "git version") },
    Package { name: "qemu-system-x86", needs: &[Machine], why: "the emulator", probe: Works(|| emulator::obstacle().is_none()) },
    Package { name: "linux-image-amd64", needs: &[Machine], why: "a kernel with Soft-RoCE", probe: Works(|| Kernel::installed().is_some()) },
    Package { name: "busybox-static", needs: &[Machine], why: "the machine's first shell", probe: Works(has_applets) },
    Package { name: "kmod", needs: &[Machine], why: "modprobe", probe: Answers(&["modprobe"], &["--version"], "kmod version") },
    Package { name: "iproute2", needs: &[Machine, Pair, Deb], why: "ip, tc, rdma", probe: Answers(&["ip", "tc", "rdma"], &["-V"], "iproute2") },
    Package { name: "ibverbs-providers", needs: &[Machine], why: "the driver of Soft-RoCE", probe: Installed },
    Package { name: "ibverbs-utils", needs: &[Machine], why: "ibv_devinfo, ibv_rc_pingpong", probe: Installed },
    // `perftest` ends `--version` with status 1.
    Package { name: "perftest", needs: &[Machine], why: "what verbs are measured against", probe: Answers(&["ib_send_lat", "ib_write_bw"], &["--version"], "Version") },
    // Cryptography has parts in C and in assembler, which `cargo check` compiles too.
    Package { name: "gcc-aarch64-linux-gnu", needs: &[Portable], why: "compiles the C in cryptography", probe: Answers(&["aarch64-linux-gnu-gcc"], &["--version"], "aarch64-linux-gnu-gcc") },
    Package { name: "libc6-dev-arm64-cross", needs: &[Portable], why: "the headers for it", probe: Installed },
    Package { name: "cmake", needs: &[Peer], why: "builds a part of ibverbs", probe: Answers(&["cmake"], &["--version"], "cmake version") },
    // cmake recommends the next one. The build of rdma-core looks for the others.
    Package { name: "make", needs: &[Peer], why: "is called by cmake", probe: Answers(&["make"], &["--version"], "GNU Make") },
    Package { name: "python3-minimal", needs: &[Peer], why: "is called by that build", probe: Answers(&["python3"], &["--version"], "Python 3") },
    Package { name: "pkg-config", needs: &[Peer], why: "finds libnl", probe: Answers(&["pkg-config"], &["--help"], "--exists") },
    Package { name: "libnl-route-3-dev", needs: &[Peer], why: "is linked with by that build", probe: Installed },
    Package { name: "libclang-dev", needs: &[Peer], why: "reads the headers of verbs", probe: Installed },
    Package { name: "libibverbs-dev", needs: &[Peer], why: "the headers of verbs, and the library to link with", probe: Installed },
    Package { name: "python3-venv", needs: &[Python], why: "makes an environment", probe: Answers(&["python3"], &["-m", "ensurepip", "--version"], "pip ") },
    // The program `valgrind` only starts the tool, so `valgrind --version` does not show that the
    // tool is there.
    Package { name: "valgrind", needs: &[Counting, Tests], why: "checks programs in C, counts instructions", probe: Works(has_callgrind) },
    Package { name: "iperf3", needs: &[PairCheck], why: "measures bandwidth", probe: Answers(&["iperf3"], &["--version"], "iperf 3") },
    Package { name: "debootstrap", needs: &[Deb], why: "makes a bare root", probe: Answers(&["debootstrap"], &["--version"], "debootstrap") },
    Package { name: "dpkg-dev", needs: &[Deb], why: "finds what the package depends on", probe: Answers(&["dpkg-shlibdeps"], &["--version"], "dpkg-shlibdeps") },
    Package { name: "lintian", needs: &[Deb], why: "checks the package", probe: Answers(&["lintian"], &["--version"], "Lintian") },
    Package { name: "sockperf", needs: &[PairCheck], why: "measures latency", probe: Answers(&["sockperf"], &["--version"], "sockperf") },
];

impl Package {
    pub(super) fn is_there(&self) -> bool {
        match self.probe {
            Answers(programs, args, word) => programs.iter().all(|name| answers(name, args, word)),
            Works(works) => works(),
            Installed => {
                said("dpkg-query", &["-W", "-f", "${db:Status-Status}", self.name]).as_deref() == Some("installed")
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of applets has the programs that the scripts call by name.
    #[test]
    fn the_scripts_name_the_applets() {
        let scripts = concat!(
            include_str!("../rxe/init.sh"),
            include_str!("../rxe/inside.sh"),
            include_str!("../rxe/machine.rs")
        );
        let words: Vec<&str> = scripts.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').collect();
        assert!(APPLETS.iter().all(|applet| words.contains(applet)));
    }

    #[test]
    fn each_purpose_has_its_packages() {
        for need in [Tests, Machine, Peer, Counting, Pair, PairCheck, Python, Deb] {
            assert!(PACKAGES.iter().any(|package| package.needs.contains(&need)), "{need:?}");
        }
        let unknown = Package { name: "no-such-package", needs: &[Tests], why: "", probe: Installed };
        assert!(!unknown.is_there());
    }
}
