//! Runs programs inside the machine, and ends all processes that they leave behind.
//!
//! **Invariant.** Nothing here waits for the end of a program's output, because a process that the
//! program left behind may hold it open without end. Processes that are left over are killed first.
//! The output of a test goes to a file.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use super::Channel;
use crate::rxe::wire::Record;

/// The exit status of a program that was killed at its limit, as in `timeout(1)`.
pub(crate) const LIMIT_STATUS: i32 = 124;
/// The exit status of a program that could not be started, as in the shell.
const NOT_FOUND_STATUS: i32 = 127;
/// The bytes of a program's output that a report keeps: its end.
const OUTPUT_KEPT: u64 = 64 << 10;

/// A program that has ended.
pub(crate) struct Finished {
    /// Its exit status. It is 128 and the signal's number after a signal, and [`LIMIT_STATUS`] at
    /// the limit.
    pub(crate) status: i32,
    /// The end of its output, of both streams.
    pub(crate) output: String,
}

/// Creates a command of these words with this environment, and without input.
pub(crate) fn command(args: &[impl AsRef<str>], env: &[(String, String)]) -> Command {
    let mut command = Command::new(args.first().map_or("", AsRef::as_ref));
    command.args(args.iter().skip(1).map(AsRef::as_ref)).stdin(Stdio::null());
    command.envs(env.iter().map(|(name, value)| (name, value)));
    command
}

/// Runs `command`, keeps its output, and kills it at the limit.
pub(crate) fn captured(mut command: Command, limit: Duration) -> Finished {
    let mut run = || -> std::io::Result<Finished> {
        let mut file = scratch()?;
        // The process group is its own, so that processes that it leaves behind can be ended while
        // others run.
        command.process_group(0);
        command.stdout(file.try_clone()?).stderr(file.try_clone()?);
        let mut child = command.spawn()?;
        let mut waits = String::new();
        let status = wait_or(&mut child, limit, &mut || waits = waiting())?;
        if let Some(group) = pid(child.id()) {
            // Usually there is none left, and this fails.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let mut output = tail(&mut file)?;
        if status == LIMIT_STATUS {
            output +=
                &format!("\nkilled: it took longer than {} s; what its threads waited for:\n{waits}", limit.as_secs());
        }
        Ok(Finished { status, output })
    };
    run().unwrap_or_else(|error| Finished {
        status: NOT_FOUND_STATUS,
        output: format!("{}: {error}\n", command.get_program().to_string_lossy()),
    })
}

/// Runs a program, sends its output as it is printed, and kills the program at the limit. Returns
/// its exit status.
pub(crate) fn streamed(args: &[String], env: &[(String, String)], limit: Duration, channel: &Channel) -> i32 {
    let mut command = command(args, env);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            channel.send(&Record::Err(format!("{}: {error}\n", args.join(" ")).into_bytes()));
            return NOT_FOUND_STATUS;
        }
    };
    let readers = [
        child.stdout.take().map(|from| pass_on(from, Record::Out, channel.clone())),
        child.stderr.take().map(|from| pass_on(from, Record::Err, channel.clone())),
    ];
    let status = wait(&mut child, limit).unwrap_or(NOT_FOUND_STATUS);
    end_leftovers();
    for reader in readers.into_iter().flatten().flatten() {
        let _ = reader.join();
    }
    status
}

/// Sends the output in the pieces in which it is read.
fn pass_on(
    mut from: impl Read + Send + 'static,
    record: fn(Vec<u8>) -> Record,
    channel: Channel,
) -> std::io::Result<std::thread::JoinHandle<()>> {
    Builder::new().name("output".into()).spawn(move || {
        let mut piece = vec![0; 16 << 10];
        while let Ok(len @ 1..) = from.read(&mut piece) {
            channel.send(&record(piece[..len].to_vec()));
        }
    })
}

/// Waits for the end of `child`, and kills it at the limit.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> std::io::Result<i32> {
    wait_or(child, limit, &mut || {})
}

/// Waits as [`wait`] does. At the limit, calls `last` before anything is killed.
#[expect(clippy::disallowed_methods, reason = "a time limit on a real process")]
fn wait_or(child: &mut Child, limit: Duration, last: &mut dyn FnMut()) -> std::io::Result<i32> {
    /// Time limit for the end of a killed process. The kernel first tears down its verbs. If a
    /// process does not end, it is left behind.
    const TEAR_DOWN: Duration = Duration::from_secs(10);
    let mut end = Instant::now() + limit;
    let mut killed = false;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(if killed { LIMIT_STATUS } else { number(status) });
        }
        if Instant::now() >= end {
            if killed {
                return Ok(LIMIT_STATUS);
            }
            last();
            child.kill()?;
            killed = true;
            end = Instant::now() + TEAR_DOWN;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn number(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(NOT_FOUND_STATUS)
}

/// Creates a file without a name.
fn scratch() -> std::io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let path = format!("/tmp/.output-{}", NEXT.fetch_add(1, Ordering::Relaxed));
    let file = File::options().read(true).append(true).create_new(true).open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

/// Returns the end of a file, as text.
fn tail(file: &mut File) -> std::io::Result<String> {
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(OUTPUT_KEPT)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let cut =
        if len > OUTPUT_KEPT { format!("[the first {} bytes are cut]\n", len - OUTPUT_KEPT) } else { String::new() };
    Ok(cut + &String::from_utf8_lossy(&bytes))
}

/// Returns the processes that existed before the first job: init, its timer, this one, and those of
/// the kernel.
pub(crate) fn baseline() -> &'static HashSet<u32> {
    static BASELINE: OnceLock<HashSet<u32>> = OnceLock::new();
    BASELINE.get_or_init(|| processes().collect())
}

/// Returns what the threads of all processes except those of the [`baseline`] wait for, as far as
/// the kernel tells.
fn waiting() -> String {
    let mut text = String::new();
    for process in processes().filter(|process| !baseline().contains(process)) {
        for thread in fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten() {
            let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            // Only the innermost frames. The outermost ones are the same for all.
            let frames = read("stack").lines().take(4).map(|line| format!(" {line}")).collect::<String>();
            if !frames.is_empty() {
                text += &format!("  {process} {}:{frames}\n", read("comm").trim());
            }
        }
    }
    text
}

/// Kills all processes that are not in the [`baseline`], until there are none.
#[expect(clippy::disallowed_methods, reason = "a killed process takes a moment to go")]
pub(crate) fn end_leftovers() {
    const ROUNDS: u32 = 500;
    for _ in 0..ROUNDS {
        // The kernel starts threads at any time. They have no program, and neither have zombies
        // that init has not yet reaped.
        let left: Vec<Pid> = processes()
            .filter(|process| !baseline().contains(process))
            .filter(|process| fs::read_link(format!("/proc/{process}/exe")).is_ok())
            .filter_map(pid)
            .collect();
        if left.is_empty() {
            return;
        }
        for process in left {
            // It may have ended in the meantime.
            let _ = kill_process(process, Signal::KILL);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    eprintln!("inside: processes are left that cannot be killed");
}

fn pid(process: u32) -> Option<Pid> {
    i32::try_from(process).ok().and_then(Pid::from_raw)
}

fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}
