//! The results of a reproduction: values beside the published ones, orders that hold or do not, and
//! curves.

use bmi_report::table::Table;
use serde::Serialize;

use super::publications::{Published, Unit, Value, find};

/// A result of the model beside the published one.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The name in `publications`.
    pub id: String,
    /// A description.
    pub what: String,
    /// The unit of both values.
    pub unit: &'static str,
    /// The published value. A range has its two ends; without an upper end, the second one is the
    /// largest number. Empty if the value is not available.
    pub published: Vec<f64>,
    /// The value of the model.
    pub predicted: f64,
    /// The error: in percent, or in points for processor utilisation.
    pub error: Option<f64>,
    /// True if the result counts, because the model can predict it.
    pub counted: bool,
    /// The section, figure or table of the published value.
    pub source: String,
}

impl Comparison {
    /// Compares the model's `predicted` with the published result `id`.
    pub fn new(id: &str, predicted: f64) -> Comparison {
        let one = find(id);
        Comparison::with(one.id, one, predicted)
    }

    /// Compares as [`Comparison::new`] does, for a result that is not in the table of single
    /// results.
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

    /// Returns the cells of the table: what, source, unit, published, predicted, error.
    pub(super) fn cells(&self) -> [String; 6] {
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

/// Returns the error of a prediction. It is relative to the published value, in percent. For a gain
/// it is the error of the factor, and for utilisation it is in points. For a range it is relative
/// to the nearer end, and zero within the range.
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

/// Formats a number with about three digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || size == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A statement of the paper without a number, and whether it holds here.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// The statement.
    pub what: String,
    /// True if the model agrees.
    pub holds: bool,
    /// By how much, or where it does not agree.
    pub detail: String,
}

/// A curve, or a group of bars.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// True for a published curve, false for one of the model.
    pub published: bool,
    /// The points, as x and y. For bars, x is the index of the category.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Returns a curve of the model.
    pub fn predicted(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Series {
        Series { name: name.into(), published: false, points: points.into_iter().collect() }
    }

    /// Returns a published curve.
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

/// A picture, and a table of the same numbers.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The file name without its extension.
    pub name: String,
    /// The heading.
    pub title: String,
    /// The label of the x axis.
    pub x: String,
    /// The label of the y axis.
    pub y: String,
    /// How it is drawn.
    pub style: Style,
    /// The curves.
    pub series: Vec<Series>,
}

/// All results of a reproduction.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The comparisons with published numbers.
    pub comparisons: Vec<Comparison>,
    /// The checks of published statements.
    pub checks: Vec<Check>,
    /// The curves.
    pub figures: Vec<Figure>,
    /// Notes for the reader.
    pub notes: Vec<String>,
}

impl Report {
    /// Adds a result of the model for the published result `id`.
    pub fn compare(&mut self, id: &str, predicted: f64) {
        self.comparisons.push(Comparison::new(id, predicted));
    }

    /// Adds a statement of the paper without a number.
    pub fn check(&mut self, what: &str, holds: bool, detail: impl Into<String>) {
        self.checks.push(Check { what: what.to_owned(), holds, detail: detail.into() });
    }

    /// Formats the report as text.
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
    /// Formats the numbers of the figure: a row for each x, a column for each curve.
    fn table(&self) -> String {
        let mut xs: Vec<f64> =
            self.series.iter().flat_map(|series| series.points.iter().map(|point| point.0)).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let names = self.series.iter().map(|series| &series.name);
        let mut table = Table::new(1, std::iter::once(&self.x).chain(names));
        for x in xs {
            let first = match &self.style {
                Style::Bars(names) => names.get(x as usize).cloned().unwrap_or_default(),
                Style::Sizes => bmi_report::units::size(x as usize),
                Style::Lines => number(x),
            };
            let value = |series: &Series| {
                let found = series.points.iter().find(|point| point.0 == x);
                found.map_or("-".to_owned(), |point| number(point.1))
            };
            table.row(std::iter::once(first).chain(self.series.iter().map(value)));
        }
        format!("({})\n\n{}", self.y, table.render())
    }
}

/// Sums up the comparisons that count. Utilisation is summed up separately from the other results.
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
        median_percent: (!errors.is_empty()).then(|| bmi_report::stats::middle(&mut errors)),
        largest_percent: errors.last().copied(),
        largest_cpu_points: cpu.into_iter().reduce(f64::max),
    }
}

/// The result of [`summary`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The number of results that count, without utilisation.
    pub results: usize,
    /// The median of their absolute errors, in percent.
    pub median_percent: Option<f64>,
    /// The largest of their absolute errors, in percent.
    pub largest_percent: Option<f64>,
    /// The largest absolute error of utilisation, in points.
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
