//! Completions of operations that were posted, and a descriptor that tells of them.
//!
//! **How.** The operations of a queue are futures that are polled in the program's calls: when one
//! is posted, and by `pvfs_complete`. Their waker makes the descriptor readable, once until the
//! next call. So no thread is woken but the one that waits for the descriptor.

use std::collections::VecDeque;
use std::ffi::{CString, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use bmi::Handle;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rustix::event::{EventfdFlags, eventfd};

use crate::boundary::{Failure, Out, Outcome, c_text, call, call_int, given, invalid};
use crate::client::pvfs_client;

/// Where the completion of an operation goes. A function that is given NULL in its place waits, and
/// returns the result. Otherwise it posts the operation, and returns 0, or the reason why it was
/// not posted. Then the arguments must stay as they are until the completion, except for texts and
/// for lists of pieces and regions.
#[repr(C)]
pub struct pvfs_async {
    /// The queue. It belongs to any client.
    pub queue: *const pvfs_queue,
    /// Comes back with the completion.
    pub user: *mut c_void,
}

/// A queue of completions. Any thread may use it, and several at the same time.
pub struct pvfs_queue {
    handle: Handle,
    bell: Arc<Bell>,
    waker: Waker,
    work: Mutex<Work>,
}

/// The completion of an operation.
#[repr(C)]
pub struct pvfs_done {
    /// What was given when it was posted.
    pub user: *mut c_void,
    /// What the call would have returned, had it waited.
    pub result: i64,
    /// The text of the error, until this thread calls `pvfs_complete` again. NULL if it succeeded.
    pub error: *const c_char,
}

/// What was given with an operation, and its outcome.
struct Ended(*mut c_void, Outcome<i64>);

// SAFETY: the pointer is only handed back.
unsafe impl Send for Ended {}

#[derive(Default)]
struct Work {
    running: FuturesUnordered<Pin<Box<dyn Future<Output = Ended> + Send>>>,
    ended: VecDeque<Ended>,
}

impl Work {
    /// Polls what can go on.
    fn progress(&mut self, waker: &Waker) -> Poll<()> {
        let mut cx = Context::from_waker(waker);
        loop {
            match self.running.poll_next_unpin(&mut cx) {
                Poll::Ready(Some(ended)) => self.ended.push_back(ended),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// The descriptor, and whether it is readable.
struct Bell {
    fd: OwnedFd,
    rung: AtomicBool,
}

impl Bell {
    fn clear(&self) {
        // It is not readable if nobody has rung. Who rings from here on finds the flag set, and is
        // heard by the poll that follows, or finds it cleared, and writes.
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
        self.rung.store(false, Ordering::SeqCst);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Bell>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bell>) {
        if !self.rung.swap(true, Ordering::SeqCst) {
            // The counter cannot overflow: it is 1 at most.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }
}

impl pvfs_queue {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn post(&self, user: *mut c_void, operation: impl Future<Output = Outcome<i64>> + Send + 'static) {
        let ended = Ended(user, Ok(0));
        let operation = async move {
            // The whole value is captured, which is `Send`, and not the pointer.
            let mut ended = ended;
            ended.1 = operation.await;
            ended
        };
        let mut work = self.lock();
        work.running.push(Box::pin(operation));
        let _ = work.progress(&self.waker);
        if !work.ended.is_empty() {
            self.waker.wake_by_ref();
        }
    }
}

/// Waits for an operation, or posts it.
///
/// # Safety
/// The queue is one, if there is any.
pub(crate) unsafe fn run(
    handle: &Handle,
    later: Option<&pvfs_async>,
    operation: impl Future<Output = Outcome<i64>> + Send + 'static,
) -> Outcome<i64> {
    let operation =
        AssertUnwindSafe(operation).catch_unwind().map(|ended| ended.unwrap_or_else(|_| Err(Failure::panicked())));
    let Some(later) = later else { return handle.block_on(operation) };
    // SAFETY: the caller's promise.
    let queue = unsafe { later.queue.as_ref() }.ok_or_else(|| invalid("queue is NULL"))?;
    queue.post(later.user, operation);
    Ok(0)
}

/// Opens a queue.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_queue_open(client: Option<&pvfs_client>, queue: *mut *mut pvfs_queue) -> c_int {
    call_int(|| {
        // SAFETY: C's promise.
        let (client, queue) = (given(client, "client")?, unsafe { Out::new(queue, "queue") }?);
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let fd = fd.map_err(|error| Failure::new(error.raw_os_error(), "eventfd"))?;
        let bell = Arc::new(Bell { fd, rung: AtomicBool::new(false) });
        let (handle, waker, work) = (client.handle.clone(), Waker::from(bell.clone()), Mutex::default());
        queue.set(Box::into_raw(Box::new(pvfs_queue { handle, bell, waker, work })));
        Ok(0)
    })
}

/// Returns the descriptor of a queue. It becomes readable when `pvfs_complete` has something to do,
/// and stays readable until it was called. Do not read it or close it.
#[unsafe(no_mangle)]
pub extern "C" fn pvfs_queue_fd(queue: Option<&pvfs_queue>) -> c_int {
    call_int(|| Ok(given(queue, "queue")?.bell.fd.as_raw_fd().into()))
}

thread_local! {
    static TEXTS: std::cell::RefCell<Vec<CString>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// Lets the operations of a queue go on, and takes up to `max` completions, in the order in which
/// they ended. Never waits. Returns how many there are, which may be none although the descriptor
/// was readable. If there are more, the descriptor is readable again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_complete(queue: Option<&pvfs_queue>, done: *mut pvfs_done, max: usize) -> i64 {
    call(|| {
        let queue = given(queue, "queue")?;
        if done.is_null() || !done.is_aligned() {
            return Err(invalid(format!("done is {done:?}")));
        }
        let mut work = queue.lock();
        queue.bell.clear();
        let _ = work.progress(&queue.waker);
        let count = max.min(work.ended.len());
        let ended: Vec<Ended> = work.ended.drain(..count).collect();
        if !work.ended.is_empty() {
            queue.waker.wake_by_ref();
        }
        drop(work);
        let mut texts = Vec::new();
        for (index, Ended(user, outcome)) in ended.into_iter().enumerate() {
            let (result, error) = match outcome {
                Ok(result) => (result, std::ptr::null()),
                Err(Failure { number, text }) => {
                    texts.push(c_text(text));
                    (-i64::from(number), texts[texts.len() - 1].as_ptr())
                }
            };
            // SAFETY: C's promise: there is room for `max` completions.
            unsafe { done.add(index).write(pvfs_done { user, result, error }) };
        }
        let _ = TEXTS.try_with(|kept| kept.replace(texts));
        Ok(count as i64)
    })
}

/// Waits until all operations of a queue have ended, and closes it. Completions that were not taken
/// are lost. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn pvfs_queue_close(queue: Option<Box<pvfs_queue>>) {
    call(|| {
        if let Some(queue) = queue {
            queue.handle.block_on(std::future::poll_fn(|cx| queue.lock().progress(cx.waker())));
        }
        Ok(0)
    });
}

versioned!(pvfs_queue_open, pvfs_queue_fd, pvfs_complete, pvfs_queue_close);
