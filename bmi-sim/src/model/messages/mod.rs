//! The messages of a run that fails: what nodes sent each other around the faults and before the
//! failure.
//!
//! **Why.** A plan of faults does not show what the protocol was doing when a fault struck. The
//! messages around it show which request arrived, which answer was lost, and what was sent again.
//!
//! **How.** A sweep records one run only: the one that it makes with the shrunk plan, for the
//! report. Every other run has no recorder. The recorder keeps the last records of the run in a
//! ring. A record that leaves the ring is kept if it is close to a fault. The report then selects a
//! few lines around each of the last faults, and fills up with the last lines before the failure.
//!
//! If there are too many lines, the report shows only the messages of the nodes concerned. These
//! are the nodes that the faults name, the node of a task that panicked, and the nodes that the
//! text of an error or of a leak names.
//!
//! **Layout** of a line, times in µs of virtual time:
//!
//! ```text
//!      sent  arrived
//!   112.304  114.230  n1 → n0  send        48 B  Unexpected, tag 3
//! * 119.000           the connections between n0 and n1 are cut
//!   119.000           n0 × n1  connection ends: the connection was cut; 1 send flushed
//! ```
//!
//! **Invariants**
//! 1. Recording changes nothing of a run: it schedules no event, draws no random number and charges
//!    no processor. A recorded run has the same digest.
//! 2. Memory is bounded: [`LAST`] records in the ring, [`KEPT`] behind it.
//! 3. Without a recorder, each hook costs one branch, and nothing is allocated.
//!
//! Tested by `model/messages/tests.rs`, `check/messages.rs`, and by `tests/it/simulator/check.rs`.

mod table;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use bmi_core::transport::WorkStatus;

#[cfg(test)]
pub(crate) use self::table::LINES;
use crate::engine::{ConnRef, Packet, Sending};
use crate::error::SimError;
use crate::faults::Fault;
use crate::model::connection::{Conn, SendWork};
use crate::model::{Core, Node, Sim};

/// Records in the ring.
const LAST: usize = 1024;
/// Records on each side of a fault that are kept when they leave the ring.
const NEAR: u64 = 256;
/// Records that have left the ring and are kept.
const KEPT: usize = 8192;
/// Bytes at the front of a message that are kept: the header of an endpoint's message.
const HEAD: usize = 32;

/// Identifies a packet between its departure and its arrival: the connection that it goes to, its
/// verb, and its number.
type Key = (ConnRef, Verb, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Connect,
    Accept,
    Reject,
    Disconnect,
    /// A send or a write. Both count in one series.
    Message,
    Read,
}

#[derive(Debug)]
enum What {
    /// A packet from one node to another.
    Packet {
        from: u32,
        to: u32,
        key: Key,
        name: &'static str,
        len: u64,
        arrived: Option<u64>,
        head: Option<[u8; HEAD]>,
    },
    /// A connection of a node has ended.
    Ended { node: u32, peer: Option<u32>, text: String },
    /// A mark between the messages. `nodes` are those concerned.
    Mark { nodes: Vec<u32>, text: String, of: Mark },
}

/// What a mark is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// A fault, or the end of one.
    Fault,
    /// A note of the test.
    Note,
    Failure,
}

#[derive(Debug)]
struct Record {
    /// Counts all records of the run.
    number: u64,
    at: u64,
    what: What,
    /// It is close to a fault.
    keep: bool,
    /// Records before this one were dropped.
    behind_gap: bool,
}

impl Record {
    fn is_fault(&self) -> bool {
        matches!(self.what, What::Mark { of: Mark::Fault, .. })
    }

    fn concerns(&self, nodes: &[u32]) -> bool {
        match &self.what {
            What::Packet { from, to, .. } => nodes.contains(from) || nodes.contains(to),
            What::Ended { node, peer, .. } => nodes.contains(node) || peer.is_some_and(|peer| nodes.contains(&peer)),
            What::Mark { .. } => true,
        }
    }
}

/// The recorder of a world.
#[derive(Debug, Default)]
pub(crate) struct Messages {
    /// Number of the next record.
    next: u64,
    last: VecDeque<Record>,
    /// Records close to faults that have left `last`.
    kept: VecDeque<Record>,
    /// Records with smaller numbers are close to a fault.
    keep_until: u64,
}

impl Messages {
    pub(crate) fn is_empty(&self) -> bool {
        self.next == 0
    }

    fn push(&mut self, at: u64, what: What) {
        let number = self.next;
        self.next += 1;
        let mut record = Record { number, at, what, keep: false, behind_gap: false };
        if record.is_fault() {
            self.last.iter_mut().rev().take(NEAR as usize).for_each(|before| before.keep = true);
            self.keep_until = number + 1 + NEAR;
        }
        record.keep = number < self.keep_until;
        self.last.push_back(record);
        if self.last.len() > LAST {
            self.drop_oldest();
        }
    }

    /// Records the failure, which ends the run.
    pub(crate) fn fail(&mut self, at: u64) {
        self.push(at, What::Mark { nodes: Vec::new(), text: "the failure".to_owned(), of: Mark::Failure });
    }

    /// Takes the oldest record out of the ring, and keeps it if it is close to a fault.
    fn drop_oldest(&mut self) {
        let Some(oldest) = self.last.pop_front() else { return };
        if oldest.keep {
            self.kept.push_back(oldest);
            if self.kept.len() > KEPT {
                self.kept.pop_front();
                self.kept[0].behind_gap = true;
            }
        } else if let Some(next) = self.last.front_mut() {
            next.behind_gap = true;
        }
    }

    fn arrived(&mut self, key: Key, now: u64) {
        let records = self.last.iter_mut().rev().chain(self.kept.iter_mut().rev());
        for record in records {
            if let What::Packet { key: of, arrived, .. } = &mut record.what
                && *of == key
            {
                *arrived = Some(now);
                return;
            }
        }
    }
}

/// Returns the key of a packet that has a line of its own.
fn key_of(packet: &Packet) -> Option<Key> {
    match packet {
        Packet::Request { from, .. } => Some((*from, Verb::Connect, 0)),
        Packet::Accepted { to, .. } => Some((*to, Verb::Accept, 0)),
        Packet::Rejected { to, .. } => Some((*to, Verb::Reject, 0)),
        Packet::Close { to } => Some((*to, Verb::Disconnect, 0)),
        Packet::Message { to, number } => Some((*to, Verb::Message, *number)),
        Packet::ReadRequest { to, number } => Some((*to, Verb::Read, *number)),
        _ => None,
    }
}

fn name_of(send: &SendWork) -> &'static str {
    match send.target {
        None => "send",
        Some(target) if target.immediate.is_some() => "write+imm",
        Some(_) => "write",
    }
}

/// Returns what may be the header of an endpoint's message. A write has one if it carries immediate
/// data: it is a message in a fast-RDMA slot.
fn head_of(send: &SendWork) -> Option<[u8; HEAD]> {
    let is_message = send.target.is_none_or(|target| target.immediate.is_some());
    send.bytes.captured.first_chunk().filter(|_| is_message).copied()
}

// ---- hooks --------------------------------------------------------------------------------------

impl Core {
    /// Records a packet that `from` sends.
    #[inline]
    pub(crate) fn note_sent(&mut self, route: (u32, u32), from: ConnRef, sending: &Sending) {
        if self.messages.is_some() {
            self.record_sent(route, from, sending);
        }
    }

    fn record_sent(&mut self, route: (u32, u32), at: ConnRef, sending: &Sending) {
        let Some(key) = key_of(&sending.packet) else { return };
        let conn = self.conn(at);
        let (name, len, head) = match key.1 {
            Verb::Connect => ("connect", sending.len, None),
            Verb::Accept => ("accept", sending.len, None),
            Verb::Reject => ("reject", sending.len, None),
            Verb::Disconnect => ("disconnect", sending.len, None),
            Verb::Message => {
                let send = conn.and_then(|conn| conn.sends.get((key.2 - conn.sends_base) as usize));
                send.map_or(("send", sending.len, None), |send| (name_of(send), send.len, head_of(send)))
            }
            Verb::Read => {
                let read = conn.and_then(|conn| conn.reads.get((key.2 - conn.reads_base) as usize));
                ("read", read.map_or(0, |read| read.len), None)
            }
        };
        let (from, to) = route;
        let what = What::Packet { from, to, key, name, len, arrived: None, head };
        self.push_record(what);
    }

    /// Records that a packet has arrived, all of it.
    #[inline]
    pub(crate) fn note_arrived(&mut self, packet: &Packet) {
        if self.messages.is_some() {
            self.record_arrived(packet);
        }
    }

    fn record_arrived(&mut self, packet: &Packet) {
        let key = match packet {
            // The request has arrived too, but what counts is the data.
            Packet::ReadRequest { .. } => None,
            Packet::ReadReply { to, number } => {
                self.conn(*to).and_then(|conn| conn.peer).map(|owner| (owner, Verb::Read, *number))
            }
            // A message is dropped once its connection has ended at either side.
            Packet::Message { to, .. } => {
                let sender = self.conn(*to).and_then(|conn| conn.peer);
                sender.and_then(|sender| self.conn(sender)).and_then(|_| key_of(packet))
            }
            other => key_of(other),
        };
        let now = self.queue.now;
        if let (Some(key), Some(messages)) = (key, &mut self.messages) {
            messages.arrived(key, now);
        }
    }

    /// Records the end of a connection, with the requests that end with it. `refused` is the
    /// request that the peer refused, if any: whether it is a read, its number and its status.
    #[inline]
    pub(crate) fn note_end(
        &mut self,
        at: ConnRef,
        conn: &Conn,
        refused: Option<(bool, u64, WorkStatus)>,
        error: &SimError,
    ) {
        if self.messages.is_some() {
            self.record_end(at, conn, refused, error);
        }
    }

    fn record_end(&mut self, at: ConnRef, conn: &Conn, refused: Option<(bool, u64, WorkStatus)>, error: &SimError) {
        let asked_for = matches!(error, SimError::ClosedHere | SimError::ClosedByPeer);
        if asked_for && conn.sends.is_empty() && conn.reads.is_empty() {
            return; // the line of the disconnect says it all
        }
        let mut text = format!("connection ends: {error}");
        // How many of each kind are flushed.
        let mut flushed: [(&str, u64); 3] = [("send", 0), ("write", 0), ("read", 0)];
        let sends = (conn.sends_base..)
            .zip(&conn.sends)
            .map(|(number, send)| (usize::from(send.target.is_some()), send.len, (false, number)));
        let reads = (conn.reads_base..).zip(&conn.reads).map(|(number, read)| (2, read.len, (true, number)));
        for (kind, len, which) in sends.chain(reads) {
            match refused {
                Some((is_read, number, status)) if (is_read, number) == which => {
                    text += &format!("; {} of {len} B: {status:?}", flushed[kind].0);
                }
                _ => flushed[kind].1 += 1,
            }
        }
        for (name, count) in flushed.into_iter().filter(|(_, count)| *count > 0) {
            text += &format!("; {count} {name}{} flushed", if count == 1 { "" } else { "s" });
        }
        let node = self.adapters[at.adapter as usize].node;
        self.push_record(What::Ended { node, peer: conn.peer_node, text });
    }

    fn push_record(&mut self, what: What) {
        let now = self.queue.now;
        if let Some(messages) = &mut self.messages {
            messages.push(now, what);
        }
    }

    /// Records a fault of a plan that begins.
    pub(crate) fn note_fault(&mut self, fault: &Fault) {
        if self.messages.is_some() {
            let nodes = nodes_of(fault).into_iter().flatten().filter_map(|name| self.names.get(name).copied());
            let nodes = nodes.collect();
            self.push_record(What::Mark { nodes, text: fault.to_string(), of: Mark::Fault });
        }
    }

    /// Records that a link is up again.
    pub(crate) fn note_heal(&mut self, a: u32, b: u32) {
        if self.messages.is_some() {
            let name = |id: u32| &self.nodes[id as usize].name;
            let text = format!("the link between {} and {} is up again", name(a), name(b));
            self.push_record(What::Mark { nodes: vec![a, b], text, of: Mark::Fault });
        }
    }
}

impl Sim {
    /// Writes a line into the report of this run, if it fails: it appears among the messages, for
    /// instance `acknowledged 10`. The last few of them are always shown.
    pub fn note(&self, text: impl Into<String>) {
        self.0.with(|core| {
            if core.messages.is_some() {
                core.push_record(What::Mark { nodes: Vec::new(), text: text.into(), of: Mark::Note });
            }
        });
    }
}

impl Node {
    /// Records that something happens to this node: `what` follows its name.
    pub(crate) fn note(&self, what: &str) {
        self.sim.0.with(|core| {
            if core.messages.is_some() {
                let text = format!("{} {what}", core.nodes[self.id as usize].name);
                core.push_record(What::Mark { nodes: vec![self.id], text, of: Mark::Fault });
            }
        });
    }
}

/// Returns the names of the nodes that a fault concerns.
fn nodes_of(fault: &Fault) -> [Option<&String>; 2] {
    match fault {
        Fault::Cut { a, b }
        | Fault::Partition { a, b, .. }
        | Fault::Delay { a, b, .. }
        | Fault::Lossy { a, b, .. }
        | Fault::Corrupt { a, b }
        | Fault::NotReady { a, b }
        | Fault::Unanswered { a, b } => [Some(a), Some(b)],
        Fault::Overrun { node }
        | Fault::Pause { node, .. }
        | Fault::Crash { node, .. }
        | Fault::CrashWriting { node, .. }
        | Fault::DiskFull { node, .. }
        | Fault::DiskBroken { node, .. }
        | Fault::Registrations { node, .. }
        | Fault::ClockStep { node, .. } => [Some(node), None],
    }
}
