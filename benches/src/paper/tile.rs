//! Tiles: [PVFS-IB, Figures 13, 14]. Their values are not available, so only those of the model are
//! printed.

use super::machines::Machine;
use super::report::{Figure, Report, Series, Style};
use super::{Scale, machines};
use crate::workload::tile::{Tile, TileMemory, Took};
use crate::workload::{Bed, Failed, Setup, Span, bed, elapsed, mb_per_s};

/// Returns the paper's tiles, or small ones.
pub(super) fn tile(element: usize, scale: Scale) -> Tile {
    let (size_x, size_y) = scale.pick((1024, 768), (256, 96));
    Tile { size_x, size_y, ..Tile::paper(element) }
}

/// The aggregate bandwidth of read and write in MB/s, and the registrations of a client in a round,
/// for both directions.
pub(super) struct Tiles {
    pub(super) read: f64,
    pub(super) write: f64,
    registrations: u64,
}

pub(super) fn run(bed: &Bed, setup: &Setup, program: &Tile) -> Result<Tiles, Failed> {
    let ranks = bed::run(bed, setup, program)?;
    let bytes = program.tile_bytes() * (program.processes() * program.rounds) as u64;
    let bandwidth = |of: fn(&Took) -> &[Span]| mb_per_s(bytes, elapsed(ranks.iter().map(of)));
    let registrations = ranks[0].registrations / (2 * program.rounds as u64);
    Ok(Tiles { read: bandwidth(|took| &took.read), write: bandwidth(|took| &took.write), registrations })
}

fn bars(name: &str, title: &str, groups: &[&str], series: Vec<Series>) -> Figure {
    Figure {
        name: name.into(),
        title: title.into(),
        x: String::new(),
        y: "aggregate bandwidth, MB/s".into(),
        style: Style::Bars(groups.iter().map(|group| (*group).to_owned()).collect()),
        series,
    }
}

fn counted(values: &[f64]) -> Vec<(f64, f64)> {
    values.iter().enumerate().map(|(at, value)| (at as f64, *value)).collect()
}

/// Reproduces Figure 13: one request for each row, or lists of 128.
pub(super) fn figure_13(scale: Scale) -> Result<Report, Failed> {
    let mut report = Report::default();
    let (mut without, mut with) = (Vec::new(), Vec::new());
    let both = [("vapi", Machine::verbs(machines::vapi())), ("ibnice", Machine::tcp(machines::ibnice()))];
    for (name, Machine { bed, waiting }) in both {
        let (program, setup) = (tile(24, scale), Setup { waiting, ..machines::setup(4, 4) });
        let one = run(&bed, &setup, &Tile { rows_a_call: 1, ..program })?;
        let list = run(&bed, &setup, &program)?;
        without.extend([one.read, one.write]);
        with.extend([list.read, list.write]);
        report.compare(&format!("pvfs-ib.fig13.{name}.read"), list.read / one.read);
        report.compare(&format!("pvfs-ib.fig13.{name}.write"), list.write / one.write);
    }
    let gains = with.iter().zip(&without).map(|(with, without)| with / without);
    report.check(
        "list I/O improves performance significantly",
        gains.clone().all(|gain| gain > 1.2),
        gains.map(|gain| format!("{gain:.2} times")).collect::<Vec<_>>().join(", "),
    );
    report.figures.push(bars(
        "tile",
        "Figure 13, mpi-tile-io, 2 x 2 tiles of 1024 x 768 elements of 24 bytes",
        &["VAPI read", "VAPI write", "IBNice read", "IBNice write"],
        vec![
            Series::predicted("without list I/O", counted(&without)),
            Series::predicted("with list I/O", counted(&with)),
        ],
    ));
    Ok(report)
}

/// Reproduces Figure 14. The memory is noncontiguous, too, and new in each round. The library is
/// told that the rows are one allocation, or it is not.
pub(super) fn figure_14(scale: Scale) -> Result<Report, Failed> {
    let program = Tile { fresh: true, ..tile(64, scale) };
    let setup = machines::setup(4, 4);
    let rows = run(&machines::vapi(), &setup, &Tile { memory: TileMemory::Rows, ..program })?;
    let hints = run(&machines::vapi(), &setup, &Tile { memory: TileMemory::Array, ..program })?;
    let mut report = Report::default();
    report.compare("pvfs-ib.fig14.read", hints.read / rows.read);
    report.compare("pvfs-ib.fig14.write", hints.write / rows.write);
    report.check(
        "a registration for each row without the hint, one with it",
        rows.registrations == program.size_y as u64 && hints.registrations == 1,
        format!("{} and {}", rows.registrations, hints.registrations),
    );
    report.figures.push(bars(
        "hints",
        "Figure 14, mpi-tile-io with elements of 64 bytes, noncontiguous memory, over VAPI",
        &["read", "write"],
        vec![
            Series::predicted("PVFS's interface", counted(&[rows.read, rows.write])),
            Series::predicted("with allocations named", counted(&[hints.read, hints.write])),
        ],
    ));
    Ok(report)
}
