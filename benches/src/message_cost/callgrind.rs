//! Runs one line under `valgrind --tool=callgrind`. The program is this one, started again to play
//! the line.
//!
//! **How it counts.** Callgrind sets its counters to zero when the program enters [`FUNCTION`], and
//! writes them to a file when the program returns from it. So the file counts nothing else. It has
//! the number of instructions and, with `--collect-systime`, that of the system calls. (Its option
//! `--toggle-collect` does not restrict the system calls.) The child calls the function several
//! times. All counts of a line are equal, or nearly so. The figure is the least, because a
//! disturbance, such as a packet that the kernel delivers late, adds to the count.

use std::fs::File;
use std::io::{Error, Result};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::line::Line;

/// The function whose work is counted, with the name that callgrind gives it.
pub(crate) const FUNCTION: &str = "benches::message_cost::counted";
/// The number of times that the child calls it.
pub(crate) const WINDOWS: usize = 3;
/// Time limit. A line takes a second or two.
const LIMIT: Duration = Duration::from_secs(60);

/// The counts of one call of the function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) instructions: u64,
    pub(crate) system_calls: u64,
}

/// Fails if there is no valgrind, and tells the user what to do.
///
/// # Errors
/// If there is none, or it does not start.
pub(crate) fn check() -> Result<()> {
    match Command::new("valgrind").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(Error::other(format!("valgrind --version: {status}"))),
        Err(error) => Err(Error::other(format!("cannot start valgrind: {error}; on Debian: apt-get install valgrind"))),
    }
}

/// Plays `count` operations of the line in each of [`WINDOWS`] windows.
///
/// # Errors
/// If the child fails, takes longer than the limit, or callgrind's files are not as expected.
pub(crate) fn run(line: &Line, count: usize) -> Result<[Count; WINDOWS]> {
    let folder = tempfile::Builder::new().prefix("message-cost-").tempdir()?;
    let (profile, log) = (folder.path().join("profile"), folder.path().join("log"));
    let out = File::create(&log)?;
    let mut child = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-systime=yes"])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(format!("--zero-before={FUNCTION}"))
        .arg(format!("--dump-after={FUNCTION}"))
        .arg(std::env::current_exe()?)
        .args(["--play", &line.name(), "--count", &count.to_string()])
        // If the child is killed, its files are removed with this directory.
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()?;
    let ended = wait(&mut child).and_then(|()| read_all(&profile));
    ended.map_err(|error| {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        Error::other(format!("{}: {error}\n{}", line.name(), log.trim_end()))
    })
}

/// Waits for the child to succeed, and kills it at the limit.
fn wait(child: &mut Child) -> Result<()> {
    let ended = wait_for_end(child);
    if !matches!(ended, Ok(true)) {
        child.kill()?;
    }
    let status = child.wait()?;
    match ended {
        Ok(true) if status.success() => Ok(()),
        Ok(true) => Err(Error::other(format!("valgrind: {status}"))),
        Ok(false) => Err(Error::other(format!("killed after {} s", LIMIT.as_secs()))),
        Err(error) => Err(error),
    }
}

/// Waits for the end of the child. Returns false if it still runs at the limit.
fn wait_for_end(child: &Child) -> Result<bool> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let limit = Timespec::try_from(LIMIT).map_err(Error::other)?;
    loop {
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)) {
            Err(rustix::io::Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

/// Reads the counts of all windows. Callgrind numbers its files from 1.
fn read_all(profile: &Path) -> Result<[Count; WINDOWS]> {
    let mut counts = [Count::default(); WINDOWS];
    for (count, number) in counts.iter_mut().zip(1..) {
        let path = profile.with_extension(number.to_string());
        let text = std::fs::read_to_string(&path)
            .map_err(|error| Error::other(format!("callgrind did not see the counted function: {error}")))?;
        *count = parse(&text).ok_or_else(|| Error::other("callgrind's file has no events or no summary"))?;
    }
    Ok(counts)
}

/// Parses the lines "events: Ir sysCount sysTime" and "summary: 1811 100". Zeros at the end of the
/// summary are left out.
fn parse(text: &str) -> Option<Count> {
    let rest_of = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
    let events: Vec<&str> = rest_of("events")?.split_whitespace().collect();
    let summary: Vec<u64> =
        rest_of("summary")?.split_whitespace().map(|cell| cell.parse().ok()).collect::<Option<_>>()?;
    let value = |name| {
        let at = events.iter().position(|event| *event == name)?;
        Some(summary.get(at).copied().unwrap_or(0))
    };
    Some(Count { instructions: value("Ir")?, system_calls: value("sysCount")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_read_by_the_names_of_its_events() {
        let file =
            |events: &str, summary: &str| format!("version: 1\nevents: {events}\nsummary: {summary}\n\nfn=(1) f\n");
        let count = |instructions, system_calls| Some(Count { instructions, system_calls });
        assert_eq!(parse(&file("Ir sysCount sysTime", "1811 100 7")), count(1811, 100));
        assert_eq!(parse(&file("sysCount Ir", "100 1811")), count(1811, 100));
    }

    #[test]
    fn zeros_that_callgrind_leaves_out_are_read() {
        let text = "events: Ir sysCount sysTime\nsummary: 12\n";
        assert_eq!(parse(text), Some(Count { instructions: 12, system_calls: 0 }));
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        for text in [
            "",
            "events: Ir sysCount\n",
            "summary: 1 2\n",
            "events: Ir\nsummary: 1\n",
            "events: Ir sysCount\nsummary: 1 x\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }
}
