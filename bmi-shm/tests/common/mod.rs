//! Two transports in one thread, polled in turn. Time is handed in: it stands still unless a test moves it.
#![allow(dead_code, clippy::unwrap_used, reason = "test code; each binary uses its part")]

use std::time::Duration;

use bmi_core::transport::{ConnId, Event, WorkCompletion, WorkId, WorkKind, WorkStatus};
use bmi_core::{Addr, Error, Memory, Segment, Time, Transport};
use bmi_shm::{ShmConfig, ShmTransport};
use tempfile::TempDir;

/// Polls in which nothing happened, after which a test gives up: a ring delivers within a few.
const PATIENCE: usize = 200_000;

/// A transport and what it reported.
pub(crate) struct Side {
    pub(crate) transport: ShmTransport,
    pub(crate) events: Vec<Event>,
}

impl Side {
    pub(crate) fn new(config: ShmConfig) -> Side {
        Side { transport: ShmTransport::new(config).unwrap(), events: Vec::new() }
    }

    /// Takes the first event for which `wanted` has an answer.
    pub(crate) fn take<R>(&mut self, mut wanted: impl FnMut(&Event) -> Option<R>) -> Option<R> {
        let (at, found) = self.events.iter().enumerate().find_map(|(at, event)| Some((at, wanted(event)?)))?;
        self.events.remove(at);
        Some(found)
    }

    /// Takes the oldest work completion.
    pub(crate) fn take_work(&mut self) -> Option<WorkCompletion> {
        self.take(|event| if let Event::Work(work) = event { Some(*work) } else { None })
    }

    /// Takes the end of `conn`.
    pub(crate) fn take_end(&mut self, wanted: ConnId) -> Option<Error> {
        self.take(|event| match event {
            Event::Disconnected { conn, reason } if *conn == wanted => Some(reason.clone()),
            _ => None,
        })
    }

    /// `len` registered bytes in shareable pages.
    pub(crate) fn memory(&mut self, len: usize) -> (Memory, Segment) {
        let memory = Memory::shareable(len).unwrap();
        let segment = self.transport.register(&memory).unwrap().segment(0, len);
        (memory, segment)
    }

    /// Registered bytes that all differ from their neighbours.
    pub(crate) fn pattern(&mut self, len: usize) -> (Memory, Segment) {
        let (memory, segment) = self.memory(len);
        memory.copy_from(0, &pattern(len));
        (memory, segment)
    }
}

/// Bytes of a pattern without a short period.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// Two sides.
pub(crate) struct World {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) now: Time,
    pub(crate) folder: TempDir,
    names: u32,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(ShmConfig::default())
    }

    pub(crate) fn with(config: ShmConfig) -> World {
        World {
            a: Side::new(config.clone()),
            b: Side::new(config),
            now: Time::from_nanos(1_000_000_000),
            folder: tempfile::tempdir().unwrap(),
            names: 0,
        }
    }

    pub(crate) fn later(&self, secs: u64) -> Time {
        self.now + Duration::from_secs(secs)
    }

    pub(crate) fn poll(&mut self) -> bool {
        let a = self.a.transport.poll(self.now, &mut self.a.events);
        let b = self.b.transport.poll(self.now, &mut self.b.events);
        a || b
    }

    /// Polls until `done` has an answer.
    #[track_caller]
    pub(crate) fn until<R>(&mut self, mut done: impl FnMut(&mut World) -> Option<R>) -> R {
        let mut idle = 0;
        loop {
            if let Some(answer) = done(self) {
                return answer;
            }
            idle = if self.poll() { 0 } else { idle + 1 };
            assert!(idle < PATIENCE, "nothing more happens; a: {:?}, b: {:?}", self.a.events, self.b.events);
        }
    }

    /// Polls long enough for everything under way to arrive.
    pub(crate) fn settle(&mut self) {
        let mut idle = 0;
        while idle < 2_000 {
            idle = if self.poll() { 0 } else { idle + 1 };
        }
    }

    /// Where nobody has listened yet.
    pub(crate) fn addr(&mut self) -> Addr {
        self.names += 1;
        Addr::shm(self.folder.path().join(format!("names/{}", self.names)).to_str().unwrap())
    }

    /// A connection from `a` to `b`.
    #[track_caller]
    pub(crate) fn connect(&mut self) -> (ConnId, ConnId) {
        let addr = self.addr();
        self.b.transport.listen(&addr).unwrap();
        let deadline = self.later(60);
        let ca = self.a.transport.connect(&addr, b"hello", deadline).unwrap();
        let cb = self.until(|world| {
            world.b.take(|event| match event {
                Event::ConnectRequest { conn, private, .. } => {
                    assert_eq!(&private[..], b"hello");
                    Some(*conn)
                }
                _ => None,
            })
        });
        self.b.transport.accept(cb, b"welcome").unwrap();
        self.until(|world| {
            world.a.take(|event| match event {
                Event::Established { conn, private } if *conn == ca => {
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

    #[track_caller]
    pub(crate) fn work_a(&mut self) -> WorkCompletion {
        self.until(|world| world.a.take_work())
    }

    #[track_caller]
    pub(crate) fn work_b(&mut self) -> WorkCompletion {
        self.until(|world| world.b.take_work())
    }
}

/// What a completion should look like.
pub(crate) fn completion(conn: ConnId, work: u64, kind: WorkKind, status: WorkStatus, len: u64) -> WorkCompletion {
    WorkCompletion { conn, work: WorkId(work), kind, status, len, immediate: None }
}
