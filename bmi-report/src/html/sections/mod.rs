//! The sections of the page, in the order in which they are shown.

pub(super) mod facts;
pub(super) mod figures;
pub(super) mod more;
pub(super) mod paths;
pub(super) mod speed;
pub(super) mod stages;
pub(super) mod strips;
pub(super) mod timeline;

pub(super) use crate::answer::capital as title;

use super::escape;
use super::palette::Palette;
use crate::groups::Group;
use crate::report::{Report, Row};
use crate::table::Table;

/// What all sections are made of.
pub(super) struct Page<'a> {
    pub(super) report: &'a Report,
    pub(super) groups: &'a [Group<'a>],
    /// The groups of each test and setup.
    pub(super) parts: &'a [Vec<&'a Group<'a>>],
    pub(super) palette: Palette<'a>,
}

/// The setting that forces a path.
const PATH: &str = "path";
/// The setting that is an offered rate.
const RATE: &str = "rate";

impl Page<'_> {
    /// Returns the parts without those that have pictures of their own.
    fn by_size(&self) -> impl Iterator<Item = &Vec<&Group<'_>>> {
        let has_own = |row: &Row| row.setup.contains_key(PATH) || row.setup.contains_key(RATE);
        self.parts.iter().filter(move |part| !has_own(part[0].row()))
    }
}

/// The place of rows that have no size, if none of their part has one.
const NO_SIZE: u64 = 1;

/// Returns where a row of a part is on the axis of sizes.
fn place(part: &[&Group<'_>], row: &Row) -> Option<u64> {
    match part.iter().any(|group| group.row().size.is_some()) {
        true => row.size,
        false => Some(NO_SIZE),
    }
}

/// Returns the only size of a part, or `None` if it has several, or none.
fn only_size(part: &[&Group<'_>]) -> Option<u64> {
    let mut sizes = part.iter().filter_map(|group| group.row().size);
    let first = sizes.next()?;
    sizes.all(|size| size == first).then_some(first)
}

/// Wraps a section that has contents.
fn section(id: &str, title: &str, hint: &str, contents: &str) -> String {
    if contents.is_empty() {
        return String::new();
    }
    let hint = if hint.is_empty() { String::new() } else { format!("<p class=\"hint\">{hint}</p>\n") };
    format!("<section id=\"{id}\"><h2>{title}</h2>\n{hint}{contents}</section>\n")
}

/// Puts pictures next to each other.
fn grid(pictures: &[String]) -> String {
    if pictures.is_empty() { String::new() } else { format!("<div class=\"grid\">{}</div>\n", pictures.concat()) }
}

/// Returns the settings of a row, without its size and without some settings.
fn setup(row: &Row, without: &[&str]) -> String {
    let mut bare = Row { setup: row.setup.clone(), ..Row::default() };
    bare.setup.retain(|name, _| !without.contains(&name.as_str()));
    bare.what().trim_start_matches(", ").to_owned()
}

/// Returns which values are better, as a hint below a heading.
fn hint(row: &Row, without: &[&str], note: &str) -> String {
    let setup = setup(row, without);
    if setup.is_empty() { note.to_owned() } else { format!("{setup}; {note}") }
}

/// Shows a table.
fn table(table: &Table) -> String {
    let cells = |tag: &str, cells: &[String]| {
        let cell = |(cell, is_text): (&String, &bool)| match (is_text, cell.strip_prefix("x ")) {
            (true, _) => format!("<{tag}>{}</{tag}>", escape::figures(cell)),
            (false, Some(ratio)) => format!("<{tag} class=\"n\">× {}</{tag}>", escape::figures(ratio)),
            (false, None) => format!("<{tag} class=\"n\">{}</{tag}>", escape::figures(cell)),
        };
        cells.iter().zip(&table.text).map(cell).collect::<String>()
    };
    let heading = cells("th", &table.heading);
    let rows: String = table.rows.iter().map(|row| format!("<tr>{}</tr>\n", cells("td", row))).collect();
    format!("<div class=\"wide\"><table><thead><tr>{heading}</tr></thead><tbody>\n{rows}</tbody></table></div>\n")
}
