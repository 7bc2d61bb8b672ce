//! Where the time of a message goes: a bar for each row that knows it.

use std::fmt::Write;

use super::{Page, section, setup, title};
use crate::html::chart::Colour;
use crate::html::escape;
use crate::report::Row;
use crate::text::over;
use crate::units;

/// Width of a picture, the left and the right end of its bars, and the height of a line.
const WIDTH: f64 = 900.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 800.0;
const LINE: f64 = 22.0;
/// The room between bars of different sizes.
const GAP: f64 = 8.0;
/// The width of a letter, somewhat more than most have.
const LETTER: f64 = 7.0;

/// The bars of each test and setup.
pub(in crate::html) fn render(page: &Page<'_>) -> String {
    let mut contents = String::new();
    for part in page.parts {
        let rows = part.iter().flat_map(|group| &group.figures).map(|figure| figure.row);
        let rows: Vec<&Row> = rows.filter(|row| total(row) > 0.0).collect();
        if let Some(first) = rows.first() {
            contents += &picture(first, &rows);
        }
    }
    let hint = "Each bar is one message or operation. Its parts are shares of the time on its right.";
    section("stages", "Where the time of a message goes", hint, &contents)
}

fn total(row: &Row) -> f64 {
    row.stages.iter().map(|(_, seconds)| seconds.max(0.0)).sum()
}

fn picture(first: &Row, rows: &[&Row]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in rows.iter().flat_map(|row| &row.stages) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let class = |name: &str| Colour::Number(names.iter().position(|other| *other == name).unwrap_or(0)).class();
    let key: Vec<String> =
        names.iter().map(|name| format!("<li class=\"{}\">{}</li>", class(name), escape::text(name))).collect();
    let (title, hint) = (escape::text(&title(&first.test)), escape::text(&setup(first, &[])));
    // Bars of one size are together.
    let changes = rows.windows(2).filter(|pair| pair[0].size != pair[1].size).count();
    let height = LINE * rows.len() as f64 + GAP * changes as f64;
    let mut out = format!(
        "<figure class=\"chart bars\"><figcaption><b>{title}</b><span>{hint}</span></figcaption>\
         <ul class=\"key\">{}</ul><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">",
        key.concat()
    );
    let (mut top, mut size) = (0.0, first.size);
    for row in rows {
        top += if row.size == size { 0.0 } else { GAP };
        bar(&mut out, row, top, class);
        top += LINE;
        size = row.size;
    }
    out + "</svg></figure>\n"
}

// Writing to a string cannot fail.
fn bar(out: &mut String, row: &Row, top: f64, class: impl Fn(&str) -> String) {
    let size = row.size.map(|size| format!("{}, ", units::size(size as usize))).unwrap_or_default();
    let name = escape::text(&escape::cut(&format!("{size}{}", over(row)), 26));
    let (total, middle) = (total(row), top + 16.0);
    let _ = write!(out, "<text class=\"end\" x=\"{:.1}\" y=\"{middle:.1}\">{name}</text>", LEFT - 8.0);
    let mut x = LEFT;
    for (name, seconds) in &row.stages {
        let seconds = seconds.max(0.0);
        let width = seconds / total * (RIGHT - LEFT);
        let note = escape::figures(&format!("{name}: {}, {:.0} %", units::time(seconds), seconds / total * 100.0));
        let _ = write!(out, "<g class=\"part {}\"><title>{note}</title>", class(name));
        let _ = write!(out, "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"18\"/>", top + 3.0);
        let label = escape::text(name);
        if width > name.chars().count() as f64 * LETTER + 8.0 {
            let _ = write!(out, "<text class=\"inside\" x=\"{:.1}\" y=\"{middle:.1}\">{label}</text>", x + 5.0);
        }
        out.push_str("</g>");
        x += width;
    }
    let total = escape::figures(&units::time(total));
    let _ = write!(out, "<text x=\"{:.1}\" y=\"{middle:.1}\">{total}</text>", RIGHT + 8.0);
}
