//! What the cache tells about itself.

use super::settings::Hints;

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

/// Reads and writes of a file. A byte is a hit if it needed no disk when it was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounters {
    /// Bytes that were asked for.
    pub asked: u64,
    /// Those of them that were in the cache.
    pub hit: u64,
    /// Bytes that were written.
    pub written: u64,
}

impl FileCounters {
    /// Returns the bytes that were read or written.
    pub(crate) fn moved(&self) -> u64 {
        self.asked.saturating_add(self.written)
    }
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}

/// Files of which much was read or written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Busiest {
    /// The files, the busiest one first.
    pub files: Vec<FileStatistics>,
    /// The last file that was looked at, if there are more behind it.
    pub next: Option<u64>,
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
    /// Its reads and writes since something of it was first in the cache.
    pub counters: FileCounters,
    /// The last write to the disk has failed, and the bytes are still dirty.
    pub failed: bool,
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use async_trait::async_trait;
    use bmi_core::MemList;
    use futures_util::FutureExt;

    use super::*;
    use crate::{ArenaSettings, Cache, Disk, Extent, Frames, Pattern, Policy, Settings};

    /// A disk of zeros that takes no time. Writes fail while it is broken.
    #[derive(Clone, Default)]
    struct Zeros(Rc<Cell<bool>>);

    #[async_trait(?Send)]
    impl Disk for Zeros {
        type Error = &'static str;

        async fn read(&self, _file: u64, _extents: &[Extent], _into: &MemList) -> Result<(), &'static str> {
            Ok(())
        }

        async fn end(&self, _file: u64) -> Result<u64, &'static str> {
            Ok(u64::MAX)
        }

        async fn write(&self, _file: u64, _extents: &[Extent], _from: &MemList) -> Result<(), &'static str> {
            if self.0.get() { Err("broken") } else { Ok(()) }
        }
    }

    const BYTES: u64 = 4 << 20;

    fn cache() -> Cache<Zeros> {
        let frames = Frames::anonymous(ArenaSettings { bytes: BYTES, chunk: 256 << 10 }).unwrap();
        Cache::new(Zeros::default(), frames, Settings { read_ahead: 0, ..Settings::for_bytes(BYTES) })
    }

    fn read(cache: &Cache<Zeros>, file: u64, offset: u64, len: u64) {
        cache.read(file, &[Extent::new(offset, len)]).now_or_never().unwrap().unwrap();
    }

    fn write(cache: &Cache<Zeros>, file: u64, offset: u64, len: u64) -> Result<(), ()> {
        let writing = cache.write(file, &[Extent::new(offset, len)]).now_or_never().unwrap().unwrap();
        writing.commit().now_or_never().unwrap().map_err(drop)
    }

    /// Hints are given before anything is cached. Those of a file of which nothing ever stays were
    /// forgotten after the first read, with its state.
    #[test]
    fn hints_outlive_what_is_cached() {
        let cache = cache();
        let hints = Hints { unit: Some(4096), policy: Policy::None, pattern: Pattern::Random, write_through: true };
        assert!(cache.advise(7, hints));
        assert_eq!(cache.file_statistics(7), None, "hints alone are no state");
        for _ in 0..3 {
            let reading = cache.read(7, &[Extent::new(5000, 10)]).now_or_never().unwrap().unwrap();
            let state = cache.file_statistics(7).unwrap();
            assert_eq!((state.unit, state.hints, state.cached), (4096, hints, 4096));
            drop(reading);
            assert_eq!(cache.file_statistics(7), None);
        }
        write(&cache, 7, 0, 10).unwrap();
        assert_eq!(cache.statistics().counters.flushed, 10, "written through");
        assert!(!cache.advise(7, Hints { unit: Some(12_288), ..Hints::default() }));
        cache.ignored_hints(2);
        assert_eq!(cache.statistics().counters.ignored_hints, 3);
        read(&cache, 7, 0, 1);
        assert_eq!(cache.file_statistics(7).unwrap().unit, 65536, "the hints before count no more");
    }

    /// The limit of an operation counts the units that the file will have.
    #[test]
    fn the_unit_of_the_hints_counts_for_the_first_operation() {
        let cache = cache();
        let each: Vec<Extent> = (0..20).map(|index| Extent::new(index * 65536, 1)).collect();
        let read = |file| cache.read(file, &each).now_or_never().unwrap().map(drop);
        assert!(read(1).is_err(), "20 units of 64 KiB");
        assert!(cache.advise(2, Hints { unit: Some(4096), ..Hints::default() }));
        assert!(read(2).is_ok(), "20 units of 4 KiB");
    }

    #[test]
    fn the_busiest_files_come_in_pages() {
        let cache = cache();
        for file in 0..20 {
            cache.advise(file, Hints { unit: Some(4096), ..Hints::default() });
            (0..=file * 7 % 20).for_each(|_| read(&cache, file, 0, 4096));
        }
        write(&cache, 3, 100, 150_000).unwrap();
        let busy = |page: &Busiest| page.files.iter().map(|file| file.file).collect::<Vec<_>>();
        let all = cache.busiest(None, 100, 4);
        assert_eq!((busy(&all), all.next), (vec![3, 17, 14, 11], None));
        let FileCounters { asked, hit, written } = all.files[0].counters;
        assert_eq!((asked, hit, written), (2 * 4096, 4096, 150_000));
        assert_eq!((all.files[0].cached, all.files[0].dirty, all.files[1].dirty), (150_100, 150_000, 0));
        let first = cache.busiest(None, 10, 3);
        assert_eq!((busy(&first), first.next), (vec![3, 8, 5], Some(9)));
        let second = cache.busiest(first.next, 10, 3);
        assert_eq!((busy(&second), second.next), (vec![17, 14, 11], None));
        assert_eq!(cache.busiest(None, 10, 0), Busiest { files: vec![], next: Some(9) });
        assert_eq!(cache.busiest(Some(19), 10, 3), Busiest::default());
    }

    #[test]
    fn coverage_is_exact_also_in_parts() {
        let cache = cache();
        cache.advise(1, Hints { unit: Some(8192), ..Hints::default() });
        read(&cache, 1, 8192, 3 * 8192);
        write(&cache, 1, 20_000, 1000).unwrap();
        write(&cache, 1, 65536, 100).unwrap();
        let whole = cache.coverage(1, Extent::new(0, u64::MAX));
        assert_eq!((whole.cached, whole.dirty), (3 * 8192 + 100, 1100));
        assert_eq!(whole.ready, whole.cached, "the first chunks are Ready");
        let (mut sum, mut at, mut parts) = (Coverage::default(), Some(0), 0);
        while let Some(from) = at {
            let (part, next) = cache.coverage_part(1, Extent::new(from, u64::MAX - from), 1);
            sum = Coverage {
                cached: sum.cached + part.cached,
                dirty: sum.dirty + part.dirty,
                ready: sum.ready + part.ready,
            };
            assert!(next.is_none_or(|next| next > from));
            (at, parts) = (next, parts + 1);
        }
        assert_eq!((sum, parts), (whole, 4));
        let middle = cache.coverage(1, Extent::new(20_500, 12_000));
        assert_eq!((middle.cached, middle.dirty), (12_000, 500));
        assert_eq!(cache.coverage(1, Extent::new(0, 8192)), Coverage::default());
        assert_eq!(cache.coverage(2, Extent::new(0, u64::MAX)), Coverage::default());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_marked() {
        let cache = cache();
        write(&cache, 1, 0, 4096).unwrap();
        cache.disk().0.set(true);
        assert!(cache.flush(1).now_or_never().unwrap().is_err());
        let state = cache.file_statistics(1).unwrap();
        assert!(state.failed && state.dirty == 4096, "{state:?}");
        assert_eq!(cache.statistics().counters.failed_flushes, 1);
        cache.disk().0.set(false);
        cache.flush(1).now_or_never().unwrap().unwrap();
        let state = cache.file_statistics(1).unwrap();
        assert!(!state.failed && state.dirty == 0 && state.cached == 4096, "{state:?}");
    }
}
