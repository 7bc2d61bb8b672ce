//! The results that the papers publish of their systems, each with its section, figure or table.
//! The simulator has to predict them.
//!
//! **Invariant.** Nothing here is an input of the model. The only inputs are the micro-benchmarks
//! that the profiles of `bmi-sim` name.
//!
//! There are no curves here. The text of the papers gives slopes, peaks, ratios and orders; the
//! pictures are not available.

/// A published result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Its name here: paper, figure or table, and quantity.
    pub id: &'static str,
    /// A description.
    pub what: &'static str,
    /// The published value.
    pub value: Value,
    /// The unit of the value.
    pub unit: Unit,
    /// The paper, section, figure or table.
    pub source: &'static str,
}

/// A published value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// Exactly this value.
    Exact(f64),
    /// Roughly this value ("roughly", "about").
    About(f64),
    /// A range, with its two ends.
    Range(f64, f64),
    /// At least this value.
    AtLeast(f64),
    /// A value that this model cannot predict. It is printed beside the model's value, with the
    /// error, and not counted. `docs/reproduction.md` says why.
    Apart(f64),
    /// No value: the available text does not have it. Only the model's value is printed.
    HeldBack,
}

/// The unit of a value, and how an error is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// MB/s, MB of 2^20 bytes.
    MbPerS,
    /// A factor.
    Times,
    /// A gain in percent. Its error is that of the factor (89 % are 1.89 times).
    GainPercent,
    /// Processor utilisation in percent. Its error is in points.
    CpuPercent,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

const fn of(id: &'static str, what: &'static str, value: Value, unit: Unit, source: &'static str) -> Published {
    Published { id, what, value, unit, source }
}

use Unit::{Bytes, CpuPercent, GainPercent, MbPerS, Times};
use Value::{About, Apart, AtLeast, Exact, HeldBack, Range};

/// All published results.
pub const ALL: &[Published] = &[
    // ---- [PVFS-IB]: PVFS over InfiniBand --------------------------------------------------------
    of("pvfs-ib.fig7.read", "IBNice read, each further compute node", About(120.0), MbPerS, "[PVFS-IB §6.3, Figure 7]"),
    of(
        "pvfs-ib.fig7.write",
        "IBNice write, each further compute node",
        About(160.0),
        MbPerS,
        "[PVFS-IB §6.3, Figure 7]",
    ),
    of("pvfs-ib.fig8.read", "VAPI read, each further I/O node", About(400.0), MbPerS, "[PVFS-IB §6.3, Figure 8]"),
    of(
        "pvfs-ib.fig8.write",
        "VAPI write, each further I/O node (\"slightly less\")",
        About(400.0),
        MbPerS,
        "[PVFS-IB §6.3, Figure 8]",
    ),
    of("pvfs-ib.fig9.ramfs.read", "ramfs read, VAPI over IBNice", About(3.0), Times, "[PVFS-IB §6.4, Figure 9]"),
    of("pvfs-ib.fig9.ramfs.write", "ramfs write, VAPI over IBNice", About(3.0), Times, "[PVFS-IB §6.4, Figure 9]"),
    of(
        "pvfs-ib.fig9.disk.read",
        "ext3 read, VAPI over IBNice",
        Range(15.0, 42.0),
        GainPercent,
        "[PVFS-IB §6.4, Figure 9]",
    ),
    of(
        "pvfs-ib.fig9.disk.write",
        "ext3 write, VAPI over IBNice",
        Range(15.0, 42.0),
        GainPercent,
        "[PVFS-IB §6.4, Figure 9]",
    ),
    of(
        "pvfs-ib.fig9.disk.peak",
        "ext3 write over VAPI, four compute nodes",
        Exact(95.0),
        MbPerS,
        "[PVFS-IB §6.4, Figure 9]",
    ),
    of(
        "pvfs-ib.fig10.ibnice",
        "client CPU over IBNice, one compute node",
        Exact(91.0),
        CpuPercent,
        "[PVFS-IB §6.4, Figure 10]",
    ),
    of("pvfs-ib.fig10.vapi", "client CPU over VAPI", Exact(1.5), CpuPercent, "[PVFS-IB §6.4, Figure 10]"),
    of(
        "pvfs-ib.fig11.inline.miss",
        "inline gives way to fast RDMA, memory not registered",
        Apart(4096.0),
        Bytes,
        "[PVFS-IB §6.5, Figure 11]",
    ),
    of(
        "pvfs-ib.fig11.inline.hit",
        "inline gives way to fast RDMA, memory registered",
        Apart(4096.0),
        Bytes,
        "[PVFS-IB §6.5, Figure 11]",
    ),
    of(
        "pvfs-ib.fig11.fast.miss",
        "fast RDMA gives way to server-based, not registered",
        AtLeast(65536.0),
        Bytes,
        "[PVFS-IB §6.5, Figure 11]",
    ),
    of(
        "pvfs-ib.fig11.fast.hit",
        "fast RDMA gives way to server-based, registered",
        AtLeast(65536.0),
        Bytes,
        "[PVFS-IB §6.5, Figure 11]",
    ),
    of(
        "pvfs-ib.fig13.vapi.write",
        "tile write over VAPI, list I/O over none",
        HeldBack,
        Times,
        "[PVFS-IB §6.7, Figure 13]",
    ),
    of(
        "pvfs-ib.fig13.vapi.read",
        "tile read over VAPI, list I/O over none",
        HeldBack,
        Times,
        "[PVFS-IB §6.7, Figure 13]",
    ),
    of(
        "pvfs-ib.fig13.ibnice.write",
        "tile write over IBNice, list I/O over none",
        HeldBack,
        Times,
        "[PVFS-IB §6.7, Figure 13]",
    ),
    of(
        "pvfs-ib.fig13.ibnice.read",
        "tile read over IBNice, list I/O over none",
        HeldBack,
        Times,
        "[PVFS-IB §6.7, Figure 13]",
    ),
    of("pvfs-ib.fig14.write", "tile write, allocations named over not", HeldBack, Times, "[PVFS-IB §6.8, Figure 14]"),
    of("pvfs-ib.fig14.read", "tile read, allocations named over not", HeldBack, Times, "[PVFS-IB §6.8, Figure 14]"),
    // ---- [Unifier-PVFS]: Unifier ----------------------------------------------------------------
    of(
        "unifier-pvfs.fig4.normal",
        "Normal service, cached read, peak",
        Exact(324.0),
        MbPerS,
        "[Unifier-PVFS §6.2, Figure 4]",
    ),
    of(
        "unifier-pvfs.fig4.large.normal",
        "Unifier over Normal, cached read, large accesses",
        Exact(2.1),
        Times,
        "[Unifier-PVFS §6.2, Figure 4]",
    ),
    // The paper's Mmap uses fast registration, whose price is only in a picture (Figure 3).
    of(
        "unifier-pvfs.fig4.large.mmap",
        "Unifier over Mmap, cached read, large accesses",
        Apart(1.3),
        Times,
        "[Unifier-PVFS §6.2, Figure 4]",
    ),
    of(
        "unifier-pvfs.fig4.small.mmap",
        "Unifier over Mmap, cached read, small accesses, most",
        Apart(2.7),
        Times,
        "[Unifier-PVFS §6.2, Figure 4]",
    ),
    of(
        "unifier-pvfs.fig6.normal",
        "Unifier over Normal, four I/O nodes, cached read, peak",
        Exact(1.7),
        Times,
        "[Unifier-PVFS §6.3, Figure 6]",
    ),
    of(
        "unifier-pvfs.fig6.mmap",
        "Unifier over Mmap, four I/O nodes, cached read, peak",
        Apart(1.3),
        Times,
        "[Unifier-PVFS §6.3, Figure 6]",
    ),
    // ---- [Quadrics-PVFS2]: Quadrics -------------------------------------------------------------
    of(
        "quadrics-pvfs2.fig4.read",
        "list I/O read, zero copy over packing, most",
        Exact(89.0),
        GainPercent,
        "[Quadrics-PVFS2 §4.1, Figure 4]",
    ),
    of(
        "quadrics-pvfs2.fig5.write",
        "list I/O write, zero copy over packing, most",
        Exact(52.0),
        GainPercent,
        "[Quadrics-PVFS2 §4.1, Figure 5]",
    ),
    of(
        "quadrics-pvfs2.fig6.read",
        "MPI-Tile-IO read, zero copy over packing, most",
        Exact(113.0),
        GainPercent,
        "[Quadrics-PVFS2 §4.2, Figure 6]",
    ),
    of(
        "quadrics-pvfs2.fig6.write",
        "MPI-Tile-IO write, zero copy over packing",
        Exact(66.0),
        GainPercent,
        "[Quadrics-PVFS2 §4.2, Figure 6]",
    ),
];

/// A row of [ECIO-IB, Table 1]: noncontiguous write, two clients and one server, executed 100
/// times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EcioRow {
    /// Elements of 4 bytes, in thousands.
    pub count: usize,
    /// Seconds of collective I/O.
    pub collective: f64,
    /// Seconds of extended collective I/O.
    pub extended: f64,
}

const fn row(count: usize, collective: f64, extended: f64) -> EcioRow {
    EcioRow { count, collective, extended }
}

/// [ECIO-IB §5.1, Table 1]. Tables 2 to 4 are held back.
pub const ECIO_TABLE_1: &[EcioRow] = &[
    row(4, 1.65, 1.48),
    row(8, 1.94, 1.77),
    row(16, 2.48, 2.20),
    row(32, 3.62, 3.22),
    row(64, 6.03, 5.12),
    row(128, 10.72, 9.29),
    row(256, 20.20, 17.26),
    row(512, 39.62, 33.37),
    row(1024, 77.92, 65.66),
];

/// Returns the result with this name.
///
/// # Panics
/// If there is none. The names are this crate's own.
pub fn find(id: &str) -> Published {
    *ALL.iter().find(|one| one.id == id).expect("a published result that is in the table")
}

impl Unit {
    /// Returns the name of the unit, as printed after a number.
    pub fn as_str(self) -> &'static str {
        match self {
            Unit::MbPerS => "MB/s",
            Unit::Times => "times",
            Unit::GainPercent => "% more",
            Unit::CpuPercent => "% CPU",
            Unit::Bytes => "B",
            Unit::Seconds => "s",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_every_result_has_its_source() {
        for (at, one) in ALL.iter().enumerate() {
            assert!(ALL[..at].iter().all(|other| other.id != one.id), "{}", one.id);
            let paper = one.source.split_once(' ').unwrap().0.trim_start_matches('[').trim_end_matches(',');
            assert!(one.id.starts_with(&format!("{}.", paper.to_lowercase())), "{}: {}", one.id, one.source);
        }
        assert!(ECIO_TABLE_1.iter().all(|row| row.extended < row.collective));
    }
}
