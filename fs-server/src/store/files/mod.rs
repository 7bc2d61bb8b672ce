//! Stores datafiles as files under a directory.
//!
//! **Layout**
//!
//! ```text
//!   <dir>/identity.toml            the label (`identity.rs`)
//!   <dir>/catalogue                datafiles that were created and never written (`catalogue`)
//!   <dir>/marks                    datafiles on which most operations must fail (`marks.rs`)
//!   <dir>/e1/000001000000e100      subdirectory: the handle's second byte; file: the handle, in hexadecimal
//!   <dir>/e2/…
//!   <dir>/sums/e1/…                checksums of datafiles, under the same names (`store/sums`)
//! ```
//!
//! **Existence.** A datafile exists if it has a file, or if the catalogue says that it was created
//! and never written (`catalogue`). The first write makes the file, and the first sync takes the
//! datafile off the catalogue. The length that a datafile had when it was synced is an extended
//! attribute of its file (`user.pvfs.synced`). On a file system without such attributes nothing is
//! remembered.
//!
//! **The directory is opened once,** and every name is relative to it. If another file system is
//! mounted over the path of a running server, the server keeps to its own.
//!
//! **Threads.** No call that can wait for the disk runs on the server's event loop, however short
//! it is. The loop reads what is in the system's memory, and writes if the file system can without
//! a wait (`at_once.rs`). It looks at lengths that the system knows. Everything else is done by
//! worker threads ([`Workers`]):
//!
//! | threads | what they do |
//! |---|---|
//! | `SHORT` | opening and closing (`openings.rs`), transfers below `offload` bytes, room and attributes |
//! | `LONG` | creation, removal, truncation, syncing, listing |
//! | as many | transfers of `offload` bytes or more, at a low priority |
//!
//! So what is short does not wait for what takes long. If the disk does not answer, the threads are
//! soon used up, and requests wait. They are as many as the server admits. What is answered from
//! memory goes on: reads from the page cache, lengths, and what the file system said last about its
//! room (`space.rs`). Without a tokio runtime there is no event loop, and nothing is handed over.
//!
//! **In the page cache.** A store can lend the pages of its files instead of copying them
//! (`mapped`).
//!
//! **Direct I/O.** A store behind a cache can move bytes between memory and disk past the page
//! cache (`O_DIRECT`), never on the event loop (`direct_io`).
//!
//! **Several event loops** share a store. What they have in common beside the disk is locked for a
//! step: the table of open files, the openings, the label. No two of these locks are held at the
//! same time, and none across a system call. A worker of the store may hold the locks of an open
//! file while it waits for the disk; the loops never take these.
//!
//! **Order.** A request that waits for a worker may be overtaken by others, also of the same
//! datafile. Requests in progress at the same time have no order, over any transport.
//!
//! **Stop.** A server that stops gives its workers some time. Then it ends without them. The lock
//! on the directory stays until the last of them has ended, so no other server can begin while an
//! old write may still reach the disk.
//!
//! **Open files** are kept for later requests (`open/table.rs`), so that small requests need no
//! `open`. If no descriptor is free, files that nobody uses are closed, and the step that needs one
//! is taken again.
//!
//! **Number of datafiles.** It is known without looking (`catalogue`). The files are counted
//! when the store is opened. The file system knows how much space is free.
//!
//! **Durability.** `sync` is `fdatasync` of the files (`durability.rs`). The first one of a
//! datafile also syncs the subdirectory, so that the name survives, and the catalogue. `remove`
//! syncs the subdirectories, and the catalogue.
//!
//! **Checksums** of datafiles, if the store keeps any, are compared with what is read
//! (`settle.rs`).
//!
//! **Truncation in two steps.** `prepare_truncate` makes sure that there is a file, tries on an
//! empty one whether the file system takes the length, and marks the datafile (`marks.rs`). The
//! datafile keeps its length, so nothing has to be put back. The mark ends when the truncation is
//! durable, or cancelled.

pub(super) mod catalogue;
mod data;
mod direct_io;
mod durability;
mod failure;
mod lend;
mod mapped;
pub(super) mod marks;
mod names;
mod settle;
mod space;
mod store;

#[cfg(test)]
pub(super) use marks::Mark;
#[cfg(any(test, feature = "sim"))]
pub use names::{datafile_of, name_of};
pub use store::FileStore;
