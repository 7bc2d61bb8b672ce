//! [ECIO-IB]: noncontiguous access of several clients to one server. Compares collective I/O with
//! its extension, both as the library has them. As in the paper, each client is an aggregator.

use fs_client::CollectiveOptions;

use super::publications::{ECIO_TABLE_1, EcioRow, Published, Unit, Value};
use super::report::{Comparison, Figure, Report, Series, Style};
use super::{Scale, machines};
use crate::workload::noncontiguous::{Done, Noncontiguous, Took, Way};
use crate::workload::patterns::{Size, interleaved};
use crate::workload::{Failed, bed, elapsed};

/// The number of times that the paper repeats each access.
const TIMES: f64 = 100.0;
const SOURCE: &str = "[ECIO-IB §5.1, Table 1]";

/// Returns the seconds of a hundred accesses, for write and read.
fn seconds(clients: usize, elements: usize, way: Way) -> Result<(f64, f64), Failed> {
    let ranks = clients as u64;
    let pattern = interleaved(Size { piece: 4, bytes: 4 * elements as u64 / ranks, ranks });
    let collective = CollectiveOptions::default().aggregators(u32::try_from(clients)?);
    let program = Noncontiguous { pattern, ways: vec![way], rounds: 1, singles: 0, collective };
    let ranks = bed::run(&machines::vapi_disk(), &machines::setup(clients, 1), &program)?;
    let seconds = |of: fn(&Done) -> &Took| {
        let spans = ranks.iter().flatten().map(|done| of(done).spans.as_slice());
        elapsed(spans).as_secs_f64() * TIMES
    };
    Ok((seconds(|done| &done.write), seconds(|done| &done.read)))
}

/// Reproduces Tables 1 to 4.
pub(super) fn tables(scale: Scale) -> Result<Report, Failed> {
    let rows: Vec<&EcioRow> = ECIO_TABLE_1.iter().filter(|row| row.count <= scale.pick(1024, 16)).collect();
    let mut report = Report::default();
    for clients in [2, 4] {
        let [mut two_phase, mut extended] = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
        for row in &rows {
            let collective = seconds(clients, row.count * 1000, Way::TwoPhase)?;
            let ours = seconds(clients, row.count * 1000, Way::Extended)?;
            let x = row.count as f64 * 1000.0;
            two_phase[0].push((x, collective.0));
            two_phase[1].push((x, collective.1));
            extended[0].push((x, ours.0));
            extended[1].push((x, ours.1));
            if clients == 2 {
                compare(&mut report, row, collective.0, ours.0);
            }
        }
        for (at, direction) in ["write", "read"].into_iter().enumerate() {
            let faster = two_phase[at].iter().zip(&extended[at]).all(|(two, one)| one.1 < two.1);
            report.check(
                &format!("{clients} clients, {direction}: the extension is faster for every count"),
                faster,
                gains(&two_phase[at], &extended[at]),
            );
            let mut series = vec![
                Series::predicted("two-phase", two_phase[at].clone()),
                Series::predicted("extended", extended[at].clone()),
            ];
            if clients == 2 && direction == "write" {
                let published = |of: fn(&EcioRow) -> f64| rows.iter().map(move |row| (row.count as f64 * 1e3, of(row)));
                series.push(Series::published("two-phase, published", published(|row| row.collective)));
                series.push(Series::published("extended, published", published(|row| row.extended)));
            }
            let table = 1 + 2 * at + usize::from(clients == 4);
            report.figures.push(Figure {
                name: format!("ecio-{direction}-{clients}"),
                title: format!("[ECIO-IB], Table {table}, noncontiguous {direction}, {clients} clients, one server"),
                x: "elements".into(),
                y: "seconds for 100 accesses".into(),
                style: Style::Lines,
                series,
            });
        }
    }
    report.notes.push(
        "the paper's seconds do not count: they are 6 MB/s, or 0.6 µs for each element of 4 bytes, which no disk and no micro-benchmark of the paper explains. Here the \
         disk is that of [PVFS-IB], 25 MB/s, four times as fast, and the seconds that are saved are a quarter of the paper's too; that the gains agree is no \
         proof of more"
            .into(),
    );
    Ok(report)
}

fn gains(two_phase: &[(f64, f64)], extended: &[(f64, f64)]) -> String {
    let gain = |(two, one): (&(f64, f64), &(f64, f64))| format!("{:.0} %", 100.0 * (two.1 / one.1 - 1.0));
    two_phase.iter().zip(extended).map(gain).collect::<Vec<_>>().join(", ")
}

fn compare(report: &mut Report, row: &EcioRow, collective: f64, extended: f64) {
    let of = |what: &'static str, value: Value, unit: Unit| Published {
        id: "ecio-ib.table1",
        what,
        value,
        unit,
        source: SOURCE,
    };
    let gain = |two_phase: f64, extended: f64| 100.0 * (two_phase / extended - 1.0);
    let mut add = |name: &str, published: Published, predicted: f64| {
        let mut one = Comparison::with(&format!("ecio-ib.table1.{}k.{name}", row.count), published, predicted);
        one.what = format!("{}, {} thousand elements", one.what, row.count);
        report.comparisons.push(one);
    };
    add(
        "gain",
        of("extended over two-phase", Value::Exact(gain(row.collective, row.extended)), Unit::GainPercent),
        gain(collective, extended),
    );
    if row.count == 1024 {
        add("two-phase", of("two-phase, 100 times", Value::Apart(row.collective), Unit::Seconds), collective);
        add("extended", of("extended, 100 times", Value::Apart(row.extended), Unit::Seconds), extended);
    }
}
