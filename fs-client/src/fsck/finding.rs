//! What a check finds.

use fs_proto::{DatafileHandle, Fix};

use crate::error::{Error, ServerName};

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of damage it is, in one word: `lost`, `short`, `long`, `size`, `unowned`,
    /// `unassigned`, `name`, `nameless`, `ties`, `twice`, `spare`, `server`, `circle`,
    /// `unreadable`, `counts`.
    pub kind: &'static str,
    /// The path of the file or directory, if it has one.
    pub path: Option<String>,
    /// The datafile, and its I/O server.
    pub datafile: Option<(ServerName, DatafileHandle)>,
    /// What is wrong, in words.
    pub text: String,
    /// What a repair does, in words; `None` if there is none.
    pub remedy: Option<String>,
    pub(super) fix: Option<Fix>,
}

impl Finding {
    pub(super) fn new(kind: &'static str, path: Option<String>, text: impl Into<String>) -> Finding {
        Finding { kind, path, datafile: None, text: text.into(), remedy: None, fix: None }
    }

    pub(super) fn of(self, server: &ServerName, datafile: DatafileHandle) -> Finding {
        Finding { datafile: Some((server.clone(), datafile)), ..self }
    }

    pub(super) fn mended(self, fix: Fix, remedy: impl Into<String>) -> Finding {
        Finding { fix: Some(fix), remedy: Some(remedy.into()), ..self }
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ", self.kind)?;
        if let Some(path) = &self.path {
            write!(f, "{path}: ")?;
        }
        if let Some((server, datafile)) = &self.datafile {
            write!(f, "{datafile} at {server}: ")?;
        }
        f.write_str(&self.text)
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong, sorted by path.
    pub findings: Vec<Finding>,
    /// The servers that could not be checked, and why.
    pub unchecked: Vec<(ServerName, Error)>,
    /// Number of files and symbolic links.
    pub files: u64,
    /// Number of directories.
    pub dirs: u64,
    /// Number of datafiles at the I/O servers, with those that were created in advance.
    pub datafiles: u64,
    /// Number of empty datafiles that belong to nobody. They are harmless.
    pub empty: u64,
    /// The number of repairs before the check.
    pub(super) repairs: u64,
}

impl Report {
    /// Returns true if everything was checked, and nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.unchecked.is_empty()
    }

    /// Returns the findings that a repair mends.
    pub fn repairable(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.fix.is_some())
    }
}
