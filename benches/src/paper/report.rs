//! What a reproduction has found out: results beside the published ones, orders that hold or do
//! not, and curves.

use serde::Serialize;

use super::publications::{Published, Unit, Value, find};
use crate::table::Table;

/// A result of the model beside the published one.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Name in `publications`.
    pub id: String,
    /// In words.
    pub what: String,
    /// Unit of both.
    pub unit: &'static str,
    /// The published value; a range as its two ends, without upper end the largest number that
    /// there is; none if it is held back.
    pub published: Vec<f64>,
    /// What the model says.
    pub predicted: f64,
    /// The error: in percent, for processor utilisation in points.
    pub error: Option<f64>,
    /// It counts: what is published is something that the model could say.
    pub counted: bool,
    /// Where it was published.
    pub source: String,
}

impl Comparison {
    /// The model's `predicted` for the published result `id`.
    pub fn new(id: &str, predicted: f64) -> Comparison {
        let one = find(id);
        Comparison::with(one.id, one, predicted)
    }

    /// As [`Comparison::new`], for a result that is not in the table of single ones.
    pub fn with(id: &str, one: Published, predicted: f64) -> Comparison {
        let published = match one.value {
            Value::Exact(value) | Value::About(value) | Value::Apart(value) => vec![value],
            Value::Range(low, high) => vec![low, high],
            // JSON has no infinity.
            Value::AtLeast(value) => vec![value, f64::MAX],
            Value::HeldBack => Vec::new(),
        };
        Comparison {
            id: id.to_owned(),
            what: one.what.to_owned(),
            unit: one.unit.as_str(),
            error: error(one.unit, &published, predicted),
            published,
            predicted,
            counted: !matches!(one.value, Value::Apart(_) | Value::HeldBack),
            source: one.source.to_owned(),
        }
    }

    fn cells(&self) -> [String; 6] {
        let published = match self.published[..] {
            [] => "held back".to_owned(),
            [one] => number(one),
            [low, f64::MAX] => format!("at least {}", number(low)),
            _ => format!("{} to {}", number(self.published[0]), number(self.published[1])),
        };
        let sign = if self.unit == Unit::CpuPercent.as_str() { " points" } else { " %" };
        let error = self.error.map_or("-".to_owned(), |error| match self.counted {
            true => format!("{error:+.1}{sign}"),
            false => format!("({error:+.1}{sign})"),
        });
        let (what, source) = (self.what.clone(), self.source.clone());
        [what, source, self.unit.to_owned(), published, number(self.predicted), error]
    }
}

/// The error of a prediction: relative to the published value in percent, of the factor for a gain,
/// in points for utilisation; of a range to its nearer end, and none within.
fn error(unit: Unit, published: &[f64], predicted: f64) -> Option<f64> {
    let near = match *published {
        [] => return None,
        [one] => one,
        [low, high, ..] => predicted.clamp(low, high),
    };
    Some(match unit {
        Unit::CpuPercent => predicted - near,
        Unit::GainPercent => 100.0 * ((100.0 + predicted) / (100.0 + near) - 1.0),
        _ => 100.0 * (predicted / near - 1.0),
    })
}

/// A number with three digits or so.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || size == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// Something that the paper says without a number, and whether it is so here.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// What the paper says.
    pub what: String,
    /// Whether the model agrees.
    pub holds: bool,
    /// By how much, or where not.
    pub detail: String,
}

/// One curve, or one group of bars.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Published, and not the model's.
    pub published: bool,
    /// x and y. For bars x counts the categories.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// A curve of the model.
    pub fn predicted(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series { name: name.into(), published: false, points: points.into_iter().collect() }
    }

    /// What the paper has.
    pub fn published(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series { name: name.into(), published: true, points: points.into_iter().collect() }
    }
}

/// How a figure is drawn.
#[derive(Clone, Debug, Serialize)]
pub enum Style {
    /// Lines over a linear axis.
    Lines,
    /// Lines over sizes in powers of two.
    Sizes,
    /// Bars in named groups.
    Bars(Vec<String>),
}

/// A picture, and the table of the same numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// File name without its ending.
    pub name: String,
    /// Heading.
    pub title: String,
    /// The x axis.
    pub x: String,
    /// The y axis.
    pub y: String,
    /// How it is drawn.
    pub style: Style,
    /// Its curves.
    pub series: Vec<Series>,
}

/// All that a reproduction has found out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Beside published numbers.
    pub comparisons: Vec<Comparison>,
    /// Beside published words.
    pub checks: Vec<Check>,
    /// Curves.
    pub figures: Vec<Figure>,
    /// What to know when reading it.
    pub notes: Vec<String>,
}

impl Report {
    /// Adds a result of the model for the published result `id`.
    pub fn compare(&mut self, id: &str, predicted: f64) {
        self.comparisons.push(Comparison::new(id, predicted));
    }

    /// Adds something that the paper says without a number.
    pub fn check(&mut self, what: &str, holds: bool, detail: impl Into<String>) {
        self.checks.push(Check { what: what.to_owned(), holds, detail: detail.into() });
    }

    /// As text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        for figure in &self.figures {
            text += &format!("{}\n{}\n", figure.title, figure.table());
        }
        if !self.comparisons.is_empty() {
            let mut table = Table::new(3, ["result", "source", "unit", "published", "predicted", "error"]);
            self.comparisons.iter().for_each(|one| table.row(one.cells()));
            text += &table.render();
        }
        for Check { what, holds, detail } in &self.checks {
            text += &format!("{} {what}: {detail}\n", if *holds { "as published  " } else { "NOT AS PUBLISHED" });
        }
        for note in &self.notes {
            text += &format!("note: {note}\n");
        }
        text
    }
}

impl Figure {
    /// Its numbers: a row for each x, a column for each curve.
    fn table(&self) -> String {
        let mut xs: Vec<f64> =
            self.series.iter().flat_map(|series| series.points.iter().map(|point| point.0)).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let head = std::iter::once(self.x.clone()).chain(self.series.iter().map(|series| series.name.clone()));
        let mut rows = vec![head.collect::<Vec<String>>()];
        for x in xs {
            let mut row = vec![match &self.style {
                Style::Bars(names) => names.get(x as usize).cloned().unwrap_or_default(),
                Style::Sizes => crate::units::size(x as usize),
                Style::Lines => number(x),
            }];
            for series in &self.series {
                let found = series.points.iter().find(|point| point.0 == x);
                row.push(found.map_or("-".to_owned(), |point| number(point.1)));
            }
            rows.push(row);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        let mut text = format!("  ({})\n", self.y);
        for row in rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
            text += &format!("  {}\n", cells.collect::<Vec<_>>().join("  "));
        }
        text
    }
}

/// Of all comparisons that count, other than utilisation: the median and the largest error without
/// sign, in percent, and how many they are; then the largest of utilisation, in points.
pub fn summary<'a>(all: impl Iterator<Item = &'a Comparison>) -> Summary {
    let (mut errors, mut cpu) = (Vec::new(), Vec::new());
    for one in all.filter(|one| one.counted) {
        if let Some(error) = one.error {
            (if one.unit == Unit::CpuPercent.as_str() { &mut cpu } else { &mut errors }).push(error.abs());
        }
    }
    errors.sort_by(f64::total_cmp);
    Summary {
        results: errors.len(),
        median_percent: (!errors.is_empty()).then(|| crate::stats::median(&mut errors)),
        largest_percent: errors.last().copied(),
        largest_cpu_points: cpu.into_iter().reduce(f64::max),
    }
}

/// See [`summary`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Results that count, utilisation apart.
    pub results: usize,
    /// Their median error.
    pub median_percent: Option<f64>,
    /// Their largest.
    pub largest_percent: Option<f64>,
    /// The largest of utilisation.
    pub largest_cpu_points: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_their_unit() {
        let close = |got: Option<f64>, wanted: f64| assert!((got.unwrap() - wanted).abs() < 1e-9, "{got:?}, {wanted}");
        close(error(Unit::MbPerS, &[400.0], 300.0), -25.0);
        close(error(Unit::CpuPercent, &[91.0], 88.0), -3.0);
        close(error(Unit::GainPercent, &[100.0], 150.0), 25.0);
        close(error(Unit::GainPercent, &[15.0, 42.0], 20.0), 0.0);
        close(error(Unit::Times, &[15.0, 42.0], 84.0), 100.0);
        assert_eq!(error(Unit::Times, &[], 1.0), None);
    }
}
