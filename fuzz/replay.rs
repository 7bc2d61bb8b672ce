//! Replays the corpus of a fuzz target in an ordinary test. The crates with fuzz targets include
//! this file in their unit tests.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// Longest input of a corpus, in bytes.
const LONGEST: usize = 4096;

/// Passes each input of a target's corpus to the target's body. `BMI_CORPORA` names a directory of
/// corpora other than that of the project.
///
/// # Panics
/// If the corpus is missing, is empty, or has a file of 4 KiB or more, and if the body panics. The
/// message names the file.
pub(super) fn replay(target: &str, body: impl Fn(&[u8])) {
    let here = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let corpus = std::env::var_os("BMI_CORPORA").map_or_else(here, PathBuf::from).join(target);
    let files = fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    let mut inputs = 0;
    for file in files {
        let path = file.expect("an entry of the corpus").path();
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(bytes.len() < LONGEST, "{} has {} bytes", path.display(), bytes.len());
        if catch_unwind(AssertUnwindSafe(|| body(&bytes))).is_err() {
            panic!("the body of {target} fails with {}", path.display());
        }
        inputs += 1;
    }
    assert!(inputs > 0, "{} is empty", corpus.display());
}
