//! The resources of a benchmark on the machine: a temporary directory and child processes. Both are
//! removed when the benchmark ends, however it ends.
//!
//! **Why.** The directory is in memory and may hold gigabytes, and a server that is never stopped
//! does not end. Destructors cover a return, an error and a panic. A [time limit](crate::limit) and
//! a signal end the process from another thread, while the main thread may be about to start
//! another child.
//!
//! **Invariants**
//! 1. One lock guards the children and the directory. A child is started while the lock is held, so
//!    no child is missed.
//! 2. After the clean-up no child can be started.
//! 3. No operation that may hang is waited for while the lock is held.
//! 4. A thread that ends the process keeps the lock, so the main thread cannot end the process
//!    during the clean-up.
//!
//! Only SIGKILL leaves the children and the directory behind.
//!
//! **Tests.** Below. `tests/it/fs_bench.rs` ends a whole benchmark with a signal.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};

use crate::net;

/// A directory and processes. Dropping it kills the processes and removes the directory.
#[derive(Debug)]
pub struct Sandbox {
    folder: PathBuf,
    contents: Remains,
}

/// A handle of a sandbox for another thread, which may have to clean up and end the process.
#[derive(Clone, Debug)]
pub struct Remains(Arc<Mutex<Option<Contents>>>);

#[derive(Debug)]
struct Contents {
    children: Vec<Child>,
    folder: TempDir,
}

impl Contents {
    fn kill(&mut self) {
        for mut child in self.children.drain(..) {
            // The child may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Sandbox {
    /// Creates a sandbox with an empty directory whose name begins with `prefix`. The directory is
    /// [in memory](net::data_folder) if possible.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn new(prefix: &str) -> io::Result<Sandbox> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(net::data_folder())?;
        let path = folder.path().to_owned();
        let contents = Contents { children: Vec::new(), folder };
        Ok(Sandbox { folder: path, contents: Remains(Arc::new(Mutex::new(Some(contents)))) })
    }

    /// Returns the directory.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns a handle for the clean-up of a [time limit](crate::limit::Limit).
    pub fn remains(&self) -> Remains {
        self.contents.clone()
    }

    /// Starts a child with its standard output piped. Returns its id and the pipe.
    ///
    /// # Errors
    /// If the program cannot be started, or the sandbox is being cleaned up.
    pub fn spawn(&self, command: &mut Command) -> io::Result<(u32, ChildStdout)> {
        let mut contents = self.contents.lock();
        let contents = contents.as_mut().ok_or_else(|| io::Error::other("the run is being ended"))?;
        let name = command.get_program().display().to_string();
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
        let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (process, stdout) = (child.id(), child.stdout.take());
        contents.children.push(child);
        let stdout = stdout.ok_or_else(|| io::Error::other(format!("{name} has no standard output")))?;
        Ok((process, stdout))
    }

    /// Asks every child to end (SIGTERM), and waits until it has.
    ///
    /// # Errors
    /// If a child ends with an error.
    pub fn stop(&self) -> io::Result<()> {
        if let Some(contents) = self.contents.lock().as_ref() {
            for child in &contents.children {
                kill_process(Pid::from_child(child), Signal::TERM)?;
            }
        }
        let mut result = Ok(());
        while let Some(process) = self.first_child() {
            // Wait without the lock, because a thread that ends a hanging run needs it. Another
            // thread may have waited for the child in the meantime. Then there is no child.
            let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let _ = retry_on_intr(|| waitid(WaitId::Pid(process), ended));
            let mut contents = self.contents.lock();
            let Some(contents) = contents.as_mut().filter(|contents| !contents.children.is_empty()) else { break };
            let status = contents.children.remove(0).wait()?;
            if !status.success() {
                result = Err(io::Error::other(format!("a server ended with {status}")));
            }
        }
        result
    }

    fn first_child(&self) -> Option<Pid> {
        self.contents.lock().as_ref()?.children.first().map(Pid::from_child)
    }

    /// Kills every child.
    pub fn kill(&self) {
        if let Some(contents) = self.contents.lock().as_mut() {
            contents.kill();
        }
    }

    /// Installs handlers for SIGINT, SIGTERM and SIGHUP that clean up before they end the process.
    ///
    /// # Errors
    /// If the signals cannot be handled, or no thread can be started.
    pub fn end_on_signals(&self) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let remains = self.remains();
        let entered = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        drop(entered);
        Builder::new().name("signals".into()).spawn(move || {
            let number = runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => SignalKind::interrupt(),
                    _ = terminate.recv() => SignalKind::terminate(),
                    _ = hang_up.recv() => SignalKind::hangup(),
                }
            });
            remains.clear_and_hold();
            // The status that a shell reports for a process that a signal ended.
            std::process::exit(128 + number.as_raw_value());
        })?;
        Ok(())
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        clear(&mut self.contents.lock());
    }
}

impl Remains {
    fn lock(&self) -> MutexGuard<'_, Option<Contents>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills the children and removes the directory, for a thread that ends the process next.
    ///
    /// Every later use of the sandbox blocks, including its destructor. So the main thread waits
    /// for the end of the process.
    pub fn clear_and_hold(&self) {
        let mut contents = self.lock();
        clear(&mut contents);
        std::mem::forget(contents);
    }
}

fn clear(contents: &mut Option<Contents>) {
    if let Some(mut contents) = contents.take() {
        contents.kill();
        let folder = contents.folder.path().to_owned();
        if let Err(error) = contents.folder.close() {
            eprintln!("warning: {} is left behind: {error}", folder.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn sleeper(sandbox: &Sandbox) -> Pid {
        drop(sandbox.spawn(Command::new("sleep").arg("600")).unwrap());
        Pid::from_child(sandbox.contents.lock().as_ref().unwrap().children.last().unwrap())
    }

    /// Returns true if the process exists. A child that was waited for does not.
    fn is_there(process: Pid) -> bool {
        rustix::process::test_kill_process(process).is_ok()
    }

    #[test]
    fn dropping_a_sandbox_leaves_nothing() {
        let sandbox = Sandbox::new("sandbox-test-").unwrap();
        std::fs::write(sandbox.folder().join("file"), "bytes").unwrap();
        let (folder, process) = (sandbox.folder().to_owned(), sleeper(&sandbox));
        assert!(folder.is_dir() && is_there(process));
        drop(sandbox);
        assert!(!folder.exists() && !is_there(process));
    }

    #[test]
    fn after_the_clean_up_no_child_is_started() {
        let sandbox = Sandbox::new("sandbox-test-").unwrap();
        let process = sleeper(&sandbox);
        clear(&mut sandbox.contents.lock());
        assert!(!is_there(process));
        let error = sandbox.spawn(Command::new("sleep").arg("600")).unwrap_err();
        assert!(error.to_string().contains("being ended"), "{error}");
    }

    #[test]
    fn a_child_that_ends_badly_is_an_error() {
        let sandbox = Sandbox::new("sandbox-test-").unwrap();
        // It dies from the signal. A server ends in an orderly way instead.
        sleeper(&sandbox);
        assert!(sandbox.stop().is_err());
        sandbox.stop().unwrap();
    }

    #[test]
    fn a_child_that_does_not_end_when_asked_does_not_keep_a_limit_from_cleaning_up() {
        let sandbox = Sandbox::new("sandbox-test-").unwrap();
        let script = "trap 'echo asked' TERM; echo up; while :; do read line; done";
        let mut command = Command::new("sh");
        // The input stays open as long as the child is known.
        let (_, stdout) = sandbox.spawn(command.args(["-c", script]).stdin(Stdio::piped())).unwrap();
        let mut lines = BufReader::new(stdout).lines().map(Result::unwrap);
        assert_eq!(lines.next().as_deref(), Some("up"));
        std::thread::scope(|scope| {
            let stopping = scope.spawn(|| sandbox.stop());
            assert_eq!(lines.next().as_deref(), Some("asked"));
            clear(&mut sandbox.contents.lock());
            stopping.join().unwrap().unwrap();
        });
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let sandbox = Sandbox::new("sandbox-test-").unwrap();
        let error = sandbox.spawn(&mut Command::new("/nowhere/pvfsd")).unwrap_err();
        assert!(error.to_string().starts_with("/nowhere/pvfsd: "), "{error}");
    }
}
