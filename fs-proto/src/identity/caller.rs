//! For whom a request is made: user, group, and further groups.
//!
//! **Why.** A machine mounts the file system for many users over one connection, so each request
//! says for whom it is made. That is only a claim. What a server believes of it is written in the
//! certificate of the peer (`Claims::caller`): a host may speak for its users and not for root, a
//! user for himself.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::{self, MAX_GROUPS};

/// The user and the group of somebody who may not be who he says he is. No file should belong to
/// them.
pub const NOBODY: u32 = 65534;

/// For whom a request is made.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Caller {
    /// The user. 0 may do everything.
    pub uid: u32,
    /// His first group, which new files get.
    pub gid: u32,
    /// Further groups that he is in, at most [`MAX_GROUPS`].
    #[serde(deserialize_with = "limits::bounded::<MAX_GROUPS, _, _>")]
    pub groups: Vec<u32>,
}

impl Caller {
    /// Who may do everything.
    pub const ROOT: Caller = Caller { uid: 0, gid: 0, groups: Vec::new() };
    /// Who has only the rights that everybody has.
    pub const NOBODY: Caller = Caller { uid: NOBODY, gid: NOBODY, groups: Vec::new() };

    /// Creates a caller with at most [`MAX_GROUPS`] further groups: the first ones.
    pub fn new(uid: u32, gid: u32, groups: impl IntoIterator<Item = u32>) -> Caller {
        Caller { uid, gid, groups: groups.into_iter().filter(|group| *group != gid).take(MAX_GROUPS).collect() }
    }

    /// Returns the user and the groups of this process.
    pub fn of_process() -> Caller {
        use rustix::process::{getegid, geteuid, getgroups};
        let groups = getgroups().unwrap_or_default().into_iter().map(|group| group.as_raw());
        Caller::new(geteuid().as_raw(), getegid().as_raw(), groups)
    }

    /// Returns true for the user who may do everything.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Returns true if he is in a group.
    pub fn is_in(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "user {}", self.uid)
    }
}

/// A name, or a list of names, that says nothing valid. The text says which and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadName(pub(super) String);

/// Numbers of users or groups, as ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Ids(Vec<Span>);

/// A range of numbers with its last one. Printed and parsed as `7` or `1000-1999`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    first: u32,
    last: u32,
}

impl Ids {
    /// All but root.
    pub fn all_but_root() -> Ids {
        Ids(vec![Span { first: 1, last: u32::MAX - 1 }])
    }

    /// Adds a range. The order of ranges is kept, since the first number is that of a user who says
    /// he is somebody else.
    pub fn add(&mut self, span: Span) {
        if !self.0.contains(&span) {
            self.0.push(span);
        }
    }

    /// Returns true if a number is among them.
    pub fn contains(&self, id: u32) -> bool {
        self.0.iter().any(|span| (span.first..=span.last).contains(&id))
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first number.
    pub fn first(&self) -> Option<u32> {
        self.0.first().map(|span| span.first)
    }

    /// Returns the ranges.
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        self.0.iter().copied()
    }
}

impl FromIterator<Span> for Ids {
    fn from_iter<I: IntoIterator<Item = Span>>(spans: I) -> Ids {
        let mut ids = Ids::default();
        spans.into_iter().for_each(|span| ids.add(span));
        ids
    }
}

impl From<u32> for Span {
    fn from(id: u32) -> Span {
        Span { first: id, last: id }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Span { first, last } if first == last => write!(f, "{first}"),
            Span { first, last } => write!(f, "{first}-{last}"),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Span {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Span, BadName> {
        let number = |text: &str| text.parse::<u32>().ok().filter(|id| *id < u32::MAX && id.to_string() == text);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Span { first, last }),
            _ => Err(BadName(format!("{text:?} is no user or group; a number such as 1000, or 1000-1999"))),
        }
    }
}
