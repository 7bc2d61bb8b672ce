//! The paths by size: for each transport a strip for each kind of message or data, divided where
//! the library takes another path, with the reason on each segment.
//!
//! **Why.** It is the picture of what the library does for its user. A table of thresholds has the
//! same facts, but not the proportions.
//!
//! **Layout.** The axis of all pictures is logarithmic and the same, so that transports compare. It
//! has ticks at the sizes that were measured. The size below an edge is the largest of the segment
//! on its left. A reason that is too long for its segment is in a list below the picture, by a
//! letter.

use std::fmt::Write;

use super::{Page, section};
use crate::groups::{Segment, Strip, strips};
use crate::html::axis::Axis;
use crate::html::chart::Colour;
use crate::html::escape;
use crate::html::palette;
use crate::units;

/// Width of a picture, and the left and the right end of its strips.
const WIDTH: f64 = 1040.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 1025.0;
/// The height of a strip, of it with the sizes below, and of a line of text.
const HEIGHT: f64 = 60.0;
const STRIP: f64 = 84.0;
const LINE: f64 = 13.5;
/// The most lines of a reason on a segment.
const LINES: usize = 3;
/// The room below the strips, for the axis and its name.
const FOOT: f64 = 44.0;
/// The width of a letter of a reason, and of a name or a size, somewhat more than most have.
const LETTER: f64 = 6.0;
const WIDE: f64 = 7.0;
/// Edges from here on are beyond the picture.
const LONGEST: u64 = 64 << 20;
/// The end of an axis is at least here.
const LEAST_END: f64 = (1 << 20) as f64;

/// A picture for each transport.
pub(in crate::html) fn render(page: &Page<'_>) -> String {
    let strips = strips(page.report);
    let measured: Vec<u64> = page.report.rows.iter().filter_map(|row| row.size).collect();
    let axis = axis(&strips, &measured);
    let pictures: Vec<String> = strips.chunk_by(|a, b| a.over == b.over).map(|of_one| picture(of_one, &axis)).collect();
    let hint = "The path that the library takes for each size if nothing is scarce, and the reason that it gives. \
                Point at a segment for its sizes.";
    section("plan", "Paths by size", hint, &pictures.concat())
}

/// Returns an axis that has all edges, and all sizes that were measured.
fn axis(strips: &[Strip<'_>], measured: &[u64]) -> Axis {
    let edges = || strips.iter().flat_map(|strip| &strip.segments).map(|segment| segment.from);
    let edges = || edges().filter(|from| (1..=LONGEST).contains(from)).map(|from| from as f64);
    let shown = || measured.iter().filter(|size| **size > 0).map(|size| *size as f64);
    let low = edges().map(|edge| edge / 8.0).chain(shown()).fold(f64::INFINITY, f64::min);
    let high = edges().map(|edge| edge * 4.0).chain(shown()).fold(LEAST_END, f64::max);
    Axis::sizes(&shown().collect::<Vec<f64>>(), (LEFT, RIGHT)).with_range(low.clamp(1.0, LEAST_END / 2.0), high)
}

// Writing to a string cannot fail, here and below.
fn picture(strips: &[Strip<'_>], axis: &Axis) -> String {
    let names: Vec<&str> = strips.iter().flat_map(|strip| &strip.segments).map(|segment| segment.path).collect();
    let colours = palette::of_paths(&names);
    let colour = |path: &str| colours.iter().find(|(name, _)| *name == path).map_or(Colour::Quiet, |(_, own)| *own);
    let title = escape::text(&format!("Paths over {}", strips[0].over));
    let bottom = STRIP * strips.len() as f64;
    let mut out = format!(
        "<figure class=\"chart strips\"><figcaption><b>{title}</b></figcaption>\
         <svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{title}\">",
        bottom + FOOT
    );
    let (mut aside, mut top) = (Vec::new(), 0.0);
    for strip in strips {
        one(&mut out, strip, top, axis, colour, &mut aside);
        top += STRIP;
    }
    let _ = write!(out, "<path class=\"axis\" d=\"M{LEFT:.1} {bottom:.1}H{RIGHT:.1}\"/>");
    for (value, label) in &axis.ticks {
        let (x, label) = (axis.at(*value), escape::text(label));
        let _ = write!(out, "<path class=\"axis\" d=\"M{x:.1} {bottom:.1}v5\"/>");
        let _ = write!(out, "<text class=\"mid\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>", bottom + 18.0);
    }
    let (middle, y) = (f64::midpoint(LEFT, RIGHT), bottom + 36.0);
    let what = "size of a message or of the data of a call (logarithmic)";
    let _ = write!(out, "<text class=\"mid dim\" x=\"{middle:.1}\" y=\"{y:.1}\">{what}</text></svg>");
    if !aside.is_empty() {
        let _ = write!(out, "<ol class=\"aside\">{}</ol>", aside.concat());
    }
    out + "</figure>\n"
}

/// Draws a strip. What does not fit is added to `aside`.
fn one(
    out: &mut String,
    strip: &Strip<'_>,
    top: f64,
    axis: &Axis,
    colour: impl Fn(&str) -> Colour,
    aside: &mut Vec<String>,
) {
    for (line, words) in strip.direction.split(", ").enumerate() {
        let y = top + HEIGHT / 2.0 + LINE * line as f64;
        let words = escape::text(&escape::cut(words, 22));
        let _ = write!(out, "<text class=\"end\" x=\"{:.1}\" y=\"{y:.1}\">{words}</text>", LEFT - 8.0);
    }
    let mut free = LEFT;
    for segment in &strip.segments {
        let x = axis.at(segment.from as f64);
        let end = segment.to.map_or(RIGHT, |to| axis.at(to as f64 + 1.0));
        let width = end - x;
        if width <= 0.0 {
            continue;
        }
        let class = colour(segment.path).class();
        let note = escape::text(&format!("{}, {}: {}", segment.path, segment.sizes(), segment.why));
        let _ = write!(
            out,
            "<g class=\"part {class}\"><title>{note}</title>\
             <rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{HEIGHT:.1}\"/>"
        );
        words(out, segment, (x, top, width), &class, strip.direction, aside);
        out.push_str("</g>");
        if let Some(to) = segment.to.filter(|_| end < RIGHT) {
            let label = units::size(to as usize);
            let half = label.chars().count() as f64 * WIDE / 2.0;
            if end - half >= free {
                free = end + half + 4.0;
                let y = top + HEIGHT + 14.0;
                let _ = write!(out, "<text class=\"mid\" x=\"{end:.1}\" y=\"{y:.1}\">{label}</text>");
            }
        }
    }
}

/// Writes the name and the reason on a segment, or a letter of the list below.
fn words(
    out: &mut String,
    segment: &Segment<'_>,
    (x, top, width): (f64, f64, f64),
    class: &str,
    direction: &str,
    aside: &mut Vec<String>,
) {
    let room = (width - 10.0).max(0.0);
    let name_fits = segment.path.chars().count() as f64 * WIDE <= room;
    let reason = wrapped(segment.why, (room / LETTER) as usize).filter(|lines| name_fits && lines.len() <= LINES);
    let mut line = |text: &str, class: &str, number: usize| {
        let (y, text) = (top + 15.0 + LINE * number as f64, escape::text(text));
        let _ = write!(out, "<text class=\"inside{class}\" x=\"{:.1}\" y=\"{y:.1}\">{text}</text>", x + 5.0);
    };
    if let Some(lines) = reason {
        line(segment.path, "", 0);
        lines.iter().zip(1..).for_each(|(text, number)| line(text, " why", number));
        return;
    }
    let letter = letter(aside.len());
    match name_fits {
        true => {
            line(segment.path, "", 0);
            line(&format!("({letter})"), " why", 1);
        }
        false if room >= WIDE * letter.len() as f64 - 6.0 => line(&letter, "", 0),
        false => {}
    }
    let text = format!("{}, {}: {}, {}", segment.path, segment.sizes(), direction, segment.why);
    aside.push(format!("<li class=\"{class}\"><b>{letter}</b> {}</li>", escape::text(&text)));
}

/// Returns `a`, …, `z`, `aa`, `ab`, …
fn letter(number: usize) -> String {
    let of = |number: usize| char::from(b'a' + (number % 26) as u8);
    match number {
        0..26 => of(number).to_string(),
        _ => format!("{}{}", letter(number / 26 - 1), of(number)),
    }
}

/// Breaks a text into lines of so many letters, or returns `None` if a word is longer.
fn wrapped(text: &str, letters: usize) -> Option<Vec<String>> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let len = word.chars().count();
        match lines.last_mut().filter(|line| line.chars().count() + 1 + len <= letters) {
            Some(line) => *line += &format!(" {word}"),
            None if len <= letters => lines.push(word.to_owned()),
            None => return None,
        }
    }
    Some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_broken_at_spaces_or_does_not_fit() {
        assert_eq!(wrapped("fits in a slot", 6), Some(vec!["fits".into(), "in a".into(), "slot".into()]));
        assert_eq!(wrapped("fits in a slot", 3), None);
        assert_eq!([letter(0), letter(25), letter(26), letter(27)], ["a", "z", "aa", "ab"]);
    }
}
