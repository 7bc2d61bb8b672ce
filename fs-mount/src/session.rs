//! The life of a mount: requests are read, carried out side by side, and answered, until it is
//! unmounted.
//!
//! **Processes that are killed.** A process waits for the answer to its request, also after
//! `SIGKILL`. The kernel tells of a signal by INTERRUPT:
//!
//! ```text
//!   INTERRUPT ──▶ is SIGKILL pending for the process? ── yes ──▶ drop the request, answer EINTR
//!                         ▲                │ no
//!                         └── LOOK_AGAIN ──┘   until the request has ended
//! ```
//!
//! The kernel sends one INTERRUPT for each request, also for a signal that the process handles.
//! That must not end the request: programs do not expect `EINTR` of a file. And what kills the
//! process may come later. A signal that ends a process is a pending `SIGKILL` for each of its
//! threads.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable};
use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::fuse::{Device, Request, op};
use crate::served::Served;

/// How often it is looked whether a process that had a signal is being killed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The bit of `SIGKILL` in a set of signals.
const KILL: u64 = 1 << 8;

/// The requests in progress, with the processes that wait for them.
type Waiting = Mutex<BTreeMap<u64, (AbortHandle, u32)>>;

fn of_waiting<R>(waiting: &Waiting, f: impl FnOnce(&mut BTreeMap<u64, (AbortHandle, u32)>) -> R) -> R {
    f(&mut waiting.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Serves a mount until it is unmounted. `begun` is told whether the kernel offers what is needed.
///
/// # Errors
/// Those of the device.
pub(crate) async fn serve(
    device: Device,
    served: Arc<Served>,
    begun: oneshot::Sender<io::Result<()>>,
) -> io::Result<()> {
    let mut begun = Some(begun);
    let (device, waiting) = (Arc::new(device), Arc::new(Waiting::default()));
    while let Some(request) = device.next(&served.buffers).await? {
        match request.op {
            op::INIT => {
                let result = device.begin(&request, served.settings.coherence);
                // The program may have been told to end meanwhile.
                drop(begun.take().map(|begun| begun.send(result)));
            }
            op::FORGET | op::BATCH_FORGET => {
                if served.forget(&request).is_err() {
                    tracing::warn!("a list of nodes that is too short");
                }
            }
            op::INTERRUPT => {
                let (waiting, served) = (Arc::clone(&waiting), Arc::clone(&served));
                tokio::spawn(async move { interrupt(&waiting, &served, &request).await });
            }
            _ => begin(&device, &served, &waiting, request),
        }
    }
    Ok(())
}

/// Begins a request, and answers it when it has ended.
fn begin(device: &Arc<Device>, served: &Arc<Served>, waiting: &Arc<Waiting>, request: Request) {
    let (device, served, waiting) = (Arc::clone(device), Arc::clone(served), Arc::clone(waiting));
    let (abort, registration) = AbortHandle::new_pair();
    let unique = request.unique;
    tracing::trace!(op = request.op, node = request.node, unique, "request");
    of_waiting(&waiting, |waiting| waiting.insert(unique, (abort, request.pid)));
    tokio::spawn(async move {
        let answer = Abortable::new(served.serve(request), registration).await;
        of_waiting(&waiting, |waiting| waiting.remove(&unique));
        device.answer(unique, answer.unwrap_or(Err(Errno::INTR)), Some(&served.buffers));
    });
}

/// The process that waits for a request has a signal.
async fn interrupt(waiting: &Waiting, served: &Served, request: &Request) {
    let Ok(unique) = request.args().u64() else { return };
    while let Some(pid) = of_waiting(waiting, |waiting| waiting.get(&unique).map(|(_, pid)| *pid)) {
        if is_killed(pid) {
            of_waiting(waiting, |waiting| waiting.get(&unique).into_iter().for_each(|(abort, _)| abort.abort()));
            return;
        }
        served.client.endpoint().sleep(LOOK_AGAIN).await;
    }
}

/// Returns true if a process, or thread, is being killed, or cannot be seen from here.
fn is_killed(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let pending = status.lines().filter(|line| line.starts_with("SigPnd:") || line.starts_with("ShdPnd:"));
    let sets = pending.filter_map(|line| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok());
    sets.fold(0, |all, set| all | set) & KILL != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_lives_is_not_killed() {
        assert!(!is_killed(std::process::id()));
        assert!(is_killed(0) && is_killed(u32::MAX));
    }
}
