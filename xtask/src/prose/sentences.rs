//! Lengths of sentences, in words.
//!
//! **Method.** Headings, rows of tables, lines that are indented by four columns, and lines between
//! fences are left out. An empty line and a list item begin a paragraph. A sentence ends at `.`,
//! `!`, `?`, `:` or `;`, before white space and an upper-case letter, `*`, `(`, `[` or a backtick.
//! A code span counts as one word. What has fewer than three words is not counted.

use std::fmt;

use serde::Serialize;

use super::lines::Language;
use super::{Source, Sources};

/// Sentences over so many words are counted in the last column.
const LONG: usize = 30;
/// The shortest text that counts as a sentence, in words.
const SHORTEST: usize = 3;
/// Characters of a listed sentence that are printed.
const SHOWN: usize = 160;

/// The sentences of a selection of files.
#[derive(Serialize)]
pub(super) struct Report {
    groups: Vec<Group>,
    longer: Vec<Listed>,
}

/// Lengths of the sentences of a document, or of one kind of comments.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Group {
    name: String,
    sentences: usize,
    median: usize,
    /// The 90th percentile.
    percentile_90: usize,
    longest: usize,
    over_30: usize,
}

/// A sentence that is longer than asked for.
#[derive(Serialize)]
struct Listed {
    file: String,
    line: usize,
    words: usize,
    text: String,
}

/// A sentence.
#[derive(Debug, PartialEq, Eq)]
struct Sentence {
    /// The line on which it begins.
    line: usize,
    words: usize,
    text: String,
}

/// Which comments of Rust files are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comments {
    /// `//!`
    Module,
    /// `//!` and `///`
    Documentation,
}

impl Report {
    /// Measures the chosen files; lists the sentences of more than `longer_than` words.
    pub(super) fn new(sources: &Sources, longer_than: Option<usize>) -> Report {
        let mut report = Report { groups: Vec::new(), longer: Vec::new() };
        let (mut docs, mut module, mut documentation) = (Vec::new(), Vec::new(), Vec::new());
        for source in &sources.chosen {
            let sentences = sentences(source, Comments::Documentation);
            let lengths = || sentences.iter().map(|sentence| sentence.words);
            match Language::of(&source.path) {
                Some(Language::Markdown) => {
                    report.groups.extend(Group::new(&source.path, lengths().collect()));
                    if source.path.starts_with("docs/") {
                        docs.extend(lengths());
                    }
                }
                Some(Language::Rust) => {
                    documentation.extend(lengths());
                    module.extend(self::sentences(source, Comments::Module).iter().map(|sentence| sentence.words));
                }
                Some(Language::Toml) | None => continue,
            }
            let long = sentences.into_iter().filter(|sentence| longer_than.is_some_and(|limit| sentence.words > limit));
            report.longer.extend(long.map(|sentence| Listed {
                file: source.path.clone(),
                line: sentence.line,
                words: sentence.words,
                text: sentence.text,
            }));
        }
        let groups = [("docs/*.md", docs), ("module documentation (//!)", module), ("all doc comments", documentation)];
        report.groups.extend(groups.into_iter().filter_map(|(name, lengths)| Group::new(name, lengths)));
        report
    }
}

impl Group {
    /// Sums up the lengths; `None` if there are none.
    fn new(name: &str, mut lengths: Vec<usize>) -> Option<Group> {
        lengths.sort_unstable();
        Some(Group {
            name: name.to_owned(),
            sentences: lengths.len(),
            median: *lengths.get(lengths.len() / 2)?,
            percentile_90: *lengths.get(lengths.len() * 9 / 10)?,
            longest: *lengths.last()?,
            over_30: lengths.iter().filter(|&&words| words > LONG).count(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for long in &self.longer {
            let text: String = long.text.chars().take(SHOWN).collect();
            writeln!(f, "{}:{}: {} words: {text}", long.file, long.line, long.words)?;
        }
        writeln!(f, "{:<28} sentences  median  90th percentile  longest  over {LONG}", "words in a sentence")?;
        for group in &self.groups {
            let Group { name, sentences, median, percentile_90, longest, over_30 } = group;
            writeln!(f, "{name:<28} {sentences:>9}  {median:>6}  {percentile_90:>15}  {longest:>7}  {over_30:>7}")?;
        }
        Ok(())
    }
}

/// The sentences of a file, in order.
fn sentences(source: &Source, comments: Comments) -> Vec<Sentence> {
    paragraphs(source, comments).iter().flat_map(|paragraph| split(paragraph)).collect()
}

/// The characters of a paragraph, each with the line on which it is.
type Paragraph = Vec<(char, usize)>;

/// The paragraphs of a file; white space is one blank.
fn paragraphs(source: &Source, comments: Comments) -> Vec<Paragraph> {
    let is_code = Language::of(&source.path) == Some(Language::Rust);
    let mut fenced = false;
    let mut paragraphs = vec![Paragraph::new()];
    for (index, line) in source.text.lines().enumerate() {
        let text = if is_code { comment(line, comments) } else { Some(line) };
        let is_fence = text.is_some_and(|text| text.trim().starts_with("```"));
        fenced ^= is_fence;
        let is_prose =
            |text: &&str| !is_fence && !fenced && !text.trim().starts_with(['|', '#']) && !text.starts_with("    ");
        let Some(text) = text.filter(is_prose) else {
            paragraphs.push(Paragraph::new());
            continue;
        };
        let item = list_item(text);
        if item.is_some() || text.trim().is_empty() {
            paragraphs.push(Paragraph::new());
        }
        if let Some(paragraph) = paragraphs.last_mut() {
            for word in item.unwrap_or(text).split_whitespace() {
                if !paragraph.is_empty() {
                    paragraph.push((' ', index + 1));
                }
                paragraph.extend(word.chars().map(|c| (c, index + 1)));
            }
        }
    }
    paragraphs
}

/// The text of a documentation comment.
fn comment(line: &str, comments: Comments) -> Option<&str> {
    let line = line.trim_start();
    let module = line.strip_prefix("//!");
    let text = match comments {
        Comments::Module => module,
        Comments::Documentation => module.or_else(|| line.strip_prefix("///")),
    }?;
    Some(text.strip_prefix(' ').unwrap_or(text))
}

/// The text of a list item, without `-`, `*` or its number.
fn list_item(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let digits = line.bytes().take_while(u8::is_ascii_digit).count();
    let bullet = line.strip_prefix("- ").or_else(|| line.strip_prefix("* "));
    bullet.or_else(|| line[digits..].strip_prefix(". ").filter(|_| digits > 0))
}

/// Splits a paragraph into sentences.
fn split(paragraph: &[(char, usize)]) -> Vec<Sentence> {
    let text = without_code(paragraph);
    let at = |index: usize| text.get(index).map(|&(c, _)| c);
    let mut sentences = Vec::new();
    let (mut begin, mut index) = (0, 0);
    while index < text.len() {
        let closers = text[index + 1..].iter().take_while(|(c, _)| matches!(c, '"' | '”' | ')' | '*')).count();
        let space = index + 1 + closers;
        let ends = matches!(at(index), Some('.' | '!' | '?' | ':' | ';')) && at(space) == Some(' ');
        if ends && at(space + 1).is_some_and(|c| c.is_ascii_uppercase() || matches!(c, '*' | '(' | '`' | '[')) {
            sentences.extend(Sentence::new(&text[begin..=index]));
            begin = space + 1;
            index = space;
        }
        index += 1;
    }
    sentences.extend(Sentence::new(&text[begin..]));
    sentences
}

/// The paragraph with an `X` for each code span.
fn without_code(paragraph: &[(char, usize)]) -> Paragraph {
    let mut text = Paragraph::new();
    let mut rest = paragraph;
    while let Some((&(c, line), after)) = rest.split_first() {
        let end = after.iter().position(|&(c, _)| c == '`').filter(|_| c == '`');
        text.push((if end.is_some() { 'X' } else { c }, line));
        rest = end.map_or(after, |end| &after[end + 1..]);
    }
    text
}

impl Sentence {
    /// The sentence of these characters; `None` if it has too few words.
    fn new(text: &[(char, usize)]) -> Option<Sentence> {
        let is_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '\'' | '’' | '-');
        let line = text.first()?.1;
        let text: String = text.iter().map(|&(c, _)| c).collect();
        let words = text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).count();
        (words >= SHORTEST).then_some(Sentence { line, words, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Line and number of words of each sentence.
    fn measured(path: &str, text: &str, comments: Comments) -> Vec<(usize, usize)> {
        let source = Source { path: path.into(), text: text.into() };
        sentences(&source, comments).iter().map(|sentence| (sentence.line, sentence.words)).collect()
    }

    fn document(text: &str) -> Vec<(usize, usize)> {
        measured("a.md", text, Comments::Documentation)
    }

    #[test]
    fn sentences_end_before_a_capital_and_may_go_on_in_the_next_line() {
        assert_eq!(document("One two three. Four five\nsix seven. Eight nine ten."), [(1, 3), (1, 4), (2, 3)]);
        assert_eq!(document("One two e.g. three. (Four five six.) Seven eight nine"), [(1, 5), (1, 3), (1, 3)]);
        assert_eq!(document("Too short. One two three; four five: Six seven eight."), [(1, 5), (1, 3)]);
    }

    #[test]
    fn a_code_span_is_one_word() {
        assert_eq!(document("Call `a.b(c, d). E` with\n`more of\nit` now."), [(1, 5)]);
        assert_eq!(document("It's a write-back cache, isn't it?"), [(1, 6)]);
    }

    #[test]
    fn items_begin_paragraphs_and_tables_headings_code_are_left_out() {
        let text = "# A heading of words\n- one two three\n- four five\n  six seven\n1. eight nine ten\n\n| a row of words |\n\
                    ```\nsome code in here\n```\n    indented code in here\nThe last of them";
        assert_eq!(document(text), [(2, 3), (3, 4), (5, 3), (12, 4)]);
    }

    #[test]
    fn comments_are_read_by_kind() {
        let text = "//! One two three.\n//! Four five six.\n\n/// Seven eight nine.\nfn a() {} // not this one\n// nor this one\n";
        assert_eq!(measured("a.rs", text, Comments::Documentation), [(1, 3), (2, 3), (4, 3)]);
        assert_eq!(measured("a.rs", text, Comments::Module), [(1, 3), (2, 3)]);
    }

    #[test]
    fn a_report_has_each_document_the_sums_and_the_long_ones() {
        let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let chosen = vec![
            source("README.md", "One two three. Four five six seven."),
            source("docs/a.md", "One two three four five."),
            source("src/lib.rs", "//! One two three.\n/// Four five six seven.\nfn a() {}"),
            source("Cargo.toml", "# One two three four five six."),
        ];
        let report = Report::new(&Sources { chosen, others: Vec::new() }, Some(3));
        let names: Vec<_> =
            report.groups.iter().map(|group| (group.name.as_str(), group.sentences, group.median)).collect();
        let expected = [
            ("README.md", 2, 4),
            ("docs/a.md", 1, 5),
            ("docs/*.md", 1, 5),
            ("module documentation (//!)", 1, 3),
            ("all doc comments", 2, 4),
        ];
        assert_eq!(names, expected);
        let longer: Vec<_> = report.longer.iter().map(|long| (long.file.as_str(), long.line, long.words)).collect();
        assert_eq!(longer, [("README.md", 1, 4), ("docs/a.md", 1, 5), ("src/lib.rs", 2, 4)]);
        assert!(report.to_string().contains("docs/a.md:1: 5 words: One two three four five."));
    }

    #[test]
    fn the_median_and_the_percentile_are_lengths_that_occur() {
        let group = Group::new("x", (1..=40).rev().collect()).unwrap();
        assert_eq!((group.median, group.percentile_90, group.longest, group.over_30), (21, 37, 40, 10));
        assert_eq!(Group::new("x", Vec::new()), None);
    }
}
