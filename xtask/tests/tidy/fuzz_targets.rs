//! Each fuzz target has a corpus, and an ordinary test replays it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns the names in a directory, up to the first dot.
fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    entries.map(|name| name.split('.').next().unwrap().to_owned()).collect()
}

/// Returns the targets whose corpora are replayed by tests of the workspace.
fn replayed() -> BTreeSet<String> {
    let crates = fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path().join("src/fuzz.rs"));
    let texts = crates.filter_map(|path| fs::read_to_string(path).ok());
    let calls = |text: &str| -> Vec<String> {
        text.split("replay(\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
    };
    texts.flat_map(|text| calls(&text)).collect()
}

#[test]
fn every_target_has_a_corpus_that_is_replayed() {
    let fuzz = root().join("fuzz");
    let folders = fs::read_dir(fuzz.join("fuzz_targets")).unwrap();
    let targets: BTreeSet<String> = folders.flat_map(|folder| names(&folder.unwrap().path())).collect();
    assert!(targets.len() >= 8, "{targets:?}");
    assert_eq!(targets, names(&fuzz.join("corpus")));
    assert_eq!(targets, replayed());
    let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
    for target in targets {
        assert!(manifest.contains(&format!("name = \"{target}\"\n")), "{target} is not in fuzz/Cargo.toml");
        assert!(fs::read_dir(fuzz.join("corpus").join(&target)).unwrap().next().is_some(), "no input for {target}");
    }
}
