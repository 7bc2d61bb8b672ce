//! References in text: links to files and headings, citations of papers, and names of documents
//! that are not in the tree.

use std::collections::{BTreeMap, BTreeSet};

use super::lines::{Line, Place, lines};
use super::{PAPERS, Source};

/// What references may lead to.
pub(super) struct Tree<'a> {
    files: &'a BTreeSet<String>,
    /// The anchors of each document, by its path.
    anchors: BTreeMap<&'a str, BTreeSet<String>>,
    /// The keys of papers, which are headings of the third level in `docs/papers.md`.
    papers: BTreeSet<&'a str>,
}

/// A rule and how it is broken.
type Broken = (&'static str, String);

impl<'a> Tree<'a> {
    /// The tree of the tracked files, with the text of its documents.
    pub(super) fn new(files: &'a BTreeSet<String>, documents: impl Iterator<Item = &'a Source>) -> Tree<'a> {
        let mut tree = Tree { files, anchors: BTreeMap::new(), papers: BTreeSet::new() };
        for document in documents {
            let headings = headings(document);
            if document.path == PAPERS {
                let keys = headings.iter().filter(|(level, title)| *level == 3 && is_key(title));
                tree.papers = keys.map(|(_, title)| *title).collect();
            }
            tree.anchors.insert(&document.path, anchors(&headings));
        }
        tree
    }

    /// Checks the references of a line of the file `path`.
    pub(super) fn check(&self, path: &str, line: &Line<'_>) -> Vec<Broken> {
        let mut broken = outside(line.body);
        if matches!(line.place, Place::Paragraph | Place::Table) {
            let text = without_code(line.body);
            broken.extend(self.papers(&text));
            if path.ends_with(".md") {
                broken.extend(links(&text).into_iter().filter_map(|link| self.link(path, link)));
            }
        }
        broken
    }

    /// Checks a link of the document `path`.
    fn link(&self, path: &str, link: &str) -> Option<Broken> {
        if link.contains("://") || link.starts_with("mailto:") {
            return None;
        }
        let (to, anchor) = link.split_once('#').map_or((link, None), |(to, anchor)| (to, Some(anchor)));
        let target = if to.is_empty() { path.to_owned() } else { resolve(path, to)? };
        let is_folder = || target.is_empty() || self.files.iter().any(|file| super::is_within(file, &target));
        if !self.files.contains(&target) && !is_folder() {
            return Some(("link", format!("the link {link} leads to no tracked file")));
        }
        // Anchors of other files than documents are lines of code.
        let known = self.anchors.get(target.as_str())?;
        anchor
            .filter(|anchor| !known.contains(*anchor))
            .map(|_| ("link", format!("the link {link} leads to no heading of {target}")))
    }

    /// Checks the citations of a line, such as `[PVFS-IB §4.1]`.
    fn papers(&self, text: &str) -> Vec<Broken> {
        let cited = text.split('[').skip(1).filter_map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(rest.len());
            let (key, rest) = rest.split_at(end);
            let is_citation = match rest.chars().next() {
                None | Some(']') => self.is_like_a_paper(key),
                Some(' ' | ',') => names_a_place(rest) || self.is_like_a_paper(key),
                Some(_) => false,
            };
            (is_citation && is_key(key) && !self.papers.contains(key)).then_some(key)
        });
        cited.map(|key| ("paper", format!("{PAPERS} has no paper {key}"))).collect()
    }

    /// Returns true if the key shares a part with the key of a paper: `PVFS-X` with `PVFS-IB`.
    fn is_like_a_paper(&self, key: &str) -> bool {
        let parts = || self.papers.iter().flat_map(|paper| paper.split('-'));
        key.split('-').any(|part| parts().any(|known| known == part))
    }
}

/// Returns true if the word has the form of a paper's key: parts that a hyphen joins.
fn is_key(word: &str) -> bool {
    let mut parts = word.split('-');
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    word.contains('-') && word.contains(|c: char| c.is_ascii_uppercase()) && parts.all(is_part)
}

/// Returns true if the rest of a citation begins with a section, a figure or a table.
fn names_a_place(rest: &str) -> bool {
    let rest = rest.trim_start_matches([' ', ',']);
    ["§", "Figure", "Table", "section"].iter().any(|place| rest.starts_with(place))
}

/// Finds names of documents that are not in the tree: numbers of papers, design documents.
fn outside(text: &str) -> Vec<Broken> {
    let words: Vec<&str> =
        text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    let mut broken = Vec::new();
    for (index, word) in words.iter().enumerate() {
        if *word == "DESIGN" {
            broken.push(("reference", "names a design document that is not in the tree".to_owned()));
        }
        let next = words.get(index + 1).copied().unwrap_or_default();
        let is_number = next.len() == 3 && next.starts_with("00") && next.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && ["paper", "papers"].iter().any(|paper| word.eq_ignore_ascii_case(paper)) {
            broken.push(("reference", format!("names paper {next} by its number; cite it by its key, see {PAPERS}")));
        }
    }
    broken
}

/// The text with its code spans, `…`, left out.
fn without_code(text: &str) -> String {
    let parts: Vec<&str> = text.split('`').collect();
    // An odd number of backticks: the last one begins a span that ends on another line.
    parts.iter().step_by(2).copied().collect::<Vec<_>>().join("`")
}

/// The targets of a line's links: `[text](target)` and `[name]: target`.
fn links(text: &str) -> Vec<&str> {
    let word = |text: &'_ str| text.find(|c: char| c == ')' || c.is_whitespace()).unwrap_or(text.len());
    let mut links: Vec<&str> = text.split("](").skip(1).map(|rest| &rest[..word(rest)]).collect();
    let definition = text.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, to)| to.trim());
    links.extend(definition.filter(|to| !to.contains(char::is_whitespace)));
    links.iter().map(|link| link.trim_matches(['<', '>'])).filter(|link| !link.is_empty()).collect()
}

/// The path of a link's target from the root of the tree; `None` for a path outside of it.
fn resolve(from: &str, to: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if let Some(rooted) = to.strip_prefix('/') {
        return Some(rooted.to_owned());
    }
    for part in to.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// The headings of a document, with their levels.
fn headings(document: &Source) -> Vec<(usize, &str)> {
    let text = lines(&document.path, &document.text).into_iter().filter(|line| line.place == Place::Paragraph);
    text.filter_map(|line| {
        let title = line.body.trim_start_matches('#');
        let level = line.body.len() - title.len();
        (level > 0 && title.starts_with(' ')).then(|| (level, title.trim()))
    })
    .collect()
}

/// The anchors of headings, made as GitHub makes them: lower case, hyphens for spaces, no
/// punctuation. If headings have equal titles, their anchors are numbered.
fn anchors(headings: &[(usize, &str)]) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let mut seen = BTreeMap::new();
    for (_, title) in headings {
        let kept = title.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect();
        let count = seen.entry(anchor.clone()).and_modify(|count| *count += 1).or_insert(0);
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES: [&str; 4] = ["README.md", "docs/papers.md", "docs/a.md", "src/main.rs"];

    /// How often each rule is broken by a line of `docs/a.md`.
    fn broken(line: &str) -> Vec<&'static str> {
        broken_in("docs/a.md", line)
    }

    fn broken_in(path: &str, text: &str) -> Vec<&'static str> {
        let files = FILES.iter().map(|file| (*file).to_owned()).collect();
        let documents = [
            Source { path: "README.md".into(), text: "# The `name` of it, said once\n## Twice\n## Twice\n".into() },
            Source { path: PAPERS.into(), text: "# Papers\n### PVFS-IB\n### Unifier-PVFS\n### Other words\n".into() },
            Source { path: "docs/a.md".into(), text: "# A\n```\n# no heading\n```\n".into() },
        ];
        let tree = Tree::new(&files, documents.iter());
        lines(path, text).iter().flat_map(|line| tree.check(path, line)).map(|(rule, _)| rule).collect()
    }

    #[test]
    fn links_lead_to_tracked_files_and_folders() {
        for line in [
            "[a](../README.md) and [b](papers.md), [c](../src), [d](..)",
            "[c](./papers.md \"title\"), [root](/README.md)",
            "[w](https://example.org/x.md), [m](mailto:a@b)",
            "`[code](gone.md)`",
            "[r]: ../src/main.rs",
            "```\n[in a fence](gone.md)\n```",
        ] {
            assert!(broken(line).is_empty(), "{line}");
        }
        assert_eq!(broken("[a](gone.md) and [b](README.md)"), ["link", "link"]);
        assert_eq!(broken("| [a](../src/gone.rs) |"), ["link"]);
        assert_eq!(broken("[r]: gone.md"), ["link"]);
        assert!(broken_in("src/main.rs", "//! [a](gone.md)").is_empty());
    }

    #[test]
    fn anchors_are_headings() {
        for anchor in ["../README.md#the-name-of-it-said-once", "../README.md#twice", "../README.md#twice-1", "#a"] {
            assert!(broken(&format!("[x]({anchor})")).is_empty(), "{anchor}");
        }
        for anchor in ["../README.md#twice-2", "#no-heading", "#gone", "papers.md#a"] {
            assert_eq!(broken(&format!("[x]({anchor})")), ["link"], "{anchor}");
        }
    }

    #[test]
    fn papers_are_cited_by_keys_that_are_defined() {
        for line in
            ["[PVFS-IB §4.1]", "[Unifier-PVFS, Table 1]", "[PVFS-IB]", "[PVFS-IB", "[Half-open] [x-y]", "`[My-Key §1]`"]
        {
            assert!(broken(line).is_empty(), "{line}");
        }
        for line in ["[My-Key §1]", "[My-Key, Figure 2]", "[PVFS-X]", "[Unifier-IB", "| [PVFS2-IB §1] |"] {
            assert_eq!(broken(line), ["paper"], "{line}");
        }
        assert_eq!(broken_in("a.toml", "price = 1 # [My-Key §3]"), ["paper"]);
        assert!(broken_in("src/main.rs", "#[my-attribute]\n// A list [a-Z] of [`Self-made`] things").is_empty());
    }

    #[test]
    fn documents_outside_of_the_tree_are_not_named() {
        for line in ["as paper 001 has it", "(Paper 005)", "papers 002 and more", "see DESIGN.md", "DESIGN section 3"] {
            assert_eq!(broken(line), ["reference"], "{line}");
        }
        for line in ["the paper's 12 tables", "paper 0x00", "on paper 1000", "the design of it", "DESIGNED"] {
            assert!(broken(line).is_empty(), "{line}");
        }
    }
}
