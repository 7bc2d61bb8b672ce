//! Measured figures in documents, beside the file that the programs wrote which measured them.
//!
//! **Quotes.** A comment at the end of a paragraph or an item, or on the lines below a table or a
//! fence, names the figures of it in their order. It does not show. A figure is quoted with as many
//! digits as its text has:
//!
//! ```text
//! A short message takes 1.25 times as long. <!-- figures: bmi-perf: tcp latency 4 B, polling / sockets -->
//! ```
//!
//! Programs with `--figures FILE` write the file. In README.md, every measured figure has a name. A
//! figure is measured if it has a decimal point or a thousands separator, or a unit such as %, µs,
//! GB/s or times.

use std::path::Path;
use std::process::Command;

use bmi_report::Figures;

/// The document whose measured figures all need a name.
const README: &str = "README.md";
/// The most lines of it that show. It is a door, and not a log.
const README_LINES: usize = 100;
const BEGIN: &str = "<!-- figures:";
const END: &str = "-->";
/// How far a quoted figure may be from the measured one by its rounding alone. `1` is no quote of
/// 1.25.
const ROUNDED: f64 = 0.05;
/// Units of figures that are measured. Before them, a whole number is one.
const UNITS: [&str; 12] =
    ["%", "µs", "us", "ns", "ms", "GB/s", "MB/s", "M/s", "k/s", "times", "instructions", "system calls"];
/// Units of figures that are chosen and not measured.
const SIZES: [&str; 5] = ["B", "bytes", "KiB", "MiB", "GiB"];

/// A number of a text.
#[derive(Debug)]
struct Number<'a> {
    line: usize,
    text: &'a str,
    is_measured: bool,
    is_quoted: bool,
}

/// A paragraph, an item, a table or a fence, without its comments.
#[derive(Default)]
struct Block<'a> {
    lines: Vec<(usize, &'a str)>,
    is_fenced: bool,
    /// The names of the figures, and the line where they begin.
    quotes: Vec<(usize, String)>,
}

/// Checks a document. Returns the lines that break the rule, and how. If `all_named` is true, each
/// measured figure needs a name.
fn check(text: &str, measured: &Figures, all_named: bool) -> Vec<(usize, String)> {
    blocks(text).iter().flat_map(|block| block.check(measured, all_named)).collect()
}

impl Block<'_> {
    fn check(&self, measured: &Figures, all_named: bool) -> Vec<(usize, String)> {
        let mut numbers: Vec<Number<'_>> =
            self.lines.iter().flat_map(|(line, text)| numbers(*line, text, self.is_fenced)).collect();
        let (mut found, mut from) = (Vec::new(), 0);
        for (line, quote) in &self.quotes {
            let quoted = match measured.quoted(quote) {
                Ok(quoted) => quoted,
                Err(why) => {
                    found.push((*line, why));
                    continue;
                }
            };
            for (name, value) in quoted {
                match numbers[from..].iter().position(|number| is_same(number.text, value)) {
                    Some(at) => {
                        numbers[from + at].is_quoted = true;
                        from += at + 1;
                    }
                    None => {
                        found.push((*line, format!("{name} is {value}, and the text does not say so in its place")))
                    }
                }
            }
        }
        let nameless = numbers.iter().filter(|number| all_named && number.is_measured && !number.is_quoted);
        found.extend(nameless.map(|number| {
            let file = bmi_report::figures::FILE;
            (number.line, format!("{} is measured, and no comment names its figure of {file}", number.text))
        }));
        found
    }
}

/// Returns the number of lines of a document that show: those without the comments of figures.
fn shown(text: &str) -> usize {
    let mut is_comment = false;
    let mut shows = |line: &&str| {
        let begins = line.contains(BEGIN);
        let shows = !is_comment && !line.trim_start().starts_with(BEGIN);
        is_comment = (is_comment || begins) && !line.contains(END);
        shows
    };
    text.lines().filter(|line| shows(line)).count()
}

/// Splits a document. Code between fences has figures only if a comment follows it.
fn blocks(text: &str) -> Vec<Block<'_>> {
    let (mut blocks, mut block): (Vec<Block<'_>>, Block<'_>) = (Vec::new(), Block::default());
    let (mut is_in_fence, mut comment): (bool, Option<(usize, String)>) = (false, None);
    for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        let trimmed = line.trim_start();
        let is_item = ["- ", "* ", "1. ", "#"].iter().any(|marker| trimmed.starts_with(marker));
        if comment.is_none() && !is_in_fence && (trimmed.is_empty() || is_item || trimmed.starts_with("```")) {
            blocks.push(std::mem::take(&mut block));
        }
        if trimmed.starts_with("```") {
            is_in_fence = !is_in_fence;
            block.is_fenced = true;
            continue;
        }
        let mut rest = line;
        if comment.is_none()
            && !is_in_fence
            && let Some((before, names)) = line.split_once(BEGIN)
        {
            block.lines.push((number, before));
            (comment, rest) = (Some((number, String::new())), names);
        }
        match &mut comment {
            Some((begin, names)) => {
                let (part, ends) = rest.split_once(END).map_or((rest, false), |(part, _)| (part, true));
                *names += &format!(" {part}");
                if ends {
                    let words = |name: &str| name.split_whitespace().collect::<Vec<_>>().join(" ");
                    block.quotes.extend(
                        names.split(';').map(|name| (*begin, words(name))).filter(|(_, name)| !name.is_empty()),
                    );
                    comment = None;
                }
            }
            None => block.lines.push((number, line)),
        }
    }
    blocks.push(block);
    blocks
}

/// Returns the numbers of a line, without those in code.
fn numbers(line: usize, text: &str, is_fenced: bool) -> Vec<Number<'_>> {
    let mut numbers = Vec::new();
    let spans = text.split('`').enumerate().filter(|(index, _)| is_fenced || index % 2 == 0);
    for (_, span) in spans {
        let mut at = 0;
        while let Some(found) = span[at..].find(|letter: char| letter.is_ascii_digit()) {
            let begin = at + found;
            let len = span[begin..].find(|letter: char| !letter.is_ascii_digit() && !".,".contains(letter));
            let token = &span[begin..len.map_or(span.len(), |len| begin + len)];
            at = begin + token.len();
            let token = token.trim_end_matches(['.', ',']);
            let behind = span[begin + token.len()..].trim_start();
            let word = behind
                .split(|letter: char| letter.is_whitespace() || ".,;:)".contains(letter))
                .next()
                .unwrap_or_default();
            let is_version = span[..begin].ends_with("Rust ") || span[..begin].ends_with(['-', '/', '_']);
            let has_unit = UNITS.iter().any(|unit| behind.starts_with(unit));
            let is_size = SIZES.contains(&word) && !token.contains('.');
            let is_measured = !is_fenced && !is_version && !is_size && (token.contains(['.', ',']) || has_unit);
            numbers.push(Number { line, text: token, is_measured, is_quoted: false });
        }
    }
    numbers
}

/// Returns true if a text is a value, rounded to as many digits.
fn is_same(text: &str, value: f64) -> bool {
    let text = text.replace(',', "");
    let decimals = text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let half = 0.5 * 10f64.powi(-i32::try_from(decimals).unwrap_or(i32::MAX));
    text.parse::<f64>().is_ok_and(|text| {
        let far = (text - value).abs();
        far <= half * 1.000_001 && far <= ROUNDED * value.abs()
    })
}

/// README's figures were older and better than the tables that it links.
#[test]
fn the_documents_quote_what_was_measured() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let measured = Figures::read(&root.join(bmi_report::figures::FILE)).unwrap();
    assert!(measured != Figures::default());
    let list = Command::new("git").args(["ls-files", "-z", "*.md"]).current_dir(root).output().unwrap();
    let documents = String::from_utf8(list.stdout).unwrap();
    assert!(documents.split('\0').any(|path| path == README), "git lists no files");
    let mut found = Vec::new();
    // A file that was removed may still be in the index.
    for path in documents.split_terminator('\0').filter(|path| root.join(path).exists()) {
        let text = std::fs::read_to_string(root.join(path)).unwrap();
        let broken = check(&text, &measured, path == README);
        found.extend(broken.into_iter().map(|(line, why)| format!("{path}:{line}: {why}")));
        assert!(path != README || shown(&text) <= README_LINES, "{path} has {} lines", shown(&text));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

const NONE: [usize; 0] = [];

fn figures() -> Figures {
    let figure = |value: f64| serde_json::json!({"value": value, "unit": "", "command": "", "date": "", "commit": ""});
    let all = [
        ("bmi-perf: a / sockets", 1.254),
        ("bmi-perf: b / sockets", 0.561),
        ("cost: a", 4923.0),
        ("cost: b", 3.03),
        ("paths: c", 8.96),
    ];
    let all: serde_json::Map<_, _> = all.into_iter().map(|(name, value)| (name.to_owned(), figure(value))).collect();
    serde_json::from_value(serde_json::Value::Object(all)).unwrap()
}

fn found(text: &str) -> Vec<usize> {
    check(text, &figures(), true).into_iter().map(|(line, _)| line).collect()
}

/// README said 1.16 and 0.84 to 1.26, and the table that it linked 1.25 to 1.31 and 0.56 to
/// 2.51.
#[test]
fn a_figure_that_is_older_than_its_measurement_is_found() {
    let text = |ratio: &str| format!("It takes {ratio} times as long.\n<!-- figures: bmi-perf: a / sockets -->\n");
    assert_eq!(found(&text("1.25")), NONE);
    assert_eq!(check(&text("1.16"), &figures(), true).len(), 2, "the old one has no name, the new one no place");
    assert_eq!(
        check(&text("1.16"), &figures(), false),
        [(2, "bmi-perf: a / sockets is 1.254, and the text does not say so in its place".to_owned())]
    );
    // Digits that were left out must not hide it.
    assert_eq!(check(&text("1"), &figures(), false).len(), 1);
}

#[test]
fn a_measured_figure_of_the_readme_needs_a_name() {
    for text in ["at 0.84 of the rate", "8 bytes take 25 µs", "by 9 %", "1,691 instructions", "4 GB/s", "2 times"] {
        assert_eq!(found(text), [1], "{text}");
        assert!(check(text, &figures(), false).is_empty(), "{text}");
    }
    for text in
        ["8 bytes of 64 KiB", "in 20 cases", "Rust 1.91 or later", "`1.16 times`", "Apache-2.0", "```\n1.5 us\n```"]
    {
        assert_eq!(found(text), NONE, "{text}");
    }
}

#[test]
fn names_come_in_the_order_of_the_text_and_over_several_lines() {
    let item = "- first 4,923 instructions and 3\n  system calls <!-- figures:\n  cost: {a,b} -->\n- then by more than 9 %\n  <!-- figures: paths: c -->\n";
    assert_eq!(found(item), NONE);
    assert_eq!(found(&item.replace("{a,b}", "{b,a}")), [2, 1]);
    assert_eq!(found(&item.replace("paths: c", "paths: d")), [5, 4]);
    let range = "0.56 to 1.25 <!-- figures: range bmi-perf: * / sockets -->";
    assert_eq!(found(range), NONE);
}

#[test]
fn comments_of_figures_do_not_show() {
    assert_eq!(shown("a\nb <!-- figures: x;\ny -->\n  <!-- figures: z -->\n<!-- other -->\n"), 3);
}

#[test]
fn a_table_or_a_fence_is_quoted_by_the_comment_below_it() {
    let table = "| a | 4923 | 3.03 |\n| b | 1.25 |\n<!-- figures: cost: {a,b}; bmi-perf: a / sockets -->\n";
    assert_eq!(found(table), NONE);
    assert_eq!(check(&table.replace("4923", "5124"), &figures(), false).len(), 1);
    let fence = "```\nlatency  1.25\n\nrate  0.56\n```\n<!-- figures: bmi-perf: {a,b} / sockets -->\n";
    assert_eq!(found(fence), NONE);
    assert_eq!(found(&fence.replace("0.56", "0.84")), [6]);
}
