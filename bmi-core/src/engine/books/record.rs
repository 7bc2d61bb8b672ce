//! What the parts of an endpoint tell the recorder of a timeline ([`crate::timeline`]).
//!
//! **Why here.** A handler has one line for each thing that is recorded, and this module makes the
//! entry of it. On the shortest paths it is one comparison, after which a copy of the path that
//! records goes on: a call in the middle would make the path longer also while nothing is recorded.
//! This module also counts messages, which happens whether or not anything is recorded: the
//! numbers of both sides must agree, and a recording may begin at any time.
//!
//! **Tests.** `bmi-sim/tests/it/endpoints/timeline.rs` and `bmi-core/tests/it/timeline.rs`.

use std::collections::BTreeSet;

use super::op::Op;
use super::peer::Peer;
use super::report::Unexpected;
use crate::engine::Engine;
use crate::error::{Error, ErrorKind};
use crate::op::{OpKind, PeerId, Tag};
use crate::paths::Path;
use crate::time::{Clock, Time};
use crate::timeline::{Class, Direction, Entry, Recorder, Timeline, TimelineOptions, TimelinePeer, Way, What, name_of};
use crate::wire::header::{Header, Kind};

/// A message that an inline receive took.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Taken {
    pub(in crate::engine) peer: PeerId,
    pub(in crate::engine) tag: Tag,
    pub(in crate::engine) number: u64,
    pub(in crate::engine) len: usize,
}

impl Engine {
    /// Records what the endpoint does from now on, in a ring of a fixed size. `clock` gives the
    /// stamps. A recording that was running is dropped.
    ///
    /// # Errors
    /// `Invalid` without room for an entry; `Exhausted` if there is no memory.
    pub fn record(&mut self, options: TimelineOptions, clock: impl Clock + Send + 'static) -> Result<(), Error> {
        let recorder = Recorder::new(options, Box::new(clock)).map_err(|error| error.during("record"))?;
        self.set_recorder(&recorder);
        Ok(())
    }

    /// Returns what is recorded so far, or `None` if nothing is being recorded.
    pub fn timeline(&self) -> Option<Timeline> {
        let (entries, lost) = self.adapter.recorder.entries()?;
        let names: BTreeSet<u64> = entries.iter().map(|entry| entry.peer).collect();
        let known = |name: u64| {
            let addr = self.peers.addr(crate::timeline::peer_of(name)?)?;
            Some(TimelinePeer { peer: name, addr: addr.to_string() })
        };
        let peers = names.into_iter().filter_map(known).collect();
        Some(Timeline { entries, lost, peers })
    }

    /// Ends the recording, and frees its memory. Returns what was recorded.
    pub fn stop_recording(&mut self) -> Option<Timeline> {
        let timeline = self.timeline();
        self.set_recorder(&Recorder::default());
        timeline
    }

    fn set_recorder(&mut self, recorder: &Recorder) {
        self.adapter.recorder = recorder.clone();
        self.adapter.short_paths.set_aside(recorder.is_on());
        self.adapter.registry.recorder = recorder.clone();
        self.ops.recorder = recorder.clone();
    }

    /// A call was posted, by this path if it has data.
    #[inline]
    pub(crate) fn record_call(&self, peer: PeerId, id: Tag, path: Option<Path>, bytes: u64) {
        self.adapter.recorder.note(|| Entry { tag: id, bytes, ..with(peer, What::Call(path)) });
    }

    /// The driver has armed the adapter, and sleeps.
    #[inline]
    pub(crate) fn record_sleep(&self) {
        self.adapter.recorder.sleep();
    }

    /// The driver is awake.
    #[inline]
    pub(crate) fn record_wake(&self) {
        self.adapter.recorder.wake();
    }
}

fn with(peer: PeerId, what: What) -> Entry {
    Entry { peer: name_of(peer), ..Entry::of(what) }
}

fn class_of(kind: Kind) -> Class {
    if kind == Kind::Unexpected { Class::Unexpected } else { Class::Expected }
}

/// Counts and records a message that was sent.
#[inline]
pub(in crate::engine) fn sent(recorder: &Recorder, peer: &mut Peer, kind: Kind, way: Way, tag: Tag, bytes: u64) {
    let number = if kind == Kind::Unexpected {
        peer.sent_unexpected += 1;
        peer.sent_unexpected - 1
    } else {
        peer.sent_expected(tag);
        peer.sent - 1
    };
    if recorder.is_on() {
        note_sent(recorder, peer, What::Send(class_of(kind), way), tag, number, bytes);
    }
}

#[cold]
#[inline(never)]
fn note_sent(recorder: &Recorder, peer: &Peer, what: What, tag: Tag, number: u64, bytes: u64) {
    recorder.succeed(|| Entry { tag, number, bytes, ..with(peer.id, what) });
}

/// Records a message that could not be sent when it was posted.
#[inline]
pub(in crate::engine) fn queued(recorder: &Recorder, peer: PeerId, kind: Kind, tag: Tag, bytes: u64) {
    recorder.note(|| Entry { tag, bytes, ..with(peer, What::Queue(class_of(kind))) });
}

/// Counts and records a message that a write has brought.
#[inline]
pub(in crate::engine) fn written(recorder: &Recorder, peer: &mut Peer, class: Class, way: Way, tag: Tag, bytes: u64) {
    let count = if class == Class::Unexpected { &mut peer.seen_unexpected } else { &mut peer.seen };
    let number = *count;
    *count += 1;
    if recorder.is_on() {
        note_written(recorder, peer, What::Arrive(class, way), tag, number, bytes);
    }
}

#[cold]
#[inline(never)]
fn note_written(recorder: &Recorder, peer: &Peer, what: What, tag: Tag, number: u64, bytes: u64) {
    recorder.note(|| Entry { tag, number, bytes, ..with(peer.id, what) });
}

/// Records what arrived in a receive slot, if it is a message of the program, or an announcement of
/// one. It is counted when it is handled.
pub(in crate::engine) fn arrived_in_slot(recorder: &Recorder, peer: &Peer, header: &Header, payload: u64) {
    let (class, way, number, bytes) = match header.kind {
        Kind::Eager => (Class::Expected, Way::Eager, peer.seen, payload),
        Kind::Announce => (Class::Expected, Way::Announced, peer.seen, header.len),
        Kind::Unexpected => (Class::Unexpected, Way::Eager, peer.seen_unexpected, payload),
        _ => return,
    };
    recorder.note(|| Entry { tag: header.tag, number, bytes, ..with(peer.id, What::Arrive(class, way)) });
}

/// Records a message that an inline receive took.
pub(in crate::engine) fn taken_inline(recorder: &Recorder, begun: Time, Taken { peer, tag, number, len }: Taken) {
    let entry = Entry { tag, number, bytes: len as u64, ..with(peer, What::Arrive(Class::Expected, Way::Eager)) };
    recorder.span(begun, || entry);
    recorder.note(|| Entry { number: 0, what: What::Deliver(Class::Expected), ..entry });
}

/// Records that the program took an unexpected message.
#[inline]
pub(in crate::engine) fn taken(recorder: &Recorder, message: &Unexpected) {
    recorder.note(|| {
        let what = What::Deliver(Class::Unexpected);
        Entry { tag: message.tag(), bytes: message.len() as u64, ..with(message.peer(), what) }
    });
}

/// Records a transfer unit that has ended.
#[cold]
#[inline(never)]
pub(in crate::engine) fn unit(recorder: &Recorder, peer: PeerId, writes: bool, begun: Time, bytes: u64) {
    let direction = if writes { Direction::Write } else { Direction::Read };
    recorder.span(begun, || Entry { bytes, ..with(peer, What::Unit(direction)) });
}

/// Records the end of a call.
#[inline]
pub(in crate::engine) fn call_ended(recorder: &Recorder, peer: PeerId, id: Tag) {
    recorder.note(|| Entry { tag: id, ..with(peer, What::CallEnd) });
}

/// Records an operation that ends. Timers are not of interest.
#[cold]
#[inline(never)]
pub(in crate::engine) fn ended(recorder: &Recorder, op: &Op, status: Result<(), ErrorKind>, bytes: u64) {
    let what = match (op.kind, status) {
        (OpKind::Timer, _) => return,
        (OpKind::Recv, Ok(())) => What::Deliver(Class::Expected),
        (kind, status) => What::End { op: kind, ok: status.is_ok() },
    };
    let peer = op.peer.map_or(Entry::NO_PEER, name_of);
    recorder.note(|| Entry { peer, tag: op.tag, bytes, ..Entry::of(what) });
}
