//! The label of a store and its file, `identity.toml`.

use std::io;

use fs_proto::{ClusterId, DatafileHandle, Role, Start, StoreId};
use serde::{Deserialize, Serialize};

use super::replace::replace_file;
use crate::store::disk::{DiskDir, read_file};

/// The format of data directories. It rises with every change of what is in one.
///
/// | format | what was new in it | now |
/// |---|---|---|
/// | 1 | | refused |
/// | 2 | labels with a cluster and starts; datafiles in 256 directories | refused for the manager |
/// | 3 | the manager's database keeps the size before a truncation; I/O servers note their caches | as 2 |
/// | 4 | the manager's names are bytes; links, extended attributes | |
///
/// The metadata of an older manager comes over in a backup. Nothing in the directory of an I/O
/// server of format 2 or 3 has changed, so it is used as it is: its next label has the new number.
/// The cache that a killed server of format 2 has left is refused, because nothing says whether it
/// is the last.
pub(super) const FORMAT: u32 = 4;
/// The oldest format of the directory of an I/O server that is used.
const OLDEST_OF_IOD: u32 = 2;
pub(crate) const IDENTITY: &str = "identity.toml";
/// The name of a label while it is written, and of the file that is kept for the next one.
pub(super) const NEW: &str = "identity.new";
/// Most bytes of a label.
const MOST: u64 = 64 << 10;

/// The label of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The cluster that it belongs to.
    pub cluster: ClusterId,
    /// The server that it belongs to.
    pub role: Role,
    /// The store.
    pub store: StoreId,
    /// How often the store was started. Not used for the manager, whose database counts.
    pub epoch: u64,
    /// The last start that an I/O server has offered to the manager.
    pub offered: Option<Start>,
    /// The last start of which an I/O server knows that the manager has recorded it.
    pub confirmed: Option<Start>,
    /// The last start of the manager that has accepted an I/O server's store.
    pub manager: Option<Start>,
    /// The highest handle of a datafile that an I/O server's store has seen.
    pub highest: DatafileHandle,
}

impl Label {
    /// Creates the label of a new store.
    pub fn new(cluster: ClusterId, role: Role, store: StoreId) -> Label {
        let (offered, confirmed, manager) = (None, None, None);
        Label { cluster, role, store, epoch: 0, offered, confirmed, manager, highest: DatafileHandle(0) }
    }

    /// Returns the label of the store on a disk; `None` if it has none that can be read.
    #[cfg(any(test, feature = "sim"))]
    pub fn on(disk: &crate::store::MemDisk) -> Option<Label> {
        read_label(&disk.reopen()).ok()??.ok()
    }
}

/// The contents of the identity file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IdentityFile {
    format: u32,
    #[serde(default)]
    cluster: String,
    role: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    store: String,
    #[serde(default)]
    epoch: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    offered: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    manager: Option<String>,
    #[serde(default)]
    highest: String,
}

impl IdentityFile {
    fn of(label: &Label) -> IdentityFile {
        let (role, index) = match label.role {
            Role::Manager => ("manager", None),
            Role::Iod(index) => ("iod", Some(index)),
        };
        IdentityFile {
            format: FORMAT,
            cluster: label.cluster.to_string(),
            role: role.to_owned(),
            index,
            store: label.store.to_string(),
            epoch: label.epoch,
            offered: label.offered.map(|start| start.to_string()),
            confirmed: label.confirmed.map(|start| start.to_string()),
            manager: label.manager.map(|start| start.to_string()),
            highest: format!("{:016x}", label.highest.0),
        }
    }

    fn label(&self) -> Result<Label, String> {
        let oldest = if self.role == "iod" { OLDEST_OF_IOD } else { FORMAT };
        match self.format {
            format if (oldest..=FORMAT).contains(&format) => {}
            format if format < FORMAT => {
                return Err(format!(
                    "the directory is of format {format}, and this program uses format {FORMAT}; write a backup with \
                     the program that made it (`pvfsd backup`), and restore that with this one (`pvfsd restore`)"
                ));
            }
            format => {
                return Err(format!(
                    "the directory is of format {format}, of a newer program; this one uses format {FORMAT}"
                ));
            }
        }
        let role = match (self.role.as_str(), self.index) {
            ("manager", None) => Role::Manager,
            ("iod", Some(index)) => Role::Iod(index),
            _ => return Err(format!("{:?} is not the role of a server", self.role)),
        };
        let start = |text: &Option<String>| text.as_deref().map(str::parse::<Start>).transpose();
        let highest = u64::from_str_radix(&self.highest, 16).map_err(|_| format!("highest: {:?}", self.highest))?;
        Ok(Label {
            cluster: self.cluster.parse()?,
            role,
            store: self.store.parse()?,
            epoch: self.epoch,
            offered: start(&self.offered)?,
            confirmed: start(&self.confirmed)?,
            manager: start(&self.manager)?,
            highest: DatafileHandle(highest),
        })
    }
}

/// Reads the label of a directory. Returns `None` if it has none, and the reason if it is not
/// valid.
pub(in crate::store) fn read_label(dir: &dyn DiskDir) -> io::Result<Option<Result<Label, String>>> {
    let text = match read_file(dir, IDENTITY, MOST) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        result => String::from_utf8(result?).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?,
    };
    let parsed: Result<IdentityFile, _> = toml::from_str(&text);
    let label = parsed.map_err(|error| error.message().replace('\n', " ")).and_then(|file| file.label());
    Ok(Some(label.map_err(|why| format!("{IDENTITY}: {why}"))))
}

/// Writes the label of a directory atomically and durably. The directory is open, so it is the
/// right one even if its path leads elsewhere by now.
pub(in crate::store) fn write_label(dir: &dyn DiskDir, label: &Label) -> io::Result<()> {
    let text = toml::to_string(&IdentityFile::of(label)).map_err(io::Error::other)?;
    let what = "# Which store this directory is. Written by pvfsd; do not edit or copy it.\n";
    replace_file(dir, IDENTITY, NEW, &format!("{what}{text}"))
}
