//! All figures as tables, for whoever wants to read or copy them.

use super::{Page, setup, table, title};
use crate::answer::span;
use crate::groups::{Figure, Group, PERCENTILES, percentiles, ratio_figure};
use crate::html::escape;
use crate::text::over;
use crate::units;

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
    let mut heads = vec!["size", "over", "median", "interval", "rounds"];
    heads.extend(PERCENTILES.map(|(name, _)| name));
    let rows: Vec<Vec<String>> = figures().map(values).collect();
    let notes = figures().flat_map(|figure| figure.row.notes.iter().map(|note| (figure.row, note)));
    let notes: String = notes
        .map(|(row, note)| format!("<p class=\"note\">{}</p>\n", escape::text(&format!("{}: {note}", row.name()))))
        .collect();
    let count = rows.len();
    // What no picture shows is open.
    let open = if part.iter().all(|group| group.row().size.is_none()) { " open" } else { "" };
    format!(
        "<details{open}><summary>{heading} <span>({count} rows)</span></summary>\n{}{}{}{notes}</details>\n",
        table(2, &heads, &rows),
        ratios(part),
        costs(part)
    )
}

fn values(figure: &Figure<'_>) -> Vec<String> {
    let (row, median) = (figure.row, figure.median);
    let middle = if median.middle.is_nan() { "-".to_owned() } else { row.unit.figure(median.middle) };
    let size = row.size.map_or("-".to_owned(), |size| units::size(size as usize));
    let mut cells = vec![size, over(row), middle, span(row.unit, median), row.rounds.len().to_string()];
    cells.extend(percentiles(row).map(|value| value.map_or("-".to_owned(), units::time)));
    cells
}

fn ratios(part: &[&Group<'_>]) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for figure in part.iter().flat_map(|group| &group.figures) {
        let size = figure.row.size.map_or("-".to_owned(), |size| units::size(size as usize));
        for ratio in figure.ratios() {
            let [middle, low, high] =
                [ratio.interval.middle, ratio.interval.low, ratio.interval.high].map(ratio_figure);
            let (words, rounds) = (ratio.verdict.words().to_owned(), ratio.rounds.to_string());
            let (cost, interval) = (format!("× {middle}"), format!("{low} to {high}"));
            rows.push(vec![size.clone(), over(figure.row), over(ratio.to), words, cost, interval, rounds]);
        }
    }
    let heads = ["size", "over", "compared with", "that is", "cost", "interval", "rounds"];
    if rows.is_empty() { String::new() } else { table(4, &heads, &rows) }
}

fn costs(part: &[&Group<'_>]) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    for row in part.iter().flat_map(|group| &group.figures).map(|figure| figure.row) {
        let size = row.size.map_or("-".to_owned(), |size| units::size(size as usize));
        for (role, cost) in &row.cost {
            let calls = cost.calls.map_or("-".to_owned(), |calls| format!("{calls:.2}"));
            let (cpu, switches) = (units::time(cost.cpu), format!("{:.3}", cost.switches));
            rows.push(vec![size.clone(), over(row), role.clone(), cpu, switches, calls]);
        }
    }
    let heads = ["size", "over", "host", "processor time", "context switches", "system calls"];
    if rows.is_empty() { String::new() } else { table(3, &heads, &rows) }
}
