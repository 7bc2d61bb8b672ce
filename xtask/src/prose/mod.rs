//! `cargo xtask prose`: checks the text of comments and documents, and measures its sentences.
//!
//! **Why.** rustfmt does not wrap comments, and rustdoc does not read the documents. Without a
//! check, lines grow and links break without notice.
//!
//! **Invariants**
//! 1. Only files that git tracks are read.
//! 2. Strings in code are not checked. Text counts as a comment only if the line begins with `//`.
//!
//! | module | what |
//! |---|---|
//! | `lines` | the lines of a file that hold text, and their limits |
//! | `figures` | measured figures, and what `docs/figures.json` has of them |
//! | `references` | links, citations of papers, names of documents that are not in the tree |
//! | `sentences` | lengths of sentences |
//!
//! **Tests** of each rule are in its module, on small texts.

mod figures;
mod lines;
mod references;
mod sentences;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use bmi_report::Figures;
use clap::Args;
use serde::Serialize;

use crate::command::{Failure, Invocation};
use crate::totals::Totals;

/// Checks the text of comments and documents: long lines, dead links, unknown papers.
#[derive(Args)]
#[command(after_help = "\
Rules:
  columns    A line of text has at most 100 columns. Text is every line of a .md file, every line
             of a .rs file that begins with //, and every line of a .toml file with a comment.
             Between ``` fences, 120 columns are allowed. In .md files 160 are allowed if the
             fence has no language or `text`, as program output does. Rows of tables have no
             limit, nor do lines that begin with a URL which is too long itself.
  length     README.md has at most 150 lines, without the comments that name figures.
  link       A link in a .md file leads to a tracked file or folder, and its #anchor to a heading.
  paper      The key of a citation, such as [PVFS-IB §4.1], is a heading of docs/papers.md.
  figure     A figure that a document quotes from docs/figures.json is the one that was measured.
             Its name is in a comment at the end of its paragraph, or below its table:
             <!-- figures: micro: tcp latency 4 B, polling / sockets; NAME; … -->, in the order of
             the text. In README.md, every measured figure has such a name. A measured figure has a
             decimal point or a thousands separator, or a unit such as %, µs, GB/s or times.
             Programs with --figures FILE write the file.
  reference  No text names a paper by number, or a design document that is not in the tree.

Examples:
  cargo xtask prose                                the whole tree
  cargo xtask prose docs xtask/src/main.rs         a folder and a file
  cargo xtask prose --sentences                    how long the sentences are
  cargo xtask prose --longer-than 30 README.md     also lists sentences of more than 30 words

Exit status: 0 nothing found, 1 something found, 2 the files cannot be read.")]
pub(crate) struct ProseArgs {
    /// Files or folders to check, from the root of the workspace [default: all that git tracks].
    #[arg(value_name = "PATH")]
    paths: Vec<String>,
    /// Print the lengths of sentences in words, and check nothing.
    ///
    /// Prints the number of sentences, the median, the 90th percentile and the maximum: for each
    /// document, for module documentation (`//!`), and for all doc comments (`//!` and `///`).
    #[arg(long)]
    sentences: bool,
    /// List the sentences of more than N words; implies --sentences.
    #[arg(long, value_name = "N")]
    longer_than: Option<usize>,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
}

/// The most lines that README.md may have.
const README_LINES: usize = 150;
/// Files that a program generated.
const EXEMPT: [&str; 1] = ["bmi-ib/src/verbs/sys.rs"];
/// The document that defines the keys of papers.
const PAPERS: &str = "docs/papers.md";
/// Time limit of `git ls-files`.
const GIT_LIMIT: Duration = Duration::from_secs(60);
/// The exit status if the files cannot be read.
const FAILED: u8 = 2;

/// A file that was read.
struct Source {
    /// The path from the root of the workspace, with `/`.
    path: String,
    text: String,
}

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Finding {
    file: String,
    line: usize,
    /// The rule's name, as `--help` lists it.
    rule: &'static str,
    text: String,
}

/// `cargo xtask prose`.
pub(crate) fn main(root: &Path, args: &ProseArgs) -> ExitCode {
    match run(root, args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(FAILED)
        }
    }
}

/// The step of the test command.
pub(crate) fn step(root: &Path) -> Result<Totals, Failure> {
    let tracked = tracked(root).map_err(|failure| Failure::skip(format!("no list of files: {failure}")))?;
    let found = check(&read(root, &tracked, &[])?, &tracked, &measured(root)?);
    found.iter().for_each(print);
    match found.len() {
        0 => Ok(Totals::NONE),
        count => {
            Err(Failure::new(format!("{count} lines of text break a rule; cargo xtask prose --help has the rules")))
        }
    }
}

/// Runs the command; returns whether no rule is broken.
fn run(root: &Path, args: &ProseArgs) -> Result<bool, Failure> {
    let tracked = tracked(root)?;
    let sources = read(root, &tracked, &args.paths)?;
    if args.sentences || args.longer_than.is_some() {
        let report = sentences::Report::new(&sources, args.longer_than);
        match args.json {
            true => println!("{}", json(&report)?),
            false => print!("{report}"),
        }
        return Ok(true);
    }
    let found = check(&sources, &tracked, &measured(root)?);
    match args.json {
        true => println!("{}", json(&found)?),
        false => found.iter().for_each(print),
    }
    Ok(found.is_empty())
}

fn print(found: &Finding) {
    println!("{}:{}: {}", found.file, found.line, found.text);
}

fn json(value: &impl Serialize) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map_err(|error| Failure::new(error.to_string()))
}

/// The figures that documents may quote.
fn measured(root: &Path) -> Result<Figures, Failure> {
    Figures::read(&root.join(bmi_report::figures::FILE)).map_err(Failure::new)
}

/// The paths that git tracks, from the root of the workspace.
fn tracked(root: &Path) -> Result<BTreeSet<String>, Failure> {
    let list = Invocation::new(root, "git", "ls-files -z").output(GIT_LIMIT)?;
    Ok(list.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect())
}

/// Reads the files whose text is checked: those in `chosen`, or all if that is empty. Always reads
/// all documents, because links and citations lead to them.
fn read(root: &Path, tracked: &BTreeSet<String>, chosen: &[String]) -> Result<Sources, Failure> {
    let mut sources = Sources { chosen: Vec::new(), others: Vec::new() };
    let wanted = |path: &str| chosen.is_empty() || chosen.iter().any(|one| is_within(path, one));
    for path in tracked.iter().filter(|path| lines::Language::of(path).is_some()) {
        let is_wanted = wanted(path) && !EXEMPT.contains(&path.as_str());
        if !is_wanted && !path.ends_with(".md") {
            continue;
        }
        let text = match std::fs::read(root.join(path)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            // Removed from the working tree, but not yet from the index.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(Failure::new(format!("{path}: {error}"))),
        };
        let source = Source { path: path.clone(), text };
        if is_wanted { sources.chosen.push(source) } else { sources.others.push(source) }
    }
    if sources.chosen.is_empty() {
        return Err(Failure::new("no tracked .rs, .md or .toml file has such a path"));
    }
    Ok(sources)
}

/// The files to check, and the other documents of the tree.
struct Sources {
    chosen: Vec<Source>,
    /// Documents that links may lead to.
    others: Vec<Source>,
}

/// Returns true if `path` is the file or in the folder `prefix`.
fn is_within(path: &str, prefix: &str) -> bool {
    let prefix = prefix.strip_prefix("./").unwrap_or(prefix).trim_end_matches('/');
    prefix == "." || path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Checks all rules; returns what breaks them, in order of files and lines.
fn check(sources: &Sources, tracked: &BTreeSet<String>, measured: &Figures) -> Vec<Finding> {
    let documents = sources.chosen.iter().chain(&sources.others).filter(|source| source.path.ends_with(".md"));
    let tree = references::Tree::new(tracked, documents);
    let mut found = Vec::new();
    for source in &sources.chosen {
        let mut add = |line, rule, text| found.push(Finding { file: source.path.clone(), line, rule, text });
        for line in lines::lines(&source.path, &source.text) {
            if let Some(limit) = line.limit().filter(|&limit| line.columns > limit) {
                add(line.number, "columns", format!("{} columns, at most {limit}", line.columns));
            }
            for (rule, text) in tree.check(&source.path, &line) {
                add(line.number, rule, text);
            }
        }
        if source.path.ends_with(".md") {
            let all_named = source.path == "README.md";
            figures::check(&source.text, measured, all_named)
                .into_iter()
                .for_each(|(line, text)| add(line, "figure", text));
        }
        let len = figures::shown(&source.text);
        if source.path == "README.md" && len > README_LINES {
            add(README_LINES + 1, "length", format!("the file has {len} lines, at most {README_LINES}"));
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize, &'static str)> {
        let tracked = files.iter().map(|(path, _)| (*path).to_owned()).collect();
        let chosen = files.iter().map(|(path, text)| Source { path: (*path).into(), text: (*text).into() }).collect();
        let found = check(&Sources { chosen, others: Vec::new() }, &tracked, &Figures::default());
        found.into_iter().map(|one| (one.file, one.line, one.rule)).collect()
    }

    #[test]
    fn the_readme_is_short_and_other_documents_may_be_long() {
        let text = "line\n".repeat(README_LINES);
        assert_eq!(found(&[("README.md", &text)]), []);
        let text = format!("{text}one more\n");
        assert_eq!(found(&[("README.md", &text)]), [("README.md".into(), README_LINES + 1, "length")]);
        assert_eq!(found(&[("docs/long.md", &text)]), []);
    }

    #[test]
    fn findings_of_all_rules_come_in_order() {
        let long = format!("# {}\n[gone](gone.md)\n", "x".repeat(99));
        let code = "//! [No-Paper §3]\nfn main() {}\n// as in paper 003\n";
        assert_eq!(
            found(&[("src/main.rs", code), ("a.md", &long)]),
            [
                ("a.md".into(), 1, "columns"),
                ("a.md".into(), 2, "link"),
                ("src/main.rs".into(), 1, "paper"),
                ("src/main.rs".into(), 3, "reference"),
            ]
        );
    }

    #[test]
    fn a_path_selects_a_file_or_a_folder() {
        for prefix in ["docs", "docs/", "./docs", "docs/a.md", "."] {
            assert!(is_within("docs/a.md", prefix), "{prefix}");
        }
        for prefix in ["doc", "docs/a", "docs/a.md/b"] {
            assert!(!is_within("docs/a.md", prefix), "{prefix}");
        }
    }

    /// README's figures were older and better than the tables that it links.
    #[test]
    fn the_documents_quote_what_was_measured() {
        let root = crate::root();
        let tracked = tracked(&root).unwrap();
        let sources = read(&root, &tracked, &["README.md".into(), "docs".into()]).unwrap();
        let measured = measured(&root).unwrap();
        let found: Vec<Finding> =
            check(&sources, &tracked, &measured).into_iter().filter(|finding| finding.rule == "figure").collect();
        assert_eq!(found, []);
        assert!(measured != Figures::default(), "and something was measured");
    }

    #[test]
    fn the_tree_is_listed_and_a_path_that_is_not_in_it_is_an_error() {
        let root = crate::root();
        let tracked = tracked(&root).unwrap();
        assert!(tracked.contains("Cargo.toml") && tracked.contains(PAPERS));
        assert!(read(&root, &tracked, &["no/such/path".into()]).is_err());
        let sources = read(&root, &tracked, &["xtask/src/main.rs".into()]).unwrap();
        assert_eq!(sources.chosen.len(), 1);
        assert!(sources.others.iter().all(|source| source.path.ends_with(".md")));
    }
}
