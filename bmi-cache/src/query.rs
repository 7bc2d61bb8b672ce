//! What the cache tells about itself.

use crate::settings::Hints;

/// How much of a range is in the cache, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Bytes that need no disk to be read.
    pub cached: u64,
    /// Those of them that the disk does not have.
    pub dirty: u64,
    /// Those of them that are in chunks that stay registered.
    pub ready: u64,
}

/// Reads of a file. A byte is a hit if it needed no disk when it was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounters {
    /// Bytes that were asked for.
    pub asked: u64,
    /// Those of them that were in the cache.
    pub hit: u64,
}

/// Counters of a cache, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that readers asked for.
    pub asked: u64,
    /// Those of them that were in the cache.
    pub hit: u64,
    /// Bytes that were written into the cache.
    pub written: u64,
    /// Bytes that were written to the disk.
    pub flushed: u64,
    /// Bytes that were read from the disk.
    pub filled: u64,
    /// Units that gave their place to another one.
    pub evicted: u64,
    /// Bytes of units that were read ahead, and used.
    pub ahead_used: u64,
    /// Bytes of units that were read ahead, and evicted unused.
    pub ahead_unused: u64,
    /// Writes to the disk that failed.
    pub failed_flushes: u64,
    /// Dirty bytes that were taken over from an earlier process.
    pub taken_over: u64,
    /// Hints that make no sense, and were ignored.
    pub ignored_hints: u64,
    /// Times that the system refused more memory.
    pub refused_growth: u64,
}

/// The state of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Most bytes that the cache may have.
    pub most: u64,
    /// Bytes of memory that it has.
    pub resident: u64,
    /// Bytes of files that are in it.
    pub cached: u64,
    /// Those of them that the disk does not have.
    pub dirty: u64,
    /// Bytes of chunks that stay registered.
    pub ready: u64,
    /// What has happened.
    pub counters: Counters,
    /// The files of which something is in the cache.
    pub files: Vec<FileStatistics>,
}

/// The state of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStatistics {
    /// The file.
    pub file: u64,
    /// Bytes of a unit.
    pub unit: u32,
    /// What is known of its use.
    pub hints: Hints,
    /// Bytes that are in the cache.
    pub cached: u64,
    /// Those of them that the disk does not have.
    pub dirty: u64,
    /// Its reads since something of it was first in the cache.
    pub counters: FileCounters,
    /// The last write to the disk has failed, and the bytes are still dirty.
    pub failed: bool,
}
