//! [Quadrics-PVFS2]: compares zero-copy list I/O over Quadrics with packing.

use bmi::config::Lists;

use super::report::{Figure, Report, Series, Style};
use super::{Scale, machines, tile};
use crate::workload::pvfs_test::{PvfsTest, Took};
use crate::workload::tile::Tile;
use crate::workload::{Failed, Setup, Span, bed, elapsed, mb_per_s};

fn setup(clients: usize, servers: usize, lists: Lists) -> Setup {
    Setup { lists, ..machines::setup(clients, servers) }
}

/// Returns the aggregate bandwidth of read and write in MB/s. The blocks have 1 MB, and each
/// process has 4 MB.
fn blocks(clients: usize, servers: usize, lists: Lists, scale: Scale) -> Result<(f64, f64), Failed> {
    let program = PvfsTest { len: 4 << 20, blocks: 4, pieces: 1, rounds: scale.pick(3, 1) };
    let ranks = bed::run(&machines::elan4(), &setup(clients, servers, lists), &program)?;
    let bytes = (program.len * clients * program.rounds) as u64;
    let bandwidth = |of: fn(&Took) -> &[Span]| mb_per_s(bytes, elapsed(ranks.iter().map(of)));
    Ok((bandwidth(|took| &took.read), bandwidth(|took| &took.write)))
}

/// Reproduces Figures 4 and 5.
pub(super) fn concurrent(scale: Scale) -> Result<Report, Failed> {
    let servers: &[usize] = scale.pick(&[1, 2, 4], &[4]);
    let clients: &[usize] = scale.pick(&[1, 2, 3, 4], &[1, 4]);
    let mut report = Report::default();
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let mut most = (f64::MIN, f64::MIN);
    for servers in servers {
        let mut curves = [(); 4].map(|()| Vec::new());
        for clients in clients {
            let x = *clients as f64;
            let chain = blocks(*clients, *servers, Lists::Chain, scale)?;
            let pack = blocks(*clients, *servers, Lists::Pack, scale)?;
            most = (most.0.max(chain.0 / pack.0), most.1.max(chain.1 / pack.1));
            for (curve, y) in curves.iter_mut().zip([chain.0, pack.0, chain.1, pack.1]) {
                curve.push((x, y));
            }
        }
        let [chain_read, pack_read, chain_write, pack_write] = curves;
        reads.push(Series::predicted(format!("{servers}S zero copy"), chain_read));
        reads.push(Series::predicted(format!("{servers}S LIO"), pack_read));
        writes.push(Series::predicted(format!("{servers}S zero copy"), chain_write));
        writes.push(Series::predicted(format!("{servers}S LIO"), pack_write));
    }
    report.compare("quadrics-pvfs2.fig4.read", 100.0 * (most.0 - 1.0));
    report.compare("quadrics-pvfs2.fig5.write", 100.0 * (most.1 - 1.0));
    report.check(
        "reads gain more than writes",
        most.0 > most.1,
        format!("{:.0} % and {:.0} %", 100.0 * (most.0 - 1.0), 100.0 * (most.1 - 1.0)),
    );
    for (name, title, series) in
        [("read", "Figure 4, concurrent read", reads), ("write", "Figure 5, concurrent write", writes)]
    {
        report.figures.push(Figure {
            name: format!("quadrics-{name}"),
            title: format!("[Quadrics-PVFS2], {title}, blocks of 1 MB, 4 MB a process"),
            x: "clients".into(),
            y: "aggregate bandwidth, MB/s".into(),
            style: Style::Lines,
            series,
        });
    }
    Ok(report)
}

/// Reproduces Figure 6: three schemes. PVFS2 over InfiniBand packs on the client's side only and
/// registers all memory for each use.
pub(super) fn tiles(scale: Scale) -> Result<Report, Failed> {
    let program = tile::tile(32, scale);
    // PVFS2 takes the whole access in one call.
    let program = Tile { rows_a_call: program.size_y, ..program };
    let chain = tile::run(&machines::elan4(), &setup(4, 4, Lists::Chain), &program)?;
    let pack = tile::run(&machines::elan4(), &setup(4, 4, Lists::Pack), &program)?;
    let uncached = machines::setup(4, 4).endpoint.pin_cache_bytes(0);
    let verbs = Setup { endpoint: uncached, ..setup(4, 4, Lists::PackExposed) };
    let verbs = tile::run(&machines::infiniband_2005(), &verbs, &Tile { fresh: true, ..program })?;
    let mut report = Report::default();
    report.check(
        "IB-LIO is behind both schemes over Quadrics",
        verbs.read < chain.read.min(pack.read) && verbs.write < chain.write.min(pack.write),
        format!("{:.0} and {:.0} MB/s", verbs.read, verbs.write),
    );
    report.compare("quadrics-pvfs2.fig6.read", 100.0 * (chain.read / pack.read - 1.0));
    report.compare("quadrics-pvfs2.fig6.write", 100.0 * (chain.write / pack.write - 1.0));
    report.figures.push(Figure {
        name: "quadrics-tile".into(),
        title: "[Quadrics-PVFS2, Figure 6], MPI-Tile-IO, elements of 32 bytes".into(),
        x: String::new(),
        y: "aggregate bandwidth, MB/s".into(),
        style: Style::Bars(vec!["read".into(), "write".into()]),
        series: vec![
            Series::predicted("IB-LIO", [(0.0, verbs.read), (1.0, verbs.write)]),
            Series::predicted("LIO (packing)", [(0.0, pack.read), (1.0, pack.write)]),
            Series::predicted("zero copy", [(0.0, chain.read), (1.0, chain.write)]),
            Series::published("LIO and the published gain", [(0.0, 2.13 * pack.read), (1.0, 1.66 * pack.write)]),
        ],
    });
    Ok(report)
}
