//! Pictures of figures, processor time and ratios: against size, or of the only size.

use super::{Page, grid, hint, only_size, place, section, title};
use crate::answer::{self, span};
use crate::groups::{Figure, Group, Ratio, ratio_figure};
use crate::html::axis::{self, Axis};
use crate::html::chart::{Chart, Colour, Dash, PLOT, Point, Series};
use crate::html::palette::Palette;
use crate::report::{Kind, Row, Unit};
use crate::stats::Interval;
use crate::text::over;
use crate::units;

/// The figures of each test.
pub(in crate::html) fn values(page: &Page<'_>) -> String {
    let pictures: Vec<String> = page.by_size().filter_map(|part| value(page, part)).collect();
    section("speed", "Figures", "", &grid(&pictures))
}

fn value(page: &Page<'_>, part: &[&Group<'_>]) -> Option<String> {
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
    let against = match only_size(part) {
        Some(size) => format!(" of {}", units::size(size as usize)),
        None if row.size.is_some() => " against size".to_owned(),
        None => String::new(),
    };
    let title = format!("{}{counted}{against}", title(&row.test));
    let findings = answer::findings(page.report, part);
    let chart = Chart { findings, ..chart(title, hint(row, &[], better), series, label(row.unit), up(row.unit)) };
    (!chart.series.is_empty()).then(|| chart.render())
}

/// Returns a hint that begins with the only size.
fn hint_with_size(part: &[&Group<'_>], note: &str) -> String {
    let size = only_size(part).map(|size| format!("{}; ", units::size(size as usize)));
    size.unwrap_or_default() + &hint(part[0].row(), &[], note)
}

/// Processor time. The heading says of whom: not each benchmark knows that of all hosts.
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
            let title = format!("{}: processor time of {}", title(&row.test), roles(part).join(" and "));
            pictures.push(
                chart(
                    title,
                    hint_with_size(part, "less is better"),
                    series,
                    axis::time,
                    "processor time of an operation",
                )
                .render(),
            );
        }
    }
    let hint = "User and system time for one message or operation, of those that the heading names together.";
    section("processor", "Processor time of a message", hint, &grid(&pictures))
}

/// Returns whose processor time the rows of a part have, each once.
fn roles<'a>(part: &[&'a Group<'a>]) -> Vec<&'a str> {
    let rows = part.iter().flat_map(|group| &group.figures).map(|figure| figure.row);
    let mut roles: Vec<&str> = rows.flat_map(|row| row.cost.keys().map(String::as_str)).collect();
    roles.sort_unstable();
    roles.dedup();
    roles
}

/// The ratios to the baseline, and those between transports.
pub(in crate::html) fn ratios(page: &Page<'_>) -> String {
    let mut pictures = Vec::new();
    for part in page.by_size() {
        pictures.extend(ratio(page, part, |figure| figure.to_baseline, "the baseline"));
        pictures.extend(ratio(page, part, |figure| figure.to_first, "a transport"));
    }
    let hint = "The cost of one divided by the cost of the other, round by round. Below the line at 1 is \
                faster. The band or the whisker is the interval: where it contains 1, no difference is shown.";
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
        let (Some(ratio), Some(size)) = (of(figure), place(part, figure.row)) else { continue };
        if !ratio.interval.high.is_finite() {
            continue;
        }
        if !others.contains(&ratio.to.over.as_str()) {
            others.push(&ratio.to.over);
        }
        let interval = ratio.interval;
        let [middle, low, high] = [interval.middle, interval.low, interval.high].map(ratio_figure);
        let name = format!("{} / {}", figure.row.over, ratio.to.over);
        let at = figure.row.size.map(|size| format!(", {}", units::size(size as usize))).unwrap_or_default();
        let note = format!("{name}{at}: × {middle} ({low} to {high}), {}", ratio.verdict.words());
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
    let mut chart = chart(heading, hint_with_size(part, "below 1 is faster"), series, axis::plain, "ratio of costs");
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
        let (Some(size), Some((interval, note))) = (place(part, figure.row), value(figure)) else { continue };
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
pub(super) fn chart(
    title: String,
    hint: String,
    series: Vec<Series>,
    label: fn(f64) -> String,
    up: &'static str,
) -> Chart {
    let points = || series.iter().flat_map(|series| &series.points);
    let sizes: Vec<f64> = points().map(|point| point.x).collect();
    let values: Vec<f64> = points().flat_map(|point| [point.low, point.y, point.high]).collect();
    Chart {
        title,
        hint,
        findings: Vec::new(),
        x: Axis::sizes(&sizes, PLOT.across()),
        y: Axis::logarithmic(&values, PLOT.up(), label),
        label,
        across: "size of a message or operation, as measured (logarithmic)".to_owned(),
        up,
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
        _ => axis::plain,
    }
}

/// Returns the name of the axis of values.
pub(super) fn up(unit: Unit) -> &'static str {
    match unit {
        Unit::Seconds => "time of an operation",
        Unit::BytesPerSecond => "bytes per second",
        Unit::PerSecond => "operations per second",
        Unit::Instructions => "instructions of an operation",
        Unit::Calls => "system calls of an operation",
        Unit::WakeUps => "wake-ups of an operation",
        Unit::Misses => "cache misses of an operation",
    }
}

fn name(row: &Row) -> String {
    let size = row.size.map(|size| format!(", {}", units::size(size as usize))).unwrap_or_default();
    let kind = if row.kind == Kind::Library { String::new() } else { over(row).replacen(&row.over, "", 1) };
    format!("{}{kind}{size}", row.over)
}
