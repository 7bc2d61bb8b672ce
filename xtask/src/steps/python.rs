//! The step `python`: the package `bmi` of `python/`, its types and its tests.
//!
//! The extension is built with everything else, and put beside a copy of the sources. mypy, pytest
//! and an `fsspec` with its abstract tests are in an environment in the target directory, which is
//! made once. Debian's `fsspec` comes without those tests, so they are of the registry of Python.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{Failure, Invocation};
use crate::metadata;
use crate::setup::{self, Need};
use crate::totals::Totals;

/// What the tests import, as it was when they were written.
const REQUIREMENTS: &str = "fsspec==2026.9.0 mypy==2.4.1 pytest==9.2.0";
/// Time limit for making the environment over a slow link.
const SETUP_LIMIT: Duration = Duration::from_secs(600);
/// Time limit for the types and the tests. They take less than a minute.
const LIMIT: Duration = Duration::from_secs(600);

/// Builds the extension, and runs mypy and pytest. Without Python 3.9, or without the registry, the
/// step is skipped.
pub(super) fn step(root: &Path) -> Result<Totals, Failure> {
    let python = environment(root)?;
    super::build(root)?;
    let folder = tempfile::tempdir().map_err(failed)?;
    copy(&root.join("python"), folder.path()).map_err(failed)?;
    let library = crate::target(root).join("debug/lib_native.so");
    fs::copy(library, folder.path().join("bmi/_native.abi3.so")).map_err(failed)?;
    Invocation::new(folder.path(), &python, "-m mypy bmi tests examples --cache-dir")
        .args(&[crate::target(root).join("python/mypy").to_string_lossy().into_owned()])
        .run(LIMIT)?;
    Invocation::new(folder.path(), &python, "-m pytest -q -p no:cacheprovider tests")
        .env("PYTHONPATH", folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("PVFSD", metadata::program(root, "pvfsd"))
        .run(LIMIT)
}

fn failed(error: std::io::Error) -> Failure {
    Failure::new(format!("a copy of python/: {error}"))
}

/// Returns the interpreter of an environment with what the tests import, and makes that if needed.
fn environment(root: &Path) -> Result<PathBuf, Failure> {
    let folder = crate::target(root).join("python").join(REQUIREMENTS.replace(' ', "-"));
    let python = folder.join("bin/python");
    let is_complete =
        || Invocation::new(root, &python, "-c").args(&["import fsspec.tests.abstract, mypy, pytest".into()]).succeeds();
    if is_complete() {
        return Ok(python);
    }
    setup::install(root, Need::Python).map_err(|why| Failure::skip(why.reason))?;
    let is_new = "import sys; sys.exit(sys.version_info < (3, 9))";
    if !Invocation::new(root, "python3", "-c").args(&[is_new.into()]).succeeds() {
        return Err(Failure::skip("python3 is older than 3.9"));
    }
    let made = Invocation::new(root, "python3", "-m venv")
        .args(&[folder.to_string_lossy().into_owned()])
        .run_aside(SETUP_LIMIT)
        .and_then(|()| {
            let install =
                format!("-m pip install --quiet --disable-pip-version-check --no-compile --retries 1 {REQUIREMENTS}");
            Invocation::new(root, &python, &install).run_aside(SETUP_LIMIT)
        });
    made.map(|()| python).map_err(|why| Failure::skip(format!("no {REQUIREMENTS} to be had: {why}")))
}

/// Copies the sources of the package and of its tests.
fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    for folder in ["bmi", "examples", "tests"] {
        fs::create_dir(to.join(folder))?;
        for entry in fs::read_dir(from.join(folder))? {
            let path = entry?.path();
            let is_source = path.extension().is_some_and(|end| ["py", "pyi", "typed"].iter().any(|one| end == *one));
            if let Some(name) = path.file_name().filter(|_| is_source) {
                fs::copy(&path, to.join(folder).join(name))?;
            }
        }
    }
    ["README.md", "pyproject.toml"].iter().try_for_each(|name| fs::copy(from.join(name), to.join(name)).map(drop))
}
