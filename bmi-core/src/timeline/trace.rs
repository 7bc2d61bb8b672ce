//! The picture: rows of one side or of both, with arrows, in Chrome's format ([`super::chrome`]).
//!
//! **Layout.** A process is a side. The first side's clock is the one of the picture, and the time
//! of the first entry is its origin.
//!
//! | row | what it has |
//! |---|---|
//! | `messages out` | a span for each message that was handed to the adapter; a point for one that had to wait |
//! | `messages in` | a span of 1 ns for each arrival; a point when the program has the message |
//! | `registration` | a span for each registration; hits of the pin-down cache have 1 ns |
//! | `driver` | a span for each sleep |
//! | `operations` | a point for the end of each other operation: pulls, pushes, sends that were outstanding |
//! | `RDMA read`, `RDMA write` | transfer units, which overlap |
//! | `call …` | calls by their path, which overlap |
//!
//! An arrow goes from the span of each message that was sent to the one of its arrival, if both
//! sides recorded it.
//!
//! **Invariants.** An arrow has both ends. Spans of one row nest or follow each other, because a
//! recorder's stamps never go back. An arrow never leads back in time (see [`super::align`]).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use super::align::{Alignment, Pairs};
use super::chrome::{Arg, ChromeWriter, Row};
use super::{Class, Direction, Entry, Timeline, Way, What};
use crate::paths::Path;

const OUT: u32 = 1;
const IN: u32 = 2;
const REGISTRATION: u32 = 3;
const DRIVER: u32 = 4;
const OPERATIONS: u32 = 5;
const UNITS: u32 = 6;
const CALLS: u32 = 7;

/// The named rows.
const ROWS: [(u32, &str); 5] = [
    (OUT, "messages out"),
    (IN, "messages in"),
    (REGISTRATION, "registration"),
    (DRIVER, "driver"),
    (OPERATIONS, "operations"),
];

/// The timelines of both sides of a connection, by one clock.
#[derive(Clone, Debug)]
pub struct Merged<'a> {
    client: &'a Timeline,
    server: &'a Timeline,
    pairs: Pairs,
}

/// Aligns the clocks of two timelines and pairs their messages. `client` and `server` are the names
/// in the picture. Either side may have made the connection.
pub fn merge<'a>(client: &'a Timeline, server: &'a Timeline) -> Merged<'a> {
    Merged { client, server, pairs: Pairs::of(client, server) }
}

impl Merged<'_> {
    /// Returns the alignment of the clocks. Without one, the picture takes both clocks for the
    /// same.
    pub fn alignment(&self) -> Option<Alignment> {
        self.pairs.alignment()
    }

    /// Returns the number of arrows.
    pub fn arrows(&self) -> usize {
        self.pairs.ways.iter().map(Vec::len).sum()
    }

    /// Writes both sides as one JSON document. `otherData` says how far the server's clock was
    /// ahead, by how much that may be wrong, and how many entries were lost.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_chrome(&self, out: impl Write) -> io::Result<()> {
        let aligned = self.alignment();
        let offset = aligned.map_or(0, |found| found.offset_ns);
        let mut sides = [Side::new("client", self.client, 0), Side::new("server", self.server, offset)];
        let mut id = 0;
        for (way, pairs) in self.pairs.ways.iter().enumerate() {
            for pair in pairs {
                id += 1;
                sides[way].arrows.insert(pair.sent, id);
                sides[1 - way].arrows.insert(pair.arrived, id);
            }
        }
        let number = |value: usize| Arg::Number(i128::try_from(value).unwrap_or(i128::MAX));
        let bound = aligned.map_or(Arg::Text("unknown"), |found| Arg::Number(found.error_ns));
        let other = [
            ("client entries lost", Arg::Number(self.client.lost.into())),
            ("server entries lost", Arg::Number(self.server.lost.into())),
            ("messages seen by both", number(self.arrows())),
            ("server clock ahead ns", Arg::Number(offset)),
            ("error bound ns", bound),
        ];
        write_sides(out, &mut sides, &other)
    }
}

impl Timeline {
    /// Writes one side alone as a JSON document. `name` is the name of its process.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_chrome(&self, name: &str, out: impl Write) -> io::Result<()> {
        write_sides(out, &mut [Side::new(name, self, 0)], &[("entries lost", Arg::Number(self.lost.into()))])
    }
}

/// A side of a picture.
struct Side<'a> {
    name: &'a str,
    timeline: &'a Timeline,
    /// What is subtracted from its stamps.
    ahead: i128,
    /// The arrows of its entries, by their places.
    arrows: BTreeMap<usize, u64>,
    /// The addresses of its peers.
    addrs: BTreeMap<u64, &'a str>,
}

impl<'a> Side<'a> {
    fn new(name: &'a str, timeline: &'a Timeline, ahead: i128) -> Side<'a> {
        let addrs = timeline.peers.iter().map(|peer| (peer.peer, peer.addr.as_str())).collect();
        Side { name, timeline, ahead, arrows: BTreeMap::new(), addrs }
    }

    /// Returns the time of the picture for a stamp.
    fn time(&self, stamp: u64) -> i128 {
        i128::from(stamp) - self.ahead
    }
}

fn write_sides(out: impl Write, sides: &mut [Side<'_>], other: &[(&str, Arg<'_>)]) -> io::Result<()> {
    let starts =
        sides.iter().flat_map(|side| side.timeline.entries.iter().map(|entry| side.time(entry.start.as_nanos())));
    let origin = starts.min().unwrap_or(0);
    let mut picture = Picture { chrome: ChromeWriter::begin(out, other)?, origin, last_id: 0 };
    for (process, side) in (1..).zip(sides) {
        picture.side(process, side)?;
    }
    picture.chrome.finish()
}

/// A document that is being written.
struct Picture<W: Write> {
    chrome: ChromeWriter<W>,
    /// The time that is 0.
    origin: i128,
    /// The last number of a span that may overlap others.
    last_id: u64,
}

impl<W: Write> Picture<W> {
    fn side(&mut self, process: u32, side: &Side<'_>) -> io::Result<()> {
        self.chrome.process(process, side.name)?;
        for (number, name) in ROWS {
            self.chrome.row(Row { process, number }, name)?;
        }
        let mut entries: Vec<(usize, &Entry)> = side.timeline.entries.iter().enumerate().collect();
        // Of spans that begin together, the longest first: it has the others in it.
        entries.sort_by_key(|(_, entry)| (row_of(entry.what), entry.start, Reverse(entry.duration_ns)));
        for (place, entry) in entries {
            self.entry(process, side, place, entry)?;
        }
        self.calls(process, side)
    }

    /// Returns the time in the document.
    fn at(&self, side: &Side<'_>, stamp: u64) -> u64 {
        let since = side.time(stamp).saturating_sub(self.origin);
        // A peer's stamps may be anything.
        u64::try_from(since.clamp(0, u64::MAX.into())).unwrap_or(u64::MAX)
    }

    fn entry(&mut self, process: u32, side: &Side<'_>, place: usize, entry: &Entry) -> io::Result<()> {
        let row = Row { process, number: row_of(entry.what) };
        let (start, end) = (self.at(side, entry.start.as_nanos()), self.at(side, entry.end().as_nanos()));
        let (name, tag) = (name_of(entry.what), entry.tag.to_string());
        let peer = Arg::Text(side.addrs.get(&entry.peer).copied().unwrap_or("unknown"));
        let bytes = ("bytes", Arg::Number(entry.bytes.into()));
        let message = [("peer", peer), ("tag", Arg::Text(&tag)), bytes, ("number", Arg::Number(entry.number.into()))];
        // A span of no length could not hold an arrow.
        let span = (start, end.max(start.saturating_add(1)));
        match entry.what {
            What::Queue(_) | What::Deliver(_) | What::End { .. } => {
                self.chrome.instant(row, name, start, &message[..3])
            }
            What::Send(..) | What::Arrive(..) => {
                self.chrome.span(row, name, span, &message)?;
                match side.arrows.get(&place) {
                    Some(id) if row.number == OUT => self.chrome.arrow_from(row, *id, start),
                    Some(id) => self.chrome.arrow_to(row, *id, start),
                    None => Ok(()),
                }
            }
            What::Unit(_) => {
                self.last_id += 1;
                self.chrome.overlapping(row, ("unit", self.last_id), name, (start, end), &[("peer", peer), bytes])
            }
            What::Register { .. } => self.chrome.span(row, name, span, &[bytes]),
            What::Sleep => self.chrome.span(row, name, span, &[]),
            // A call is one span of two entries.
            What::Call(_) | What::CallEnd => Ok(()),
        }
    }

    /// Writes the calls. One that has not ended lasts until the last entry.
    fn calls(&mut self, process: u32, side: &Side<'_>) -> io::Result<()> {
        let row = Row { process, number: CALLS };
        let entries = &side.timeline.entries;
        let last = entries.iter().map(Entry::end).max().unwrap_or_default();
        let mut open: BTreeMap<(u64, u64), &Entry> = BTreeMap::new();
        let mut over = Vec::new();
        for entry in entries {
            let key = (entry.peer, entry.tag);
            match entry.what {
                What::Call(_) => over.extend(open.insert(key, entry).map(|begun| (begun, entry.start))),
                What::CallEnd => over.extend(open.remove(&key).map(|begun| (begun, entry.start))),
                _ => {}
            }
        }
        over.extend(open.into_values().map(|begun| (begun, last)));
        for (begun, end) in over {
            self.last_id += 1;
            let span = (self.at(side, begun.start.as_nanos()), self.at(side, end.as_nanos()));
            let peer = Arg::Text(side.addrs.get(&begun.peer).copied().unwrap_or("unknown"));
            let id = (begun.tag & !(1 << 63)).to_string();
            let args = [("peer", peer), ("call", Arg::Text(&id)), ("bytes", Arg::Number(begun.bytes.into()))];
            self.chrome.overlapping(row, ("call", self.last_id), name_of(begun.what), span, &args)?;
        }
        Ok(())
    }
}

fn row_of(what: What) -> u32 {
    match what {
        What::Queue(_) | What::Send(..) => OUT,
        What::Arrive(..) | What::Deliver(_) => IN,
        What::Register { .. } => REGISTRATION,
        What::Sleep => DRIVER,
        What::End { .. } => OPERATIONS,
        What::Unit(_) => UNITS,
        What::Call(_) | What::CallEnd => CALLS,
    }
}

fn name_of(what: What) -> &'static str {
    match what {
        What::Queue(Class::Expected) => "queued",
        What::Queue(Class::Unexpected) => "queued, unexpected",
        What::Send(Class::Expected, Way::Eager) => "send",
        What::Send(Class::Unexpected, Way::Eager) => "send unexpected",
        What::Send(Class::Expected, Way::Slot) => "send to a slot",
        What::Send(Class::Unexpected, Way::Slot) => "send unexpected, to a slot",
        What::Send(_, Way::Offered) => "send to an offered receive",
        What::Send(_, Way::Announced) => "announce",
        What::Arrive(Class::Expected, Way::Eager) => "message",
        What::Arrive(Class::Unexpected, Way::Eager) => "unexpected message",
        What::Arrive(Class::Expected, Way::Slot) => "message in a slot",
        What::Arrive(Class::Unexpected, Way::Slot) => "unexpected message in a slot",
        What::Arrive(_, Way::Offered) => "message in an offered receive",
        What::Arrive(_, Way::Announced) => "announcement",
        What::Deliver(Class::Expected) => "received",
        What::Deliver(Class::Unexpected) => "taken",
        What::Unit(Direction::Read) => "RDMA read",
        What::Unit(Direction::Write) => "RDMA write",
        What::Register { hit: true } => "registered already",
        What::Register { hit: false } => "register",
        What::Sleep => "sleep",
        What::Call(None) => "call",
        What::Call(Some(Path::Inline)) => "call inline",
        What::Call(Some(Path::FastRdma)) => "call fast-rdma",
        What::Call(Some(Path::ServerBased)) => "call server-based",
        What::Call(Some(Path::ClientBased)) => "call client-based",
        What::Call(Some(Path::Hybrid)) => "call hybrid",
        What::CallEnd => "call ended",
        What::End { op, ok: true } => op.as_str(),
        What::End { ok: false, .. } => "failed",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::timeline::wire::tests::any_timeline;

    proptest! {
        /// A timeline may come from a peer that wrote anything.
        #[test]
        fn a_picture_of_any_two_timelines_is_json_and_its_arrows_have_two_ends(
            client in any_timeline(),
            server in any_timeline(),
        ) {
            let merged = merge(&client, &server);
            let mut text = Vec::new();
            merged.write_chrome(&mut text).unwrap();
            let json: Value = serde_json::from_slice(&text).unwrap();
            let events = json["traceEvents"].as_array().unwrap();
            let ids = |phase: &str| {
                let mut ids: Vec<u64> =
                    events.iter().filter(|event| event["ph"] == phase).map(|event| event["id"].as_u64().unwrap()).collect();
                ids.sort_unstable();
                ids
            };
            prop_assert_eq!(ids("s"), ids("f"));
            prop_assert_eq!(ids("s").len(), merged.arrows());
            prop_assert_eq!(ids("b"), ids("e"));
        }
    }
}
