//! Checks out a revision and builds its programs.
//!
//! **Why one directory for all.** Both revisions are checked out into the same directory and built
//! into the same target directory, one after the other. The compiler hashes paths into symbol
//! names. Another path would change the layout of the same code, and make a difference of some
//! percent that means nothing. It also saves time, because code that both have in common is built
//! once.
//!
//! **Layout** of `target/compare`:
//!
//! ```text
//! lock                held while anything here changes
//! source/             the checkout: the files of one tree, without a repository
//! index               git's index of it
//! build/              cargo's target directory
//! programs/TREE/      the programs of each tree, by the tree's id; kept for the next comparison
//!          compiler   what they were built with
//! ```
//!
//! **Invariants**
//! 1. A revision is a tree of git. This is true of the working tree, too: it is written to the
//!    object store through an index of its own. The user's index and branch are not touched.
//! 2. A program in `programs` is complete or absent. It is copied under another name and then
//!    renamed.
//! 3. If the programs of a tree were built by another compiler, or with other flags, they are built
//!    again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{Failure, Invocation};
use crate::metadata;

/// The name of the working tree on the command line.
pub(super) const WORKING_TREE: &str = ".";
/// Time limit for a call of git.
const GIT_LIMIT: Duration = Duration::from_secs(60);
/// Time limit for a release build on two slow cores.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);
/// The number of trees whose programs are kept.
const KEPT: usize = 8;
/// The file that names the compiler and the settings with which a tree's programs were built.
const COMPILER: &str = "compiler";

/// Sources that can be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Revision {
    /// The id of its tree.
    pub(super) tree: String,
    /// The name for people: the commit and its subject, or the working tree.
    pub(super) name: String,
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

    /// Returns the path of a program.
    pub(super) fn program(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.folder.join(name);
        match path.is_file() {
            true => Ok(path),
            false => Err(Failure::new(format!("{}: the program {name} was not built", self.name()))),
        }
    }
}

fn git(root: &Path, args: &str) -> Invocation {
    Invocation::new(root, "git", args)
}

/// Returns the one line that a call of git prints.
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

/// Writes the files of the working tree that git does not ignore as a tree.
fn working_tree(root: &Path) -> Result<Revision, Failure> {
    // With an empty index git reads every file, so that a time stamp cannot hide a change.
    let index = folder(root).join(format!("index-{}", std::process::id()));
    let tree = git(root, "add --all .")
        .env("GIT_INDEX_FILE", &index)
        .output(GIT_LIMIT)
        .and_then(|_| word(git(root, "write-tree").env("GIT_INDEX_FILE", &index)));
    let _ = fs::remove_file(&index);
    let tree = tree?;
    let head = word(git(root, "rev-parse HEAD^{tree}"))?;
    let changed = if tree == head { "as committed" } else { "with changes" };
    Ok(Revision { tree, name: format!("the working tree, {} {changed}", word(git(root, "rev-parse --short HEAD"))?) })
}

/// Builds programs of both revisions, unless they are built already.
pub(super) fn build(root: &Path, revisions: &[Revision; 2], names: &[&str]) -> Result<[Programs; 2], Failure> {
    let all = folder(root);
    let lock = all.join("lock");
    let locked = File::create(&lock).and_then(|file| file.lock().map(|()| file));
    let _locked = locked.map_err(|error| Failure::new(format!("{}: {error}", lock.display())))?;
    let compiler = compiler(root)?;
    let [a, b] = revisions;
    let programs = [build_one(root, a, names, &compiler)?, build_one(root, b, names, &compiler)?];
    forget_old(&all.join("programs"), &programs);
    Ok(programs)
}

/// Returns the compiler, and the settings that change what it builds.
fn compiler(root: &Path) -> Result<String, Failure> {
    let mut text = Invocation::new(root, "rustc", "-vV").output(GIT_LIMIT)?;
    for (name, value) in
        std::env::vars().filter(|(name, _)| name.ends_with("RUSTFLAGS") || name.starts_with("CARGO_PROFILE"))
    {
        text += &format!("{name}={value}\n");
    }
    Ok(text)
}

fn build_one(root: &Path, revision: &Revision, names: &[&str], compiler: &str) -> Result<Programs, Failure> {
    let all = folder(root);
    let programs = Programs { folder: all.join("programs").join(&revision.tree), revision: revision.clone() };
    let built_with = programs.folder.join(COMPILER);
    if fs::read_to_string(&built_with).is_ok_and(|known| known == compiler) {
        if names.iter().all(|name| programs.program(name).is_ok()) {
            return Ok(programs);
        }
    } else {
        let _ = fs::remove_dir_all(&programs.folder);
    }
    eprintln!("building {}", revision.name);
    let source = all.join("source");
    check_out(root, revision, &source, &all.join("index"))?;
    let known: Vec<String> = metadata::packages(&source)?.into_iter().flat_map(metadata::Package::programs).collect();
    if let Some(missing) = names.iter().find(|name| !known.iter().any(|known| known == *name)) {
        let name = &revision.name;
        return Err(Failure::new(format!(
            "{name}: there is no program {missing}; choose other benchmarks with --bench"
        )));
    }
    let args: Vec<String> = names.iter().flat_map(|name| ["--bin".to_owned(), (*name).to_owned()]).collect();
    let build = all.join("build");
    Invocation::cargo(
        &source,
        "build --release --package benches --package bmi-perf --package fs-server --package fs-client",
    )
    .args(&args)
    .env("CARGO_TARGET_DIR", &build)
    .hand_over(BUILD_LIMIT)?;
    keep(&build.join("release"), &programs.folder, names)?;
    fs::write(&built_with, compiler).map_err(|error| Failure::new(format!("{}: {error}", built_with.display())))?;
    Ok(programs)
}

/// Checks out a revision in `source`. Files that are equal keep their times, so that cargo builds
/// only what changed.
fn check_out(root: &Path, revision: &Revision, source: &Path, index: &Path) -> Result<(), Failure> {
    let there = |args: &str| {
        let git = git(root, &format!("-c core.sparseCheckout=false {args}"));
        git.env("GIT_INDEX_FILE", index).env("GIT_WORK_TREE", source).output(GIT_LIMIT).map(drop)
    };
    let make = || fs::create_dir_all(source).map_err(|error| Failure::new(format!("{}: {error}", source.display())));
    let read_tree = format!("read-tree --reset -u {}", revision.tree);
    make()?;
    if there(&read_tree).is_err() {
        // The last checkout was interrupted. Without its index git does not know which files it
        // wrote, so start from an empty directory.
        let _ = fs::remove_file(index);
        let _ = fs::remove_file(index.with_extension("lock"));
        let _ = fs::remove_dir_all(source);
        make()?;
        there(&read_tree)?;
    }
    // Restore files that were removed or changed in the checkout.
    there("checkout-index --all --force --quiet")
}

/// Copies the built programs out of cargo's target directory.
fn keep(from: &Path, to: &Path, names: &[&str]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", to.display()));
    fs::create_dir_all(to).map_err(failed)?;
    for name in names {
        let fresh = to.join(format!("{name}.{}", std::process::id()));
        fs::copy(from.join(name), &fresh).and_then(|_| fs::rename(&fresh, to.join(name))).map_err(failed)?;
    }
    Ok(())
}

/// Removes the programs of the trees that were used longest ago, except those in use.
fn forget_old(programs: &Path, in_use: &[Programs; 2]) {
    for one in in_use {
        // The time of the file tells when the tree was last used.
        let used = one.folder.join(COMPILER);
        if let Ok(text) = fs::read_to_string(&used) {
            let _ = fs::write(&used, text);
        }
    }
    let entries = fs::read_dir(programs).into_iter().flatten().flatten();
    let mut trees: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| in_use.iter().all(|one| one.folder != *path))
        .map(|path| (fs::metadata(path.join(COMPILER)).and_then(|metadata| metadata.modified()).ok(), path))
        .collect();
    trees.sort();
    let surplus = trees.len().saturating_sub(KEPT - in_use.len());
    trees.iter().take(surplus).for_each(|(_, path)| drop(fs::remove_dir_all(path)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interrupted checkout leaves files that its index does not know. Cargo would also build a
    /// program of another revision.
    #[test]
    fn a_checkout_after_an_interrupted_one_has_the_files_of_its_tree_and_no_others() {
        let all = tempfile::tempdir().unwrap();
        let [root, source, index] = ["root", "source", "index"].map(|name| all.path().join(name));
        fs::create_dir_all(&root).unwrap();
        let run =
            |args: &str| git(&root, &format!("-c user.name=a -c user.email=a@b {args}")).output(GIT_LIMIT).unwrap();
        run("init --quiet");
        fs::write(root.join("both"), "1").unwrap();
        fs::write(root.join("old"), "1").unwrap();
        run("add .");
        run("commit --quiet -m one");
        let tree =
            |text: &str| Revision { tree: run(&format!("rev-parse {text}^{{tree}}")).trim().into(), name: text.into() };
        let one = tree("HEAD");
        fs::remove_file(root.join("old")).unwrap();
        fs::write(root.join("both"), "2").unwrap();
        run("commit --quiet --all -m two");
        let two = tree("HEAD");
        check_out(&root, &one, &source, &index).unwrap();
        assert!(source.join("old").exists());
        fs::write(index.with_extension("lock"), "").unwrap();
        check_out(&root, &two, &source, &index).unwrap();
        assert_eq!(fs::read_to_string(source.join("both")).unwrap(), "2");
        assert!(!source.join("old").exists());
        fs::remove_file(source.join("both")).unwrap();
        check_out(&root, &one, &source, &index).unwrap();
        assert_eq!(source.read_dir().unwrap().count(), 2);
    }
}
