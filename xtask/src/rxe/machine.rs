//! Starts the emulated machine and reads its reports to the end.
//!
//! **Invariants**
//! 1. Every machine ends. QEMU is killed at the limit. A little earlier, init turns the machine
//!    off, in case this program is no longer there.
//! 2. The directory of a run is removed at its end. If the run was killed, the next run removes it.
//! 3. A machine that stops without having sent `Done` has failed.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::image::Image;
use super::kernel::{self, Kernel};
use super::wire::{Plan, Record, Report};
use super::{Link, inside};
use crate::command::Failure;
use crate::setup;

/// The programs of every machine, besides busybox.
const PROGRAMS: &[&str] = &["ip", "tc", "rdma", "ibv_devinfo"];
/// The directories in which libibverbs looks for the driver of Soft-RoCE, and for the file that
/// names it.
const PROVIDERS: &str = "/usr/lib/x86_64-linux-gnu/libibverbs";
const DRIVERS: &str = "/etc/libibverbs.d";
/// The number of lines of the console that a failure shows.
const CONSOLE_LINES: usize = 40;

/// The description of a machine.
pub(crate) struct Spec<'a> {
    /// The kernel.
    pub(crate) kernel: &'a Kernel,
    /// The link of its device.
    pub(crate) link: Link,
    /// The plan to carry out; `None` for a shell on this terminal.
    pub(crate) plan: Option<&'a Plan>,
    /// Programs to copy into the machine: the name in `/bin`, or an absolute path, and the file.
    pub(crate) programs: &'a [(String, PathBuf)],
    /// The number of processors.
    pub(crate) cpus: u32,
    /// Memory, in MiB.
    pub(crate) memory_mib: u32,
    /// Time limit of the machine.
    pub(crate) limit: Duration,
}

/// A directory of this run alone.
///
/// The owner holds a lock on a file in it while it lives. If a run was killed, the lock is free,
/// and the next run removes the directory.
pub(crate) struct Folder {
    path: PathBuf,
    _lock: File,
}

/// The prefix of these directories, and the name of the file whose lock shows that there is an
/// owner.
const FOLDER: &str = "bmi-rxe-";
const LOCK: &str = "lock";

impl Folder {
    /// Creates a directory. `name` distinguishes those of one process. The path is short, because
    /// the paths of sockets must be short.
    pub(crate) fn new(name: &str) -> Result<Folder, Failure> {
        let all = std::env::temp_dir();
        remove_orphans(&all);
        Folder::within(&all, name).map_err(|error| Failure::new(format!("a folder in {}: {error}", all.display())))
    }

    fn within(all: &Path, name: &str) -> io::Result<Folder> {
        let name = format!("{FOLDER}{}-{name}", std::process::id());
        // It has another name until it is locked. Otherwise another run could remove it as an
        // orphan.
        let (hidden, path) = (all.join(format!(".{name}")), all.join(name));
        fs::create_dir(&hidden)?;
        let lock = File::create_new(hidden.join(LOCK))?;
        lock.lock()?;
        fs::rename(&hidden, &path)?;
        Ok(Folder { path, _lock: lock })
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes directories of this user whose owner is gone. Keeps a directory without a lock file, and
/// one whose lock is held by any process, also in another container.
fn remove_orphans(all: &Path) {
    let Ok(own) = fs::metadata("/proc/self").map(|metadata| metadata.uid()) else { return };
    for entry in fs::read_dir(all).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(FOLDER)
            && entry.metadata().is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == own);
        if !is_ours {
            continue;
        }
        let Ok(lock) = File::options().write(true).open(entry.path().join(LOCK)) else { continue };
        if lock.try_lock().is_ok() {
            // If only a part is removed, the next run tries again.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A machine that is running.
pub(crate) struct Machine {
    qemu: Child,
    records: Receiver<std::io::Result<Record>>,
    limit: Duration,
    folder: Folder,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Machine {
    /// Starts a machine that carries out its plan.
    pub(crate) fn start(spec: &Spec<'_>, name: &str) -> Result<Machine, Failure> {
        let folder = Folder::new(name)?;
        let mut command = qemu(spec, folder.path())?;
        let console = folder.path().join("console");
        command.arg("-serial").arg(format!("file:{}", console.display()));
        command.args(["-device", "virtio-serial-pci", "-chardev", "stdio,id=reports,signal=off"]);
        command.arg("-device").arg(format!("virtserialport,chardev=reports,name={}", inside::PORT));
        let messages = File::create(folder.path().join("qemu"))
            .map_err(|error| Failure::new(format!("{}: {error}", folder.path().display())))?;
        // The input stays open and is silent. At its end, QEMU would take the port for unplugged,
        // and the machine would wait without end.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(messages);
        let mut qemu = command.spawn().map_err(|error| Failure::new(format!("qemu cannot be started: {error}")))?;
        let stdout = qemu.stdout.take().expect("it was asked for one line above");
        let (sender, records) = channel();
        let reader = std::thread::Builder::new().name("records".into()).spawn(move || {
            let mut from: BufReader<ChildStdout> = BufReader::new(stdout);
            while let Some(record) = Record::read(&mut from).transpose() {
                let broken = record.is_err();
                if sender.send(record).is_err() || broken {
                    break;
                }
            }
        });
        let machine = Machine { qemu, records, limit: spec.limit, folder };
        reader.map(|_| machine).map_err(|error| Failure::new(format!("a thread cannot be started: {error}")))
    }

    /// Passes each record to `on` until the machine is off. Fails if it was not done by then. If
    /// `stop` becomes true, ends the machine.
    #[expect(clippy::disallowed_methods, reason = "a time limit on a real process")]
    pub(crate) fn follow(mut self, on: &mut dyn FnMut(Record), stop: Option<&AtomicBool>) -> Result<(), Failure> {
        const LOOK_AGAIN: Duration = Duration::from_millis(200);
        let end = Instant::now() + self.limit;
        let mut done = false;
        let why = loop {
            match self.records.recv_timeout(LOOK_AGAIN.min(end.saturating_duration_since(Instant::now()))) {
                Ok(Ok(Record::Report(Report::Done))) => done = true,
                Ok(Ok(record)) => on(record),
                Ok(Err(error)) => break format!("its channel is broken: {error}"),
                Err(RecvTimeoutError::Disconnected) if done => {
                    let _ = self.qemu.wait();
                    return Ok(());
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let _ = self.qemu.wait();
                    break "it stopped before it was done".to_owned();
                }
                Err(RecvTimeoutError::Timeout) if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) => {
                    break "the other machine gave up".to_owned();
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
                Err(RecvTimeoutError::Timeout) => break format!("it took longer than {} s", self.limit.as_secs()),
            }
        };
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        Err(Failure::new(format!("the machine failed: {why}\n{}", self.last_words())))
    }

    /// Returns the relevant part of the console, and the messages of QEMU.
    fn last_words(&self) -> String {
        let read = |name: &str| fs::read(self.folder.path().join(name)).unwrap_or_default();
        let console = String::from_utf8_lossy(&read("console")).replace('\r', "");
        format!("  console: {}\n{}", telling(&console).join("\n  console: "), String::from_utf8_lossy(&read("qemu")))
    }
}

/// Returns the lines from the first one in which the kernel reports an error, or else the last
/// lines.
fn telling(console: &str) -> Vec<&str> {
    const SIGNS: &[&str] = &["Kernel panic", "BUG:", "Oops", "general protection", "Out of memory", "unable to handle"];
    let lines: Vec<&str> = console.lines().collect();
    let sign = lines.iter().position(|line| SIGNS.iter().any(|sign| line.contains(sign)));
    let from = sign.unwrap_or_else(|| lines.len().saturating_sub(CONSOLE_LINES));
    lines.into_iter().skip(from).take(CONSOLE_LINES).collect()
}

/// Boots a machine with a shell on this terminal.
pub(crate) fn shell(spec: &Spec<'_>) -> Result<(), Failure> {
    let folder = Folder::new("shell")?;
    let status = qemu(spec, folder.path())?
        .args(["-serial", "mon:stdio"])
        .status()
        .map_err(|error| Failure::new(format!("qemu cannot be started: {error}")))?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("qemu: {status}"))) }
}

/// Returns why QEMU, which is installed, cannot emulate here; `None` if it can.
pub(crate) fn obstacle() -> Option<String> {
    let output = Command::new(emulator()).args(["-accel", "help"]).stdin(Stdio::null()).output();
    let said = match output {
        Ok(output) => [output.stdout, output.stderr].concat(),
        Err(error) => return Some(format!("qemu cannot be started: {error}")),
    };
    lacks(&String::from_utf8_lossy(&said))
}

/// Returns what is missing in QEMU's list of accelerators.
fn lacks(accelerators: &str) -> Option<String> {
    let has_tcg = accelerators.lines().any(|line| line.trim() == "tcg");
    (!has_tcg).then(|| format!("this QEMU does not emulate (tcg): {}", accelerators.trim()))
}

fn emulator() -> PathBuf {
    const EMULATOR: &str = "qemu-system-x86_64";
    setup::program(EMULATOR).unwrap_or_else(|| EMULATOR.into())
}

/// Returns QEMU's command line, without the options for its output.
fn qemu(spec: &Spec<'_>, folder: &Path) -> Result<Command, Failure> {
    let image = folder.join("image");
    image_of(spec)?.write(&image)?;
    let mut command = Command::new(emulator());
    // Plain emulation. Hardware support (KVM) exists on some machines and hangs there.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-display", "none", "-monitor", "none"]);
    command.args(["-no-reboot", "-nodefaults"]);
    command.args(["-smp", &spec.cpus.to_string(), "-m", &spec.memory_mib.to_string()]);
    command.arg("-kernel").arg(&spec.kernel.image).arg("-initrd").arg(&image);
    // On a busy host the timer comes too late for the kernel's check of it, and the kernel would
    // give up. The time stamp counter is not declared reliable, because its rate is measured
    // wrongly then, and the kernel's own watchdog notices that. A kernel that has found a bug in
    // itself stops at once, so that it does not go on without one of its threads.
    command.args([
        "-append",
        "console=ttyS0 quiet panic=-1 oops=panic random.trust_cpu=on mitigations=off no_timer_check",
    ]);
    if let Link::Pair { own, peer, index } = &spec.link {
        let socket = |path: &Path| path.display().to_string();
        command.arg("-netdev").arg(format!(
            "dgram,id=link,local.type=unix,local.path={},remote.type=unix,remote.path={}",
            socket(own),
            socket(peer)
        ));
        command.arg("-device").arg(format!("virtio-net-pci,netdev=link,mac=52:54:00:00:77:{:02x}", index + 1));
    } else {
        command.args(["-nic", "none"]);
    }
    Ok(command)
}

/// Builds the root file system of a machine.
fn image_of(spec: &Spec<'_>) -> Result<Image, Failure> {
    let mut image = Image::default();
    image.console();
    ["/dev", "/proc", "/sys", "/tmp", "/root", "/etc", "/usr/bin"].iter().for_each(|folder| image.folder(folder));
    image.text("/init", include_str!("init.sh"), 0o755);
    image.text("/etc/link", spec.link.line(), 0o644);
    image.text(inside::ADDRESS_FILE, spec.link.address(), 0o644);
    image.text("/etc/limit", format!("{}\n", spec.limit.as_secs()), 0o644);
    image.text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644);
    image.text("/etc/group", "root:x:0:\n", 0o644);
    image.text("/etc/hosts", "127.0.0.1 localhost rxe\n", 0o644);
    let needed = match spec.link {
        Link::Veth => kernel::MODULES_ALONE,
        Link::Pair { .. } => kernel::MODULES_PAIR,
    };
    let mut order = String::new();
    for (index, file) in spec.kernel.modules(&[kernel::MODULES, needed].concat())?.iter().enumerate() {
        let name = format!("{index:02}-{}", file.file_name().unwrap_or_default().to_string_lossy());
        image.file(&format!("/modules/{name}"), file);
        order += &format!("{name}\n");
    }
    image.text("/etc/modules", order, 0o644);
    match spec.plan {
        Some(plan) => {
            let json = serde_json::to_vec(plan).map_err(|error| Failure::new(format!("the plan: {error}")))?;
            image.text(inside::PLAN, json, 0o644);
        }
        None => image.text("/etc/shell", "", 0o644),
    }
    let found = |name: &str| setup::program(name).ok_or_else(|| Failure::new(format!("{name} is not installed")));
    image.program("/bin/busybox", &found("busybox")?);
    // Under this name, kmod loads one file. Unlike busybox, it reads every compression that Debian
    // has used.
    image.program("/usr/sbin/insmod", &found("kmod")?);
    for name in PROGRAMS {
        image.program(&format!("/usr/bin/{name}"), &found(name)?);
    }
    let provider = provider().ok_or_else(|| Failure::new("no driver of Soft-RoCE for libibverbs"))?;
    image.program(&provider.to_string_lossy(), &provider);
    image.text(&format!("{DRIVERS}/rxe.driver"), "driver rxe\n", 0o644);
    for (inside, file) in spec.programs {
        let inside = if inside.starts_with('/') { inside.clone() } else { format!("/bin/{inside}") };
        image.program(&inside, file);
    }
    add_corpus(&mut image)?;
    Ok(image)
}

/// Where the corpora of fuzz targets are in the machine. The tests learn it from the variable.
pub(super) const CORPORA: (&str, &str) = ("BMI_CORPORA", "/corpora");

/// Adds the corpus that the unit tests of `bmi-ib` replay.
fn add_corpus(image: &mut Image) -> Result<(), Failure> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/ib_message");
    let files = corpus.read_dir().map_err(|error| Failure::new(format!("{}: {error}", corpus.display())))?;
    for file in files.flatten() {
        let inside = format!("{}/ib_message/{}", CORPORA.1, file.file_name().to_string_lossy());
        image.file(&inside, &file.path());
    }
    Ok(())
}

/// Returns the driver of Soft-RoCE for libibverbs. Its name ends in the version of the interface. A
/// driver for another version of libibverbs does not load.
pub(crate) fn provider() -> Option<PathBuf> {
    let entries = Path::new(PROVIDERS).read_dir().ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("librxe") && name.ends_with(".so")) && setup::is_loadable(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_without_an_owner_are_orphans() {
        let all = std::env::temp_dir().join(format!("rxe-folders-{}", std::process::id()));
        fs::create_dir(&all).unwrap();
        let kept = Folder::within(&all, "kept").unwrap();
        // This is the state after a run was killed: the lock went with its process.
        let orphan = all.join(format!("{FOLDER}1-orphan"));
        for folder in [&orphan, &all.join(format!("{FOLDER}2-of-somebody-else")), &all.join("other")] {
            fs::create_dir(folder).unwrap();
            fs::write(folder.join("image"), "").unwrap();
        }
        fs::write(orphan.join(LOCK), "").unwrap();
        remove_orphans(&all);
        let left = |name: &str| all.join(name).exists();
        assert!(kept.path().exists(), "its owner lives");
        assert!(!orphan.exists(), "its owner is gone");
        assert!(left("other") && left(&format!("{FOLDER}2-of-somebody-else")), "without a lock nobody knows");
        let path = kept.path().to_owned();
        drop(kept);
        assert!(!path.exists());
        fs::remove_dir_all(&all).unwrap();
    }

    #[test]
    fn a_qemu_that_cannot_emulate_says_why() {
        assert_eq!(lacks("Accelerators supported in QEMU binary:\ntcg\nxen\nkvm\n"), None);
        let why = lacks("Accelerators supported in QEMU binary:\nkvm\n").unwrap();
        assert!(why.contains("kvm"), "{why}");
        assert!(lacks("error while loading shared libraries: libfdt.so.1").unwrap().contains("libfdt"));
    }

    #[test]
    fn a_panic_is_shown_from_its_first_line() {
        let trace = "  frame\n".repeat(100);
        let console = format!("booted\n[    6.8] Kernel panic - not syncing: sysrq\n{trace}");
        let shown = telling(&console);
        assert_eq!((shown.len(), shown[0]), (CONSOLE_LINES, "[    6.8] Kernel panic - not syncing: sysrq"));
        assert_eq!(telling(&trace).len(), CONSOLE_LINES);
        assert_eq!(telling("booted\nready"), ["booted", "ready"]);
    }
}
