//! Inline receives (C16) that the wrapper itself adds to any transport.
//!
//! **Why.** Few transports have inline receives, and they show messages only when timing allows.
//! Here a message that has arrived in a receive is shown to the caller's receiver at random. If it
//! is taken, the receive is posted again. So the code that takes messages is tested over every
//! transport.
//!
//! **Invariants**
//! 1. A receive and its segments are recorded here from its post until the caller sees its
//!    completion. These are the receives that the caller believes to be posted.
//! 2. A receive is posted again only within `recv_queue_depth`, counted as the caller counts. If
//!    that fails, the connection has ended, and the receive completes `Flushed` like all others.

use std::collections::{BTreeMap, VecDeque};

use bmi_core::Segment;
use bmi_core::transport::{ConnId, Event, InlineMessage, InlineReceiver, WorkCompletion, WorkId, WorkKind, WorkStatus};

use super::names::Names;
use crate::rng::Rng;

/// The receives of the connections that the caller knows, by the caller's names.
#[derive(Debug, Default)]
pub(super) struct Receives(BTreeMap<ConnId, VecDeque<(WorkId, Vec<Segment>)>>);

impl Receives {
    pub(super) fn posted(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) {
        self.0.entry(conn).or_default().push_back((work, segments.to_vec()));
    }

    /// Returns how many receives the caller believes to be posted.
    pub(super) fn count(&self, conn: ConnId) -> usize {
        self.0.get(&conn).map_or(0, VecDeque::len)
    }

    /// Removes a receive whose completion the caller sees, or whose message was taken.
    pub(super) fn completed(&mut self, conn: ConnId, work: WorkId) -> Option<Vec<Segment>> {
        let receives = self.0.get_mut(&conn)?;
        // It is almost always the first one.
        let at = receives.iter().position(|(posted, _)| *posted == work)?;
        receives.remove(at).map(|(_, segments)| segments)
    }

    pub(super) fn ended(&mut self, conn: ConnId) {
        self.0.remove(&conn);
    }

    /// Reads the first `len` bytes of a receive of this work into `bytes`.
    pub(super) fn read(&self, conn: ConnId, work: WorkId, len: u64, bytes: &mut Vec<u8>) -> bool {
        let posted = self.0.get(&conn).and_then(|all| all.iter().find(|(posted, _)| *posted == work));
        let Some((_, segments)) = posted else { return false };
        bytes.clear();
        for segment in segments {
            let part = segment.len().min(len as usize - bytes.len());
            bytes.extend_from_slice(&segment.slice(0, part).to_slice().to_vec());
        }
        bytes.len() as u64 == len
    }
}

/// Returns the completion of a message that arrived in a receive and can be shown first.
pub(super) fn message(event: &Event) -> Option<&WorkCompletion> {
    match event {
        Event::Work(done) if (done.kind, done.status, done.immediate) == (WorkKind::Recv, WorkStatus::Ok, None) => {
            Some(done)
        }
        _ => None,
    }
}

/// Shows a copy of `bytes` and overwrites it afterwards, so that a receiver that looks later sees
/// garbage.
pub(super) fn show(receiver: &mut dyn InlineReceiver, conn: ConnId, bytes: &mut [u8]) -> bool {
    let taken = receiver.take(conn, InlineMessage::of(bytes));
    bytes.fill(0xdb);
    taken
}

/// The caller's receiver, for messages that the inner transport shows. It translates names, and
/// sometimes refuses at random.
pub(super) struct Through<'a> {
    pub(super) receiver: &'a mut dyn InlineReceiver,
    pub(super) names: &'a mut Names,
    pub(super) held: &'a VecDeque<Event>,
    pub(super) rng: &'a mut Rng,
    pub(super) chance: u32,
    pub(super) busy: bool,
}

impl InlineReceiver for Through<'_> {
    fn take(&mut self, conn: ConnId, message: InlineMessage<'_>) -> bool {
        let conn = self.names.outward(conn);
        // Events that the wrapper holds back come before it.
        let behind = self.held.iter().any(|event| crate::rig::conn_of(event) == conn);
        let taken = !behind && self.rng.chance(self.chance) && self.receiver.take(conn, message);
        self.busy |= taken;
        taken
    }
}
