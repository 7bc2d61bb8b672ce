//! Timelines: the activity of every core, adapter, link, switch port and disk, in a format that
//! browsers show.
//!
//! **Why.** A number shows that a run was slow; a timeline shows where the time went. Recording
//! costs nothing while it is off (one branch for each span). While it is on it does not change the
//! run: the digest stays the same.
//!
//! **Layout.** Chrome's trace event format ([`bmi_core::timeline::chrome`] writes it), which
//! `chrome://tracing` and Perfetto open directly. A process is a node. Its rows are:
//!
//! | row | a span is |
//! |---|---|
//! | `core N` | work of one kind |
//! | `adapter transmit`, `adapter receive` | a unit that occupies that side |
//! | `link` | a unit in flight, from its first byte's start to its arrival (these overlap) |
//! | `switch port` | bytes that wait for this node's adapter; a counter, which shows what a unit finds |
//! | | when it comes, and when all have left |
//! | `disk` | bytes of a request |
//!
//! An arrow goes from the last unit of each message at the sending adapter to the same unit at the
//! receiving one.
//!
//! What real endpoints record of themselves is [`bmi_core::timeline`]. It works in the simulator
//! too, with virtual time.
//!
//! Tested by `tests/it/timeline.rs`.

use std::io::{self, Write};

use bmi_core::timeline::chrome::{Arg, ChromeWriter, Row};

use crate::config::TraceOptions;
use crate::engine::Side;
use crate::model::processor::{Slice, Work};

const TRANSMIT: u16 = 100;
const RECEIVE: u16 = 101;
const LINK: u16 = 102;
const SWITCH: u16 = 103;
const DISK: u16 = 104;

/// A span on a row. The meaning of `value` depends on the row: bytes, or a number for a pair.
#[derive(Clone, Copy, Debug)]
struct Mark {
    node: u32,
    row: u16,
    name: &'static str,
    start: u64,
    end: u64,
    value: u64,
    /// For a message's last unit: the number that pairs its two ends; 0 for none.
    flow: u64,
}

/// The recording so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    marks: Vec<Mark>,
    max: usize,
    lost: u64,
    flows: u64,
}

impl Timeline {
    pub(crate) fn new(options: TraceOptions) -> Timeline {
        Timeline { max: options.max_spans, ..Timeline::default() }
    }

    fn push(&mut self, mark: Mark) {
        if self.marks.len() < self.max {
            self.marks.push(mark);
        } else {
            self.lost += 1;
        }
    }

    pub(crate) fn core(&mut self, node: u32, work: Work, slice: Slice) {
        let Slice { core, start, end } = slice;
        self.push(Mark { node, row: core as u16, name: work.name(), start, end, value: 0, flow: 0 });
    }

    /// Records a unit that occupies a side of an adapter. `flow` pairs the two ends of a message.
    pub(crate) fn unit(&mut self, node: u32, side: Side, name: &'static str, span: (u64, u64), bytes: u64, flow: u64) {
        let row = if side == Side::Transmit { TRANSMIT } else { RECEIVE };
        self.push(Mark { node, row, name, start: span.0, end: span.1, value: bytes, flow });
    }

    /// Returns a new number for a message whose two ends are to be paired.
    pub(crate) fn flow(&mut self) -> u64 {
        self.flows += 1;
        self.flows
    }

    pub(crate) fn link(&mut self, node: u32, name: &'static str, span: (u64, u64), bytes: u64) {
        self.push(Mark { node, row: LINK, name, start: span.0, end: span.1, value: bytes, flow: 0 });
    }

    /// Records the bytes that wait at a port. If no more arrive, none wait from `until` on.
    pub(crate) fn waiting(&mut self, node: u32, at: u64, until: u64, bytes: u64) {
        self.push(Mark { node, row: SWITCH, name: "switch port", start: at, end: until, value: bytes, flow: 0 });
    }

    pub(crate) fn disk(&mut self, node: u32, name: &'static str, span: (u64, u64), bytes: u64) {
        self.push(Mark { node, row: DISK, name, start: span.0, end: span.1, value: bytes, flow: 0 });
    }

    /// Returns the number of spans recorded so far, and the number left out because there was no
    /// room.
    pub(crate) fn spans(&self) -> (usize, u64) {
        (self.marks.len(), self.lost)
    }

    /// Writes everything as one JSON document; see the module's layout. `names` are the nodes'.
    pub(crate) fn write_chrome(self, names: &[String], out: impl Write) -> io::Result<()> {
        let Timeline { mut marks, lost, .. } = self;
        marks.sort_by_key(|mark| (mark.node, mark.row, mark.start, mark.end));
        // A flow with one end in a span that was left out is dropped.
        let ends = |row| marks.iter().filter(move |mark| mark.row == row && mark.flow > 0).map(|mark| mark.flow);
        let sent: std::collections::BTreeSet<u64> = ends(TRANSMIT).collect();
        let paired: std::collections::BTreeSet<u64> = ends(RECEIVE).filter(|flow| sent.contains(flow)).collect();
        let mut chrome = ChromeWriter::begin(out, &[("spans left out", Arg::Number(lost.into()))])?;
        let mut rows = None;
        for (number, mark) in marks.iter().enumerate() {
            if rows != Some((mark.node, mark.row)) {
                if rows.is_none_or(|(node, _)| node != mark.node) {
                    chrome.process(mark.node + 1, &names[mark.node as usize])?;
                }
                name_row(&mut chrome, mark)?;
                rows = Some((mark.node, mark.row));
            }
            write_mark(&mut chrome, mark, number as u64, paired.contains(&mark.flow))?;
            let next = marks.get(number + 1).filter(|next| (next.node, next.row) == (mark.node, mark.row));
            if mark.row == SWITCH && next.is_none_or(|next| next.start > mark.end) {
                let empty = Mark { start: mark.end, value: 0, ..*mark };
                write_mark(&mut chrome, &empty, number as u64, false)?;
            }
        }
        chrome.finish()
    }
}

impl Mark {
    fn place(&self) -> Row {
        Row { process: self.node + 1, number: u32::from(self.row) + 1 }
    }
}

/// Names a row and sets its position. Counters and overlapping spans are not threads: they have
/// rows of their own, named by their events.
fn name_row<W: Write>(chrome: &mut ChromeWriter<W>, mark: &Mark) -> io::Result<()> {
    let name = match mark.row {
        TRANSMIT => "adapter transmit",
        RECEIVE => "adapter receive",
        LINK | SWITCH => return Ok(()),
        DISK => "disk",
        core => &format!("core {core}"),
    };
    chrome.row(mark.place(), name)
}

fn write_mark<W: Write>(chrome: &mut ChromeWriter<W>, mark: &Mark, number: u64, paired: bool) -> io::Result<()> {
    let Mark { row, name, start, end, value, flow, .. } = *mark;
    let (place, bytes) = (mark.place(), ("bytes", Arg::Number(value.into())));
    match row {
        SWITCH => chrome.counter(place, name, start, &[bytes]),
        // All units in flight share one row.
        LINK => chrome.overlapping(place, ("link", number), "link", (start, end), &[("what", Arg::Text(name)), bytes]),
        _ => {
            chrome.span(place, name, (start, end), &[bytes])?;
            match row {
                TRANSMIT if paired => chrome.arrow_from(place, flow, start),
                RECEIVE if paired => chrome.arrow_to(place, flow, start),
                _ => Ok(()),
            }
        }
    }
}
