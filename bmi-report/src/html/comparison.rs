//! Two reports compared, as a page: the answer, then the rows with their intervals, worst first.

use super::axis::{self, Axis};
use super::{document, escape};
use crate::compare::{Change, Comparison, Line, Side};
use crate::groups::ratio_figure;
use crate::stats::Interval;
use crate::units::date;

/// The width and height of the picture of an interval, and what is left free at both ends.
const PICTURE: (f64, f64) = (260.0, 16.0);
const MARGIN: f64 = 6.0;
/// Ratios beyond this, and below its inverse, are drawn at the end of the axis.
const MOST_RATIO: f64 = 10.0;

/// The sections, in the order in which a reader wants them, with their explanations.
const SECTIONS: [(Change, &str, &str); 7] = [
    (Change::Slower, "Slower", "B costs more: the whole interval is above 1."),
    (Change::Faster, "Faster", "B costs less: the whole interval is below 1."),
    (Change::Unclear, "Unclear", "The interval contains 1 and is wide, or there are too few rounds."),
    (
        Change::BaselineMoved,
        "No verdict",
        "What was measured beside the program, plain sockets for example, moved between the two runs: the \
         intervals of its medians do not overlap. The machine has changed, so nothing is claimed.",
    ),
    (Change::Same, "The same", "The interval contains 1 and is narrow."),
    (Change::OnlyInA, "Only in A", ""),
    (Change::OnlyInB, "Only in B", ""),
];

/// Formats a comparison as a page.
pub fn render_comparison(comparison: &Comparison) -> String {
    let axis = axis(comparison);
    let sections: Vec<String> = SECTIONS.iter().map(|section| rows(comparison, &axis, *section)).collect();
    let mut answer = format!("<li>{}</li>\n", escape::figures(&comparison.sentence()));
    answer.extend(comparison.terms().map(|terms| format!("<li>{}</li>\n", escape::text(&terms))));
    answer.extend(
        comparison.warnings.iter().map(|warning| format!("<li class=\"warning\">{}</li>\n", escape::figures(warning))),
    );
    let sides = format!(
        "<p class=\"hosts\">{}</p>\n<p class=\"hosts\">{}</p>\n",
        side("A", &comparison.a),
        side("B", &comparison.b)
    );
    let header = format!("<ul class=\"answer\">\n{answer}</ul>\n{sides}");
    document("B compared with A", &header, &sections)
}

fn side(name: &str, side: &Side) -> String {
    let date = if side.began > 0 { format!(" · {}", date(side.began)) } else { String::new() };
    let (title, program) = (escape::text(&side.title), escape::text(&side.program));
    format!("<b>{name}</b> {title} ({program}){date}")
}

/// The axis of all intervals.
fn axis(comparison: &Comparison) -> Axis {
    let ratios = comparison.rows.iter().filter_map(|line| line.ratio);
    let ends = ratios.flat_map(|ratio| [ratio.low, ratio.high]).map(|end| end.clamp(1.0 / MOST_RATIO, MOST_RATIO));
    let values: Vec<f64> = ends.chain([0.8, 1.25]).collect();
    Axis::logarithmic(&values, (MARGIN, PICTURE.0 - MARGIN), axis::plain)
}

fn rows(comparison: &Comparison, axis: &Axis, (change, title, hint): (Change, &str, &str)) -> String {
    let mut lines: Vec<&Line> = comparison.rows.iter().filter(|line| line.change == change).collect();
    if lines.is_empty() {
        return String::new();
    }
    let far = |line: &&Line| line.ratio.map_or(0.0, |ratio| ratio.middle.max(f64::MIN_POSITIVE).ln().abs());
    if matches!(change, Change::Slower | Change::Faster) {
        lines.sort_by(|a, b| far(b).total_cmp(&far(a)));
    }
    let picture = if change.is_in_both() { format!("<th>{}</th>", labels(axis)) } else { String::new() };
    let rows: String = lines.iter().map(|line| row(line, axis)).collect();
    let id = title.to_lowercase().replace(' ', "-");
    let hint = if hint.is_empty() { String::new() } else { format!("<p class=\"hint\">{hint}</p>\n") };
    format!(
        "<section id=\"{id}\"><h2>{title} ({})</h2>\n{hint}<div class=\"wide\"><table><thead><tr><th>row</th>\
         <th class=\"n\">A</th><th class=\"n\">B</th><th class=\"n\">cost of B</th><th class=\"n\">interval</th>\
         {picture}</tr></thead><tbody>\n{rows}</tbody></table></div></section>\n",
        lines.len()
    )
}

fn row(line: &Line, axis: &Axis) -> String {
    let median = |side: Option<Interval>| side.map_or("-".to_owned(), |side| line.unit.figure(side.middle));
    let (cost, interval) = match line.ratio {
        Some(ratio) => {
            let [middle, low, high] = [ratio.middle, ratio.low, ratio.high].map(ratio_figure);
            (format!("× {middle}"), format!("{low} to {high}"))
        }
        None => ("-".to_owned(), "-".to_owned()),
    };
    let cells = [median(line.a), median(line.b), cost, interval];
    let cells: String = cells.iter().map(|cell| format!("<td class=\"n\">{}</td>", escape::figures(cell))).collect();
    let picture = line.ratio.map(|ratio| format!("<td>{}</td>", picture(line.change, ratio, axis))).unwrap_or_default();
    format!("<tr><td>{}</td>{cells}{picture}</tr>\n", escape::figures(&line.name))
}

/// Draws an interval, its middle, and the line at 1.
fn picture(change: Change, ratio: Interval, axis: &Axis) -> String {
    let colour = match change {
        Change::Slower => "c1",
        Change::Faster => "c2",
        _ => "quiet",
    };
    let (low, middle, high) = (axis.at(ratio.low), axis.at(ratio.middle), axis.at(ratio.high));
    let (one, height) = (axis.at(1.0), PICTURE.1);
    // An interval that is narrower than a line is still seen.
    let (left, wide) = (low.min(middle - 0.5), (high - low).max(1.0));
    format!(
        "<svg class=\"interval {colour}\" viewBox=\"0 0 {} {height}\" role=\"img\" aria-label=\"interval\">\
         <path class=\"one\" d=\"M{one:.1} 0V{height}\"/>\
         <path class=\"band\" d=\"M{left:.1} 3h{wide:.1}v{:.1}h-{wide:.1}z\"/>\
         <path class=\"line\" d=\"M{middle:.1} 2V{:.1}\"/></svg>",
        PICTURE.0,
        height - 6.0,
        height - 2.0
    )
}

/// The labels of the axis, above the pictures.
fn labels(axis: &Axis) -> String {
    let label = |(value, label): &(f64, String)| {
        format!("<text class=\"mid\" x=\"{:.1}\" y=\"12\">{}</text>", axis.at(*value), escape::text(label))
    };
    let labels: String = axis.ticks.iter().map(label).collect();
    let (width, height) = PICTURE;
    format!("<svg class=\"interval\" viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"axis\">{labels}</svg>")
}
