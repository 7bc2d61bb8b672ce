//! What the tree keeps to and no compiler checks. Only files that git tracks are read.
//!
//! *circle*: modules of a folder use each other in a circle. *crowd*: a folder has too many files.
//! *width*: a line of a document or a comment is too long; rows of tables and links may be.
//! *link*: a link leads to no file or heading, or the name of a file is the end of no path.
//! Rustdoc checks links between items. *paper*: a citation, such as [PVFS-IB §4.1], has a key that
//! is no heading of `PAPERS`.

#![allow(clippy::unwrap_used, reason = "test code")]

mod figures;
mod fuzz_targets;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// The circles of today: a folder, and those of its modules that name each other by `crate::…` or
/// `super::…` outside of tests. They may only shrink: an entry that is no longer true is reported.
const CIRCLES: &str = "";
/// The folders of today with more than `ROOM` files of code or text. They may only shrink as well.
const CROWDS: &str = "";
/// The most files of a folder. A reader can take in a dozen names.
const ROOM: usize = 12;
/// The most columns of text, of what is between fences, and of program output there.
const WIDTHS: [usize; 3] = [100, 120, 160];
/// The document that has the keys of papers as headings of the third level.
const PAPERS: &str = "docs/papers.md";

/// The tracked files with their text.
type Tree = BTreeMap<String, String>;

/// A line of a document or a comment.
struct Line<'a> {
    number: usize,
    body: &'a str,
    is_fenced: bool,
    is_long: bool,
}

#[test]
fn the_tree_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let list = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().unwrap();
    let paths = String::from_utf8(list.stdout).unwrap();
    // A file that is gone may still be in the index. Other files than text have none here.
    let there = paths.split_terminator('\0').filter(|path| root.join(path).exists());
    let read = |path: &str| (path.to_owned(), std::fs::read_to_string(root.join(path)).unwrap_or_default());
    let tree: Tree = there.map(read).collect();
    assert!(tree.contains_key(PAPERS), "git lists no files");
    let found = check(&tree, CIRCLES, CROWDS);
    assert!(found.is_empty(), "{} places break a rule:\n{}", found.len(), found.join("\n"));
}

/// Returns what breaks a rule, each with its place and the rule.
fn check(tree: &Tree, circles: &str, crowds: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (rule, now, listed) in [("circle", self::circles(tree), circles), ("crowd", self::crowds(tree), crowds)] {
        let one_line = |entry: &str| entry.split_whitespace().collect::<Vec<_>>().join(" ");
        let listed = listed.split_terminator(';').map(one_line).collect();
        found.extend(now.difference(&listed).map(|new| format!("{rule}: {new}; the list does not have it")));
        found.extend(listed.difference(&now).map(|old| format!("{rule}: {old}; only the list has it")));
    }
    let keys = tree.get(PAPERS).map_or("", |text| text).lines().filter_map(|line| line.strip_prefix("### ")).collect();
    for (path, text) in tree {
        for line in lines(path, text) {
            let mut add = |rule, what| found.push(format!("{path}:{} {rule}: {what}", line.number));
            if line.is_long {
                add("width", line.body);
            }
            let body = if line.is_fenced { "" } else { line.body };
            // With an odd number of backticks, the last one begins a span that ends elsewhere.
            let plain = body.split('`').step_by(2).collect::<Vec<_>>().join("`");
            unknown_papers(&plain, &keys).into_iter().for_each(|key| add("paper", key));
            let dead = links(&plain).into_iter().filter(|link| path.ends_with(".md") && !leads(tree, path, link));
            dead.chain(dead_names(tree, body)).for_each(|link| add("link", link));
        }
    }
    found
}

/// Returns the folders with too many files, and the number of their files.
fn crowds(tree: &Tree) -> BTreeSet<String> {
    let mut folders = BTreeMap::new();
    let text = tree.keys().filter(|path| path.ends_with(".rs") || path.ends_with(".md"));
    text.filter_map(|path| path.rsplit_once('/')).for_each(|(folder, _)| *folders.entry(folder).or_insert(0) += 1);
    folders.into_iter().filter(|(_, count)| *count > ROOM).map(|(name, count)| format!("{name} {count}")).collect()
}

/// Returns the folders with those of their modules that use each other in a circle.
fn circles(tree: &Tree) -> BTreeSet<String> {
    let root = |path: &str| path.strip_suffix("/lib.rs").or(path.strip_suffix("/main.rs")).map(str::to_owned);
    let roots: BTreeSet<String> = tree.keys().filter_map(|path| root(path)).collect();
    let mut modules = BTreeMap::new();
    for (path, text) in tree {
        let root = path.rmatch_indices('/').map(|(at, _)| &path[..at]).find(|folder| roots.contains(*folder));
        let (Some(root), Some(name)) = (root, path.strip_suffix(".rs")) else { continue };
        let mut module: Vec<&str> = name[root.len() + 1..].split('/').collect();
        module.pop_if(|last| ["mod", "lib", "main"].contains(last));
        let is_test = module.contains(&"tests");
        let code = text.lines().take_while(|line| !is_test && *line != "mod tests {");
        let code: Vec<_> = code.filter(|line| !line.trim_start().starts_with("//")).collect();
        modules.insert((root, module), code.join("\n"));
    }
    let mut folders: BTreeMap<String, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for ((root, from), code) in &modules {
        for path in paths(code) {
            let mut to = from.clone();
            for step in path {
                match step {
                    "crate" => to.clear(),
                    "super" => drop(to.pop()),
                    "self" => {}
                    name => to.push(name),
                }
            }
            let same = from.iter().zip(&to).take_while(|(from, to)| from == to).count();
            let is_module = |to: &[&str]| modules.keys().any(|(at, module)| at == root && module.starts_with(to));
            if same < from.len() && same < to.len() && is_module(&to[..=same]) {
                let folder = folders.entry([&[*root], &from[..same]].concat().join("/")).or_default();
                folder.entry(from[same]).or_default().insert(to[same]);
            }
        }
    }
    let mut circles = BTreeSet::new();
    for (folder, mut uses) in folders {
        let all: Vec<&str> = uses.keys().copied().collect();
        for (via, from) in all.iter().flat_map(|via| all.iter().map(move |from| (via, from))) {
            let more = if uses[from].contains(via) { uses[via].clone() } else { BTreeSet::new() };
            uses.entry(from).or_default().extend(more);
        }
        for (from, all) in &uses {
            let has = |to: &&str| uses.get(to).is_some_and(|back| back.contains(from));
            let round: Vec<&str> = all.iter().copied().filter(has).collect();
            circles.extend((!round.is_empty()).then(|| format!("{folder}: {}", round.join(" "))));
        }
    }
    circles
}

/// Returns the paths in code that begin in the crate: two for `crate::{a::b, c}`.
fn paths(code: &str) -> Vec<Vec<&str>> {
    let (mut path, mut groups, mut found) = (Vec::new(), Vec::new(), Vec::new());
    let is_mark = |c: char| !c.is_alphanumeric() && c != '_';
    for token in code.split_inclusive(is_mark) {
        let word = token.trim_end_matches(is_mark);
        path.extend((!word.is_empty()).then_some(word));
        match &token[word.len()..] {
            ":" => continue,
            // A block is a group as well, after an empty path.
            "{" => groups.push(path.len()),
            "}" => drop(groups.pop()),
            _ => {}
        }
        let is_ours = matches!(path[..], ["crate" | "super" | "self", _, ..]);
        found.extend(is_ours.then(|| path.clone()));
        path.truncate(groups.last().copied().unwrap_or_default());
    }
    found
}

/// Returns the lines of text of a file.
fn lines<'a>(path: &str, text: &'a str) -> Vec<Line<'a>> {
    let [text_width, fenced_width, output_width] = WIDTHS;
    let (mut fence, mut lines) = (None, Vec::new());
    for (index, whole) in text.lines().enumerate() {
        let body = match path.rsplit('.').next() {
            Some("rs") => whole.trim_start().strip_prefix("//").map(|body| body.trim_start_matches(['!', '/'])),
            Some("toml") => whole.split_once("# ").map(|(_, body)| body),
            Some("md") => Some(whole),
            _ => None,
        };
        // A comment ends at the first line of code, and so does its fence.
        let open = fence.take();
        let Some(body) = body else { continue };
        let trimmed = body.trim();
        let mark = trimmed.strip_prefix("```");
        let is_output = |info| path.ends_with(".md") && ["", "text"].contains(&info);
        let fenced = open.or(mark.map(|info| if is_output(info) { output_width } else { fenced_width }));
        let is_row = trimmed.len() > 1 && trimmed.starts_with('|') && trimmed.ends_with('|');
        // A marker may be before a link that no line break can shorten.
        let is_link = trimmed.contains("://") && trimmed.split_whitespace().count() <= 2;
        let limit = fenced.unwrap_or(if is_row || is_link { usize::MAX } else { text_width });
        let is_long = whole.chars().count() > limit;
        lines.push(Line { number: index + 1, body, is_fenced: fenced.is_some(), is_long });
        fence = fenced.filter(|_| open.is_none() || mark.is_none());
    }
    lines
}

/// Returns the targets of `[text](target)` and `[name]: target`.
fn links(text: &str) -> Vec<&str> {
    let definition = text.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, to)| to);
    let links = text.split("](").skip(1).chain(definition).filter_map(|rest| rest.split([')', ' ']).next());
    links.map(|link| link.trim_matches(['<', '>'])).filter(|link| !link.is_empty()).collect()
}

/// Returns true if a link of a document leads out of the tree, or to a file and a heading in it.
fn leads(tree: &Tree, from: &str, link: &str) -> bool {
    let (to, anchor) = link.split_once('#').unwrap_or((link, ""));
    let folder = if to.is_empty() { from } else { from.rsplit_once('/').map_or("", |(folder, _)| folder) };
    let mut target = Vec::new();
    for part in folder.split('/').chain(to.split('/')).filter(|part| !["", "."].contains(part)) {
        if part == ".." { target.truncate(target.len().saturating_sub(1)) } else { target.push(part) }
    }
    let target = target.join("/");
    let is_there = tree.keys().any(|path| Path::new(path).starts_with(&target));
    // Anchors of other files than documents are lines of code.
    let has_heading = || !target.ends_with(".md") || anchors(&tree[&target]).contains(anchor);
    link.contains("://") || link.starts_with("mailto:") || is_there && (anchor.is_empty() || has_heading())
}

/// Returns the names of files in a text that are the end of no path.
fn dead_names<'a>(tree: &Tree, body: &'a str) -> Vec<&'a str> {
    let words =
        body.split(|c: char| !c.is_alphanumeric() && !"_./-".contains(c)).map(|word| word.trim_end_matches('.'));
    let names = words.filter(|word| word.len() > 3 && (word.ends_with(".rs") || word.ends_with(".md")));
    let is_there = |name: &str| tree.keys().any(|path| Path::new(path).ends_with(name.trim_start_matches(['.', '/'])));
    names.filter(|name| !name.contains("//") && !is_there(name)).collect()
}

/// Returns the anchors of a document as GitHub makes them. Those of equal headings have numbers.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for line in lines(PAPERS, text).into_iter().filter(|line| !line.is_fenced && line.body.starts_with('#')) {
        let title = line.body.trim_matches(['#', ' ']).to_lowercase().replace(' ', "-");
        let kept = title.replace(|c: char| !c.is_alphanumeric() && !"_-".contains(c), "");
        let mut names = (0..).map(|n| if n == 0 { kept.clone() } else { format!("{kept}-{n}") });
        anchors.extend(names.find(|name| !anchors.contains(name)));
    }
    anchors
}

/// Returns the keys of citations that no paper has. A key has hyphens, and a capital in each part.
fn unknown_papers<'a>(text: &'a str, keys: &BTreeSet<&str>) -> Vec<&'a str> {
    let words = text.split('[').skip(1).filter_map(|it| it.split(|c: char| !c.is_alphanumeric() && c != '-').next());
    let is_part = |part: &str| part.contains(|c: char| c.is_ascii_uppercase());
    words.filter(|word| word.contains('-') && word.split('-').all(is_part) && !keys.contains(word)).collect()
}

/// A row is a file that is added to a small tree, and what is found in it. `@` is 40 letters.
#[test]
fn what_breaks_a_rule_is_found() {
    let base = [
        (PAPERS, "### PVFS-IB\n### pNFS-Lustre\n### Other words\n"),
        ("README.md", "# The `name` of it, said once\n## Twice\n## Twice\n```\n# no heading\n```\n"),
        ("a/src/lib.rs", ""),
        ("a/src/w.rs", "use crate::u;"),
        ("a/src/x/y.rs", "use super::z::Z;\nuse crate::{\n    v,\n    w::{V, W},\n};"),
    ];
    let cases = [
        ("a.md", "@@1234567890 123456789\n| a | @@@ |\n- https://@@@\n```rust\n@@@\n```\n```\n@@@@\n```", ""),
        ("a.md", "@@1234567890 1234567890\n| a @@@\nb c http://@@@", ":1 width :2 width :3 width"),
        ("a.md", "```rust\n@@@1\n```\n@@@\n```\n@@@@1", ":2 width :4 width :6 width"),
        ("a.rs", "    /// @@12345678 123\nlet a = 1; // @@@\n//! ```\n//! @@1234567890 1234567\n//! ```", ""),
        (
            "a.rs",
            "/// @@12345678 12345678\n/// ```\n/// @@@\nx\n/// @@1234567890 1234567",
            ":1 width :3 width :5 width",
        ),
        ("a.toml", "reason = '@@@'\nprice = 1 # @@@", ":2 width"),
        ("b/a.md", "[a](../README.md) [b](a.md \"b\") [c](../a/src) [d](..)\n`[e](e)` [f](https://g.h)", ""),
        ("b/a.md", "[b](README.md)\n| [c](../b/c) |\n[d]: d\n```\n[e](e)", ":1 link :2 link :3 link"),
        ("a.md", "# A\n[a](#a) [b](README.md#the-name-of-it-said-once) [c](README.md#twice-1)", ""),
        ("a.md", "# A\n[a](#b)\n[b](README.md#no-heading)\n[c](README.md#twice-2)", ":2 link :3 link :4 link"),
        ("a.rs", "// src/lib.rs, [y](../x/y.rs), `*.rs`, http://a.b/c.rs, README.md.\n// ../gone.rs", ":2 link"),
        ("a.rs", "// [PVFS-IB §4.1] [Half-open] `[My-Key §1]`\n// [My-Key §1] [PVFS2-IB]", ":2 paper :2 paper"),
        ("a/src/w.rs", "//! crate::x\nfn w() {}\nmod tests {\n    use super::x;", ""),
        ("a/src/w.rs", "fn w() -> self::w::W {\n    crate::x::y()\n}", "circle"),
        ("a/src/x/z.rs", "use super::{y::{self, Y}, mod_rs};", "circle"),
        ("a/src/u.rs", "use super::x;", "circle"),
        ("a/src/v/mod.rs", "use crate::w;", ""),
    ];
    for (path, text, expected) in cases {
        let mut tree: Tree = base.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect();
        tree.insert(path.to_owned(), text.replace('@', &"x".repeat(40)));
        let found = check(&tree, "", "");
        let places = found.iter().map(|one| one.split(": ").next().unwrap().trim_start_matches(path));
        assert_eq!(places.collect::<Vec<_>>().join(" "), expected, "{text}");
    }
    let crowd: Tree = (0..=ROOM).map(|file| (format!("a/{file}.rs"), String::new())).collect();
    assert_eq!(check(&crowd, "", "a 14; b 2").len(), 3);
    assert!(check(&crowd, "", "a 13").is_empty());
}
