//! Starts the emulated machine, and has it run commands.
//!
//! **Invariants**
//! 1. Every machine ends. QEMU is killed at the limit and when the machine is dropped. If this
//!    program is no longer there, the machine turns itself off at its limit.
//! 2. Every command ends. One that prints nothing for too long is ended, and what its threads
//!    waited for is in its output.
//!
//! **Protocol.** A port (virtio-serial) and not the console, because the kernel writes into that at
//! any time, in the middle of any line. `inside.sh` has what goes over it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::command::Failure;
use crate::setup::kernel::{self, Kernel};
use crate::setup::{self, emulator};

/// The number of lines of the console that a failure shows.
const CONSOLE_LINES: usize = 40;
/// The status of a command that was ended because it printed nothing, as in `timeout(1)`.
pub(crate) const SILENT: i32 = 124;
/// The silence after which a command is ended that should not take long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// The link of the machine's RDMA device.
pub(crate) enum Link<'a> {
    /// A pair of virtual Ethernet devices inside one machine.
    Veth,
    /// A socket between two machines, with loss.
    Pair {
        /// The directory of the sockets.
        folder: &'a Path,
        /// The index of this machine, 0 or 1.
        index: u8,
    },
}

impl Link<'_> {
    /// Returns the machine's address on the link.
    pub(crate) fn address(&self) -> String {
        match self {
            Link::Veth => "192.168.77.1".to_owned(),
            Link::Pair { index, .. } => format!("192.168.78.{}", index + 1),
        }
    }
}

/// The description of a machine.
pub(crate) struct Spec<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) link: Link<'a>,
    /// Commands of the shell that set the environment of all programs.
    pub(crate) setting: String,
    /// Memory, in MiB. The host provides only what is used.
    pub(crate) memory_mib: u32,
    /// Time limit of the machine.
    pub(crate) limit: Duration,
}

/// A machine that is running.
pub(crate) struct Machine {
    qemu: Child,
    lines: Receiver<io::Result<String>>,
    setting: String,
    end: Instant,
    folder: TempDir,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Machine {
    /// Starts a machine. [`Machine::await_device`] is to be called next.
    #[expect(clippy::disallowed_methods, reason = "a time limit on a real process")]
    pub(crate) fn start(spec: &Spec<'_>) -> Result<Machine, Failure> {
        let folder = folder()?;
        let mut command = qemu(spec, folder.path(), false)?;
        command.arg("-serial").arg(format!("file:{}", folder.path().join("console").display()));
        command.args(["-device", "virtio-serial-pci", "-chardev", "stdio,id=port,signal=off"]);
        command.args(["-device", "virtserialport,chardev=port"]);
        let messages = File::create(folder.path().join("qemu")).map_err(failed("the messages of qemu"))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(messages);
        let mut qemu = command.spawn().map_err(failed("qemu"))?;
        let mut from = BufReader::new(qemu.stdout.take().expect("it was asked for above"));
        let (sender, lines) = channel();
        let reader = std::thread::Builder::new().name("port".into()).spawn(move || {
            let mut line = Vec::new();
            loop {
                line.clear();
                let read = from.read_until(b'\n', &mut line);
                let text = String::from_utf8_lossy(&line).into_owned();
                let is_end = !matches!(read, Ok(1..));
                if is_end || sender.send(read.map(|_| text)).is_err() {
                    return;
                }
            }
        });
        let machine = Machine { qemu, lines, setting: spec.setting.clone(), end: Instant::now() + spec.limit, folder };
        reader.map(|_| machine).map_err(failed("a thread"))
    }

    /// Returns when the device is there.
    pub(crate) fn await_device(&mut self) -> Result<(), Failure> {
        match self.answer(PATIENCE, &mut |_| {})? {
            0 => Ok(()),
            _ => Err(self.failure("its device did not come up")),
        }
    }

    /// Runs a command of the shell, and passes each line of its output to `on`. Returns its exit
    /// status, or [`SILENT`]. Fails if the machine is no longer there.
    pub(crate) fn run(&mut self, line: &str, silence: Duration, on: &mut dyn FnMut(&str)) -> Result<i32, Failure> {
        self.begin(line)?;
        self.answer(silence, on)
    }

    /// Runs a command, and returns its exit status and its output.
    pub(crate) fn output(&mut self, line: &str) -> Result<(i32, String), Failure> {
        let mut output = String::new();
        let status = self.run(line, PATIENCE, &mut |line| output += line)?;
        Ok((status, output))
    }

    /// Begins a command.
    pub(crate) fn begin(&mut self, line: &str) -> Result<(), Failure> {
        let line = format!("{}{line}", self.setting);
        self.send(&line)
    }

    /// Returns when the command that was begun has printed a line with `text`.
    pub(crate) fn await_line(&mut self, text: &str) -> Result<(), Failure> {
        let mut said = String::new();
        loop {
            match self.line(PATIENCE)? {
                Some(line) if line.contains(text) => return Ok(()),
                Some(line) if !line.starts_with(END) => said += &line,
                _ => return Err(self.failure(&format!("it should say {text:?}, and said:\n{said}"))),
            }
        }
    }

    fn send(&mut self, line: &str) -> Result<(), Failure> {
        let input = self.qemu.stdin.as_mut().expect("it was asked for, and is never taken");
        writeln!(input, "{line}").map_err(|error| self.failure(&format!("it takes no commands: {error}")))
    }

    /// Passes on the lines up to the end of a command, and returns its status.
    fn answer(&mut self, silence: Duration, on: &mut dyn FnMut(&str)) -> Result<i32, Failure> {
        /// The kernel tears down the verbs of killed processes.
        const TEAR_DOWN: Duration = Duration::from_secs(20);
        let mut silent = false;
        loop {
            match self.line(if silent { TEAR_DOWN } else { silence })? {
                Some(line) => match line.strip_prefix(END) {
                    None => on(&line),
                    Some(_) if silent => return Ok(SILENT),
                    Some(status) => return Ok(status.trim().parse().unwrap_or(1)),
                },
                None if silent => return Err(self.failure("it does not end a command")),
                None => {
                    on(&format!("ended: nothing new for {} s; what its threads waited for:\n", silence.as_secs()));
                    silent = true;
                    self.send("halt")?;
                }
            }
        }
    }

    /// Returns the next line; `None` if there is none for so long.
    #[expect(clippy::disallowed_methods, reason = "a time limit on a real process")]
    fn line(&mut self, silence: Duration) -> Result<Option<String>, Failure> {
        let left = self.end.saturating_duration_since(Instant::now());
        match self.lines.recv_timeout(silence.min(left)) {
            Ok(Ok(line)) => Ok(Some(line)),
            Ok(Err(error)) => Err(self.failure(&format!("its port is broken: {error}"))),
            Err(RecvTimeoutError::Disconnected) => Err(self.failure("it stopped")),
            Err(RecvTimeoutError::Timeout) if silence < left => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err(self.failure("its time is over")),
        }
    }

    /// Returns a failure with the relevant part of the console, and the messages of QEMU.
    fn failure(&self, why: &str) -> Failure {
        let read = |name: &str| fs::read(self.folder.path().join(name)).unwrap_or_default();
        let console = String::from_utf8_lossy(&read("console")).replace('\r', "");
        let (console, qemu) = (telling(&console).join("\n  console: "), read("qemu"));
        Failure::new(format!("the machine failed: {why}\n  console: {console}\n{}", String::from_utf8_lossy(&qemu)))
    }
}

/// What the line at the end of a command begins with.
const END: char = '\u{1}';

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
    let folder = folder()?;
    let status = qemu(spec, folder.path(), true)?.args(["-serial", "mon:stdio"]).status().map_err(failed("qemu"))?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("qemu: {status}"))) }
}

/// Creates the directory of a machine: its first files, its console. Its path is short, because the
/// paths of sockets must be short.
pub(crate) fn folder() -> Result<TempDir, Failure> {
    tempfile::Builder::new().prefix("bmi-rxe-").tempdir().map_err(failed("a temporary directory"))
}

fn failed(what: &str) -> impl Fn(io::Error) -> Failure {
    move |error| Failure::new(format!("{what}: {error}"))
}

/// Returns QEMU's command line, without the options for its output.
fn qemu(spec: &Spec<'_>, folder: &Path, shell: bool) -> Result<Command, Failure> {
    let image = image(spec.kernel, folder)?;
    let mut command = Command::new(emulator::path());
    // Plain emulation. Hardware support (KVM) exists on some machines and hangs there.
    command.args(["-accel", "tcg,thread=multi", "-cpu", "max", "-display", "none", "-monitor", "none"]);
    // With a single processor, Soft-RoCE starves the kernel's own threads while it sends lost
    // packets again.
    command.args(["-no-reboot", "-nodefaults", "-smp", "2", "-m", &spec.memory_mib.to_string()]);
    // The host may have several file systems, whose numbers of files are not unique together.
    command.args(["-virtfs", "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap"]);
    command.arg("-kernel").arg(&spec.kernel.image).arg("-initrd").arg(image);
    let link = match &spec.link {
        Link::Veth => {
            command.args(["-nic", "none"]);
            "veth"
        }
        Link::Pair { folder, index } => {
            let socket = |index: u8| folder.join(format!("link-{index}")).display().to_string();
            command.arg("-netdev").arg(format!(
                "dgram,id=link,local.type=unix,local.path={},remote.type=unix,remote.path={}",
                socket(*index),
                socket(1 - index)
            ));
            command.arg("-device").arg(format!("virtio-net-pci,netdev=link,mac=52:54:00:00:77:{:02x}", index + 1));
            "virtio"
        }
    };
    // The kernel hands what it does not know to init, as its environment.
    let mut words = format!(
        "RXE_FOLDER={} RXE_LINK={link} RXE_ADDRESS={} RXE_LIMIT={} RXE_MODULES={}",
        folder.display(),
        spec.link.address(),
        spec.limit.as_secs(),
        kernel::MODULES.join(",")
    );
    if shell {
        words += " RXE_SHELL=yes";
    }
    // On a busy host the timer comes too late for the kernel's check of it, and the kernel would
    // give up. The time stamp counter is not declared reliable, because its rate is measured
    // wrongly then, and the kernel's own watchdog notices that. A kernel that has found a bug in
    // itself stops at once, so that it does not go on without one of its threads.
    let kernel = "console=ttyS0 quiet panic=-1 oops=panic random.trust_cpu=on mitigations=off no_timer_check";
    command.arg("-append").arg(format!("{kernel} {words}"));
    Ok(command)
}

/// Writes what the kernel unpacks into memory: a shell and the modules that are needed to reach the
/// files of the host. Beside it, writes the scripts that go on from there.
fn image(kernel: &Kernel, folder: &Path) -> Result<PathBuf, Failure> {
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).map_err(failed(name));
    write("inside.sh", include_str!("inside.sh"))?;
    write("scenarios.sh", include_str!("scenarios.sh"))?;
    for name in ["bin", "dev", "host", "modules", "proc"] {
        fs::create_dir_all(folder.join("root").join(name)).map_err(failed(name))?;
    }
    let add = |from: &Path, name: &str| {
        fs::copy(from, folder.join("root").join(name)).map_err(failed(&from.display().to_string()))
    };
    let busybox = setup::program("busybox").ok_or_else(|| Failure::new("busybox is not installed"))?;
    add(&busybox, "bin/busybox")?;
    for (index, file) in kernel.modules(kernel::MODULES_FIRST)?.iter().enumerate() {
        add(file, &format!("modules/{index:02}-{}", file.file_name().unwrap_or_default().to_string_lossy()))?;
    }
    write("root/init", include_str!("init.sh"))?;
    let pack = "cd root && chmod 755 init && find . | busybox cpio -o -H newc >../image";
    let packed = Command::new("sh").args(["-c", pack]).current_dir(folder).stderr(Stdio::null()).status();
    match packed.map_err(failed("cpio"))?.success() {
        true => Ok(folder.join("image")),
        false => Err(Failure::new("busybox cannot pack the machine's first files")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
