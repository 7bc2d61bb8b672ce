//! [PVFS-IB, Figures 7 to 10]: `pvfs-test` by the number of nodes.

use super::machines::Machine;
use super::publications::{Value, find};
use super::report::{Figure, Report, Series, Style};
use super::{Scale, machines};
use crate::workload::pvfs_test::{PvfsTest, Took};
use crate::workload::{Failed, Setup, Span, bed, elapsed, mb_per_s};

/// Aggregate bandwidth in MB/s and mean utilisation of the clients' processors, in both directions.
#[derive(Clone, Copy, Debug, Default)]
struct Point {
    write: f64,
    read: f64,
    cpu_write: f64,
    cpu_read: f64,
    /// The utilisation during the whole run.
    cpu: f64,
}

fn point(machine: &Machine, clients: usize, servers: usize, scale: Scale) -> Result<Point, Failed> {
    let Machine { bed, waiting } = machine;
    let program = PvfsTest { rounds: scale.pick(3, 1), ..PvfsTest::paper(servers) };
    let ranks = bed::run(bed, &Setup { waiting: *waiting, ..machines::setup(clients, servers) }, &program)?;
    let bytes = (program.len * clients * program.rounds) as u64;
    let bandwidth = |of: fn(&Took) -> &[Span]| mb_per_s(bytes, elapsed(ranks.iter().map(of)));
    let mean =
        |of: &dyn Fn(&Took) -> Span| ranks.iter().map(|took| of(took).utilisation()).sum::<f64>() / ranks.len() as f64;
    Ok(Point {
        write: bandwidth(|took| &took.write),
        read: bandwidth(|took| &took.read),
        cpu_write: mean(&|took| took.write.iter().sum()),
        cpu_read: mean(&|took| took.read.iter().sum()),
        cpu: mean(&|took| took.write.iter().chain(&took.read).sum()),
    })
}

/// The bandwidth for each number of compute nodes. The keys are the numbers of I/O nodes.
type Grid = Vec<(usize, Vec<(usize, Point)>)>;

fn grid(machine: &Machine, scale: Scale) -> Result<Grid, Failed> {
    // There are eight nodes, so at most four of each kind.
    let counts: &[usize] = scale.pick(&[1, 2, 3, 4], &[1, 4]);
    let row = |servers: usize| {
        let points = counts.iter().map(|clients| Ok((*clients, point(machine, *clients, servers, scale)?)));
        Ok((servers, points.collect::<Result<_, Failed>>()?))
    };
    counts.iter().map(|servers| row(*servers)).collect()
}

fn figures(name: &str, title: &str, grid: &Grid) -> Vec<Figure> {
    let one = |direction: &str, of: fn(&Point) -> f64| Figure {
        name: format!("{name}-{direction}"),
        title: format!("{title}: {direction}"),
        x: "compute nodes".into(),
        y: "aggregate bandwidth, MB/s".into(),
        style: Style::Lines,
        series: grid
            .iter()
            .map(|(servers, points)| {
                let points = points.iter().map(|(clients, point)| (*clients as f64, of(point)));
                Series::predicted(format!("{servers} I/O nodes"), points)
            })
            .collect(),
    };
    vec![one("read", |point| point.read), one("write", |point| point.write)]
}

/// Returns the value for these numbers of I/O nodes and compute nodes.
fn at(grid: &Grid, servers: usize, clients: usize) -> Point {
    let row = grid.iter().find(|(count, _)| *count == servers);
    let point = row.and_then(|(_, points)| points.iter().find(|(count, _)| *count == clients));
    point.map(|(_, point)| *point).unwrap_or_default()
}

/// Compares the mean gain of each of three more nodes.
fn slopes(report: &mut Report, figure: &str, one: Point, four: Point) {
    report.compare(&format!("pvfs-ib.{figure}.read"), (four.read - one.read) / 3.0);
    report.compare(&format!("pvfs-ib.{figure}.write"), (four.write - one.write) / 3.0);
}

/// Reproduces Figure 7.
pub(super) fn ibnice(scale: Scale) -> Result<Report, Failed> {
    let grid = grid(&Machine::tcp(machines::ibnice()), scale)?;
    let mut report = Report { figures: figures("ibnice", "Figure 7, PVFS over IBNice", &grid), ..Report::default() };
    // "Each additional compute node … when there are sufficient I/O nodes to carry the load."
    slopes(&mut report, "fig7", at(&grid, 4, 1), at(&grid, 4, 4));
    for (figure, slope) in report.figures.iter_mut().zip([120.0, 160.0]) {
        let line = (1..=4).map(|nodes| (f64::from(nodes), slope * f64::from(nodes)));
        figure.series.push(Series::published(format!("{slope} MB/s each"), line));
    }
    Ok(report)
}

/// Reproduces Figure 8.
pub(super) fn vapi(scale: Scale) -> Result<Report, Failed> {
    let grid = grid(&Machine::verbs(machines::vapi()), scale)?;
    let mut report = Report { figures: figures("vapi", "Figure 8, PVFS over VAPI", &grid), ..Report::default() };
    // "The bandwidth increase from adding another I/O node … for simultaneous reads from many
    // compute nodes."
    let (one, four) = (at(&grid, 1, 4), at(&grid, 4, 4));
    slopes(&mut report, "fig8", one, four);
    for figure in &mut report.figures {
        let points = (1..=4).map(|nodes| (4.0, 400.0 * f64::from(nodes)));
        figure.series.push(Series::published("400 MB/s for each I/O node", points));
    }
    report.check(
        "writes grow at about the same rate as reads, slightly less",
        four.write <= four.read && four.write >= 0.8 * four.read,
        format!("{:.0} and {:.0} MB/s with four of each", four.write, four.read),
    );
    Ok(report)
}

/// Points by the number of compute nodes, for each transport.
type Ways = Vec<(&'static str, Vec<(usize, Point)>)>;

/// Measures the four ways of Figure 9, with one to four compute nodes and four I/O nodes.
fn four_ways(scale: Scale) -> Result<Ways, Failed> {
    let ways = [
        ("VAPI, ramfs", Machine::verbs(machines::vapi())),
        ("IBNice, ramfs", Machine::tcp(machines::ibnice())),
        ("VAPI, ext3", Machine::verbs(machines::vapi_disk())),
        ("IBNice, ext3", Machine::tcp(machines::ibnice_disk())),
    ];
    let counts: &[usize] = scale.pick(&[1, 2, 3, 4], &[1, 4]);
    let one = |(name, machine)| {
        let points = counts.iter().map(|clients| Ok((*clients, point(&machine, *clients, 4, scale)?)));
        Ok((name, points.collect::<Result<_, Failed>>()?))
    };
    ways.into_iter().map(one).collect()
}

/// Reproduces Figure 9. MPI-IO itself is a thin layer over the same calls, and costs nothing here.
pub(super) fn mpi_io(scale: Scale) -> Result<Report, Failed> {
    let ways = four_ways(scale)?;
    let mut report = Report::default();
    for (direction, of) in [("read", read as fn(&Point) -> f64), ("write", write)] {
        let series = ways.iter().map(|(name, points)| {
            Series::predicted(*name, points.iter().map(|(clients, point)| (*clients as f64, of(point))))
        });
        let mut figure = Figure {
            name: format!("mpi-io-{direction}"),
            title: format!("Figure 9, MPI-IO over PVFS, four I/O nodes: {direction}"),
            x: "compute nodes".into(),
            y: "aggregate bandwidth, MB/s".into(),
            style: Style::Lines,
            series: series.collect(),
        };
        if direction == "write" {
            figure.series.push(Series::published("95 MB/s on four disks", [(4.0, 95.0)]));
        }
        report.figures.push(figure);
        let last = |way: usize| ways[way].1.last().map_or(f64::NAN, |(_, point)| of(point));
        report.compare(&format!("pvfs-ib.fig9.ramfs.{direction}"), last(0) / last(1));
        report.compare(&format!("pvfs-ib.fig9.disk.{direction}"), 100.0 * (last(2) / last(3) - 1.0));
        if direction == "write" {
            report.compare("pvfs-ib.fig9.disk.peak", last(2));
        }
    }
    Ok(report)
}

fn read(point: &Point) -> f64 {
    point.read
}

fn write(point: &Point) -> f64 {
    point.write
}

/// Reproduces Figure 10.
pub(super) fn cpu(scale: Scale) -> Result<Report, Failed> {
    let counts: &[usize] = scale.pick(&[1, 2, 3, 4], &[1, 4]);
    let mut report = Report::default();
    let mut figure = Figure {
        name: "cpu".into(),
        title: "Figure 10, CPU utilisation of the compute nodes, four I/O nodes, ramfs".into(),
        x: "compute nodes".into(),
        y: "one core, %".into(),
        style: Style::Lines,
        series: Vec::new(),
    };
    let machines = [
        ("IBNice", "pvfs-ib.fig10.ibnice", Machine::tcp(machines::ibnice())),
        ("VAPI", "pvfs-ib.fig10.vapi", Machine::verbs(machines::vapi())),
    ];
    for (name, id, machine) in machines {
        let points = counts.iter().map(|clients| Ok((*clients as f64, point(&machine, *clients, 4, scale)?)));
        let points = points.collect::<Result<Vec<_>, Failed>>()?;
        let series = |of: fn(&Point) -> f64| points.iter().map(|(x, point)| (*x, of(point))).collect::<Vec<_>>();
        // "As high as" is the maximum over the runs with one to four compute nodes.
        let runs = series(|point| point.cpu);
        report.compare(id, runs.iter().map(|point| point.1).fold(0.0, f64::max));
        if name == "IBNice" {
            report.check(
                "utilisation over IBNice drops off with the number of compute nodes",
                runs.first().zip(runs.last()).is_some_and(|(one, most)| most.1 < one.1),
                runs.iter().map(|(x, y)| format!("{x}: {y:.1} %")).collect::<Vec<_>>().join(", "),
            );
        }
        figure.series.push(Series::predicted(format!("{name}, read"), series(|point| point.cpu_read)));
        figure.series.push(Series::predicted(format!("{name}, write"), series(|point| point.cpu_write)));
        if let Value::Exact(percent) = find(id).value {
            figure.series.push(Series::published(format!("{name}, published"), [(1.0, percent)]));
        }
    }
    report.figures.push(figure);
    Ok(report)
}
