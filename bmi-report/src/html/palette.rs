//! Which colour each transport and each path has, the same in all pictures of a page.
//!
//! **Source.** Okabe, Ito: Color universal design (2008), for colours that people with any kind of
//! colour vision tell apart. `style.css` has them, with others for a dark background.

use super::chart::{COLOURS, Colour, Dash};
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

/// The paths, as their names begin. The place is the number of the colour.
const PATHS: [&str; COLOURS] = ["inline", "fast", "server", "rendezvous", "eager", "offered", "client"];

/// What no path moves.
const REFUSED: &str = "refused";

/// Returns each path once, with its colour. A path without a colour of its own has one that no
/// other path of the picture has, as long as there are any.
pub(super) fn of_paths<'a>(names: &[&'a str]) -> Vec<(&'a str, Colour)> {
    let number = |name: &str| PATHS.iter().position(|begin| name.to_lowercase().starts_with(begin));
    let mut free = (0..COLOURS).filter(|own| !names.iter().any(|name| number(name) == Some(*own)));
    let mut all: Vec<(&str, Colour)> = Vec::new();
    for name in names {
        if !all.iter().any(|(other, _)| other == name) {
            let own = number(name).filter(|own| !all.iter().any(|(_, other)| *other == Colour::Number(*own)));
            if *name == REFUSED {
                all.push((name, Colour::Quiet));
                continue;
            }
            all.push((name, own.or_else(|| free.next()).map_or(Colour::Quiet, Colour::Number)));
        }
    }
    all
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

    #[test]
    fn paths_of_a_picture_have_different_colours() {
        let number = Colour::Number;
        let named = of_paths(&["fast-rdma", "other", "inline", "fast RDMA", "inline"]);
        assert_eq!(
            named,
            [("fast-rdma", number(1)), ("other", number(2)), ("inline", number(0)), ("fast RDMA", number(3)),]
        );
        let many = ["a", "b", "c", "d", "e", "f", "g", "h"];
        assert_eq!(of_paths(&many)[7].1, Colour::Quiet);
    }

    /// Returns the luminance of `#rrggbb` or `#rgb`. **Source.** WCAG 2.2, relative luminance.
    fn luminance(colour: &str) -> f64 {
        let digits: Vec<u32> = colour.chars().skip(1).map(|digit| digit.to_digit(16).unwrap()).collect();
        let parts: Vec<u32> = match digits.len() {
            3 => digits.iter().map(|digit| digit * 17).collect(),
            _ => digits.chunks(2).map(|pair| pair[0] * 16 + pair[1]).collect(),
        };
        let linear = |part: &u32| match f64::from(*part) / 255.0 {
            part @ ..=0.04045 => part / 12.92,
            part => ((part + 0.055) / 1.055).powf(2.4),
        };
        parts.iter().map(linear).zip([0.2126, 0.7152, 0.0722]).map(|(part, weight)| part * weight).sum()
    }

    /// The words on a segment can be read on each colour, on a light page and on a dark one, and no
    /// two colours of a page are the same.
    #[test]
    fn words_on_colours_are_legible() {
        let style = include_str!("style.css");
        let roots: Vec<&str> = style.split(":root {").skip(1).take(2).collect();
        // On this colour the words are always dark.
        let (_, dark) = style.split_once(".c5 text.inside { fill: ").unwrap();
        let dark = dark.split(';').next().unwrap();
        for root in roots {
            let of = |name: &str| {
                let (_, value) = root.split_once(&format!("--{name}: ")).unwrap_or_else(|| panic!("no {name}"));
                value.split(';').next().unwrap()
            };
            let names: Vec<String> = (0..COLOURS).map(|number| format!("c{number}")).chain(["quiet".into()]).collect();
            let mut all: Vec<&str> = names.iter().map(|name| of(name)).collect();
            for (name, colour) in names.iter().zip(&all) {
                let words = if name == "c5" { dark } else { of("inside") };
                let (one, other) = (luminance(colour), luminance(words));
                let contrast = (one.max(other) + 0.05) / (one.min(other) + 0.05);
                assert!(contrast >= 4.2, "{name} {colour}: {contrast:.2}");
            }
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), names.len());
        }
    }
}
