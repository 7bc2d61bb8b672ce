//! A reproduction as rows of a [`bmi_report::Report`]: what the model predicts as [`Kind::Model`],
//! and what is published beside it as [`Kind::Baseline`].
//!
//! Only bandwidths and seconds are rows. Factors, gains and utilisation have no unit there, and are
//! notes. The pictures of [`svg`](super::svg) have all of them, so they stay.

use bmi_report::{Kind, Row, Unit};

use super::report::{Comparison, Figure, Report, Style};
use crate::report::{row, steps};

/// What the model's rows and the published ones run over.
const OVER: [(&str, Kind); 2] = [("model", Kind::Model), ("published", Kind::Baseline)];
/// Bytes of a MB of the papers.
const MB: f64 = (1 << 20) as f64;

/// Returns the unit of a row, and what a value is multiplied by.
fn unit(text: &str) -> Option<(Unit, f64)> {
    match text {
        _ if text.ends_with("MB/s") => Some((Unit::BytesPerSecond, MB)),
        "s" | "seconds" => Some((Unit::Seconds, 1.0)),
        _ => None,
    }
}

impl Report {
    /// Adds the results of the reproduction `name` to a report.
    pub fn add_to(&self, to: &mut bmi_report::Report, name: &str) {
        for one in &self.comparisons {
            match unit(one.unit) {
                Some((unit, scale)) => to.rows.extend(one.rows(name, unit, scale)),
                None => to.notes.push(format!("{name}: {}", one.cells().join("; "))),
            }
        }
        for figure in &self.figures {
            if let Some((unit, scale)) = unit(&figure.y) {
                to.rows.extend(figure.rows(name, unit, scale));
            }
        }
        to.notes.extend(self.checks.iter().map(|check| {
            let holds = if check.holds { "as published" } else { "not as published" };
            format!("{name}: {holds}: {}: {}", check.what, check.detail)
        }));
        to.notes.extend(self.notes.iter().map(|note| format!("{name}: {note}")));
    }
}

impl Comparison {
    /// Returns the row of the model, and one for the published value if there is a single one.
    fn rows(&self, name: &str, unit: Unit, scale: f64) -> Vec<Row> {
        let published = if let [one] = self.published[..] { Some(one) } else { None };
        let values = [Some(self.predicted), published];
        let new = |((over, kind), value): ((&str, Kind), Option<f64>)| {
            let setup = [("experiment", name), ("result", self.id.as_str())];
            let notes = vec![format!("{} {}", self.what, self.source)];
            Some(Row { rounds: steps(0, [value? * scale]), notes, ..row("result", over, kind, unit, &setup) })
        };
        OVER.into_iter().zip(values).filter_map(new).collect()
    }
}

impl Figure {
    /// Returns a row for each point of each curve.
    fn rows(&self, name: &str, unit: Unit, scale: f64) -> Vec<Row> {
        let mut rows = Vec::new();
        for series in &self.series {
            let (over, kind) = OVER[usize::from(series.published)];
            for (x, y) in &series.points {
                let at = match &self.style {
                    Style::Sizes => None,
                    Style::Lines => Some(x.to_string()),
                    Style::Bars(names) => names.get(*x as usize).cloned(),
                };
                let mut setup = vec![("experiment", name), ("curve", series.name.as_str())];
                setup.extend(at.as_deref().map(|at| (self.x.as_str(), at)));
                let size = matches!(self.style, Style::Sizes).then_some(*x as u64);
                rows.push(Row { size, rounds: steps(0, [y * scale]), ..row(&self.name, over, kind, unit, &setup) });
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Series;
    use super::*;

    #[test]
    fn a_report_has_the_model_beside_what_is_published() {
        let mut report = Report::default();
        report.compare("pvfs-ib.fig7.read", 60.0);
        report.compare("pvfs-ib.fig9.ramfs.read", 2.5);
        let series = vec![Series::predicted("read", [(1024.0, 3.0)]), Series::published("their read", [(1024.0, 4.0)])];
        let (x, y) = ("bytes".to_owned(), "bandwidth, MB/s".to_owned());
        report.figures.push(Figure { name: "fig1".into(), title: String::new(), x, y, style: Style::Sizes, series });
        let mut to = bmi_report::Report::new("test", "");
        report.add_to(&mut to, "vapi");
        let found: Vec<(&str, Kind, f64)> =
            to.rows.iter().map(|row| (row.test.as_str(), row.kind, row.rounds[0].value / MB)).collect();
        let (model, published) = (Kind::Model, Kind::Baseline);
        let expected =
            [("result", model, 60.0), ("result", published, 120.0), ("fig1", model, 3.0), ("fig1", published, 4.0)];
        assert_eq!(found, expected);
        assert!(to.rows[0].is_beside(&to.rows[1]) && to.rows[2].size == Some(1024));
        assert!(to.notes.len() == 1 && to.notes[0].contains("2.50"), "{:?}", to.notes);
        assert_eq!(bmi_report::Report::from_json(&to.to_json()).unwrap().rows, to.rows);
    }
}
