//! The caches of I/O servers: hints about the use of a file, and what a cache tells about itself.
//!
//! **Why.** Only a program knows how it will use a file, and only a cache knows what it has. Each
//! tells the other, so that both can adapt.
//!
//! **Invariants**
//! 1. Hints are best effort. A server ignores what makes no sense, and what it does not know. So
//!    policies, patterns and services are numbers on the wire, and any number can be decoded.
//! 2. Answering a query takes bounded work, however large the cache is: long answers come in pages.
//!
//! **Source.** [Unifier-PVFS §4.2] (the information passed with a request, queries), [Unifier-PVFS
//! §4.4.1] (policies and units by application, hints may be overruled).

mod view;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::handle::DatafileHandle;
use crate::limits::{self, MAX_CACHED_FILES};

pub use view::{VIEW_GRANULE, VIEW_HEADER, VIEW_SEGMENT, VIEW_WINDOW, ViewGrant, ViewRange, ViewRefusal, view_entry};

/// Defines an enum of numbers that have names. Other numbers are kept as they are.
macro_rules! numbered {
    (
        $(#[$outer:meta])*
        $name:ident { $($(#[$inner:meta])* $variant:ident = $number:literal, $text:literal;)* }
    ) => {
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(from = "u8", into = "u8")]
        pub enum $name {
            $($(#[$inner])* $variant,)*
            /// One that this version does not know, by its number.
            Other(u8),
        }

        impl $name {
            /// All that this version knows.
            pub const KNOWN: &[$name] = &[$($name::$variant),*];

            /// Returns its name, `other` for one that this version does not know.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($name::$variant => $text,)*
                    $name::Other(_) => "other",
                }
            }
        }

        impl From<u8> for $name {
            fn from(number: u8) -> $name {
                match number {
                    $($number => $name::$variant,)*
                    other => $name::Other(other),
                }
            }
        }

        impl From<$name> for u8 {
            fn from(value: $name) -> u8 {
                match value {
                    $($name::$variant => $number,)*
                    $name::Other(number) => number,
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

pub(super) use numbered;

numbered! {
    /// How an I/O server keeps and moves the bytes of its datafiles.
    ServiceKind {
        /// By reads and writes of files, through the system's page cache.
        #[default]
        Normal = 0, "normal";
        /// By files that are mapped into its memory.
        Mmap = 1, "mmap";
        /// With a cache of its own, whose memory is that of the transport.
        Unifier = 2, "unifier";
    }
}

numbered! {
    /// Which bytes of a file stay in a cache.
    CachePolicy {
        /// As the server was configured.
        #[default]
        Default = 0, "default";
        /// Those that were used last.
        Lru = 1, "lru";
        /// Those that are used again and again. A long scan does not displace them.
        ScanResistant = 2, "scan-resistant";
        /// Those that a sequential reader has not reached yet. What it has read goes first.
        Stream = 3, "stream";
        /// All. They go only if nothing of other files can.
        Keep = 4, "keep";
        /// None: they go as soon as nobody uses them.
        None = 5, "none";
    }
}

numbered! {
    /// In which order a file is read.
    AccessPattern {
        /// Not known: the server watches.
        #[default]
        Unknown = 0, "unknown";
        /// From the beginning to the end: reading ahead begins with the first read.
        Sequential = 1, "sequential";
        /// In no order: nothing is read ahead.
        Random = 2, "random";
    }
}

/// How a file will be used, as far as a program knows. All of it is best effort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CacheHints {
    /// Bytes of a unit of the cache: 4, 8, 16, 32 or 64 KiB. It counts while nothing of the file is
    /// in the cache. `None` for the server's own.
    pub unit: Option<u32>,
    /// Which bytes stay.
    pub policy: CachePolicy,
    /// In which order the file is read.
    pub pattern: AccessPattern,
    /// Writes reach the disk before they are acknowledged. They are durable after a sync, as any
    /// other.
    pub write_through: bool,
}

impl CacheHints {
    /// Sizes of units that a cache can have, in bytes.
    pub const UNITS: [u32; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
}

/// Size and use of a cache, and its counters since the server was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStat {
    /// Most bytes that the cache may have.
    pub most: u64,
    /// Bytes of memory that it has.
    pub resident: u64,
    /// Bytes of datafiles that are in it.
    pub cached: u64,
    /// Those of them that the disk does not have. A byte that was written again while it is on its
    /// way to the disk counts twice.
    pub dirty: u64,
    /// Bytes of memory that stay registered with the adapters.
    pub ready: u64,
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
    /// Bytes of units that were read ahead, and dropped unused.
    pub ahead_unused: u64,
    /// Writes to the disk that failed, behind or in front of an acknowledgement.
    pub failed_flushes: u64,
    /// Dirty bytes that were taken over from an earlier process.
    pub taken_over: u64,
    /// Hints that were ignored, because they made no sense.
    pub ignored_hints: u64,
    /// Times that the system refused more memory.
    pub refused_growth: u64,
}

impl CacheStat {
    fn counters(&mut self) -> [&mut u64; 12] {
        [
            &mut self.asked,
            &mut self.hit,
            &mut self.written,
            &mut self.flushed,
            &mut self.filled,
            &mut self.evicted,
            &mut self.ahead_used,
            &mut self.ahead_unused,
            &mut self.failed_flushes,
            &mut self.taken_over,
            &mut self.ignored_hints,
            &mut self.refused_growth,
        ]
    }

    /// Returns the same state with what the counters have counted since `earlier`. If one of them
    /// has gone back, the server was restarted, and all count from its start.
    #[must_use]
    pub fn since(mut self, mut earlier: CacheStat) -> CacheStat {
        let before = earlier.counters().map(|count| *count);
        if self.counters().iter().zip(&before).all(|(now, before)| **now >= *before) {
            self.counters().into_iter().zip(before).for_each(|(now, before)| *now -= before);
        }
        self
    }

    /// Returns the sum of two caches.
    #[must_use]
    pub fn plus(mut self, mut other: CacheStat) -> CacheStat {
        let add = |sum: &mut u64, more: u64| *sum = sum.saturating_add(more);
        add(&mut self.most, other.most);
        add(&mut self.resident, other.resident);
        add(&mut self.cached, other.cached);
        add(&mut self.dirty, other.dirty);
        add(&mut self.ready, other.ready);
        self.counters().into_iter().zip(other.counters()).for_each(|(sum, more)| add(sum, *more));
        self
    }
}

/// What a cache has of a datafile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedFile {
    /// The datafile.
    pub datafile: DatafileHandle,
    /// Bytes of a unit.
    pub unit: u32,
    /// The hints that were given last.
    pub hints: CacheHints,
    /// Bytes that are in the cache.
    pub cached: u64,
    /// Those of them that the disk does not have, as in [`CacheStat::dirty`].
    pub dirty: u64,
    /// Bytes that readers asked for, since something of the datafile was first in the cache.
    pub asked: u64,
    /// Those of them that were in the cache.
    pub hit: u64,
    /// Bytes that were written, since something of the datafile was first in the cache.
    pub written: u64,
    /// The last write to the disk has failed, and the bytes are still dirty.
    pub failed: bool,
}

impl CachedFile {
    /// Returns the bytes that were read or written.
    pub fn moved(&self) -> u64 {
        self.asked.saturating_add(self.written)
    }
}

/// The service of an I/O server, and the state of its cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheState {
    /// The service.
    pub service: ServiceKind,
    /// The cache; `None` if the server has none of its own.
    pub cache: Option<CacheStat>,
    /// The busiest of the datafiles that this reply is about, the busiest one first.
    #[serde(deserialize_with = "limits::bounded::<MAX_CACHED_FILES, _, _>")]
    pub files: Vec<CachedFile>,
    /// The last datafile that this reply is about, if there are more behind it.
    pub next: Option<DatafileHandle>,
}

impl CacheState {
    /// Longest encoded reply without any datafile, in bytes.
    pub const LONGEST: usize = 192;

    /// Most datafiles that a reply of `room` bytes is sure to have room for.
    pub fn most_files(room: usize) -> usize {
        /// Longest encoded [`CachedFile`].
        const FILE: usize = 75;
        (room.saturating_sub(CacheState::LONGEST) / FILE).min(MAX_CACHED_FILES)
    }
}

/// How much of a range is in a cache, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheCoverage {
    /// Bytes that need no disk to be read.
    pub cached: u64,
    /// Those of them that the disk does not have.
    pub dirty: u64,
    /// Those of them that are in memory that stays registered with the adapters.
    pub ready: u64,
}

impl std::ops::AddAssign for CacheCoverage {
    fn add_assign(&mut self, more: CacheCoverage) {
        self.cached = self.cached.saturating_add(more.cached);
        self.dirty = self.dirty.saturating_add(more.dirty);
        self.ready = self.ready.saturating_add(more.ready);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_name_stay_what_they_are() {
        for number in 0..=u8::MAX {
            assert_eq!(u8::from(CachePolicy::from(number)), number);
            assert_eq!(u8::from(AccessPattern::from(number)), number);
            assert_eq!(u8::from(ServiceKind::from(number)), number);
        }
        assert_eq!((CachePolicy::from(4), CachePolicy::from(6)), (CachePolicy::Keep, CachePolicy::Other(6)));
        assert_eq!(CachePolicy::KNOWN.len(), 6);
        assert_eq!(format!("{:>9}|{}", ServiceKind::Unifier, ServiceKind::Other(9)), "  unifier|other");
    }

    #[test]
    fn counters_since_a_restart_are_those_of_the_new_start() {
        let earlier = CacheStat { cached: 100, asked: 10, hit: 5, ..CacheStat::default() };
        let later = CacheStat { cached: 70, asked: 17, hit: 6, evicted: 3, ..CacheStat::default() };
        let since = CacheStat { cached: 70, asked: 7, hit: 1, evicted: 3, ..CacheStat::default() };
        assert_eq!(later.since(earlier), since);
        let restarted = CacheStat { asked: 40, hit: 1, ..CacheStat::default() };
        assert_eq!(restarted.since(earlier), restarted, "fewer hits than before");
        let both = CacheStat { cached: 170, asked: 27, hit: 11, evicted: 3, ..CacheStat::default() };
        assert_eq!(earlier.plus(later), both);
    }
}
