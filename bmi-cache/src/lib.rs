//! A storage server's cache whose buffers are its communication buffers: one copy of the data
//! serves the disk, the cache and the adapter.
//!
//! **Why.** A server that reads a file into a buffer and sends the buffer copies every byte, and
//! has it in memory twice: in the page cache of the system and in a buffer that is registered with
//! the adapter. Mapping the file avoids the copy, but then memory is registered for every transfer.
//! Here the cache *is* the registered memory. A read lends cached bytes to the adapter, and a write
//! lends the adapter the place in the cache where the bytes belong ([Unifier-PVFS §4]).
//!
//! ```text
//!   client    ---- RDMA or TCP ---->  units of files, 4 to 64 KiB     <---- direct I/O ---->  disk
//!             <---------------------  in chunks that stay registered
//! ```
//!
//! **Use.** [`Cache::new`] puts a cache in front of a [`Disk`], in the memory of [`Frames`].
//!
//! | call of the paper | here |
//! |---|---|
//! | post a read; its buffers are returned | [`Cache::read`], a future; [`Reading::list`] |
//! | post a write | [`Cache::write`]: the memory to fill, [`Writing::list`]; then [`Writing::commit`] |
//! | check for completion, by polling | poll the future |
//! | completion by callback | what awaits the future |
//! | structured access (`ACCESS_Agg`, `BUFFER_Agg`) | lists of [`Extent`]s, [`bmi_core::MemList`] |
//! | semantic information (`INFO_Agg`) | [`Hints`]: policy, unit, pattern; [`Cache::advise`] |
//! | query the cache | [`Cache::coverage`], [`Cache::statistics`], [`Cache::busiest`] |
//! | release | dropping the [`Reading`] or the [`Writing`] |
//!
//! **Allocate and release.** The cache is the only owner of its memory. An operation *locks* its
//! bytes, as one of many readers or alone as a writer, and then gets the memory of all its units at
//! once. It gives both back when it ends.
//!
//! **No deadlock.** An operation waits for these things, in this order, and for none of them again:
//! 1. its range lock, which waits for earlier ones of the same file only (`ranges`);
//! 2. memory, all of it at once and in turn: it holds no memory while it waits, so those that hold
//!    some need no more of it (`cache`, `state`);
//! 3. bytes that somebody else is reading from the disk; then the disk.
//!
//! What the disk does ends, and what a holder of memory does with it is bounded by its deadlines.
//! So every wait ends. Writing dirty bytes to the disk needs neither locks nor memory.
//!
//! **Durability.** A committed write survives the end of the process, because another process can
//! take the memory over ([`Frames`]). It survives a power failure when [`Cache::flush`] and a sync
//! of the file have succeeded after it. Bytes that the disk has refused stay dirty. From then on
//! writes of that file are committed only when they are on the disk, until a flush succeeds.
//!
//! | room | what; each uses those below it |
//! |---|---|
//! | `cache` | the operations, and what they wait for; the work beside them |
//! | `state` | units, files, queues; what is read ahead and when dirty bytes are due; each step under one lock, which is never held across a wait |
//! | `interface` | what the user provides (`disk`), chooses (`settings`), and asks (`query`) |
//! | `memory` | the arena, and its records for the next process; which frames are in use; which chunks stay registered |
//! | `policy` | which unit gives its place to another one |
//! | `ranges` | lists of bytes; who may use which bytes |
//!
//! **Invariants** are in each module. **Tests.** `tests` compares random operations of many
//! tasks, on a disk that fails, with a model, and kills the process at any step.
//!
//! **Source.** [Unifier-PVFS]. Additions: the take-over, range locks in order, lists of
//! extents that are received in place, the scan-resistant policy, chunks that become registered by
//! use.

#![warn(clippy::disallowed_types)]

mod cache;
mod interface;
mod memory;
mod policy;
mod ranges;
mod state;
#[cfg(test)]
mod tests;

pub use cache::{Cache, Hold, Reading, Writing, yield_now};
pub use interface::{
    Busiest, CacheError, Counters, Coverage, Disk, FileCounters, FileStatistics, Hints, Pattern, Settings, Statistics,
};
pub use memory::{Arena, ArenaSettings, BLOCK, FRAME, Frames, Owner, Place, Ranges, ReadyRegions, Record, Recovered};
pub use policy::Policy;
pub use ranges::Extent;
