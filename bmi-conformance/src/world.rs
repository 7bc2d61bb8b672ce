//! Two adapters in one thread, polled in turn: helpers for a backend's own tests of properties that
//! the suite does not know.
//!
//! **Why.** Such tests examine one adapter more closely than a common suite can. Time is an
//! argument: it does not move unless a test moves it.

use std::process::Command;
use std::time::Duration;

use bmi_core::transport::{ConnId, Event, WorkCompletion, WorkId, WorkKind, WorkStatus};
use bmi_core::{Addr, Error, Memory, Segment, Time, Transport};

/// Number of polls without an event after which a test gives up. Loopback and rings deliver within
/// a few.
const PATIENCE: usize = 200_000;

/// An adapter and the events that it reported.
pub struct Side<T> {
    /// The adapter.
    pub transport: T,
    /// The events that it reported and the test has not taken, in order.
    pub events: Vec<Event>,
}

impl<T: Transport> Side<T> {
    /// Creates a side whose adapter has reported nothing.
    pub fn new(transport: T) -> Side<T> {
        Side { transport, events: Vec::new() }
    }

    /// Takes the first event for which `wanted` returns a value.
    pub fn take<R>(&mut self, mut wanted: impl FnMut(&Event) -> Option<R>) -> Option<R> {
        let (at, found) = self.events.iter().enumerate().find_map(|(at, event)| Some((at, wanted(event)?)))?;
        self.events.remove(at);
        Some(found)
    }

    /// Takes the oldest work completion.
    pub fn take_work(&mut self) -> Option<WorkCompletion> {
        self.take(|event| if let Event::Work(work) = event { Some(*work) } else { None })
    }

    /// Takes the end of a connection. Returns the reason.
    pub fn take_end(&mut self, wanted: ConnId) -> Option<Error> {
        self.take(|event| match event {
            Event::Disconnected { conn, reason } if *conn == wanted => Some(reason.clone()),
            _ => None,
        })
    }

    /// Returns `len` registered bytes, in shareable pages.
    pub fn memory(&mut self, len: usize) -> (Memory, Segment) {
        let memory = crate::data::memory(len);
        let segment = self.transport.register(&memory).expect("an adapter that can register").segment(0, len);
        (memory, segment)
    }

    /// Returns registered bytes that contain [`pattern`].
    pub fn pattern(&mut self, len: usize) -> (Memory, Segment) {
        let (memory, segment) = self.memory(len);
        memory.copy_from(0, &pattern(len));
        (memory, segment)
    }
}

/// Returns the bytes of a pattern without a short period, in which each byte differs from its
/// neighbours.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// Returns an expected completion.
pub fn completion(conn: ConnId, work: u64, kind: WorkKind, status: WorkStatus, len: u64) -> WorkCompletion {
    WorkCompletion { conn, work: WorkId(work), kind, status, len, immediate: None }
}

/// Two sides.
pub struct World<T> {
    /// The side that connects.
    pub a: Side<T>,
    /// The side that listens.
    pub b: Side<T>,
    /// The time of the next poll.
    pub now: Time,
    addr: Box<dyn FnMut() -> Addr>,
}

impl<T: Transport> World<T> {
    /// Creates two adapters that are not connected. `addr` returns unused addresses.
    pub fn new(a: T, b: T, addr: impl FnMut() -> Addr + 'static) -> World<T> {
        World { a: Side::new(a), b: Side::new(b), now: Time::from_nanos(1_000_000_000), addr: Box::new(addr) }
    }

    /// Returns an unused address.
    pub fn addr(&mut self) -> Addr {
        (self.addr)()
    }

    /// Returns the time `secs` seconds from now.
    pub fn later(&self, secs: u64) -> Time {
        self.now + Duration::from_secs(secs)
    }

    /// Polls both sides once. Returns whether anything happened.
    pub fn poll(&mut self) -> bool {
        let a = self.a.transport.poll(self.now, &mut self.a.events);
        let b = self.b.transport.poll(self.now, &mut self.b.events);
        a || b
    }

    /// Polls until `done` returns a value.
    ///
    /// # Panics
    /// If nothing happens for a long time.
    #[track_caller]
    pub fn until<R>(&mut self, mut done: impl FnMut(&mut World<T>) -> Option<R>) -> R {
        let mut idle = 0;
        loop {
            if let Some(answer) = done(self) {
                return answer;
            }
            idle = if self.poll() { 0 } else { idle + 1 };
            assert!(idle < PATIENCE, "nothing more happens; a: {:?}, b: {:?}", self.a.events, self.b.events);
        }
    }

    /// Polls long enough for everything in flight to arrive.
    pub fn settle(&mut self) {
        let mut idle = 0;
        while idle < 2_000 {
            idle = if self.poll() { 0 } else { idle + 1 };
        }
    }

    /// Creates a connection from `a` to `b`. Returns their names for it.
    ///
    /// # Panics
    /// If it is not established.
    #[track_caller]
    pub fn connect(&mut self) -> (ConnId, ConnId) {
        let addr = self.addr();
        self.connect_at(&addr)
    }

    /// Does the same at this address, where `b` begins to listen.
    ///
    /// # Panics
    /// As [`World::connect`].
    #[track_caller]
    pub fn connect_at(&mut self, addr: &Addr) -> (ConnId, ConnId) {
        let addr = self.b.transport.listen(addr).expect("listen");
        let deadline = self.later(60);
        let ca = self.a.transport.connect(&addr, b"hello", deadline).expect("connect");
        let cb = self.until(|world| {
            world.b.take(|event| match event {
                Event::ConnectRequest { conn, private, .. } => {
                    assert_eq!(&private[..], b"hello");
                    Some(*conn)
                }
                _ => None,
            })
        });
        self.b.transport.accept(cb, b"welcome").expect("accept");
        self.until(|world| {
            world.a.take(|event| match event {
                Event::Established { conn, private, .. } if *conn == ca => {
                    assert_eq!(&private[..], b"welcome");
                    Some(())
                }
                _ => None,
            })
        });
        self.until(|world| {
            world.b.take(|event| matches!(event, Event::Established { conn, .. } if *conn == cb).then_some(()))
        });
        (ca, cb)
    }

    /// Returns the next work completion of `a`.
    ///
    /// # Panics
    /// If none comes.
    #[track_caller]
    pub fn work_a(&mut self) -> WorkCompletion {
        self.until(|world| world.a.take_work())
    }

    /// Returns the next work completion of `b`.
    ///
    /// # Panics
    /// If none comes.
    #[track_caller]
    pub fn work_b(&mut self) -> WorkCompletion {
        self.until(|world| world.b.take_work())
    }
}

/// Set in a process that runs one test.
const ALONE: &str = "BMI_TEST_ALONE";

/// Gives a test a process of its own, because it counts what the whole process has, or limits it.
/// Returns true in a process that runs only the calling test. In any other, runs the test in such
/// a process, and returns false when it has passed there: the caller has nothing left to do.
///
/// ```text
/// #[test]
/// fn a_connection_has_one_descriptor() {
///     if !alone(|| ()) {
///         return;
///     }
/// ```
///
/// `here` is a closure of the test, which is not called. The name of its type has the name of the
/// test.
///
/// # Panics
/// If the test fails in the other process.
pub fn alone<F>(_here: F) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let here = std::any::type_name::<F>();
    let (_, test) = here.split_once("::").expect("a function in a program");
    let test = test.trim_end_matches("::{{closure}}");
    let program = std::env::current_exe().expect("this program has a name");
    let run = ["--exact", test, "--include-ignored", "--nocapture", "--test-threads=1"];
    let output = Command::new(program).args(run).env(ALONE, "1").output().expect("this program can run again");
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{test} in a process of its own: {text}{}", String::from_utf8_lossy(&output.stderr));
    print!("{text}");
    false
}
