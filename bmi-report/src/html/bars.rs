//! Pictures of bars: a [`Chart`] whose lines would have one point each.
//!
//! **Why.** Two dots say little. On axes that are cut they say something wrong: what differs by 5 %
//! looks as far apart as what differs by a factor of ten. A bar begins at zero, so lengths compare
//! as the figures do.
//!
//! **Layout.** A bar for each figure, from left to right, with its name on the left and its value
//! on the right. A whisker is the interval.

use std::fmt::Write;

use super::axis::Axis;
use super::chart::{Chart, Dash, Point, Series, WIDTH};
use super::escape;

/// The left and the right end of the longest bar. Names are on the left, values on the right.
const LEFT: f64 = 150.0;
const RIGHT: f64 = 500.0;
/// The room above the bars, for words above a line at 1.
const TOP: f64 = 20.0;
/// The height of a bar with the gap below it, and without.
const LINE: f64 = 28.0;
const BAR: f64 = 16.0;
/// The room for the labels of the axis, and for its name.
const FOOT: f64 = 40.0;
/// The height of the ends of a whisker.
const END: f64 = 8.0;
/// The most letters of a name.
const NAME: usize = 20;

/// Draws the bars of a chart. Its caller draws the heading.
// Writing to a string cannot fail, here and below.
pub(super) fn render(chart: &Chart, svg: &mut String) {
    let bars: Vec<(&Series, &Point)> =
        chart.series.iter().flat_map(|series| series.points.iter().map(move |point| (series, point))).collect();
    let ends = bars.iter().flat_map(|(_, point)| [point.high, point.y]);
    let values: Vec<f64> = ends.chain(chart.parted.map(|_| 1.0)).collect();
    let axis = Axis::from_zero(&values, (LEFT, RIGHT), chart.label);
    let bottom = TOP + LINE * bars.len() as f64;
    let (title, height) = (escape::text(&chart.title), bottom + FOOT);
    let _ = write!(svg, "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">");
    for (value, label) in &axis.ticks {
        let (x, label) = (axis.at(*value), escape::text(label));
        let _ = write!(svg, "<path class=\"grid\" d=\"M{x:.1} {TOP:.1}V{bottom:.1}\"/>");
        let _ = write!(svg, "<text class=\"mid\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>", bottom + 16.0);
    }
    for (number, (series, point)) in bars.iter().enumerate() {
        bar(chart, &axis, TOP + LINE * (number as f64 + 0.5), series, point, svg);
    }
    let _ = write!(svg, "<path class=\"axis\" d=\"M{LEFT:.1} {TOP:.1}V{bottom:.1}\"/>");
    if let Some((above, below)) = chart.parted {
        let one = axis.at(1.0);
        let _ = write!(svg, "<path class=\"one\" d=\"M{one:.1} {:.1}V{bottom:.1}\"/>", TOP - 4.0);
        let _ = write!(svg, "<text class=\"end\" x=\"{:.1}\" y=\"12\">← {below}</text>", one - 6.0);
        let _ = write!(svg, "<text class=\"dim\" x=\"{:.1}\" y=\"12\">{above} →</text>", one + 6.0);
    }
    let (middle, up) = (f64::midpoint(LEFT, RIGHT), escape::text(chart.up));
    let _ = write!(svg, "<text class=\"mid dim\" x=\"{middle:.1}\" y=\"{:.1}\">{up}</text></svg>", bottom + 33.0);
}

fn bar(chart: &Chart, axis: &Axis, middle: f64, series: &Series, point: &Point, svg: &mut String) {
    let (end, low, high) = (axis.at(point.y), axis.at(point.low), axis.at(point.high));
    let is_sure = point.low < point.high;
    let class = series.colour.class() + if series.dash == Dash::Dotted { " dotted" } else { "" };
    let whisker = if is_sure { format!(" data-low=\"{low:.1}\" data-high=\"{high:.1}\"") } else { String::new() };
    let (width, top, note) = (end - LEFT, middle - BAR / 2.0, escape::figures(&point.note));
    let _ = write!(
        svg,
        "<g class=\"bar {class}\"{whisker}><title>{note}</title>\
         <rect x=\"{LEFT:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{BAR}\"/>"
    );
    if is_sure {
        let (upper, lower) = (middle - END / 2.0, middle + END / 2.0);
        let path =
            format!("M{low:.1} {middle:.1}H{high:.1}M{low:.1} {upper:.1}V{lower:.1}M{high:.1} {upper:.1}V{lower:.1}");
        let _ = write!(svg, "<path class=\"whisker\" d=\"{path}\"/>");
    }
    svg.push_str("</g>");
    let (name, full) = (escape::text(&escape::cut(&series.name, NAME)), escape::text(&series.name));
    let place = format!("x=\"{:.1}\" y=\"{:.1}\"", LEFT - 8.0, middle + 4.0);
    let _ = write!(svg, "<text class=\"end name {class}\" {place}>{name}<title>{full}</title></text>");
    let planned = if point.ringed { ", as planned" } else { "" };
    let value = escape::text(&format!("{}{planned}", (chart.label)(point.y)));
    let _ = write!(svg, "<text x=\"{:.1}\" y=\"{:.1}\">{value}</text>", end.max(high) + 8.0, middle + 4.0);
}
