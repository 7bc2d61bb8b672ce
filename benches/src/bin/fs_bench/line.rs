//! The lines of the benchmark: what each measures, its name, its unit.
//!
//! `cargo xtask compare` matches lines of different builds by name. So a name changes only if the
//! line measures something else.

use benches::report;
use benches::workload::Failed;
use bmi_core::Scheme;
use bmi_core::comm::Direction::{self, Read, Write};
use bmi_report::{Kind, Row, Unit, units};

use crate::data;

/// The numbers of calls in flight for create, stat and remove.
pub(crate) const NAMESPACE_DEPTHS: [usize; 2] = [1, 64];

/// What a line measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// Creating files in one directory, with this many calls in flight.
    Create(usize),
    /// Reading attributes of files, with their sizes, with this many calls in flight.
    Stat(usize),
    /// Removing files, with this many calls in flight.
    Remove(usize),
    /// Random accesses to a file.
    Random(Random),
    /// Noncontiguous accesses, one after the other.
    List(Direction),
    /// Storing a local file, without waiting for the disks: `pvfs put --no-sync`.
    Put,
    /// Storing a local file durably: `pvfs put`.
    PutSynced,
    /// Fetching a file.
    Get,
}

/// Accesses of one size at random places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Random {
    pub(crate) direction: Direction,
    pub(crate) size: usize,
    pub(crate) in_flight: usize,
}

const fn random(direction: Direction, size: usize, in_flight: usize) -> What {
    What::Random(Random { direction, size, in_flight })
}

/// All lines over one transport, in the order in which they are printed.
pub(crate) const ALL: [What; 19] = [
    What::Create(NAMESPACE_DEPTHS[0]),
    What::Stat(NAMESPACE_DEPTHS[0]),
    What::Remove(NAMESPACE_DEPTHS[0]),
    What::Create(NAMESPACE_DEPTHS[1]),
    What::Stat(NAMESPACE_DEPTHS[1]),
    What::Remove(NAMESPACE_DEPTHS[1]),
    random(Write, 4 << 10, 1),
    random(Read, 4 << 10, 1),
    random(Write, 4 << 10, 16),
    random(Read, 4 << 10, 16),
    random(Write, 64 << 10, 1),
    random(Read, 64 << 10, 1),
    random(Write, 64 << 10, 16),
    random(Read, 64 << 10, 16),
    What::List(Write),
    What::List(Read),
    What::Put,
    What::PutSynced,
    What::Get,
];

impl What {
    /// Returns the unit of the figure: the time of a call if calls are one after the other, calls
    /// per second if many are in flight, and bytes per second if one call transfers much data.
    pub(crate) fn unit(self) -> Unit {
        match self {
            What::Create(in_flight) | What::Stat(in_flight) | What::Remove(in_flight) => by_depth(in_flight),
            What::Random(random) => by_depth(random.in_flight),
            What::List(_) | What::Put | What::PutSynced | What::Get => Unit::BytesPerSecond,
        }
    }
}

fn by_depth(in_flight: usize) -> Unit {
    if in_flight == 1 { Unit::Seconds } else { Unit::PerSecond }
}

/// A line of the table.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) scheme: Scheme,
    pub(crate) what: What,
    /// The name of `row`.
    pub(crate) name: String,
    /// The row of a report, without rounds.
    pub(crate) row: Row,
}

impl Line {
    /// Returns the line of `what` over a transport; `copy` is the size of the file to put and get.
    pub(crate) fn new(scheme: Scheme, what: What, copy: u64) -> Line {
        let verb = |direction| if direction == Read { "read" } else { "write" };
        let (test, size, in_flight) = match what {
            What::Create(in_flight) => ("create".to_owned(), None, Some(in_flight)),
            What::Stat(in_flight) => ("stat".to_owned(), None, Some(in_flight)),
            What::Remove(in_flight) => ("remove".to_owned(), None, Some(in_flight)),
            What::Random(Random { direction, size, in_flight }) => {
                (format!("random {}", verb(direction)), Some(size as u64), Some(in_flight))
            }
            What::List(direction) => {
                let pieces = format!("{} x {}", data::LIST_PIECES, units::size(data::LIST_PIECE));
                (format!("list {} {pieces}", verb(direction)), None, None)
            }
            What::Put => ("put".to_owned(), Some(copy), None),
            What::PutSynced => ("put and sync".to_owned(), Some(copy), None),
            What::Get => ("get".to_owned(), Some(copy), None),
        };
        let depth = in_flight.map(|in_flight| format!("{in_flight} in flight"));
        let setup: Vec<(&str, &str)> = depth.iter().map(|depth| ("depth", &**depth)).collect();
        let row = Row { size, ..report::row(&test, scheme.as_str(), Kind::Library, what.unit(), &setup) };
        Line { scheme, what, name: row.name(), row }
    }
}

/// The chosen lines.
#[derive(Debug)]
pub(crate) struct Selection(Vec<Line>);

impl Selection {
    /// Returns the lines over these transports whose names contain `only`, or all lines without it.
    ///
    /// # Errors
    /// If no name contains it.
    pub(crate) fn new(schemes: &[Scheme], only: Option<&str>, copy: u64) -> Result<Selection, Failed> {
        let of_one = |scheme: &Scheme| ALL.map(|what| Line::new(*scheme, what, copy));
        let all: Vec<Line> = schemes.iter().flat_map(of_one).collect();
        let only = only.unwrap_or_default().to_lowercase();
        let has = |line: &&Line| line.name.to_lowercase().contains(&only);
        let lines: Vec<Line> = all.iter().filter(has).cloned().collect();
        if lines.is_empty() {
            let names = all.iter().map(|line| format!("\n  {}", line.name)).collect::<String>();
            return Err(format!("no line has {only:?} in its name; there are{names}").into());
        }
        Ok(Selection(lines))
    }

    /// Returns the lines, by transport.
    pub(crate) fn lines(&self) -> &[Line] {
        &self.0
    }

    /// Returns the line of `what` over a transport, if it is chosen.
    pub(crate) fn find(&self, scheme: Scheme, what: What) -> Option<&Line> {
        self.0.iter().find(|line| line.scheme == scheme && line.what == what)
    }

    /// Returns true if put or get is chosen over any transport.
    pub(crate) fn wants_copies(&self) -> bool {
        self.0.iter().any(|line| matches!(line.what, What::Put | What::PutSynced | What::Get))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(schemes: &[Scheme], only: Option<&str>) -> Vec<String> {
        let selection = Selection::new(schemes, only, 1 << 30).unwrap();
        selection.lines().iter().map(|line| line.name.clone()).collect()
    }

    #[test]
    fn no_two_lines_have_one_name() {
        let names = names(&[Scheme::Tcp, Scheme::Shm, Scheme::Ib], None);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert_eq!(names.len(), 3 * ALL.len());
    }

    #[test]
    fn names_are_as_a_comparison_knows_them() {
        let names = names(&[Scheme::Tcp], None);
        for name in [
            "tcp create, 1 in flight",
            "tcp remove, 64 in flight",
            "tcp random write 4 KiB, 16 in flight",
            "tcp random read 64 KiB, 1 in flight",
            "tcp list write 64 x 4 KiB",
            "tcp put 1 GiB",
        ] {
            assert!(names.iter().any(|one| one == name), "{name} is not among {names:?}");
        }
    }

    #[test]
    fn a_text_selects_lines_in_any_case() {
        assert_eq!(names(&[Scheme::Tcp, Scheme::Shm], Some("Put 1")), ["tcp put 1 GiB", "shm put 1 GiB"]);
        assert_eq!(names(&[Scheme::Tcp, Scheme::Shm], Some("shm")).len(), ALL.len());
    }
}
