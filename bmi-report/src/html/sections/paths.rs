//! Where the paths of data cross, and which one the library chooses.

use super::speed::{add, chart, label, up};
use super::{PATH, Page, grid, section, setup, title};
use crate::answer::span;
use crate::groups::Figure;
use crate::html::chart::{Colour, Crossing, Dash, Point, Series};
use crate::html::palette;
use crate::report::{Plan, Row, Unit};
use crate::units;

/// A line for each path, for each transport and direction.
pub(in crate::html) fn crossovers(page: &Page<'_>) -> String {
    let mut pictures: Vec<(String, Vec<&Figure<'_>>)> = Vec::new();
    for figure in page.groups.iter().flat_map(|group| &group.figures) {
        if !figure.row.setup.contains_key(PATH) || figure.row.size.is_none() {
            continue;
        }
        let heading = heading(figure.row);
        match pictures.iter_mut().find(|(other, _)| *other == heading) {
            Some((_, figures)) => figures.push(figure),
            None => pictures.push((heading, vec![figure])),
        }
    }
    let all: Vec<String> = pictures.into_iter().map(|(heading, figures)| picture(page, heading, &figures)).collect();
    let hint = "Each path is forced in turn. A dashed vertical line is where another path becomes the best \
                one. A ring is around the path that the plan of the library chooses.";
    section("paths", "Where the paths of data cross", hint, &grid(&all))
}

fn heading(row: &Row) -> String {
    let rest = setup(row, &[PATH]);
    let comma = if rest.is_empty() { "" } else { ", " };
    format!("{} over {}{comma}{rest}", title(&row.test), row.over)
}

fn picture(page: &Page<'_>, heading: String, figures: &[&Figure<'_>]) -> String {
    let mut series: Vec<Series> = Vec::new();
    let names: Vec<&str> = figures.iter().filter_map(|figure| figure.row.setup.get(PATH)).map(String::as_str).collect();
    let colours = palette::of_paths(&names);
    for figure in figures {
        let row = figure.row;
        let (Some(path), Some(size)) = (row.setup.get(PATH), row.size) else { continue };
        let colour = colours.iter().find(|(name, _)| name == path).map_or(Colour::Quiet, |(_, colour)| *colour);
        let (median, ringed) = (figure.median, is_planned(&page.report.plans, row, path));
        let planned = if ringed { "; the plan's choice" } else { "" };
        let value = format!("{} ({})", row.unit.figure(median.middle), span(row.unit, median));
        let note = format!("{path}, {}: {value}{planned}", units::size(size as usize));
        let (x, y) = (size.max(1) as f64, median.middle);
        if y > 0.0 {
            let point = Point { x, y, low: median.low, high: median.high, note, ringed };
            add(&mut series, path.clone(), colour, Dash::Solid, point);
        }
    }
    let unit = figures[0].row.unit;
    let hint = if unit.less_is_better() { "less is better" } else { "more is better" };
    let crossings = crossings(&series, unit);
    let mut chart = chart(heading, hint.to_owned(), series, label(unit), up(unit));
    chart.crossings = crossings;
    chart.render()
}

/// Returns true if the plan takes this path for the row's size and direction. A plan has a line for
/// each size at which the path changes. Its direction may say which memory it is for: `write, other
/// memory`. Then the first memory counts.
fn is_planned(plans: &[Plan], row: &Row, path: &str) -> bool {
    let is_direction = |plan: &Plan| {
        let direction = plan.direction.split(',').next().unwrap_or_default();
        row.setup.values().any(|value| value == direction)
    };
    let of = || plans.iter().filter(|plan| plan.over == row.over && is_direction(plan));
    let Some(first) = of().next() else { return false };
    let of = of().filter(|plan| plan.direction == first.direction && Some(plan.size) <= row.size);
    of.max_by_key(|plan| plan.size).is_some_and(|plan| is_same(&plan.path, path))
}

/// Returns true if two names mean one path: `fast RDMA` is `fast-rdma`.
fn is_same(one: &str, other: &str) -> bool {
    let letters =
        |name: &str| name.to_lowercase().chars().filter(|letter| letter.is_alphanumeric()).collect::<String>();
    letters(one) == letters(other)
}

/// Returns the places where another path becomes the best one, between two sizes.
fn crossings(series: &[Series], unit: Unit) -> Vec<Crossing> {
    let mut sizes: Vec<f64> = series.iter().flat_map(|series| &series.points).map(|point| point.x).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let at = |line: usize, x: f64| {
        series[line].points.iter().find(|point| point.x == x).map(|point| unit.cost(point.y).ln())
    };
    let best = |x: f64| {
        let all = (0..series.len()).filter_map(|line| Some((line, at(line, x)?)));
        all.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(line, _)| line)
    };
    let mut found = Vec::new();
    for pair in sizes.windows(2) {
        let (Some(before), Some(behind)) = (best(pair[0]), best(pair[1])) else { continue };
        let difference = |x: f64| Some(at(before, x)? - at(behind, x)?);
        let (Some(low), Some(high)) = (difference(pair[0]), difference(pair[1])) else { continue };
        if before == behind || low == high {
            continue;
        }
        // Both lines are straight between the two sizes, because both axes are logarithmic.
        let share = low / (low - high);
        let x = (pair[0].ln() + share * (pair[1] / pair[0]).ln()).exp();
        let (Some(from), Some(to)) = (at(before, pair[0]), at(before, pair[1])) else { continue };
        let cost = (from + share * (to - from)).exp();
        let y = if unit.less_is_better() { cost } else { 1.0 / cost };
        found.push(Crossing { x, y, label: format!("≈ {}", rounded(x)) });
    }
    found
}

/// Formats a size that was not measured, with two digits.
fn rounded(bytes: f64) -> String {
    let (value, unit) = match bytes {
        1048576.0.. => (bytes / 1048576.0, "MiB"),
        1024.0.. => (bytes / 1024.0, "KiB"),
        _ => (bytes, "B"),
    };
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(f64, f64)]) -> Series {
        let point = |(x, y): &(f64, f64)| Point { x: *x, y: *y, low: *y, high: *y, note: String::new(), ringed: false };
        let points = points.iter().map(point).collect();
        Series { name: name.into(), colour: Colour::Quiet, dash: Dash::Solid, points }
    }

    #[test]
    fn a_crossing_is_where_the_best_path_changes() {
        let inline = line("inline", &[(1024.0, 1.0), (4096.0, 4.0), (16384.0, 16.0)]);
        let server = line("server", &[(1024.0, 4.0), (4096.0, 4.0001), (16384.0, 4.0)]);
        let found = crossings(&[inline.clone(), server.clone()], Unit::Seconds);
        assert_eq!(found.len(), 1);
        assert!((found[0].x / 4096.0 - 1.0).abs() < 0.01 && (found[0].y / 4.0 - 1.0).abs() < 0.01);
        assert_eq!(found[0].label, "≈ 4.0 KiB");
        // Of bandwidths, the greater one is better: the same lines are the other way round.
        assert_eq!(crossings(&[inline.clone(), server], Unit::BytesPerSecond).len(), 1);
        assert!(crossings(&[inline], Unit::Seconds).is_empty());
    }

    /// A run writes one line for each change of the path, and names the memory. No ring was drawn
    /// around a path, because none of its lines had the row's size and direction.
    #[test]
    fn the_plan_of_a_size_is_that_of_the_last_change_before_it() {
        let plan = |direction: &str, size, path: &str| Plan {
            over: "tcp".into(),
            direction: direction.into(),
            size,
            path: path.into(),
            ..Plan::default()
        };
        let plans = [
            plan("write, registered memory", 0, "inline"),
            plan("write, registered memory", 4097, "fast-rdma"),
            plan("write, other memory", 4097, "server-based"),
            plan("read, registered memory", 0, "client-based"),
        ];
        let is = |size, path| {
            let setup = [("direction".to_owned(), "write".to_owned())].into();
            is_planned(&plans, &Row { over: "tcp".into(), size: Some(size), setup, ..Row::default() }, path)
        };
        assert!(is(64, "inline") && is(4096, "inline") && is(4097, "fast-rdma") && is(65_536, "fast-rdma"));
        assert!(!is(64, "client-based") && !is(65_536, "inline") && !is(65_536, "server-based"));
    }

    #[test]
    fn the_plan_is_found_under_either_spelling() {
        let plan = |direction: &str| Plan {
            over: "tcp".into(),
            direction: direction.into(),
            size: 8,
            path: "fast RDMA".into(),
            why: String::new(),
        };
        let mut row = Row { over: "tcp".into(), size: Some(8), ..Row::default() };
        row.setup.insert("direction".into(), "write".into());
        assert!(is_planned(&[plan("write")], &row, "fast-rdma"));
        assert!(!is_planned(&[plan("read")], &row, "fast-rdma") && !is_planned(&[plan("write")], &row, "inline"));
    }
}
