//! Pictures against size: latency and bandwidth, processor time, ratios.

use super::{Page, grid, hint, section, title};
use crate::answer::span;
use crate::groups::{Figure, Group, Ratio, ratio_figure};
use crate::html::axis::{self, Axis};
use crate::html::chart::{Chart, Colour, Dash, PLOT, Point, Series};
use crate::html::palette::Palette;
use crate::report::{Kind, Row, Unit};
use crate::stats::Interval;
use crate::text::over;
use crate::units;

/// Each test against size.
pub(in crate::html) fn values(page: &Page<'_>) -> String {
    let pictures: Vec<String> = page.by_size().map(|part| value(page, part)).collect();
    section("speed", "Figures against size", "", &grid(&pictures))
}

fn value(page: &Page<'_>, part: &[&Group<'_>]) -> String {
    let row = part[0].row();
    let median = |figure: &Figure<'_>| {
        let (unit, rounds) = (figure.row.unit, figure.row.rounds.len());
        let (middle, span) = (unit.figure(figure.median.middle), span(unit, figure.median));
        let more = if rounds > 1 { format!(" ({span}, {rounds} rounds)") } else { String::new() };
        (figure.median, format!("{}: {middle}{more}", name(figure.row)))
    };
    let better = if row.unit.less_is_better() { "less is better" } else { "more is better" };
    let series = series(page, part, |figure| Some(median(figure)));
    let counted = part[0].counted().map(|what| format!(": {what}")).unwrap_or_default();
    let title = format!("{}{counted} against size", title(&row.test));
    chart(title, hint(row, &[], better), series, label(row.unit)).render()
}

/// Processor time of all hosts against size.
pub(in crate::html) fn processor(page: &Page<'_>) -> String {
    let mut pictures = Vec::new();
    for part in page.by_size() {
        let cost = |figure: &Figure<'_>| {
            let cost = &figure.row.cost;
            let cpu: f64 = cost.values().map(|cost| cost.cpu).sum();
            let each: Vec<String> =
                cost.iter().map(|(role, cost)| format!("{role} {}", units::time(cost.cpu))).collect();
            let note = format!("{}: {} ({})", name(figure.row), units::time(cpu), each.join(", "));
            (cpu > 0.0).then_some((Interval { middle: cpu, low: cpu, high: cpu }, note))
        };
        let (row, series) = (part[0].row(), series(page, part, cost));
        if !series.is_empty() {
            let title = format!("{}: processor time of all hosts", title(&row.test));
            pictures.push(chart(title, hint(row, &[], "less is better"), series, axis::time).render());
        }
    }
    let hint = "User and system time of client and server together, for one message or operation.";
    section("processor", "Processor time of a message", hint, &grid(&pictures))
}

/// The ratios to the baseline, and those between transports.
pub(in crate::html) fn ratios(page: &Page<'_>) -> String {
    let mut pictures = Vec::new();
    for part in page.by_size() {
        pictures.extend(ratio(page, part, |figure| figure.to_baseline, "the baseline"));
        pictures.extend(ratio(page, part, |figure| figure.to_first, "a transport"));
    }
    let hint = "The cost of one divided by the cost of the other, round by round. Below the line at 1 is \
                faster. The band is the interval: where it contains 1, no difference is shown.";
    section("ratios", "How many times the cost", hint, &grid(&pictures))
}

fn ratio<'a>(
    page: &Page<'_>,
    part: &[&'a Group<'a>],
    of: impl Fn(&'a Figure<'a>) -> Option<Ratio<'a>>,
    to: &str,
) -> Option<String> {
    let mut series: Vec<Series> = Vec::new();
    let mut others: Vec<&str> = Vec::new();
    for figure in part.iter().flat_map(|group| &group.figures) {
        let (Some(ratio), Some(size)) = (of(figure), figure.row.size) else { continue };
        if !ratio.interval.high.is_finite() {
            continue;
        }
        if !others.contains(&ratio.to.over.as_str()) {
            others.push(&ratio.to.over);
        }
        let interval = ratio.interval;
        let [middle, low, high] = [interval.middle, interval.low, interval.high].map(ratio_figure);
        let name = format!("{} / {}", figure.row.over, ratio.to.over);
        let note =
            format!("{name}, {}: × {middle} ({low} to {high}), {}", units::size(size as usize), ratio.verdict.words());
        add(&mut series, name, page.palette.colour(figure.row), Dash::Solid, point(size, interval, note));
    }
    let row = part[0].row();
    // Where all are compared with the same, the heading says so and the names can be short.
    let to = match &others[..] {
        [] => return None,
        [other] => {
            let end = format!(" / {other}");
            series.iter_mut().for_each(|series| series.name.truncate(series.name.len() - end.len()));
            (*other).to_owned()
        }
        _ => to.to_owned(),
    };
    let heading = format!("{}: cost compared with {to}", title(&row.test));
    let mut chart = chart(heading, hint(row, &[], "below 1 is faster"), series, axis::plain);
    let ends = chart.series.iter().flat_map(|series| &series.points).flat_map(|point| [point.low, point.high]);
    let values: Vec<f64> = ends.chain([0.8, 1.25]).collect();
    chart.y = Axis::logarithmic(&values, PLOT.up(), axis::plain);
    chart.parted = Some(("slower", "faster"));
    Some(chart.render())
}

/// Returns the lines of a part, one for each that its rows ran over.
fn series(
    page: &Page<'_>,
    part: &[&Group<'_>],
    value: impl Fn(&Figure<'_>) -> Option<(Interval, String)>,
) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for figure in part.iter().flat_map(|group| &group.figures) {
        let (Some(size), Some((interval, note))) = (figure.row.size, value(figure)) else { continue };
        if interval.middle > 0.0 {
            let (colour, dash) = (page.palette.colour(figure.row), Palette::dash(figure.row));
            add(&mut all, over(figure.row).replace(" (baseline)", ""), colour, dash, point(size, interval, note));
        }
    }
    all
}

fn point(size: u64, interval: Interval, note: String) -> Point {
    let Interval { middle, low, high } = interval;
    Point { x: size.max(1) as f64, y: middle, low, high, note, ringed: false }
}

/// Adds a point to the line of this name, in the order of `x`.
pub(super) fn add(all: &mut Vec<Series>, name: String, colour: Colour, dash: Dash, point: Point) {
    let place = all.iter().position(|series| series.name == name).unwrap_or_else(|| {
        all.push(Series { name, colour, dash, points: Vec::new() });
        all.len() - 1
    });
    let points = &mut all[place].points;
    let at = points.partition_point(|other| other.x <= point.x);
    points.insert(at, point);
}

/// Makes a picture of lines against size.
pub(super) fn chart(title: String, hint: String, series: Vec<Series>, label: fn(f64) -> String) -> Chart {
    let points = || series.iter().flat_map(|series| &series.points);
    let sizes: Vec<f64> = points().map(|point| point.x).collect();
    let values: Vec<f64> = points().flat_map(|point| [point.low, point.y, point.high]).collect();
    Chart {
        title,
        hint,
        x: Axis::sizes(&sizes, PLOT.across()),
        y: Axis::logarithmic(&values, PLOT.up(), label),
        across: "size of a message or operation".to_owned(),
        series,
        crossings: Vec::new(),
        parted: None,
    }
}

/// Returns the labels of an axis.
pub(super) fn label(unit: Unit) -> fn(f64) -> String {
    match unit {
        Unit::Seconds => axis::time,
        Unit::BytesPerSecond => axis::bandwidth,
        Unit::PerSecond => axis::rate,
        Unit::Instructions | Unit::Calls => axis::plain,
    }
}

fn name(row: &Row) -> String {
    let size = row.size.map(|size| format!(", {}", units::size(size as usize))).unwrap_or_default();
    let kind = if row.kind == Kind::Library { String::new() } else { over(row).replacen(&row.over, "", 1) };
    format!("{}{kind}{size}", row.over)
}
