//! The output of a command: results on standard output, as text or as one JSON document, and errors
//! on standard error, one line each.

use std::io::{ErrorKind, IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::args::Global;
use super::size;
use crate::program::{Stop, complain};
use crate::{Error, ServerName};

/// Collects the output of a command.
pub(crate) struct Output {
    json: bool,
    quiet: bool,
    text: String,
    document: Map<String, Value>,
    failures: Vec<String>,
    found: usize,
    interrupted: bool,
}

impl Output {
    pub(crate) fn new(global: &Global) -> Output {
        let (json, quiet) = (global.json, global.quiet);
        let (text, document, failures) = (String::new(), Map::new(), Vec::new());
        Output { json, quiet, text, document, failures, found: 0, interrupted: false }
    }

    /// Adds a line of text. Ignored with `--json`.
    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        if !self.json {
            self.text.push_str(line.as_ref());
            self.text.push('\n');
        }
    }

    /// Adds a summary line. Ignored with `--quiet`.
    pub(crate) fn summary(&mut self, line: impl AsRef<str>) {
        if !self.quiet {
            self.line(line);
        }
    }

    /// Sets a field of the JSON document.
    pub(crate) fn field(&mut self, name: &str, value: Value) {
        self.document.insert(name.to_owned(), value);
    }

    /// Sets several fields of the JSON document: those of a struct or of an object.
    pub(crate) fn fields(&mut self, value: &impl Serialize) -> Result<(), Stop> {
        if let Value::Object(fields) = serde_json::to_value(value).map_err(Stop::failed)? {
            self.document.extend(fields);
        }
        Ok(())
    }

    /// Sets a field that has an object for each server: what `show` returns, or the error, which is
    /// also reported.
    pub(crate) fn servers<V>(
        &mut self,
        name: &str,
        all: impl IntoIterator<Item = (ServerName, Result<V, Error>)>,
        mut show: impl FnMut(&mut Output, &str, V) -> Value,
    ) {
        let mut objects = Vec::new();
        for (server, result) in all {
            let server = server.to_string();
            objects.push(match result {
                Ok(value) => show(self, &server, value),
                Err(error) => {
                    self.failure(&error);
                    json!({ "server": server, "error": error.to_string() })
                }
            });
        }
        self.field(name, json!(objects));
    }

    /// Reports that one part of the command failed. The other parts continue.
    pub(crate) fn failure(&mut self, error: impl std::fmt::Display) {
        let line = one_line(&error.to_string());
        complain(&line);
        self.failures.push(line);
    }

    /// Notes damage that was found. The exit status reports it as a failure.
    pub(crate) fn found(&mut self, count: usize) {
        self.found += count;
    }

    /// Adds failures that were printed already.
    pub(crate) fn printed_failures(&mut self, lines: impl IntoIterator<Item = String>) {
        self.failures.extend(lines);
    }

    /// Discards all other output, because the command has written a file's bytes to standard
    /// output.
    pub(crate) fn raw(&mut self) {
        self.json = false;
        self.text.clear();
    }

    /// Returns true if a part of the command failed.
    pub(crate) fn has_failures(&self) -> bool {
        !self.failures.is_empty()
    }

    /// Notes that the user has interrupted the command. What it has is printed.
    pub(crate) fn interrupted(&mut self) {
        self.interrupted = true;
    }

    /// Returns true if the user has interrupted the command.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    /// Returns true if only errors are to be printed.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Ends the output of a command that ends early. The error is printed on standard error, and
    /// the other text is discarded. With `--json`, a document is still printed.
    pub(crate) fn give_up(mut self, error: &str) {
        if self.json {
            self.failures.push(one_line(error));
            // The exit status also reports a failure.
            let _ = self.finish();
        }
    }

    /// Prints the text of a page, which takes the place of the page before on a terminal. Failures
    /// of the page before count no more. Returns false if nobody reads the output.
    pub(crate) fn show_page(&mut self) -> Result<bool, Stop> {
        let mut page = std::mem::take(&mut self.text);
        let mut stdout = std::io::stdout().lock();
        if stdout.is_terminal() {
            // To the upper left corner, and clear what is behind it.
            page = format!("\x1b[H\x1b[2J{page}");
        } else {
            page.push('\n');
        }
        match stdout.write_all(page.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => {
                self.failures.clear();
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(Stop::failed(format!("standard output: {error}"))),
        }
    }

    /// Prints the text so far.
    pub(crate) fn print(&mut self) -> Result<(), Stop> {
        let text = std::mem::take(&mut self.text);
        let mut stdout = std::io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Stop::failed(format!("standard output: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Prints everything. Returns the number of failures, and of damages that were found.
    pub(crate) fn finish(mut self) -> Result<usize, Stop> {
        if self.json {
            if !self.failures.is_empty() {
                self.document.insert("errors".to_owned(), json!(self.failures));
            }
            self.text = serde_json::to_string_pretty(&self.document).map_err(Stop::failed)? + "\n";
        }
        self.print()?;
        Ok(self.failures.len() + self.found)
    }

    /// Returns a progress bar, which is hidden unless standard error is a terminal.
    pub(crate) fn bar(&self) -> ProgressBar {
        if self.quiet || self.json || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        drawn(0, "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} {wide_msg}")
    }

    /// Returns a progress bar of steps, which is hidden where [`Output::bar`] is.
    pub(crate) fn steps(&self, count: u64) -> ProgressBar {
        if self.quiet || self.json || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        drawn(count, "{bar:30} {pos}/{len} {eta} {wide_msg}")
    }
}

fn drawn(len: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::stderr_with_hz(10));
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
impl Output {
    /// Returns the text so far.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the JSON document so far.
    pub(crate) fn document(&self) -> &Map<String, Value> {
        &self.document
    }
}

/// Formats rows as columns. The first `left` of them are aligned on the left.
pub(crate) fn table(rows: &[Vec<String>], left: usize) -> Vec<String> {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let cell = |(column, text): (usize, &String)| {
        let width = widths[column];
        if column < left { format!("{text:<width$}") } else { format!("{text:>width$}") }
    };
    let line =
        |row: &Vec<String>| row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned();
    rows.iter().map(line).collect()
}

/// Formats a result as `3 files, 1.5 GiB in 0.71 s, 2.27 GB/s`.
pub(crate) fn transferred(copied: &crate::copy::Copied, took: Duration) -> String {
    let many = |count: u64, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
    let mut what = many(copied.files, "file", "files");
    if copied.directories > 0 {
        what = format!("{what}, {}", many(copied.directories, "directory", "directories"));
    }
    let (bytes, rate) = (size::show_bytes(copied.bytes), size::show_rate(copied.bytes, took));
    let mut rest = String::new();
    if copied.skipped > 0 {
        rest = format!("; {} there already", copied.skipped);
    }
    if copied.failed > 0 {
        rest += &format!("; {} FAILED", copied.failed);
    }
    format!("{what}, {bytes} in {:.3} s, {rate}{rest}", took.as_secs_f64())
}

/// Joins several lines into one: those before the usage hint, without the word `error:`.
pub(crate) fn one_line(text: &str) -> String {
    let lines = text.trim().lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let kept: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with("For more information")).collect();
    let joined = kept.join(" ");
    joined.strip_prefix("error: ").unwrap_or(&joined).to_owned()
}

/// Formats permissions as `rwxr-x---`, preceded by `d` for a directory.
pub(crate) fn show_mode(kind: crate::Kind, mode: u32) -> String {
    let letters =
        "rwxrwxrwx".chars().enumerate().map(|(bit, letter)| if mode & (0o400 >> bit) != 0 { letter } else { '-' });
    let first = match kind {
        crate::Kind::File => '-',
        crate::Kind::Dir => 'd',
        crate::Kind::Symlink => 'l',
    };
    std::iter::once(first).chain(letters).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::printable;

    #[test]
    fn errors_are_one_line() {
        let text = "error: the following required arguments were not provided:\n  <TO>\n\nUsage: pvfs mv <FROM> <TO>\n";
        assert_eq!(one_line(text), "the following required arguments were not provided: <TO>");
        assert_eq!(one_line("plain"), "plain");
    }

    #[test]
    fn names_cannot_break_a_line_or_speak_to_the_terminal() {
        assert_eq!(printable("ü ☃"), "ü ☃");
        assert_eq!(printable("a\nb\x1b[2J"), "a\\nb\\u{1b}[2J");
    }

    #[test]
    fn modes() {
        assert_eq!(show_mode(crate::Kind::Dir, 0o750), "drwxr-x---");
        assert_eq!(show_mode(crate::Kind::File, 0o644), "-rw-r--r--");
    }
}
