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
//! Tested below and by `tests/it/check.rs`.

use std::collections::VecDeque;

use bmi_core::describe_message;
use bmi_core::transport::WorkStatus;

use super::Why;
use crate::error::SimError;
use crate::events::ConnRef;
use crate::faults::Fault;
use crate::network::{Packet, Sending};
use crate::node::Node;
use crate::queue_pair::{Conn, SendWork};
use crate::world::{Core, World};

/// Records in the ring.
const LAST: usize = 1024;
/// Records on each side of a fault that are kept when they leave the ring.
const NEAR: u64 = 256;
/// Records that have left the ring and are kept.
const KEPT: usize = 8192;
/// Lines of a report, below its two lines of heading.
const LINES: usize = 40;
/// How many of them are for the end of the run, if there are faults to show.
const TAIL: usize = 16;
/// Faults whose surroundings are shown: the last ones.
const FAULTS: usize = 4;
/// Bytes at the front of a message that are kept: the header of an endpoint's message.
const HEAD: usize = 32;

/// Records the messages of a world from now on.
pub(super) fn record(world: &World) {
    world.0.with(|core| core.messages = Some(Box::default()));
}

/// Returns the lines of the report for a run that has ended, and none if the run was not recorded.
pub(super) fn report(world: &World, why: Option<&Why>) -> Vec<String> {
    let Some(mut messages) = world.0.with(|core| core.messages.take()) else { return Vec::new() };
    let core = world.0.core.borrow();
    let names: Vec<&str> = core.nodes.iter().map(|node| node.name.as_str()).collect();
    let text = match why {
        Some(Why::Error(text) | Why::Leaked(text)) => text,
        _ => "",
    };
    let mut failing: Vec<u32> = (0..).zip(&names).filter(|(_, name)| has_word(text, name)).map(|(id, _)| id).collect();
    failing.extend(world.0.executor.panicked_on().map(|node| node as u32));
    if messages.is_empty() {
        return Vec::new();
    }
    if why.is_some() {
        messages.push(core.queue.now, What::Mark { nodes: Vec::new(), text: "the failure".to_owned(), fault: false });
    }
    messages.lines(&names, &failing)
}

/// Returns true if `word` is in `text`, and no letter or digit is next to it.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
    })
}

// ---- what is recorded ---------------------------------------------------------------------------

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
    /// A fault, the end of one, or the failure. `nodes` are those concerned.
    Mark { nodes: Vec<u32>, text: String, fault: bool },
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
        matches!(self.what, What::Mark { fault: true, .. })
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
    fn is_empty(&self) -> bool {
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
            self.push_record(What::Mark { nodes, text: fault.to_string(), fault: true });
        }
    }

    /// Records that a link is up again.
    pub(crate) fn note_heal(&mut self, a: u32, b: u32) {
        if self.messages.is_some() {
            let name = |id: u32| &self.nodes[id as usize].name;
            let text = format!("the link between {} and {} is up again", name(a), name(b));
            self.push_record(What::Mark { nodes: vec![a, b], text, fault: true });
        }
    }
}

impl Node {
    /// Records that something happens to this node: `what` follows its name.
    pub(crate) fn note(&self, what: &str) {
        self.sim.0.with(|core| {
            if core.messages.is_some() {
                let text = format!("{} {what}", core.nodes[self.id as usize].name);
                core.push_record(What::Mark { nodes: vec![self.id], text, fault: true });
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

// ---- the report ---------------------------------------------------------------------------------

/// A record that may be shown, and whether records were dropped before it.
type Shown<'a> = (&'a Record, bool);

impl Messages {
    /// Returns the records that may be shown, and the nodes whose messages they are. No nodes mean
    /// all of them.
    fn of_interest(&self, failing: &[u32]) -> (Vec<Shown<'_>>, Vec<u32>) {
        let all = || self.kept.iter().chain(&self.last);
        let mut nodes = failing.to_vec();
        for fault in all().filter(|record| record.is_fault()).rev().take(FAULTS) {
            if let What::Mark { nodes: of_fault, .. } = &fault.what {
                nodes.extend(of_fault);
            }
        }
        nodes.sort_unstable();
        nodes.dedup();
        let mut gap = false;
        let mut shown = Vec::new();
        for record in all() {
            gap |= record.behind_gap;
            if record.concerns(&nodes) {
                shown.push((record, std::mem::take(&mut gap)));
            }
        }
        let count = all().count();
        if count <= LINES || shown.len() < LINES || shown.len() == count {
            return (all().map(|record| (record, record.behind_gap)).collect(), Vec::new());
        }
        (shown, nodes)
    }

    /// Returns the report: a heading and at most [`LINES`] lines.
    fn lines(&self, names: &[&str], failing: &[u32]) -> Vec<String> {
        let (records, nodes) = self.of_interest(failing);
        let picked = pick(&records);
        let whose = match &nodes[..] {
            [] => String::new(),
            nodes => format!(" of {}", nodes.iter().map(|id| names[*id as usize]).collect::<Vec<_>>().join(", ")),
        };
        let any_fault = records.iter().any(|(record, _)| record.is_fault());
        let faults = if any_fault { " around the faults (*) and" } else { "" };
        let mut lines = vec![format!("messages{whose}{faults} before the failure (!), in µs, - for not arrived:")];
        let table =
            Table::of(names, records.iter().zip(&picked).filter(|(_, picked)| **picked).map(|((it, _), _)| *it));
        lines.push(table.heading());
        let mut next = 0;
        let mut skipped = false;
        for ((record, gap), picked) in records.iter().zip(picked) {
            skipped |= *gap || !picked;
            if picked {
                if std::mem::take(&mut skipped) {
                    lines.push(table.gap(record.number - next));
                }
                lines.push(table.line(record));
                next = record.number + 1;
            }
        }
        lines
    }
}

/// Selects the lines that are shown: some around the last faults, and as many of the end as there
/// is room for. Each gap between lines takes a line too.
fn pick(records: &[Shown<'_>]) -> Vec<bool> {
    let mut picked = vec![false; records.len()];
    let is_fault = |at: &usize| records[*at].0.is_fault();
    let faults: Vec<usize> = (0..records.len()).rev().filter(is_fault).take(FAULTS).collect();
    if !faults.is_empty() {
        let around = ((LINES - TAIL) / faults.len() - 2) / 2;
        for at in faults {
            picked[at.saturating_sub(around)..=(at + around).min(records.len() - 1)].fill(true);
        }
    }
    for at in (0..records.len()).rev().filter(|at| !picked[*at]).collect::<Vec<_>>() {
        picked[at] = true;
        if height(records, &picked) > LINES {
            picked[at] = false;
            break;
        }
    }
    picked
}

/// Returns how many lines the selected records take, with the gaps between them.
fn height(records: &[Shown<'_>], picked: &[bool]) -> usize {
    let (mut height, mut skipped) = (0, false);
    for ((_, gap), picked) in records.iter().zip(picked) {
        skipped |= gap | !picked;
        if *picked {
            height += 1 + usize::from(std::mem::take(&mut skipped));
        }
    }
    height
}

/// The widths of the columns.
struct Table<'a> {
    names: &'a [&'a str],
    time: usize,
    who: usize,
    bytes: usize,
}

/// Formats nanoseconds as microseconds.
fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000, ns % 1_000)
}

impl<'a> Table<'a> {
    fn of<'r>(names: &'a [&'a str], records: impl Iterator<Item = &'r Record>) -> Table<'a> {
        let mut table = Table { names, time: "arrived".len(), who: 0, bytes: 0 };
        for record in records {
            table.time = table.time.max(micros(record.at).len());
            if let What::Packet { len, arrived, .. } = &record.what {
                table.time = table.time.max(arrived.map_or(0, |at| micros(at).len()));
                table.bytes = table.bytes.max(len.to_string().len());
            }
            table.who = table.who.max(table.who(&record.what).chars().count());
        }
        table
    }

    fn heading(&self) -> String {
        format!("  {:>time$}  {:>time$}", "sent", "arrived", time = self.time)
    }

    fn who(&self, what: &What) -> String {
        let name = |id: &u32| self.names[*id as usize];
        match what {
            What::Packet { from, to, .. } => format!("{} → {}", name(from), name(to)),
            What::Ended { node, peer: Some(peer), .. } => format!("{} × {}", name(node), name(peer)),
            What::Ended { node, peer: None, .. } => name(node).to_owned(),
            What::Mark { .. } => String::new(),
        }
    }

    fn line(&self, record: &Record) -> String {
        let Table { time, who, bytes, .. } = *self;
        let at = micros(record.at);
        let from_to = self.who(&record.what);
        let line = match &record.what {
            What::Packet { name, len, arrived, head, .. } => {
                let arrived = arrived.map_or_else(|| "-".to_owned(), micros);
                let note = head.and_then(|head| describe_message(&head, *len)).unwrap_or_default();
                format!("  {at:>time$}  {arrived:>time$}  {from_to:who$}  {name:10}  {len:>bytes$} B  {note}")
            }
            What::Ended { text, .. } => format!("  {at:>time$}  {:time$}  {from_to:who$}  {text}", ""),
            What::Mark { text, .. } => {
                let mark = if record.is_fault() { '*' } else { '!' };
                format!("{mark} {at:>time$}  {:time$}  {text}", "")
            }
        };
        line.trim_end().to_owned()
    }

    fn gap(&self, count: u64) -> String {
        format!("  {:>time$}  {count} lines left out", "…", time = self.time)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bmi_core::{Config, Error, Memory};

    use super::*;
    use crate::check::Case;
    use crate::faults::{Plan, Swarm};

    fn packet(number: u64, from: u32, to: u32) -> What {
        let conn = ConnRef { adapter: from, slot: 0, generation: 0 };
        let key = (conn, Verb::Message, number);
        What::Packet { from, to, key, name: "send", len: 40, arrived: None, head: None }
    }

    fn fault() -> What {
        What::Mark { nodes: vec![0, 1], text: "a fault".to_owned(), fault: true }
    }

    /// Messages between three nodes, in turns, a µs apart, with a fault after each of `faults`.
    fn recorded(count: u64, faults: &[u64]) -> Messages {
        let mut messages = Messages::default();
        for number in 0..count {
            let from = (number % 3) as u32;
            messages.push(number * 1000, packet(number, from, (from + 1) % 3));
            if faults.contains(&number) {
                messages.push(number * 1000 + 500, fault());
            }
        }
        messages
    }

    const NAMES: [&str; 3] = ["n0", "n1", "client"];

    #[test]
    fn a_short_run_is_shown_whole() {
        let mut messages = recorded(3, &[1]);
        messages.arrived((ConnRef { adapter: 1, slot: 0, generation: 0 }, Verb::Message, 1), 12_345);
        let lines = messages.lines(&NAMES, &[2]);
        let expected = [
            "messages around the faults (*) and before the failure (!), in µs, - for not arrived:",
            "     sent  arrived",
            "    0.000        -  n0 → n1      send        40 B",
            "    1.000   12.345  n1 → client  send        40 B",
            "*   1.500           a fault",
            "    2.000        -  client → n0  send        40 B",
        ];
        assert_eq!(lines, expected, "{lines:#?}");
    }

    #[test]
    fn faults_long_past_are_shown_with_what_is_around_them_and_so_is_the_end() {
        let messages = recorded(20_000, &[4_000]);
        assert!(messages.last.len() == LAST && messages.kept.len() as u64 == 2 * NEAR + 1);
        let lines = messages.lines(&NAMES, &[]);
        assert_eq!(lines.len(), LINES + 2, "{lines:#?}");
        let at = lines.iter().position(|line| line.starts_with('*')).unwrap();
        assert!(lines[at].ends_with("4000.500             a fault"), "{lines:#?}");
        assert!(lines[at - 1].contains(" 4000.000 ") && lines[at + 1].contains(" 4001.000 "), "{lines:#?}");
        assert!(lines.last().unwrap().contains(" 19999.000 "), "{lines:#?}");
        let left_out = |line: &&String| line.ends_with("lines left out");
        assert_eq!(lines.iter().filter(left_out).count(), 2, "{lines:#?}");
        // Every record is shown or counted.
        let counted: u64 = lines
            .iter()
            .filter(left_out)
            .map(|line| line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap())
            .sum();
        assert_eq!(counted + LINES as u64 - 2, 20_001);
    }

    #[test]
    fn many_faults_leave_room_for_the_end() {
        let every: Vec<u64> = (0..4_000).filter(|number| number % 40 == 0).collect();
        let messages = recorded(5_000, &every);
        assert!(messages.kept.len() <= KEPT);
        let lines = messages.lines(&NAMES, &[]);
        assert!(lines.len() <= LINES + 2, "{lines:#?}");
        assert_eq!(lines.iter().filter(|line| line.starts_with('*')).count(), FAULTS, "{lines:#?}");
        assert!(lines[LINES - 4].contains(" → ") && lines.last().unwrap().contains(" 4999.000 "), "{lines:#?}");
    }

    #[test]
    fn messages_of_the_nodes_that_failed_are_preferred() {
        let mut messages = Messages::default();
        for number in 0..200 {
            // One message of ten is of the node that fails.
            let (from, to) = if number % 10 == 0 { (0, 2) } else { (0, 1) };
            messages.push(number * 1000, packet(number, from, to));
        }
        let lines = messages.lines(&NAMES, &[2]);
        assert!(lines[0].starts_with("messages before") && lines.len() == LINES + 2, "too few: {lines:#?}");
        for number in 200..800 {
            let (from, to) = if number % 10 == 0 { (0, 2) } else { (0, 1) };
            messages.push(number * 1000, packet(number, from, to));
        }
        let lines = messages.lines(&NAMES, &[2]);
        assert!(lines[0].starts_with("messages of client before"), "{lines:#?}");
        assert!(lines[3..].iter().all(|line| line.contains("n0 → client")), "{lines:#?}");
    }

    #[test]
    fn the_node_of_a_task_that_panics_is_known() {
        let world = World::new(1);
        let nodes = NAMES.map(|name| world.node(name));
        nodes[0].spawn(std::future::pending::<()>());
        assert_eq!(world.0.executor.panicked_on(), None);
        nodes[2].spawn(async { panic!("on purpose") });
        let run = crate::check::panic_hook::catch(|| world.run());
        assert!(run.is_err_and(|text| text.starts_with("on purpose")));
        assert_eq!(world.0.executor.panicked_on(), Some(2));
    }

    #[test]
    fn names_are_whole_words() {
        assert!(has_word("  n1: parked: 1", "n1") && has_word("at sim://n1:7", "n1"));
        assert!(!has_word("n10 and an1", "n1") && !has_word("", "n1"));
    }

    /// Recording must change nothing, whatever faults there are.
    #[test]
    fn a_recorded_run_is_the_same_run() {
        let sweep = crate::check::sweep("recorded").nodes(3).ignoring_leaks();
        let test = |world: Case| async move {
            let server = world.nodes[0].endpoint(Config::default())?;
            let addr = server.listen(&world.nodes[0].addr(1))?;
            world.nodes[0].spawn(async move {
                loop {
                    let request = server.next_unexpected().await;
                    let patience = server.within(Duration::from_millis(1));
                    let _ = request.peer().send(1, Memory::from(vec![1; 50_000]), patience).await;
                }
            });
            let client = world.nodes[1].endpoint(Config::default())?;
            while world.now() < world.calm_at() {
                let patience = client.within(Duration::from_millis(5));
                let Ok(peer) = client.connect(&addr, patience).await else { continue };
                let reply = peer.recv(1, Memory::zeroed(50_000)?, peer.within(Duration::from_millis(5)));
                let _ = peer.send_unexpected(1, vec![1], peer.within(Duration::from_millis(5))).await;
                // Some seeds fail, others pass.
                if let Err(error) = reply.await
                    && world.seed.is_multiple_of(2)
                {
                    return Err(error);
                }
                let _ = peer.disconnect(peer.within(Duration::from_millis(5))).await;
            }
            Ok::<_, Error>(())
        };
        let (mut passed, mut shown) = (0, 0);
        for seed in 0..30 {
            let plan = Plan::draw(seed, &Swarm::all(), &sweep.nodes);
            let [plain, recorded] = [false, true].map(|records| sweep.once(seed, &plan, records, &test));
            assert_eq!(
                (plain.digest, plain.events, &plain.result),
                (recorded.digest, recorded.events, &recorded.result)
            );
            assert!(plain.messages.is_empty() && recorded.messages.len() <= LINES + 2);
            passed += u32::from(plain.result.is_ok());
            shown += u32::from(recorded.messages.len() > 10);
        }
        assert!((1..30).contains(&passed) && shown > 20, "{passed} passed, {shown} had messages");
    }
}
