//! Tables in plain text. Columns are as wide as their widest cell; text is aligned to the left,
//! figures to the right.

use std::fmt::Write;

/// Rows under a heading.
#[derive(Debug)]
pub struct Table {
    pub(crate) heading: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
    /// Whether each column is text.
    pub(crate) text: Vec<bool>,
}

impl Table {
    /// Creates a table. The first `text_columns` columns are text, the others are figures.
    pub fn new(text_columns: usize, heading: impl IntoIterator<Item = impl Into<String>>) -> Table {
        let heading: Vec<String> = heading.into_iter().map(Into::into).collect();
        let text = (0..heading.len()).map(|column| column < text_columns).collect();
        Table { heading, rows: Vec::new(), text }
    }

    /// Adds a row with as many cells as the heading has.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
        debug_assert_eq!(self.rows.last().map(Vec::len), Some(self.heading.len()));
    }

    /// Leaves cells blank that repeat the one above, in the columns of text on the left.
    pub(crate) fn without_repeats(mut self) -> Table {
        for number in (1..self.rows.len()).rev() {
            let [.., above, row] = &mut self.rows[..=number] else { break };
            let repeated = row.iter().zip(above.iter()).zip(&self.text);
            let repeated = repeated.take_while(|((cell, above), is_text)| **is_text && cell == above).count();
            row[..repeated].fill(String::new());
        }
        self
    }

    /// Formats the table as text, with a line feed after each line.
    pub fn render(&self) -> String {
        let lines = || std::iter::once(&self.heading).chain(&self.rows);
        let mut widths = vec![0; self.heading.len()];
        for line in lines() {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let mut text = String::new();
        for (number, line) in lines().enumerate() {
            let mut out = String::new();
            for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
                // Writing to a string cannot fail.
                let _ =
                    if self.text[column] { write!(out, "{cell:<width$}  ") } else { write!(out, "{cell:>width$}  ") };
            }
            text.push_str(out.trim_end());
            text.push('\n');
            if number == 0 {
                text.push_str(&"-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)));
                text.push('\n');
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(1, ["name", "n"]);
        table.row(["a".into(), "1000".into()]);
        table.row(["longer".into(), "1".into()]);
        assert_eq!(table.render(), "name       n\n------------\na       1000\nlonger     1\n");
    }
}
