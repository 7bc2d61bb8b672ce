//! From a revision to built programs.
//!
//! **Why one folder for all.** Both revisions are checked out into the same folder and built into the same target folder, one after the
//! other. Paths are part of what the compiler hashes into symbol names, so other paths would give other layouts of the same code, and
//! a difference of some percent that means nothing. It saves time, too: what both have in common is built once.
//!
//! **Layout** of `target/compare`:
//!
//! ```text
//! source/             the checkout: no repository of its own, only the files of one tree
//! index               git's index of it
//! build/              cargo's target folder
//! programs/TREE/      the built programs of each tree, by the tree's id; kept for the next comparison
//! ```
//!
//! **Invariants**
//! 1. A revision is a tree of git, the working tree too: it is written to the object store through an index of its own. The user's
//!    index and branch are not touched.
//! 2. A program in `programs` is whole, or it is not there: it is copied under another name and renamed.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::bench::Bench;
use crate::command::{Failure, Invocation};

/// What the command line calls the working tree.
pub(super) const WORKING_TREE: &str = ".";
/// For a call of git.
const GIT_LIMIT: Duration = Duration::from_secs(60);
/// For a release build on two slow cores.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// So many built trees are kept.
const KEPT: usize = 8;

/// Sources that can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Revision {
    /// Its tree's id.
    pub(super) tree: String,
    /// For people: the commit and its subject, or the working tree.
    pub(super) name: String,
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

/// The built programs of a revision.
#[derive(Debug)]
pub(super) struct Programs {
    folder: PathBuf,
    revision: Revision,
}

impl Programs {
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn name(&self) -> &str {
        &self.revision.name
    }

    /// The path of one of them.
    pub(super) fn program(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.folder.join(name);
        match path.is_file() {
            true => Ok(path),
            false => Err(Failure::new(format!("{}: the program {name} was not built", self.revision))),
        }
    }
}

fn git(root: &Path, args: &str) -> Invocation {
    Invocation::new(root, "git", args)
}

/// The one line that a call of git prints.
fn word(git: Invocation) -> Result<String, Failure> {
    Ok(git.output(GIT_LIMIT)?.trim().to_owned())
}

fn folder(root: &Path) -> PathBuf {
    crate::target(root).join("compare")
}

/// Finds the revision that `text` names.
pub(super) fn resolve(root: &Path, text: &str) -> Result<Revision, Failure> {
    let make =
        |path: &Path| fs::create_dir_all(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())));
    make(&folder(root))?;
    if text == WORKING_TREE {
        return working_tree(root);
    }
    let commit = word(git(root, "rev-parse --verify --quiet --end-of-options").args(&[format!("{text}^{{commit}}")]));
    let commit = commit.map_err(|_| Failure::new(format!("git knows no commit {text:?}")))?;
    let tree = word(git(root, "rev-parse --verify").args(&[format!("{commit}^{{tree}}")]))?;
    let name = word(git(root, "log -1").args(&["--format=%h %s".into(), commit]))?;
    Ok(Revision { tree, name })
}

/// The files of the working tree that git does not ignore, as a tree.
fn working_tree(root: &Path) -> Result<Revision, Failure> {
    let index = folder(root).join(format!("index-{}", std::process::id()));
    // git's own knows which files have not changed, so that they need not be read.
    let own = root.join(word(git(root, "rev-parse --git-path index"))?);
    let written =
        fs::copy(&own, &index).map_err(|error| Failure::new(format!("{}: {error}", own.display()))).and_then(|_| {
            git(root, "add --all .").env("GIT_INDEX_FILE", &index).output(GIT_LIMIT)?;
            word(git(root, "write-tree").env("GIT_INDEX_FILE", &index))
        });
    let _ = fs::remove_file(&index);
    let tree = written?;
    let head = word(git(root, "rev-parse HEAD^{tree}"))?;
    let changed = if tree == head { "as committed" } else { "with changes" };
    Ok(Revision { tree, name: format!("the working tree, {} {changed}", word(git(root, "rev-parse --short HEAD"))?) })
}

/// Builds the benchmarks of a revision, unless they are built already.
pub(super) fn build(root: &Path, revision: &Revision, benches: &[&Bench]) -> Result<Programs, Failure> {
    let all = folder(root);
    let programs = Programs { folder: all.join("programs").join(&revision.tree), revision: revision.clone() };
    let names: Vec<&str> = benches.iter().flat_map(|bench| bench.starts.iter().chain([&bench.name])).copied().collect();
    if names.iter().all(|name| programs.program(name).is_ok()) {
        return Ok(programs);
    }
    eprintln!("building {revision}");
    let source = all.join("source");
    check_out(root, revision, &source, &all.join("index"))?;
    let build = all.join("build");
    let known = program_names(&source)?;
    if let Some(missing) = names.iter().find(|name| !known.iter().any(|known| known == *name)) {
        return Err(Failure::new(format!("{revision}: there is no program {missing}; choose others with --bench")));
    }
    let args: Vec<String> = names.iter().flat_map(|name| ["--bin".to_owned(), (*name).to_owned()]).collect();
    Invocation::cargo(&source, "build --release --package benches --package fs-server")
        .args(&args)
        .env("CARGO_TARGET_DIR", &build)
        .hand_over(BUILD_LIMIT)?;
    keep(&build.join("release"), &programs.folder, &names)?;
    forget_old(&all.join("programs"), &programs.folder);
    Ok(programs)
}

/// Brings `source` to the state of a revision. Files that do not change keep their times, so that cargo builds only what did.
fn check_out(root: &Path, revision: &Revision, source: &Path, index: &Path) -> Result<(), Failure> {
    fs::create_dir_all(source).map_err(|error| Failure::new(format!("{}: {error}", source.display())))?;
    let there = |args: &str| {
        let git = git(root, args).env("GIT_INDEX_FILE", index).env("GIT_WORK_TREE", source);
        git.output(GIT_LIMIT).map(drop)
    };
    if there(&format!("read-tree --reset -u {}", revision.tree)).is_err() {
        // An index that was cut short helps nobody.
        let _ = fs::remove_file(index);
        there(&format!("read-tree --reset -u {}", revision.tree))?;
    }
    // What somebody removed or changed in there comes back.
    there("checkout-index --all --force --quiet")
}

/// The programs that the crates of a checkout have.
fn program_names(source: &Path) -> Result<Vec<String>, Failure> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        targets: Vec<Target>,
    }
    #[derive(Deserialize)]
    struct Target {
        name: String,
        kind: Vec<String>,
    }
    let output = Invocation::cargo(source, "metadata --no-deps --format-version 1").output(GIT_LIMIT)?;
    let metadata: Metadata =
        serde_json::from_str(&output).map_err(|error| Failure::new(format!("cargo metadata: {error}")))?;
    let targets = metadata.packages.into_iter().flat_map(|package| package.targets);
    Ok(targets.filter(|target| target.kind.iter().any(|kind| kind == "bin")).map(|target| target.name).collect())
}

/// Copies what was built to where it stays.
fn keep(from: &Path, to: &Path, names: &[&str]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", to.display()));
    fs::create_dir_all(to).map_err(failed)?;
    for name in names {
        let fresh = to.join(format!("{name}.{}", std::process::id()));
        fs::copy(from.join(name), &fresh).and_then(|_| fs::rename(&fresh, to.join(name))).map_err(failed)?;
    }
    Ok(())
}

/// Removes the oldest built trees, but not `now`.
fn forget_old(programs: &Path, now: &Path) {
    let entries = fs::read_dir(programs).into_iter().flatten().flatten();
    let mut trees: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path != now)
        .filter_map(|path| Some((fs::metadata(&path).and_then(|metadata| metadata.modified()).ok()?, path)))
        .collect();
    trees.sort();
    let surplus = trees.len().saturating_sub(KEPT - 1);
    trees.iter().take(surplus).for_each(|(_, path)| drop(fs::remove_dir_all(path)));
}
