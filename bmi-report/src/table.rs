//! Tables in plain text. Columns are as wide as their widest cell; text is aligned to the left,
//! figures to the right.

use std::fmt::Write;

/// Rows under a heading.
#[derive(Debug)]
pub struct Table {
    heading: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Whether each column is text.
    text: Vec<bool>,
}

impl Table {
    /// Creates a table. The first `text_columns` columns are text, the others are figures.
    pub fn new<const N: usize>(text_columns: usize, heading: [&str; N]) -> Table {
        Table {
            heading: heading.map(str::to_owned).to_vec(),
            rows: Vec::new(),
            text: (0..N).map(|column| column < text_columns).collect(),
        }
    }

    /// Makes more columns text, by their numbers from 0 on.
    pub fn with_text(mut self, columns: &[usize]) -> Table {
        columns.iter().for_each(|column| self.text[*column] = true);
        self
    }

    /// Adds a row with as many cells as the heading has.
    pub fn row<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.heading.len());
        self.rows.push(cells.to_vec());
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
