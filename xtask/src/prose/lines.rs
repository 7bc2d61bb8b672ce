//! The lines of a file that hold text, and how many columns each may have.

/// The most columns of a line of text.
const TEXT: usize = 100;
/// The most columns of a line of code or of a drawing.
const DRAWING: usize = 120;
/// The most columns of a line of program output in a document.
const OUTPUT: usize = 160;

/// Which lines of a file are text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Rust,
    Markdown,
    Toml,
}

impl Language {
    /// The language of the file, by its name.
    pub(super) fn of(path: &str) -> Option<Language> {
        match path.rsplit_once('.')?.1 {
            "rs" => Some(Language::Rust),
            "md" => Some(Language::Markdown),
            "toml" => Some(Language::Toml),
            _ => None,
        }
    }
}

/// A line of text.
#[derive(Debug)]
pub(super) struct Line<'a> {
    /// Counted from 1.
    pub(super) number: usize,
    /// Characters of the whole line, with indentation and comment marker.
    pub(super) columns: usize,
    /// The text, without indentation and comment marker.
    pub(super) body: &'a str,
    pub(super) place: Place,
}

/// Where in the text a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In a paragraph, a heading or a list.
    Paragraph,
    /// A row of a table.
    Table,
    /// Code or a drawing, between fences.
    Code,
    /// Program output, between fences of a document.
    Output,
}

impl Line<'_> {
    /// The most columns that the line may have; `None` if any number is allowed.
    pub(super) fn limit(&self) -> Option<usize> {
        match self.place {
            Place::Table => None,
            Place::Code => Some(DRAWING),
            Place::Output => Some(OUTPUT),
            Place::Paragraph if self.begins_with_long_url() => None,
            Place::Paragraph => Some(TEXT),
        }
    }

    /// Returns true if the line's first word is a URL that no line break can shorten.
    fn begins_with_long_url(&self) -> bool {
        let mut words = self.body.split_whitespace();
        let is_marker = |word: &&str| {
            matches!(*word, "-" | "*" | ">") || word.ends_with("]:") || word.strip_suffix('.').is_some_and(is_number)
        };
        let first = words.find(|word| !is_marker(word)).unwrap_or_default();
        // Words are parts of the body, so the distance of the two pointers is an offset.
        let begin = self.body.find(first).unwrap_or_default();
        let before = self.columns - self.body.chars().count() + self.body[..begin].chars().count();
        first.contains("://") && before + first.chars().count() > TEXT
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The lines of text of the file `path`.
pub(super) fn lines<'a>(path: &str, text: &'a str) -> Vec<Line<'a>> {
    let Some(language) = Language::of(path) else { return Vec::new() };
    let mut fence: Option<Place> = None;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(body) = body(language, line) else {
            // A comment ends at the first line of code, and with it what was begun in it.
            fence = None;
            continue;
        };
        let place = match (body.trim_start().strip_prefix("```"), fence) {
            (Some(_), Some(place)) => {
                fence = None;
                place
            }
            (Some(info), None) => {
                let is_output = language == Language::Markdown && matches!(info.trim(), "" | "text");
                let place = if is_output { Place::Output } else { Place::Code };
                fence = Some(place);
                place
            }
            (None, Some(place)) => place,
            (None, None) if is_row(body) => Place::Table,
            (None, None) => Place::Paragraph,
        };
        lines.push(Line { number: index + 1, columns: line.chars().count(), body, place });
    }
    lines
}

/// A row of a table; in a drawing that is not fenced, a line may begin with `|` as well.
fn is_row(body: &str) -> bool {
    let body = body.trim();
    body.len() > 1 && body.starts_with('|') && body.ends_with('|')
}

/// The text of a line, without its comment marker; `None` if the line has no comment.
fn body(language: Language, line: &str) -> Option<&str> {
    match language {
        Language::Markdown => Some(line),
        Language::Rust => {
            let comment = line.trim_start().strip_prefix("//")?;
            Some(comment.strip_prefix(['!', '/']).unwrap_or(comment))
        }
        Language::Toml => {
            let mut quote = None;
            let begin = line.char_indices().find(|&(_, c)| match quote {
                Some(open) => {
                    if c == open {
                        quote = None;
                    }
                    false
                }
                None => {
                    if matches!(c, '"' | '\'') {
                        quote = Some(c);
                    }
                    c == '#'
                }
            });
            begin.map(|(at, _)| &line[at + 1..])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [usize; 0] = [];

    /// The numbers of the lines that are too long.
    fn too_long(path: &str, text: &str) -> Vec<usize> {
        let over = |line: &Line<'_>| line.limit().is_some_and(|limit| line.columns > limit);
        lines(path, text).iter().filter(|line| over(line)).map(|line| line.number).collect()
    }

    /// A line of so many columns that begins with `begin`.
    fn wide(begin: &str, columns: usize) -> String {
        format!("{begin}{}", "x".repeat(columns - begin.chars().count()))
    }

    #[test]
    fn columns_are_characters_and_a_hundred_are_allowed() {
        for (path, begin) in [("a.rs", "    /// "), ("a.rs", "//! "), ("a.rs", "  // "), ("a.md", ""), ("a.toml", "# ")]
        {
            assert_eq!(too_long(path, &wide(begin, 100)), NONE, "{begin}");
            assert_eq!(too_long(path, &wide(begin, 101)), [1], "{begin}");
        }
        assert_eq!(too_long("a.md", &"é".repeat(100)), NONE);
    }

    #[test]
    fn code_is_not_text() {
        assert_eq!(too_long("a.rs", &wide("let a = 1; // ", 119)), NONE);
        assert_eq!(too_long("a.toml", &wide("reason = 'a # in a string ", 130)), NONE);
        assert_eq!(too_long("a.toml", &wide("price = 1 # ", 101)), [1]);
        assert_eq!(too_long("a.sh", &wide("# ", 130)), NONE);
    }

    #[test]
    fn rows_of_tables_have_no_limit() {
        assert_eq!(too_long("a.md", &format!("{}|", wide("| a | ", 300))), NONE);
        assert_eq!(too_long("a.rs", &format!("{}|", wide("//! | a | ", 300))), NONE);
        assert_eq!(too_long("a.md", &wide("| no row ", 101)), [1]);
    }

    #[test]
    fn fences_allow_more_and_program_output_the_most() {
        let fenced = |marker: &str, info: &str, columns: usize| {
            let line = wide(marker, columns);
            format!("{marker}```{info}\n{line}\n{marker}```\n{}", wide(marker, 101))
        };
        assert_eq!(too_long("a.rs", &fenced("//! ", "text", 120)), [4]);
        assert_eq!(too_long("a.rs", &fenced("//! ", "text", 121)), [2, 4]);
        assert_eq!(too_long("a.md", &fenced("", "rust", 121)), [2, 4]);
        for info in ["", "text"] {
            assert_eq!(too_long("a.md", &fenced("", info, 160)), [4]);
            assert_eq!(too_long("a.md", &fenced("", info, 161)), [2, 4]);
        }
    }

    #[test]
    fn a_fence_ends_with_its_comment() {
        let text = format!("/// ```\nfn a() {{}}\n{}", wide("/// ", 101));
        assert_eq!(too_long("a.rs", &text), [3]);
    }

    #[test]
    fn a_url_that_cannot_be_broken_may_be_long() {
        for begin in ["https://a.b/", "- https://a.b/", "[name]: https://a.b/", "1. <https://a.b/"] {
            assert_eq!(too_long("a.md", &wide(begin, 130)), NONE, "{begin}");
        }
        assert_eq!(too_long("a.rs", &format!("/// {} and more", wide("https://a.b/", 110))), NONE);
        assert_eq!(too_long("a.md", &wide("see https://a.b/", 130)), [1]);
        assert_eq!(too_long("a.md", &format!("https://a.b {}", "word ".repeat(20))), [1]);
    }
}
