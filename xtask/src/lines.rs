//! `cargo xtask lines`: how much code and how many tests there are, by crate.
//!
//! **How.** It counts the lines of all Rust files that git knows, as they are formatted, without
//! blank ones. Macros, data and generated code count like everything else.
//!
//! A line belongs to the tests if it is in `tests/` of a crate, in a crate that only tests use, or
//! in a module or an item behind `#[cfg(test)]`. The end of an item is where rustfmt puts it: at
//! the next line with the same indentation that closes a bracket.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;

use crate::command::{Failure, Invocation};

/// Options of `cargo xtask lines`.
#[derive(Args)]
pub(crate) struct LinesArgs {
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Crates that only tests use.
const FOR_TESTS: [&str; 2] = ["bmi-conformance", "testbed"];
const GIT_LIMIT: Duration = Duration::from_secs(60);

/// The lines of a crate, or of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Lines {
    files: usize,
    code: usize,
    comments: usize,
    tests: usize,
    comments_of_tests: usize,
    blank: usize,
}

impl Lines {
    fn numbers(&self) -> [usize; 6] {
        let Lines { files, code, comments, tests, comments_of_tests, blank } = *self;
        [files, code, comments, tests, comments_of_tests, code + comments + tests + comments_of_tests + blank]
    }

    fn add(&mut self, other: &Lines) {
        self.files += other.files;
        self.code += other.code;
        self.comments += other.comments;
        self.tests += other.tests;
        self.comments_of_tests += other.comments_of_tests;
        self.blank += other.blank;
    }
}

/// `cargo xtask lines`.
pub(crate) fn main(root: &Path, args: &LinesArgs) -> Result<(), Failure> {
    let crates = count_all(root)?;
    if args.json {
        println!("{}", serde_json::json!(crates));
        return Ok(());
    }
    println!("{:<16} files    code comments   tests comments     all", "crate");
    for (name, lines) in crates {
        let [files, code, comments, tests, of_tests, all] = lines.numbers();
        println!("{name:<16} {files:>5} {code:>7} {comments:>8} {tests:>7} {of_tests:>8} {all:>7}");
    }
    Ok(())
}

/// Returns the lines of each crate, and last of all together.
fn count_all(root: &Path) -> Result<Vec<(String, Lines)>, Failure> {
    let list = Invocation::new(root, "git", "ls-files -- *.rs").output(GIT_LIMIT)?;
    let mut texts = BTreeMap::new();
    for path in list.lines() {
        let text =
            std::fs::read_to_string(root.join(path)).map_err(|error| Failure::new(format!("{path}: {error}")))?;
        texts.insert(path, text);
    }
    let modules: BTreeSet<String> = texts.iter().flat_map(|(path, text)| test_modules(path, text)).collect();
    let (mut crates, mut all) = (BTreeMap::<&str, Lines>::new(), Lines::default());
    for (path, text) in &texts {
        let name = path.split('/').next().unwrap_or_default();
        let is_test = FOR_TESTS.contains(&name) || path.contains("/tests/") || is_in(&modules, path);
        let lines = count(text, is_test);
        crates.entry(name).or_default().add(&lines);
        all.add(&lines);
    }
    let crates = crates.into_iter().map(|(name, lines)| (name.to_owned(), lines));
    Ok(crates.chain([("all".to_owned(), all)]).collect())
}

/// Returns true if a file is one of these modules, or within one.
fn is_in(modules: &BTreeSet<String>, path: &str) -> bool {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    path.match_indices('/').map(|(at, _)| &path[..at]).chain([path]).any(|part| modules.contains(part))
}

/// Returns the modules of a file that are only for tests, as paths without their ending.
fn test_modules(path: &str, text: &str) -> Vec<String> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = if ["mod", "lib", "main"].contains(&name) { folder } else { path };
    let mut lines = text.lines().map(str::trim_start);
    let mut modules = Vec::new();
    while let Some(line) = lines.next() {
        if is_for_tests(line)
            && let Some(item) = lines.by_ref().find(|line| !line.starts_with("#["))
            && let Some((_, module)) = item.strip_suffix(';').and_then(|item| item.rsplit_once("mod "))
        {
            modules.push(format!("{folder}/{module}"));
        }
    }
    modules
}

/// Returns true for the attribute of what is only in tests.
fn is_for_tests(line: &str) -> bool {
    line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,")
}

fn count(text: &str, is_test: bool) -> Lines {
    let mut lines = Lines { files: 1, ..Lines::default() };
    // The indentation of the item for tests that the line is in, and whether its head is over.
    let mut item: Option<(usize, bool)> = None;
    for line in text.lines() {
        let trimmed = line.trim_start();
        let indentation = line.len() - trimmed.len();
        if is_for_tests(trimmed) && item.is_none() {
            item = Some((indentation, false));
        }
        let in_tests = is_test || item.is_some();
        match (trimmed.is_empty(), trimmed.starts_with("//"), in_tests) {
            (true, ..) => lines.blank += 1,
            (_, true, false) => lines.comments += 1,
            (_, true, true) => lines.comments_of_tests += 1,
            (_, _, false) => lines.code += 1,
            (_, _, true) => lines.tests += 1,
        }
        let (Some((at, begun)), false, false) = (item, trimmed.starts_with("#["), trimmed.starts_with("//")) else {
            continue;
        };
        let ends = indentation == at
            && if begun { trimmed.starts_with(['}', ')', ']']) } else { trimmed.ends_with([';', '}', ',']) };
        item = (!ends).then_some((at, true));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_by_what_they_are_for() {
        let text = "//! A file.\n\nmod a;\n#[cfg(test)]\nmod b;\n#[cfg(all(test, unix))]\n#[path = \"x.rs\"]\nmod c;\n\n\
                    impl A {\n    #[cfg(test)]\n    fn d() {\n        // Why.\n        x();\n    }\n\n    fn e() {}\n}\n\n\
                    #[cfg(test)]\nmod tests {\n    fn f() {}\n}\n";
        let lines = count(text, false);
        assert_eq!(lines, Lines { files: 1, code: 4, comments: 1, tests: 13, comments_of_tests: 1, blank: 4 });
        assert_eq!(lines.numbers()[5], text.lines().count());
        assert_eq!(count(text, true).numbers()[1..3], [0, 0]);
        let modules: BTreeSet<String> = test_modules("a/src/x.rs", text).into_iter().collect();
        assert_eq!(modules.iter().collect::<Vec<_>>(), ["a/src/x/b", "a/src/x/c"]);
        for (path, is_test) in [("a/src/x/b.rs", true), ("a/src/x/b/deep/y.rs", true), ("a/src/x/bb.rs", false)] {
            assert_eq!(is_in(&modules, path), is_test, "{path}");
        }
        assert_eq!(test_modules("a/src/lib.rs", "#[cfg(test)]\nmod b;"), ["a/src/b"]);
    }
}
