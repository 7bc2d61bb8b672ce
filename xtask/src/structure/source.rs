//! Reads the Rust files of a directory, and removes their tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::Item;

use super::test_code;
use crate::command::Failure;

/// The path of a module from the measured directory, which is the empty path.
pub(super) type ModulePath = Vec<String>;

/// A file without its tests.
pub(super) struct Source {
    /// The path from the directory, with `/`.
    pub(super) path: String,
    pub(super) module: ModulePath,
    pub(super) items: Vec<Item>,
    /// The number of lines outside of tests.
    pub(super) lines: usize,
    /// The number of those that are neither empty nor a comment.
    pub(super) code: usize,
}

/// Reads all files of `directory` and of the directories in it.
///
/// # Errors
/// If a file cannot be read or is not Rust, or if there is none.
pub(super) fn read(directory: &Path) -> Result<Vec<Source>, Failure> {
    let sources = read_files(directory, &files(directory)?)?;
    if sources.is_empty() {
        return Err(Failure::new(format!("{}: there is no Rust file", directory.display())));
    }
    Ok(sources)
}

/// Reads all files of `directory` that are not in `left_out`.
///
/// # Errors
/// If a file cannot be read or is not Rust.
pub(super) fn read_without(directory: &Path, left_out: &Path) -> Result<Vec<Source>, Failure> {
    let files: Vec<PathBuf> = files(directory)?.into_iter().filter(|path| !path.starts_with(left_out)).collect();
    read_files(directory, &files)
}

fn read_files(directory: &Path, files: &[PathBuf]) -> Result<Vec<Source>, Failure> {
    let mut texts = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
        let inside = path.strip_prefix(directory).unwrap_or(path);
        let parts: Vec<_> = inside.iter().map(|part| part.to_string_lossy().into_owned()).collect();
        texts.push((parts.join("/"), text));
    }
    parse(texts.iter().map(|(path, text)| (path.as_str(), text.as_str())))
}

/// Parses the files of a directory, each given by its path and text.
pub(super) fn parse<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Vec<Source>, Failure> {
    let (mut sources, mut tests) = (Vec::new(), BTreeSet::new());
    for (path, text) in texts {
        let file = syn::parse_file(text).map_err(|error| {
            let at = error.span().start();
            Failure::new(format!("{path}:{}: {error}", at.line))
        })?;
        let module = module_of(path);
        if test_code::is_test_only(&file.attrs) {
            tests.insert(module);
            continue;
        }
        let mut items = file.items;
        let removed = test_code::remove(&mut items);
        tests.extend(removed.modules.iter().map(|name| [&module[..], std::slice::from_ref(name)].concat()));
        let is_kept = |line: &(usize, &str)| !removed.lines.iter().any(|range| range.contains(&(line.0 + 1)));
        let kept: Vec<&str> = text.lines().enumerate().filter(is_kept).map(|(_, line)| line.trim()).collect();
        let code = kept.iter().filter(|line| !line.is_empty() && !line.starts_with("//")).count();
        sources.push(Source { path: path.to_owned(), module, items, lines: kept.len(), code });
    }
    // A module of tests that has a file of its own.
    sources.retain(|source| !(0..=source.module.len()).any(|len| tests.contains(&source.module[..len])));
    Ok(sources)
}

/// Returns the module of a file.
fn module_of(path: &str) -> ModulePath {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    let mut module: ModulePath = stem.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
        module.pop();
    }
    module
}

/// Returns the path of a directory's module from the root of its crate. Returns `None` for a
/// directory that is not below a `src`.
pub(super) fn module_in_crate(directory: &Path) -> Option<ModulePath> {
    let parts: Vec<String> = directory.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let src = parts.iter().rposition(|part| part == "src")?;
    Some(parts[src + 1..].to_vec())
}

/// Returns the paths of all Rust files, sorted.
fn files(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let (mut files, mut folders) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().map_err(|error| unreadable(&folder, &error))? {
            let path = entry.map_err(|error| unreadable(&folder, &error))?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_module_and_a_directory_has_a_place_in_its_crate() {
        let module = |path| module_of(path).join("::");
        assert_eq!(
            ["mod.rs", "send.rs", "proto/mod.rs", "proto/credit.rs"].map(module),
            ["", "send", "proto", "proto::credit"]
        );
        assert_eq!(module_in_crate(Path::new("/a/src/b/src/endpoint")), Some(vec!["endpoint".to_owned()]));
        assert_eq!(module_in_crate(Path::new("core/src")), Some(vec![]));
        assert_eq!(module_in_crate(Path::new("core")), None);
    }

    #[test]
    fn lines_of_tests_do_not_count() {
        let text = "//! A module.\n\nfn one() {}\n\n/// Tests.\n#[cfg(test)]\nmod tests {\n    fn two() {}\n}\nfn three() {}\n";
        let sources = parse([("a.rs", text)]).unwrap();
        assert_eq!((sources[0].lines, sources[0].code, sources[0].items.len()), (5, 2, 2));
    }

    #[test]
    fn files_that_hold_only_tests_are_left_out() {
        let root = "#[cfg(test)]\nmod tests;\nmod a;\n#[cfg(test)]\nmod gone { fn f() {} }\n";
        let files = [("mod.rs", root), ("a.rs", ""), ("tests.rs", ""), ("tests/b.rs", ""), ("c.rs", "#![cfg(test)]")];
        let sources = parse(files).unwrap();
        assert_eq!(sources.iter().map(|source| source.path.as_str()).collect::<Vec<_>>(), ["mod.rs", "a.rs"]);
    }

    #[test]
    fn a_file_that_is_not_rust_is_an_error_with_its_line() {
        let why = parse([("a.rs", "fn a() {}\nfn {")]).err().unwrap();
        assert!(why.reason.starts_with("a.rs:2: "), "{why}");
        assert!(read(Path::new("/no/such/directory")).is_err());
    }
}
