//! All figures as tables, for whoever wants to read or copy them.

use super::{Page, setup, table, title};
use crate::groups::Group;
use crate::html::escape;
use crate::text::tables;

/// A table for each test and setup, which can be opened.
pub(in crate::html) fn render(page: &Page<'_>) -> String {
    let tables: String = page.parts.iter().map(|part| one(part)).collect();
    super::section("figures", "All figures", "The same as in the pictures, and more. Open a line.", &tables)
}

fn one(part: &[&Group<'_>]) -> String {
    let figures = || part.iter().flat_map(|group| &group.figures);
    let row = part[0].row();
    let comma = if row.setup.is_empty() { "" } else { ", " };
    let counted = part[0].counted().map(|what| format!(": {what}")).unwrap_or_default();
    let heading = escape::text(&format!("{}{comma}{}{counted}", title(&row.test), setup(row, &[])));
    let notes = figures().flat_map(|figure| figure.row.notes.iter().map(|note| (figure.row, note)));
    let notes: String = notes
        .map(|(row, note)| format!("<p class=\"note\">{}</p>\n", escape::text(&format!("{}: {note}", row.name()))))
        .collect();
    let (count, tables) = (figures().count(), tables(part).iter().map(table).collect::<String>());
    // What no picture shows is open.
    let open = if part.iter().all(|group| group.row().size.is_none()) { " open" } else { "" };
    format!("<details{open}><summary>{heading} <span>({count} rows)</span></summary>\n{tables}{notes}</details>\n")
}
