//! Wakers, and threads for calls that may block.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Wake, Waker};
use std::thread;

use bmi_core::Returns;
use bmi_core::transport::ConnId;

struct WakeBy<F>(F);

impl<F: Fn() -> io::Result<()> + Send + Sync + 'static> Wake for WakeBy<F> {
    fn wake(self: Arc<WakeBy<F>>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<WakeBy<F>>) {
        if let Err(error) = (self.0)() {
            tracing::error!(%error, "cannot wake the transport");
        }
    }
}

/// Returns the waker of a transport. `make_readable` makes the transport's descriptor readable, on
/// any thread and without blocking. If it fails, the error is logged: a waker cannot return it.
pub fn waker(make_readable: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(WakeBy(make_readable)))
}

/// A call that may block, and the connection that it is for.
type Call<T> = (ConnId, Box<dyn FnOnce() -> io::Result<T> + Send>);

/// The result of a call.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The connection that it was for.
    pub conn: ConnId,
    /// What it returned.
    pub result: io::Result<T>,
}

/// State shared by the threads and the transport.
struct Mailbox<T> {
    outcomes: Returns<Outcome<T>>,
    waker: Waker,
}

/// The threads of a transport for calls that may block, so that no poll does (C1).
///
/// **Protocol.** [`Helpers::run`] hands a call to a thread. The thread puts the result in a mailbox
/// and wakes the transport, which collects it in its poll. Threads start when they are needed, and
/// their number is limited. Calls beyond that wait. The threads end when the transport is dropped
/// and their current call has returned.
///
/// **Invariant.** When a result is in the mailbox, the thread has dropped the call and all that the
/// call held.
pub struct Helpers<T> {
    name: &'static str,
    most: usize,
    mailbox: Arc<Mailbox<T>>,
    calls: Sender<Call<T>>,
    waiting: Arc<Mutex<Receiver<Call<T>>>>,
    threads: usize,
    /// Calls whose outcome was not collected yet.
    under_way: usize,
}

impl<T: Send + 'static> Helpers<T> {
    /// Creates helpers without a thread. There will be `most` threads at most, each named `name`
    /// (the system shows 15 bytes). They wake the transport with `waker`.
    pub fn new(name: &'static str, most: usize, waker: Waker) -> Helpers<T> {
        let (calls, waiting) = channel();
        let mailbox = Arc::new(Mailbox { outcomes: Returns::default(), waker });
        Helpers { name, most, mailbox, calls, waiting: Arc::new(Mutex::new(waiting)), threads: 0, under_way: 0 }
    }

    /// Makes a call on a thread.
    ///
    /// # Errors
    /// That of the system if there is no thread and none can be started.
    pub fn run(&mut self, conn: ConnId, call: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<()> {
        if self.under_way >= self.threads && self.threads < self.most {
            let (waiting, mailbox) = (self.waiting.clone(), Arc::downgrade(&self.mailbox));
            let started = thread::Builder::new().name(self.name.to_owned()).spawn(move || serve(&waiting, &mailbox));
            match started {
                Ok(_) => self.threads += 1,
                Err(error) if self.threads == 0 => return Err(error),
                Err(_) => {}
            }
        }
        self.under_way += 1;
        self.calls.send((conn, Box::new(call))).map_err(|_| io::Error::other("no thread is left"))
    }

    /// Returns the outcomes that have arrived. Allocates nothing if there are none.
    pub fn outcomes(&mut self) -> Vec<Outcome<T>> {
        let mut outcomes = Vec::new();
        self.mailbox.outcomes.drain(&mut outcomes);
        self.under_way -= outcomes.len();
        outcomes
    }

    /// Returns true if an outcome is waiting.
    #[inline]
    pub fn has_outcomes(&self) -> bool {
        !self.mailbox.outcomes.is_empty()
    }
}

fn serve<T>(waiting: &Mutex<Receiver<Call<T>>>, mailbox: &Weak<Mailbox<T>>) {
    loop {
        // One thread waits for the next call, and the others for that thread.
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((conn, call)) = next else { return };
        let result = call();
        let Some(mailbox) = mailbox.upgrade() else { return };
        mailbox.outcomes.push(Outcome { conn, result });
        mailbox.waker.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// Tells a channel of each time that it is woken.
    struct Bell(Mutex<Sender<()>>);

    impl Wake for Bell {
        fn wake(self: Arc<Bell>) {
            self.0.lock().unwrap().send(()).unwrap();
        }
    }

    const MOST: usize = 8;

    fn helpers() -> (Helpers<()>, Receiver<()>) {
        let (rings, rung) = channel();
        (Helpers::new("test", MOST, Waker::from(Arc::new(Bell(Mutex::new(rings))))), rung)
    }

    fn conn(slot: u32) -> ConnId {
        ConnId { slot, generation: 0 }
    }

    #[test]
    fn a_call_that_blocks_delays_no_other() {
        let (mut helpers, rung) = helpers();
        assert!(!helpers.has_outcomes() && helpers.outcomes().is_empty());
        let (release, blocked) = sync_channel::<()>(0);
        helpers.run(conn(0), move || blocked.recv().map_err(io::Error::other)).unwrap();
        for slot in 1..20 {
            helpers.run(conn(slot), || Err(io::ErrorKind::TimedOut.into())).unwrap();
            rung.recv().unwrap();
            assert!(helpers.has_outcomes());
            let outcomes = helpers.outcomes();
            assert_eq!(outcomes.iter().map(|outcome| outcome.conn).collect::<Vec<_>>(), [conn(slot)]);
            assert_eq!(outcomes[0].result.as_ref().unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        assert_eq!(helpers.threads, 2, "threads are used again");
        release.send(()).unwrap();
        rung.recv().unwrap();
        let outcomes = helpers.outcomes();
        assert!(outcomes[0].conn == conn(0) && outcomes[0].result.is_ok());
    }

    #[test]
    fn calls_beyond_the_threads_wait_and_are_all_made() {
        let (mut helpers, rung) = helpers();
        let (release, blocked) = sync_channel::<()>(0);
        let blocked = Arc::new(Mutex::new(blocked));
        const CALLS: u32 = 3 * MOST as u32;
        for slot in 0..CALLS {
            let blocked = blocked.clone();
            helpers.run(conn(slot), move || blocked.lock().unwrap().recv().map_err(io::Error::other)).unwrap();
        }
        assert_eq!(helpers.threads, MOST);
        let mut made = Vec::new();
        for _ in 0..CALLS {
            release.send(()).unwrap();
            rung.recv().unwrap();
            made.extend(helpers.outcomes().iter().map(|outcome| outcome.conn.slot));
        }
        made.sort_unstable();
        assert_eq!(made, (0..CALLS).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_call_holds_is_free_when_its_outcome_is_there() {
        let (mut helpers, rung) = helpers();
        let held = Arc::new(());
        for slot in 0..100 {
            let holds = held.clone();
            let call = move || {
                drop(holds);
                Ok(())
            };
            helpers.run(conn(slot), call).unwrap();
            rung.recv().unwrap();
            helpers.outcomes();
            assert_eq!(Arc::strong_count(&held), 1);
        }
    }

    /// A thread whose call returns after its transport has gone reports nothing.
    #[test]
    fn threads_end_with_the_transport() {
        let (mut helpers, rung) = helpers();
        let (release, blocked) = sync_channel::<()>(0);
        helpers.run(conn(0), move || blocked.recv().map_err(io::Error::other)).unwrap();
        drop(helpers);
        release.send(()).unwrap();
        rung.recv().expect_err("the bell is dropped, and was not rung");
    }

    #[test]
    fn every_wake_up_reaches_the_descriptor_also_after_one_that_failed() {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = calls.clone();
        let waker = waker(move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            _ => Ok(()),
        });
        waker.wake_by_ref();
        waker.wake();
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }
}
