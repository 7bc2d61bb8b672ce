//! Which colour each transport has, the same in all pictures of a page.
//!
//! **Source.** Okabe, Ito: Color universal design (2008), for colours that people with any kind of
//! colour vision tell apart. `style.css` has them, with others for a dark background.

use super::chart::{Colour, Dash};
use crate::report::{Kind, Report, Row};

/// The colours of a report.
pub(super) struct Palette<'a> {
    /// What has a colour of its own: the transports, then models of none of them.
    coloured: Vec<&'a str>,
}

impl<'a> Palette<'a> {
    pub(super) fn of(report: &'a Report) -> Palette<'a> {
        let mut coloured: Vec<&str> = Vec::new();
        for kind in [Kind::Library, Kind::Model] {
            for row in report.rows.iter().filter(|row| row.kind == kind) {
                let of_another = kind == Kind::Model && coloured.iter().any(|over| is_of(&row.over, over));
                if !of_another && !coloured.contains(&row.over.as_str()) {
                    coloured.push(&row.over);
                }
            }
        }
        Palette { coloured }
    }

    /// Returns the colour of a row. A model has that of the transport whose name it contains.
    pub(super) fn colour(&self, row: &Row) -> Colour {
        let own = self.coloured.iter().position(|over| *over == row.over);
        let of = || self.coloured.iter().position(|over| is_of(&row.over, over));
        match row.kind {
            Kind::Baseline => Colour::Quiet,
            _ => own.or_else(of).map_or(Colour::Quiet, Colour::Number),
        }
    }

    /// Returns how the line of a row is drawn.
    pub(super) fn dash(row: &Row) -> Dash {
        match row.kind {
            Kind::Library => Dash::Solid,
            Kind::Baseline => Dash::Dashed,
            Kind::Model => Dash::Dotted,
        }
    }
}

/// Returns true if `over` is one of the words of `model`.
fn is_of(model: &str, over: &str) -> bool {
    model.split_whitespace().any(|word| word == over)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_has_the_colour_of_its_transport() {
        let row = |over: &str, kind| Row { over: over.into(), kind, ..Row::default() };
        let mut report = Report::new("", "");
        report.rows = vec![
            row("sockets", Kind::Baseline),
            row("model of tcp", Kind::Model),
            row("model of ib", Kind::Model),
            row("shm", Kind::Library),
            row("tcp", Kind::Library),
        ];
        let palette = Palette::of(&report);
        let colours: Vec<Colour> = report.rows.iter().map(|row| palette.colour(row)).collect();
        let number = Colour::Number;
        assert_eq!(colours, [Colour::Quiet, number(1), number(2), number(0), number(1)]);
    }
}
