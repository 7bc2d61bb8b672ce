//! Reproduces the papers: runs the real client and server in the simulator, and compares the
//! results with the published ones.
//!
//! **Why.** A model that was calibrated only on micro-benchmarks is worth as much as its
//! predictions of whole systems. This module prints predictions and published results side by side,
//! with the error. `docs/reproduction.md` says where the model is off, and why.
//!
//! **Invariants**
//! 1. The machines are profiles of `bmi-sim`, which were calibrated on micro-benchmarks. Nothing
//!    here changes a price.
//! 2. The file system's own client and server run ([`crate::workload`]). No formula replaces them.
//! 3. A reproduction is deterministic: the same command prints the same digits.
//!
//! | module | what |
//! |---|---|
//! | [`publications`] | the papers' results, each with its section, figure or table |
//! | [`report`] | predictions beside published results; curves |
//! | `record` | the same as a report that other programs read |
//! | [`svg`] | pictures of the curves |
//! | `bandwidth`, `small_accesses`, `tile`, `services`, `quadrics`, `ecio` | the reproductions |
//!
//! **Tests.** `tests/it/paper.rs` runs a reduced version of each.

mod bandwidth;
mod ecio;
mod machines;
pub mod publications;
mod quadrics;
mod record;
pub mod report;
mod services;
mod small_accesses;
pub mod svg;
mod tile;

use crate::workload::Failed;
use report::Report;

/// How much of a reproduction is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// All points and data of the paper.
    Full,
    /// Fewer points and less data, for a second or so. It shows that the reproduction runs, and the
    /// orders.
    Reduced,
}

impl Scale {
    /// Returns `full`, or `reduced` at the reduced scale.
    fn pick<T>(self, full: T, reduced: T) -> T {
        match self {
            Scale::Full => full,
            Scale::Reduced => reduced,
        }
    }
}

/// A part of a paper's evaluation.
pub struct Reproduction {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its paper, section and figure.
    pub source: &'static str,
    /// A description of what it shows.
    pub what: &'static str,
    run: fn(Scale) -> Result<Report, Failed>,
}

impl Reproduction {
    /// Runs the reproduction.
    ///
    /// # Errors
    /// If the file system fails in the simulator, which is a bug.
    pub fn run(&self, scale: Scale) -> Result<Report, Failed> {
        (self.run)(scale).map_err(|error| format!("{}: {error}", self.name).into())
    }
}

/// All reproductions, in the order of the papers.
pub const ALL: &[Reproduction] = &[
    Reproduction {
        name: "ibnice",
        source: "[PVFS-IB §6.3, Figure 7]",
        what: "pvfs-test over TCP on InfiniBand: bandwidth by compute and I/O nodes",
        run: bandwidth::ibnice,
    },
    Reproduction {
        name: "vapi",
        source: "[PVFS-IB §6.3, Figure 8]",
        what: "pvfs-test over verbs: bandwidth by compute and I/O nodes",
        run: bandwidth::vapi,
    },
    Reproduction {
        name: "mpi-io",
        source: "[PVFS-IB §6.4, Figure 9]",
        what: "the same with four I/O nodes, in memory and on disk, TCP and verbs",
        run: bandwidth::mpi_io,
    },
    Reproduction {
        name: "cpu",
        source: "[PVFS-IB §6.4, Figure 10]",
        what: "processor utilisation of the compute nodes meanwhile",
        run: bandwidth::cpu,
    },
    Reproduction {
        name: "small",
        source: "[PVFS-IB §6.5, Figure 11]",
        what: "access time of small writes by scheme",
        run: small_accesses::figure_11,
    },
    Reproduction {
        name: "units",
        source: "[PVFS-IB §6.6, Figure 12]",
        what: "32 MB by transfer unit",
        run: small_accesses::figure_12,
    },
    Reproduction {
        name: "tile",
        source: "[PVFS-IB §6.7, Figure 13]",
        what: "mpi-tile-io with and without list I/O",
        run: tile::figure_13,
    },
    Reproduction {
        name: "hints",
        source: "[PVFS-IB §6.8, Figure 14]",
        what: "mpi-tile-io with noncontiguous memory, allocations named or not",
        run: tile::figure_14,
    },
    Reproduction {
        name: "cached",
        source: "[Unifier-PVFS §6.2, Figure 4]",
        what: "cached read by access size: Normal, Mmap, Unifier",
        run: services::figure_4,
    },
    Reproduction {
        name: "reread",
        source: "[Unifier-PVFS §6.2, Figure 5]",
        what: "a file read again by its size, with 512 MB of memory: Normal, Mmap, Unifier",
        run: services::figure_5,
    },
    Reproduction {
        name: "services",
        source: "[Unifier-PVFS §6.3, Figure 6]",
        what: "pvfs-test, cached read by compute nodes: Normal, Mmap, Unifier",
        run: services::figure_6,
    },
    Reproduction {
        name: "quadrics",
        source: "[Quadrics-PVFS2 §4.1, Figures 4 and 5]",
        what: "list I/O over Quadrics, zero copy against packing",
        run: quadrics::concurrent,
    },
    Reproduction {
        name: "quadrics-tile",
        source: "[Quadrics-PVFS2 §4.2, Figure 6]",
        what: "MPI-Tile-IO over Quadrics, zero copy against packing",
        run: quadrics::tiles,
    },
    Reproduction {
        name: "ecio",
        source: "[ECIO-IB §5, Tables 1 to 4]",
        what: "interleaved elements of several clients, two-phase against extended collective I/O",
        run: ecio::tables,
    },
];
