//! Counts the system calls of a thread, by the kernel's own tracepoint.
//!
//! **Why counting apart.** As long as a counter is open, the kernel takes a slower way into every
//! system call, of every process. So a program counts in a round of its own, whose time means
//! nothing.
//!
//! **Invariants**
//! 1. The counter belongs to the thread that opened it, and counts no other.
//! 2. The only `unsafe` here is a system call that libc has no function for.
//!
//! **Source.** perf_event_open(2).

use std::fs::{self, File};
use std::io::{Error, Read, Result};
use std::os::fd::FromRawFd;

/// Where a kernel has its tracepoints.
const FOLDERS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// `PERF_TYPE_TRACEPOINT`.
const TRACEPOINT: u32 = 2;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// The first version of `struct perf_event_attr`, which every kernel takes.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
}

/// A counter of the system calls of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Counter(File);

impl Counter {
    /// Opens a counter, which counts from now on.
    ///
    /// # Errors
    /// If the kernel has no such tracepoint, or the user may not use it.
    pub(crate) fn open() -> Result<Counter> {
        let read = |folder: &&str| fs::read_to_string(format!("{folder}/events/raw_syscalls/sys_enter/id"));
        let ids: Vec<Result<String>> = FOLDERS.iter().map(read).collect();
        let refused = ids.iter().find_map(|id| id.as_ref().err()).map(Error::kind);
        let Some(id) = ids.iter().flatten().find_map(|id| id.trim().parse().ok()) else {
            let why = refused.unwrap_or(std::io::ErrorKind::NotFound);
            let text = "the tracepoint raw_syscalls:sys_enter cannot be read: it needs root, and tracefs at \
                        /sys/kernel/tracing, which `ip netns exec` hides";
            return Err(Error::new(why, text));
        };
        let size = u32::try_from(size_of::<Attributes>()).expect("64 bytes");
        let attributes = Attributes { kind: TRACEPOINT, size, config: id, ..Attributes::default() };
        let (this_thread, every_processor, no_group) = (0, -1, -1);
        // SAFETY: the kernel reads `size` bytes of `attributes`, which lives until the call
        // returns, and writes nothing. The layout is that of the first version of the structure.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                this_thread,
                every_processor,
                no_group,
                CLOSE_ON_EXEC,
            )
        };
        if fd < 0 {
            return Err(Error::last_os_error());
        }
        let fd = i32::try_from(fd).map_err(Error::other)?;
        // SAFETY: the kernel has just returned this descriptor, and nothing else owns it.
        Ok(Counter(unsafe { File::from_raw_fd(fd) }))
    }

    /// Returns the number of system calls since the counter was opened, without this one.
    ///
    /// # Errors
    /// If the kernel refuses to read the counter.
    pub(crate) fn read(&self) -> Result<u64> {
        let mut bytes = [0; 8];
        (&self.0).read_exact(&mut bytes)?;
        Ok(u64::from_ne_bytes(bytes).saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where counting is not allowed, the reason is told instead.
    #[test]
    fn system_calls_are_counted_or_the_reason_is_told() {
        match Counter::open() {
            Ok(counter) => {
                let before = counter.read().unwrap();
                (0..1000).for_each(|_| assert!(rustix::process::getppid().is_some()));
                let between = counter.read().unwrap() - before;
                assert_eq!(between, 1001, "a thousand, and the reading of the counter");
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
