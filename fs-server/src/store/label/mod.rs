//! The label of a store: whose it is, and how far it has come. In a data directory the label is the
//! file `identity.toml`.
//!
//! **Why.** A server that is started with the wrong directory looks like one that works. The wrong
//! directory could be another server's, the empty mount point of a disk that is not mounted, or an
//! old copy. So a directory says to which cluster and server it belongs, which store it is, and how
//! often it was started. The manager and the I/O servers compare this ([`crate::members`]).
//!
//! **Invariants**
//! 1. A directory without a label is used only if it is empty, and only after the manager has
//!    agreed (an I/O server) or `pvfsd format` was run (the manager).
//! 2. A directory with a label is used only for the role in it, by one server at a time.
//! 3. A label is replaced atomically and durably. Its store and cluster never change.
//! 4. A directory that is refused is left as it was.
//!
//! **Layout**
//!
//! ```text
//!   <dir>                 locked by the server that uses it (`flock` on the directory)
//!   <dir>/identity.toml   format, cluster, role, index, store; of an I/O server also how often it was
//!                         started, the starts that it has offered and that were confirmed, the newest
//!                         start of the manager that has accepted it, and its highest handle
//!   <dir>/cache.toml      of an I/O server: which cache it uses (`cache_note`)
//! ```

pub(super) mod cache_note;
mod directory;
pub(super) mod identity;
mod lock;
mod replace;
#[cfg(test)]
mod tests;

pub(super) use cache_note::CacheNote;
pub(super) use directory::durable_dir;
pub(crate) use directory::{Directory, others};
pub(crate) use identity::IDENTITY;
pub use identity::Label;
pub(super) use identity::{read_label, write_label};
pub(crate) use lock::{DirLock, Holder, holder};
