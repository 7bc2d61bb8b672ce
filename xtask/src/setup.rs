//! Installs what a bare machine lacks: components of the toolchain, other toolchains, packages of
//! Debian.
//!
//! **Probes.** Each package has a probe that tells whether the machine has what the package
//! provides. A probe *uses* it: it runs the program and reads its answer, or compiles and links
//! with the library. The name of a file proves little. The file may belong to another package
//! (`libclang-cpp.so` is not libclang), be a smaller program with the same name (busybox has a
//! `modprobe` and an `ip`), be a shim that fails when it is called, or be only one half of what is
//! needed.
//!
//! **How to add a package.** Add its name, its purpose and its probe to [`PACKAGES`],
//! [`MACHINE_PACKAGES`], [`PEER_PACKAGES`], [`COMPARE_PACKAGES`], [`PAIR_PACKAGES`] or
//! [`PAIR_CHECK_PACKAGES`]. It is installed if the user is root. Otherwise the step fails and
//! prints the command to type. Recommended packages are not installed. If one is needed, list it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::command::{Failure, Invocation};
use crate::rxe::{Kernel, machine};

/// A Debian package that a step needs besides the toolchain.
struct Package {
    name: &'static str,
    why: &'static str,
    works: fn() -> bool,
}

/// The packages of programs that the tests run.
const PACKAGES: &[Package] = &[Package {
    name: "git",
    why: "checks out what is compared",
    works: || answers("git", &["--version"], "git version"),
}];

/// The packages that `cargo xtask rxe` builds its machine from.
const MACHINE_PACKAGES: &[Package] = &[
    Package { name: "qemu-system-x86", why: "the emulator", works: || machine::obstacle().is_none() },
    Package { name: "linux-image-amd64", why: "a kernel with Soft-RoCE", works: || Kernel::installed().is_some() },
    Package {
        name: "busybox-static",
        why: "the machine's shell",
        works: || {
            let applets = said("busybox", &["--list"]).unwrap_or_default();
            init_applets().all(|name| applets.lines().any(|applet| applet == name))
        },
    },
    Package {
        name: "kmod",
        why: "modprobe and insmod",
        // The insmod of the machine is a copy of `kmod` under another name.
        works: || ["modprobe", "kmod"].iter().all(|name| answers(name, &["--version"], "kmod version")),
    },
    Package { name: "binutils", why: "strip", works: || answers("strip", &["--version"], "GNU strip") },
    Package {
        name: "iproute2",
        why: "ip, tc, rdma",
        works: || ["ip", "tc", "rdma"].iter().all(|name| answers(name, &["-V"], "iproute2")),
    },
    Package { name: "ibverbs-providers", why: "the driver of Soft-RoCE", works: || machine::provider().is_some() },
    Package {
        name: "ibverbs-utils",
        why: "ibv_devinfo, ibv_rc_pingpong",
        works: || ["ibv_devinfo", "ibv_rc_pingpong"].iter().all(|name| loads(name)),
    },
    Package {
        name: "perftest",
        why: "what verbs are measured against",
        works: || {
            let programs = ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_send_bw", "ib_write_bw", "ib_read_bw"];
            programs.iter().all(|name| answers(name, &["--version"], "Version"))
        },
    },
];

/// The packages that are needed to build the crate `ibverbs`, which the tests use as an independent
/// peer in that machine.
const PEER_PACKAGES: &[Package] = &[
    Package {
        name: "cmake",
        why: "builds a part of ibverbs",
        works: || answers("cmake", &["--version"], "cmake version"),
    },
    // cmake recommends the next one. The build of rdma-core looks for the others.
    Package { name: "make", why: "is called by cmake", works: || answers("make", &["--version"], "GNU Make") },
    Package {
        name: "python3-minimal",
        why: "is called by that build",
        works: || answers("python3", &["--version"], "Python 3"),
    },
    Package { name: "pkg-config", why: "finds libnl", works: || answers("pkg-config", &["--help"], "--exists") },
    Package {
        name: "libnl-route-3-dev",
        why: "is linked with by that build",
        works: || succeeds("pkg-config", &["--exists", "libnl-3.0", "libnl-route-3.0"]),
    },
    Package { name: "libclang-dev", why: "reads the headers of verbs", works: || has_libclang(&libclang_folders()) },
    Package {
        name: "libibverbs-dev",
        why: "the headers of verbs, and the library to link with",
        works: || links("#include <infiniband/verbs.h>\nint main(void) { return ibv_fork_init(); }", "ibverbs"),
    },
];

/// The package with which `cargo xtask compare` and the program `message_cost` count instructions.
const COMPARE_PACKAGES: &[Package] = &[Package {
    name: "valgrind",
    why: "counts instructions",
    // The program `valgrind` only starts the tool, so `valgrind --version` does not show that the
    // tool is there.
    works: || succeeds("valgrind", &["--tool=callgrind", "--callgrind-out-file=/dev/null", "/bin/true"]),
}];

/// The package with which `cargo xtask pair` makes namespaces and cables.
const PAIR_PACKAGES: &[Package] = &[Package {
    name: "iproute2",
    why: "ip, tc",
    works: || ["ip", "tc"].iter().all(|name| answers(name, &["-V"], "iproute2")),
}];

/// The programs of others with which `cargo xtask pair --check` measures.
const PAIR_CHECK_PACKAGES: &[Package] = &[
    Package { name: "iperf3", why: "measures bandwidth", works: || answers("iperf3", &["--version"], "iperf 3") },
    Package { name: "sockperf", why: "measures latency", works: || answers("sockperf", &["--version"], "sockperf") },
];

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
    install(root, PACKAGES)
}

/// Installs the packages of the emulated machine.
pub(crate) fn set_up_machine(root: &Path) -> Result<(), Failure> {
    install(root, MACHINE_PACKAGES)
}

/// Installs the packages that are needed to build the independent peer.
pub(crate) fn set_up_peer(root: &Path) -> Result<(), Failure> {
    install(root, PEER_PACKAGES)
}

/// Installs the package that counts instructions.
pub(crate) fn set_up_compare(root: &Path) -> Result<(), Failure> {
    install(root, COMPARE_PACKAGES)
}

/// Installs the package that makes namespaces and cables.
pub(crate) fn set_up_pair(root: &Path) -> Result<(), Failure> {
    install(root, PAIR_PACKAGES)
}

/// Installs the programs that measure a pair.
pub(crate) fn set_up_pair_check(root: &Path) -> Result<(), Failure> {
    install(root, PAIR_CHECK_PACKAGES)
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

fn install(root: &Path, packages: &[Package]) -> Result<(), Failure> {
    let missing: Vec<&Package> = packages.iter().filter(|package| !(package.works)()).collect();
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
    match packages.iter().find(|package| !(package.works)()) {
        Some(package) => {
            let Package { name, why, .. } = package;
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
/// not count: `perftest` ends `--version` with status 1.
fn answers(name: &str, args: &[&str], word: &str) -> bool {
    said(name, args).is_some_and(|text| text.contains(word))
}

/// Returns true if there is a program of this name and it ends with success.
fn succeeds(name: &str, args: &[&str]) -> bool {
    let Some(path) = program(name) else { return false };
    let silent =
        |command: &mut Command| command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    silent(Command::new(path).args(args)).is_ok_and(|status| status.success())
}

/// Returns true if there is a program of this name and the loader finds all of its libraries.
fn loads(name: &str) -> bool {
    program(name).is_some_and(|path| is_loadable(&path))
}

/// Returns true if a file is a program or a shared object and the loader finds all of its
/// libraries.
pub(crate) fn is_loadable(file: &Path) -> bool {
    // ldd fails for scripts, and for objects of other architectures.
    let text = said("ldd", &[&file.to_string_lossy()]).unwrap_or_default();
    text.contains("=> /") && !text.contains("not found")
}

/// Returns the programs that the machine's init script takes from busybox.
fn init_applets() -> impl Iterator<Item = &'static str> {
    ["sh", "mount", "mkdir", "sleep", "poweroff", "hostname", "setsid", "cttyhack"].into_iter()
}

/// Returns true if a C program compiles and links with a library.
fn links(source: &str, library: &str) -> bool {
    let Some(compiler) = program("cc") else { return false };
    let child = Command::new(compiler)
        .args(["-x", "c", "-o", "/dev/null", "-"])
        .arg(format!("-l{library}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let written = child.stdin.take().is_some_and(|mut input| input.write_all(source.as_bytes()).is_ok());
    child.wait().is_ok_and(|status| status.success()) && written
}

/// Returns the directories of LLVM's versions, where Debian puts them.
fn libclang_folders() -> Vec<PathBuf> {
    let entries = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| llvm_version(path).is_some()).collect()
}

/// Returns the number in `llvm-14`.
fn llvm_version(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.strip_prefix("llvm-")?.parse().ok()
}

/// Returns true if the newest libclang in these directories has clang's own headers beside it.
/// Without them it can read no header of the system. bindgen takes the newest one.
fn has_libclang(folders: &[PathBuf]) -> bool {
    let entries = |folder: PathBuf| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        // Links whose target is missing do not count.
        entries.map(|entry| entry.path()).filter(|path| path.exists()).collect::<Vec<_>>()
    };
    let has_library = |folder: &&PathBuf| {
        let mut files = entries(folder.join("lib")).into_iter();
        files.any(|path| path.file_name().is_some_and(|name| is_libclang(&name.to_string_lossy())))
    };
    let newest = folders.iter().filter(has_library).max_by_key(|folder| llvm_version(folder));
    let has_headers = |folder: &PathBuf| {
        entries(folder.join("lib/clang")).iter().any(|version| version.join("include/stddef.h").is_file())
    };
    newest.is_some_and(has_headers)
}

/// Returns true for `libclang.so`, `libclang.so.1`, `libclang-14.so.1` and similar names, which
/// bindgen looks for. Returns false for `libclang-cpp.so.14` and `libclangBasic.a`.
fn is_libclang(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("libclang") else { return false };
    let rest = match rest.strip_prefix('-') {
        Some(version) => version.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.'),
        None => rest,
    };
    // Trimming a version also removes the full stop after it.
    let suffix = if name.starts_with("libclang-") { "so" } else { ".so" };
    rest.strip_prefix(suffix).is_some_and(|end| end.is_empty() || end.starts_with('.'))
}

/// Returns true if the user is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A directory of this test alone, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("bmi-setup-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }

        fn file(&self, name: &str, mode: u32) {
            let path = self.0.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(program("sh").is_some());
        assert!(program("no-such-program").is_none());
    }

    #[test]
    fn a_file_or_a_folder_of_a_programs_name_is_no_program() {
        let scratch = Scratch::new("programs");
        scratch.file("a/tool", 0o644);
        scratch.file("b/tool/readme", 0o644);
        scratch.file("c/tool", 0o755);
        let folders = ["a", "b", "c"].map(|name| scratch.0.join(name));
        assert_eq!(program_in(folders.clone().into_iter(), "tool"), Some(scratch.0.join("c/tool")));
        assert_eq!(program_in(folders[..2].iter().cloned(), "tool"), None);
    }

    #[test]
    fn a_script_or_nothing_cannot_be_loaded() {
        let scratch = Scratch::new("loads");
        scratch.file("tool", 0o755);
        assert!(!is_loadable(&scratch.0.join("tool")));
        assert!(is_loadable(&std::env::current_exe().unwrap()));
        assert!(loads("cat") && !loads("no-such-program"));
    }

    /// The list of applets has exactly the programs that the script calls by name.
    #[test]
    fn the_init_script_names_the_applets() {
        let script = include_str!("rxe/init.sh");
        let words: Vec<&str> = script.split(|c: char| !c.is_ascii_alphanumeric()).collect();
        assert!(init_applets().all(|applet| words.contains(&applet)));
    }

    #[test]
    fn a_program_of_the_same_name_gives_another_answer() {
        assert!(answers("sh", &["-c", "echo iproute2-6.1"], "iproute2"));
        assert!(!answers("sh", &["-c", "echo BusyBox v1.35"], "iproute2"));
        assert!(!answers("no-such-program", &[], ""));
    }

    #[test]
    fn a_library_is_there_if_a_program_links_with_it() {
        assert!(links("#include <math.h>\nint main(void) { return (int)sqrt(0.0); }", "m"));
        assert!(!links("int main(void) { return 0; }", "no-such-library"));
        assert!(!links("#include <no/such/header.h>\nint main(void) { return 0; }", "m"));
    }

    /// On a machine with LLVM's run-time library, the test command ended with "Unable to find
    /// libclang", because the probe took `libclang-cpp.so.14` for libclang.
    #[test]
    fn libclang_cpp_is_not_libclang() {
        for name in ["libclang.so", "libclang.so.1", "libclang-14.so", "libclang-14.so.1", "libclang-14.so.14.0.6"] {
            assert!(is_libclang(name), "{name}");
        }
        for name in
            ["libclang-cpp.so.14", "libclang-cpp.so", "libclang_rt.asan.so", "libclangBasic.a", "libclang", "clang.so"]
        {
            assert!(!is_libclang(name), "{name}");
        }
    }

    #[test]
    fn libclang_needs_its_library_and_its_headers_in_one_version() {
        let scratch = Scratch::new("libclang");
        let folders = ["llvm-13", "llvm-14"].map(|name| scratch.0.join(name));
        scratch.file("llvm-14/lib/libclang-cpp.so.14", 0o644);
        scratch.file("llvm-14/lib/clang/14.0.6/include/stddef.h", 0o644);
        scratch.file("llvm-13/lib/libclang.so.1", 0o644);
        assert!(!has_libclang(&folders), "the library of one version, the headers of another");
        symlink("missing", scratch.0.join("llvm-14/lib/libclang.so")).unwrap();
        assert!(!has_libclang(&folders), "a link to nothing");
        scratch.file("llvm-14/lib/libclang-14.so.1", 0o644);
        assert!(has_libclang(&folders));
        scratch.file("llvm-15/lib/libclang-15.so.1", 0o644);
        let newer = [&folders[..], &[scratch.0.join("llvm-15")]].concat();
        assert!(!has_libclang(&newer), "a newer library without headers");
    }
}
