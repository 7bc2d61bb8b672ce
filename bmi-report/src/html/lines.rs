//! Pictures of lines, as SVG that has neither script nor outside loads.
//!
//! **Layout.** The labels of the vertical axis are on the left of the plot, the names of the lines
//! on its right. A name is at the end of its line, and moves where two would overlap. An interval
//! is a band. Lines that would have one point each, all at one place, are [`bars`]. Colours and
//! fonts are in `style.css`; a class tells which.

use std::fmt::Write;

use super::chart::{Chart, Colour, Dash, HEIGHT, PLOT, Plot, Series, WIDTH};
use super::{bars, escape};

/// The least distance of two names.
const LINE: f64 = 14.0;
/// The most letters of a name.
const NAME: usize = 18;

impl Chart {
    /// Draws the picture with its heading.
    // Writing to a string cannot fail, here and below.
    pub(super) fn render(&self) -> String {
        let title = escape::text(&self.title);
        let mut svg = format!(
            "<figure class=\"chart\"><figcaption><b>{title}</b><span>{}</span></figcaption>",
            escape::text(&self.hint)
        );
        for finding in &self.findings {
            let _ = write!(svg, "<p class=\"finding\">{}</p>", escape::figures(finding));
        }
        if self.has_one_place() {
            bars::render(self, &mut svg);
            return svg + "</figure>\n";
        }
        let _ = write!(svg, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\">");
        self.axes(&mut svg);
        for series in &self.series {
            self.band(&mut svg, series);
        }
        for series in &self.series {
            self.line(&mut svg, series);
        }
        self.parting(&mut svg);
        self.crossings(&mut svg);
        self.names(&mut svg);
        svg + "</svg></figure>\n"
    }

    /// Returns true if there are points, and all are at one place of the horizontal axis.
    fn has_one_place(&self) -> bool {
        let mut places = self.series.iter().flat_map(|series| &series.points).map(|point| point.x);
        places.next().is_some_and(|first| places.all(|place| place == first))
    }

    fn axes(&self, svg: &mut String) {
        let Plot { left, right, top, bottom } = PLOT;
        for (value, label) in &self.y.ticks {
            let y = self.y.at(*value);
            let _ = write!(svg, "<path class=\"grid\" d=\"M{left:.1} {y:.1}H{right:.1}\"/>");
            let label = escape::text(label);
            let _ = write!(svg, "<text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{label}</text>", left - 8.0, y + 4.0);
        }
        for (value, label) in &self.x.ticks {
            let (x, label) = (self.x.at(*value), escape::text(label));
            let _ = write!(svg, "<path class=\"grid\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/>");
            let _ = write!(svg, "<text class=\"mid\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>", bottom + 17.0);
        }
        let _ = write!(svg, "<path class=\"axis\" d=\"M{left:.1} {top:.1}V{bottom:.1}H{right:.1}\"/>");
        let (middle, across) = (f64::midpoint(left, right), escape::text(&self.across));
        let _ = write!(svg, "<text class=\"mid dim\" x=\"{middle:.1}\" y=\"{:.1}\">{across}</text>", HEIGHT - 8.0);
        let up = escape::text(self.up);
        let _ = write!(svg, "<text class=\"dim\" x=\"0\" y=\"9\">{up} (logarithmic)</text>");
    }

    fn parting(&self, svg: &mut String) {
        let Some((above, below)) = self.parted else { return };
        let (y, x) = (self.y.at(1.0), PLOT.left + 8.0);
        let _ = write!(svg, "<path class=\"one\" d=\"M{:.1} {y:.1}H{:.1}\"/>", PLOT.left, PLOT.right);
        if y - PLOT.top > 2.0 * LINE {
            let _ = write!(svg, "<text class=\"dim halo\" x=\"{x:.1}\" y=\"{:.1}\">↑ {above}</text>", y - 6.0);
        }
        if PLOT.bottom - y > 2.0 * LINE {
            let _ = write!(svg, "<text class=\"dim halo\" x=\"{x:.1}\" y=\"{:.1}\">↓ {below}</text>", y + 15.0);
        }
    }

    fn band(&self, svg: &mut String, series: &Series) {
        if series.points.len() < 2 {
            return;
        }
        let place = |x: f64, y: f64| format!("{:.1} {:.1}", self.x.at(x), self.y.at(y));
        let upper = series.points.iter().map(|point| place(point.x, point.high));
        let lower = series.points.iter().rev().map(|point| place(point.x, point.low));
        let path: Vec<String> = upper.chain(lower).collect();
        let _ = write!(svg, "<path class=\"band {}\" d=\"M{}Z\"/>", series.colour.class(), path.join("L"));
    }

    fn line(&self, svg: &mut String, series: &Series) {
        let class = series.colour.class();
        let dash = match series.dash {
            Dash::Solid => "",
            Dash::Dashed => " dashed",
            Dash::Dotted => " dotted",
        };
        let places = series.points.iter().map(|point| format!("{:.1} {:.1}", self.x.at(point.x), self.y.at(point.y)));
        let path = places.collect::<Vec<_>>().join("L");
        if !path.is_empty() {
            let _ = write!(svg, "<path class=\"line {class}{dash}\" d=\"M{path}\"/>");
        }
        for point in &series.points {
            let (x, y, note) = (self.x.at(point.x), self.y.at(point.y), escape::figures(&point.note));
            let mark = mark(series.colour, x, y);
            let _ = write!(svg, "<g class=\"p {class}\" data-x=\"{x:.1}\"><title>{note}</title>");
            if point.ringed {
                let _ = write!(svg, "<circle class=\"ring\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"7.5\"/>");
            }
            let _ = write!(svg, "<path d=\"{mark}\"/></g>");
        }
    }

    fn crossings(&self, svg: &mut String) {
        let mut free = 0.0;
        for crossing in &self.crossings {
            let (x, y) = (self.x.at(crossing.x), self.y.at(crossing.y));
            let label = escape::text(&crossing.label);
            // A label that would run into the one before is a line below it.
            let half = 3.6 * crossing.label.chars().count() as f64;
            let top = if x - half < free { PLOT.top + LINE } else { PLOT.top };
            free = x + half;
            let _ = write!(svg, "<path class=\"crossing\" d=\"M{x:.1} {y:.1}V{top:.1}\"/>");
            let _ = write!(svg, "<text class=\"mid strong\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>", top - 3.0);
        }
    }

    fn names(&self, svg: &mut String) {
        let ends = self.series.iter().filter_map(|series| series.points.last().map(|end| (end, series)));
        let mut names: Vec<(f64, f64, &Series)> =
            ends.map(|(end, series)| (self.y.at(end.y), self.x.at(end.x), series)).collect();
        names.sort_by(|a, b| a.0.total_cmp(&b.0));
        let wanted: Vec<f64> = names.iter().map(|(y, ..)| *y).collect();
        for ((end, from, series), y) in names.iter().zip(apart(&wanted, PLOT.top + 4.0, PLOT.bottom)) {
            let (class, x) = (series.colour.class(), PLOT.right + 14.0);
            let name = escape::text(&escape::cut(&series.name, NAME));
            let full = escape::text(&series.name);
            let path = format!("M{:.1} {end:.1}L{:.1} {y:.1}", from + 6.0, x - 3.0);
            let _ = write!(svg, "<path class=\"leader {class}\" d=\"{path}\"/>");
            let _ = write!(svg, "<text class=\"name {class}\" x=\"{x:.1}\" y=\"{:.1}\">{name}", y + 4.0);
            let _ = write!(svg, "<title>{full}</title></text>");
        }
    }
}

/// Returns the outline of a mark, which tells lines apart where colours do not.
fn mark(colour: Colour, x: f64, y: f64) -> String {
    match colour {
        Colour::Number(number) => match number % 4 {
            0 => format!("M{:.1} {y:.1}a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z", x - 3.2),
            1 => format!("M{:.1} {:.1}h6v6h-6z", x - 3.0, y - 3.0),
            2 => format!("M{x:.1} {:.1}l3.8 6.6h-7.6z", y - 4.2),
            _ => format!("M{x:.1} {:.1}l4.2 4.2l-4.2 4.2l-4.2 -4.2z", y - 4.2),
        },
        Colour::Quiet => format!("M{:.1} {y:.1}a2 2 0 1 0 4 0a2 2 0 1 0 -4 0z", x - 2.0),
    }
}

/// Moves places, which ascend, apart until each is a line below the one before.
fn apart(wanted: &[f64], top: f64, bottom: f64) -> Vec<f64> {
    let mut places: Vec<f64> = Vec::new();
    for place in wanted {
        let least = places.last().map_or(top, |last| last + LINE);
        places.push(place.max(least));
    }
    // What was moved below the end is moved up again.
    let mut most = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - LINE;
    }
    places
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::html::axis::{self, Axis};
    use crate::html::chart::Point;

    fn point(x: f64, y: f64) -> Point {
        Point { x, y, low: y, high: y, note: "<note> 3 us".into(), ringed: false }
    }

    fn chart(points: Vec<Point>) -> Chart {
        let series = Series { name: "<b>".into(), colour: Colour::Number(0), dash: Dash::Dotted, points };
        Chart {
            title: "a \"title\"".into(),
            hint: String::new(),
            findings: Vec::new(),
            x: Axis::sizes(&[8.0, 64.0], PLOT.across()),
            y: Axis::logarithmic(&[1e-6, 1e-5], PLOT.up(), axis::time),
            label: axis::time,
            across: "bytes".into(),
            up: "time",
            series: vec![series],
            crossings: Vec::new(),
            parted: Some(("slower", "faster")),
        }
    }

    #[test]
    fn a_picture_has_its_line_its_name_and_no_markup_of_the_report() {
        let svg = chart(vec![point(8.0, 1e-6), point(64.0, 1e-5)]).render();
        assert!(svg.contains("&lt;b&gt;") && svg.contains("&lt;note&gt; 3 µs") && !svg.contains("<b>:"));
        assert_eq!(svg.matches("class=\"line c0 dotted\"").count(), 1);
        assert_eq!(svg.matches("<g class=\"p c0\"").count(), 2);
        assert!(svg.contains(">8 B<") && svg.contains(">10 µs<") && svg.contains("aria-label=\"a &quot;title&quot;\""));
        // A line of one point is a bar, which has no markup of the report either. And one of none.
        let bar = chart(vec![point(8.0, 1e-6)]).render();
        assert!(!bar.contains("class=\"band") && bar.contains("<g class=\"bar c0 dotted\""), "{bar}");
        assert!(bar.contains("&lt;b&gt;") && bar.contains("&lt;note&gt; 3 µs") && bar.contains(">1 µs<"));
        assert!(!chart(Vec::new()).render().contains("class=\"line"));
    }

    proptest! {
        #[test]
        fn names_do_not_overlap(mut wanted in prop::collection::vec(0.0f64..300.0, 0..12)) {
            wanted.sort_by(f64::total_cmp);
            let places = apart(&wanted, 18.0, 296.0);
            prop_assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= LINE - 1e-9));
            prop_assert!(places.iter().all(|place| (18.0..=296.0).contains(place)));
        }
    }
}
