//! Where a report goes: the options `--report FILE`, everything that was measured, and `--figures
//! FILE`, what documents quote of it.
//!
//! **Why.** A table shows a choice. A [`Report`] has the values of all rounds, so two runs can be
//! compared, and other tables and pictures made. All programs that measure write the same forms.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{Figures, Report, csv, figures, host, html, text};

/// The role of the only host of a benchmark whose processes are all on one.
pub const BOTH: &str = "client and server";

/// The options `--report` and `--figures`.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ReportArgs {
    /// Also write everything that was measured to a file: all rounds for other programs (.json), a
    /// page with pictures (.html), a spreadsheet (.csv) or tables (.txt). May be given several
    /// times.
    #[arg(long = "report", value_name = "FILE", value_parser = file)]
    reports: Vec<PathBuf>,
    /// Also put the figures into a file of figures, from which documents quote: docs/figures.json.
    #[arg(long, value_name = "FILE")]
    figures: Option<PathBuf>,
}

/// The formats, by the end of a file's name.
const FORMATS: [(&str, Format); 4] =
    [("json", Report::to_json), ("html", html::render), ("csv", csv::render), ("txt", text::render)];

type Format = fn(&Report) -> String;

fn format(path: &Path) -> Option<Format> {
    let ending = path.extension()?.to_str()?;
    FORMATS.iter().find(|(name, _)| *name == ending).map(|(_, format)| *format)
}

/// Accepts the name of a file whose ending says what is written. A run may take minutes, so this is
/// checked before it.
fn file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match format(&path) {
        Some(_) => Ok(path),
        None => {
            let endings: Vec<String> = FORMATS.iter().map(|(name, _)| format!(".{name}")).collect();
            Err(format!("the name of a report ends with {}", endings.join(", ")))
        }
    }
}

impl ReportArgs {
    /// Returns true if a report is wanted.
    pub fn is_given(&self) -> bool {
        !self.reports.is_empty() || self.figures.is_some()
    }

    /// Checks before a run that the reports can be written after it. A file that is not there is
    /// made.
    ///
    /// # Errors
    /// That of the first that cannot be written. The text has its name.
    pub fn check(&self) -> std::io::Result<()> {
        self.reports.iter().try_for_each(|path| {
            let opened = OpenOptions::new().append(true).create(true).open(path);
            opened.map(drop).map_err(|error| std::io::Error::other(format!("{}: {error}", path.display())))
        })
    }

    /// Writes the report to each of the files, and its figures.
    ///
    /// # Errors
    /// If a file cannot be written. The text has its name.
    pub fn write(&self, report: &Report) -> std::io::Result<()> {
        for path in &self.reports {
            let text = format(path).map(|format| format(report)).unwrap_or_default();
            let named = |error| std::io::Error::other(format!("{}: {error}", path.display()));
            std::fs::write(path, text).map_err(named)?;
        }
        match &self.figures {
            Some(path) => Figures::of(report, &figures::commit()).merge_into(path).map_err(std::io::Error::other),
            None => Ok(()),
        }
    }
}

/// Creates the report of this program, which has just begun to measure. All its processes are on
/// this host.
#[expect(clippy::disallowed_methods, reason = "a report says when it was made")]
pub fn begin(program: &str, title: &str) -> Report {
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Report {
        began,
        command: std::env::args().collect(),
        hosts: vec![host::describe(BOTH, None)],
        ..Report::new(format!("{program} {}", env!("CARGO_PKG_VERSION")), title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Row, Step};

    #[test]
    fn a_report_is_written_as_its_name_says_and_others_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        let names = FORMATS.map(|(ending, _)| folder.path().join(format!("a.{ending}")));
        let files = names.iter().map(|name| file(name.to_str().unwrap()).unwrap()).collect();
        let quoted = folder.path().join("figures.json");
        let args = ReportArgs { reports: files, figures: Some(quoted.clone()) };
        let mut report = begin("test", "a title");
        let rounds = [(7, 1.0), (8, 2.0)].map(|(round, value)| Step { round, value }).to_vec();
        report.rows.push(Row { test: "t".to_owned(), over: "tcp".to_owned(), rounds, ..Row::default() });
        args.write(&report).unwrap();
        let written = |ending: &str| std::fs::read_to_string(path.with_extension(ending)).unwrap();
        assert!(written("html").starts_with("<!doctype html>") && written("csv").contains(",tcp,"));
        assert_eq!(written("txt"), text::render(&report));
        let value = Figures::read(&quoted).unwrap().quoted("test: tcp t").unwrap()[0].1;
        assert!((value - 1.5e6).abs() < 1.0, "{value} us");
        let read = Report::read(&path).unwrap();
        assert_eq!(read, report);
        assert_eq!(read.rows[0].rounds[1], Step { round: 8, value: 2.0 });
        for name in ["a.xml", "a", "json"] {
            assert!(file(name).is_err_and(|why| why.contains(".json, .html")), "{name}");
        }
        let gone = ReportArgs { reports: vec![folder.path().join("no/a.json")], figures: None };
        assert!(gone.write(&report).is_err_and(|error| error.to_string().contains("no/a.json")));
    }
}
