//! Pictures of the distribution of latency, and of latency against an offered rate.

use super::speed::{add, label, up};
use super::{Page, RATE, grid, hint, section, title};
use crate::groups::{Group, PERCENTILES, percentiles};
use crate::html::axis::{self, Axis};
use crate::html::chart::{Chart, Dash, PLOT, Point, Series};
use crate::html::palette::Palette;
use crate::report::Unit;
use crate::text::over;
use crate::units;

/// The most sizes of a test whose distributions are shown.
const MOST_SIZES: usize = 2;

/// The percentiles of latency.
pub(in crate::html) fn distribution(page: &Page<'_>) -> String {
    let mut pictures = Vec::new();
    for part in page.by_size() {
        let with: Vec<&&Group<'_>> = part.iter().filter(|group| !tails(page, group).is_empty()).collect();
        let shown = match with.len() {
            0..=MOST_SIZES => with,
            many => vec![with[0], with[many / 2]],
        };
        for group in shown {
            let row = group.row();
            let names = PERCENTILES.map(|(name, _)| name);
            let size = row.size.map(|size| format!(" of {}", units::size(size as usize))).unwrap_or_default();
            let heading = format!("{}{size}: percentiles", title(&row.test));
            let series = tails(page, group);
            pictures.push(picture(
                heading,
                hint(row, &[], "less is better"),
                (Axis::names(&names, PLOT.across()), "percentile of single operations"),
                series,
            ));
        }
    }
    let hint = "p99 is the time that 99 of 100 operations do not exceed. A percentile is shown only if at \
                least ten operations took longer.";
    section("percentiles", "The slow ones among many", hint, &grid(&pictures))
}

fn tails(page: &Page<'_>, group: &Group<'_>) -> Vec<Series> {
    let mut all = Vec::new();
    for row in group.figures.iter().map(|figure| figure.row) {
        for (place, (share, value)) in PERCENTILES.iter().zip(percentiles(row)).enumerate() {
            let Some(value) = value else { continue };
            let note = format!("{}, {}: {}", over(row), share.0, units::time(value));
            let point = Point { x: place as f64, y: value, low: value, high: value, note, ringed: false };
            add(&mut all, over(row).replace(" (baseline)", ""), page.palette.colour(row), Palette::dash(row), point);
        }
    }
    all
}

/// Latency against the rate at which operations were offered.
pub(in crate::html) fn offered(page: &Page<'_>) -> String {
    let mut kinds: Vec<(String, String, Vec<Series>)> = Vec::new();
    for figure in page.groups.iter().flat_map(|group| &group.figures) {
        let row = figure.row;
        let Some(rate) = row.setup.get(RATE).and_then(|rate| rate.parse::<f64>().ok()).filter(|rate| *rate > 0.0)
        else {
            continue;
        };
        let size = row.size.map(|size| format!(" of {}", units::size(size as usize))).unwrap_or_default();
        let (heading, hint) = (format!("{}{size}", title(&row.test)), hint(row, &[RATE], "less is better"));
        let place = kinds.iter().position(|kind| (&kind.0, &kind.1) == (&heading, &hint));
        let place = place.unwrap_or_else(|| {
            kinds.push((heading, hint, Vec::new()));
            kinds.len() - 1
        });
        let all = &mut kinds[place].2;
        let (name, colour, median) = (over(row).replace(" (baseline)", ""), page.palette.colour(row), figure.median);
        let point = |name: &str, y, low, high| {
            let note = format!("{name} at {}: {}", units::rate(rate), row.unit.figure(y));
            Point { x: rate, y, low, high, note, ringed: false }
        };
        let middle = point(&name, median.middle, median.low, median.high);
        if let Some(late) = percentiles(row)[1] {
            let name = format!("{name} p99");
            let late = point(&name, late, late, late);
            add(all, name, colour, Dash::Dotted, late);
        }
        add(all, name, colour, Palette::dash(row), middle);
    }
    let pictures: Vec<String> = kinds
        .into_iter()
        .map(|(heading, hint, series)| {
            let rates: Vec<f64> = series.iter().flat_map(|series| &series.points).map(|point| point.x).collect();
            let x = Axis::measured(&rates, PLOT.across(), axis::rate);
            picture(heading, hint, (x, "offered operations per second"), series)
        })
        .collect();
    let hint = "Operations begin at a given rate, whether or not earlier ones have ended. Where a line \
                turns up, the transport cannot keep up with the rate.";
    section("rate", "Latency against the offered rate", hint, &grid(&pictures))
}

fn picture(title: String, hint: String, (x, across): (Axis, &str), series: Vec<Series>) -> String {
    let points = series.iter().flat_map(|series| &series.points);
    let values: Vec<f64> = points.flat_map(|point| [point.low, point.y, point.high]).collect();
    let (label, up) = (label(Unit::Seconds), up(Unit::Seconds));
    let y = Axis::logarithmic(&values, PLOT.up(), label);
    let (findings, crossings, across) = (Vec::new(), Vec::new(), across.to_owned());
    Chart { title, hint, findings, x, y, label, across, up, series, crossings, parted: None }.render()
}
