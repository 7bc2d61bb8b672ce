//! What is counted: the time between [`begin`] and the drop of the [`Window`] that it returns.
//!
//! Callgrind sets its counters to zero when the program enters [`OPENED`], and writes them to a
//! file when it returns from [`CLOSED`]. Between the two there may be several threads, and a future
//! that is polled many times. A call of [`MARK`] before and behind them shows where the window is
//! in valgrind's list of system calls. The window also prints the processor time of the process,
//! which counts only if valgrind is not there.

use std::fs;
use std::hint::black_box;

/// The function in which the window begins, with the name that callgrind gives it.
pub(crate) const OPENED: &str = "benches::message_cost::window::opened";
/// The function in which it ends.
pub(crate) const CLOSED: &str = "benches::message_cost::window::closed";
/// The system call before and behind it, which nothing else here makes.
pub(crate) const MARK: &str = "getppid";
/// What the processor time in nanoseconds is printed behind.
pub(crate) const PROCESSOR: &str = "processor ";

/// A window that is open.
pub(crate) struct Window(u64);

/// Opens a window.
pub(crate) fn begin() -> Window {
    let window = Window(processor_time());
    let _ = rustix::process::getppid();
    opened();
    window
}

impl Drop for Window {
    fn drop(&mut self) {
        closed();
        let _ = rustix::process::getppid();
        println!("{PROCESSOR}{}", processor_time().saturating_sub(self.0));
    }
}

/// Returns the nanoseconds that the threads of this process have run, from their files. The clock
/// of the process is behind memory of the kernel that a program cannot reach under valgrind.
fn processor_time() -> u64 {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let first = |text: String| text.split_whitespace().next()?.parse::<u64>().ok();
    threads.filter_map(|thread| first(fs::read_to_string(thread.path().join("schedstat")).ok()?)).sum()
}

// The two differ, so that they are not merged into one.

#[inline(never)]
fn opened() {
    black_box(1);
}

#[inline(never)]
fn closed() {
    black_box(2);
}
