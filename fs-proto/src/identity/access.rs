//! Rights to files and directories.

use serde::{Deserialize, Serialize};

/// Rights to an object: the three bits of a class in a mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Access(u8);

impl Access {
    /// No right.
    pub const NONE: Access = Access(0);
    /// To look for names in a directory, or to run a file.
    pub const SEARCH: Access = Access(1);
    /// To write a file, or to change the names in a directory.
    pub const WRITE: Access = Access(2);
    /// To read a file, or to list a directory.
    pub const READ: Access = Access(4);
    /// To read and to write.
    pub const BOTH: Access = Access(6);

    /// Returns those of a class of a mode, whose bits are the lowest three.
    pub(crate) const fn of_class(mode: u32) -> Access {
        Access((mode & 7) as u8)
    }

    /// Returns true if all rights of `needed` are among these.
    pub const fn has(self, needed: Access) -> bool {
        self.0 & needed.0 == needed.0
    }

    /// Returns true if one of the rights of `other` is among these.
    pub const fn has_any(self, other: Access) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns these and those of `other`.
    #[must_use]
    pub const fn and(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }

    /// Returns those of these that are in `other`.
    #[must_use]
    pub const fn within(self, other: Access) -> Access {
        Access(self.0 & other.0)
    }
}

impl TryFrom<u8> for Access {
    type Error = &'static str;

    fn try_from(bits: u8) -> Result<Access, &'static str> {
        if bits < 8 { Ok(Access(bits)) } else { Err("rights of more than three bits") }
    }
}

impl From<Access> for u8 {
    fn from(access: Access) -> u8 {
        access.0
    }
}
