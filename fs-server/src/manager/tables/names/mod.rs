//! Directories, files, links and names: the manager's tables and the operations on them.
//!
//! **Layout** of the tables
//!
//! ```text
//!   objects   handle → parent, attributes, layout       every file, directory and symbolic link, by number
//!   xattrs    (handle, name) → value                    extended attributes (`links`)
//!   names     (directory, name) → handle, kind          in the order of names, so a page of a directory is a range
//!   counters  "epoch" | "next" | "created" | "files" | "dirs" | "starts" | "repairs" → number
//!   orphans   (I/O server, datafile) → ()               datafiles of removed files, still to be removed there
//!   nameless  (client, file) → ()                       files without a name (`nameless`)
//!   unnamed   (file, client) → ()                       those of them that had one, and their holders
//!   holders   client → ()                               clients that have files open (`holds`)
//!   truncates (I/O server, datafile) → size, error      changes of size in progress (`truncates`)
//! ```
//!
//! **Invariants**
//! 1. A change makes all its checks before its first write. A change that is refused has written
//!    nothing, so several changes can share a transaction.
//! 2. Every object but the root and the nameless files has a name. Only a file can have several.
//!    The `parent` of a directory is the directory of its name.
//! 3. A directory's `size` is its number of names. Its `nlink` is two plus one for each
//!    subdirectory.
//! 4. A handle is assigned once: it is the manager's start epoch and a count that never goes back.
//!    A datafile is in a pool (`pools`), in the layout of one file, or among the orphans until its
//!    server has removed it.
//!
//! **Source.** [PVFS-IB §2.1]. The tests in `tests.rs` check invariants 2 to 4 after every change
//! of a random sequence.

mod change;
mod links;
mod nameless;
mod object;
mod repair;
mod rights;
#[cfg(test)]
mod tests;
mod truncates;
mod view;

#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub(in crate::manager) use change::fuzz_view;
pub(in crate::manager) use change::{Birth, Change, NewFile};
pub(in crate::manager) use nameless::{Publication, owned, owners};
pub(in crate::manager) use object::{
    COUNTERS, NAMELESS, NAMES, OBJECTS, ORPHANS, Object, STARTED, Stored, TRUNCATES, XATTRS, kind_number,
};
pub(in crate::manager) use repair::REPAIRS;
pub(in crate::manager) use truncates::{Decided, Truncates, truncates, truncation};
pub(in crate::manager) use view::{objects_from, orphans, stat, view, xattr, xattrs};
