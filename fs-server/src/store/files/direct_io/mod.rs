//! Direct I/O: moves bytes between memory and the disk past the system's page cache (`O_DIRECT`),
//! if the store is told to ([`FileStore::direct_io`]).
//!
//! **Why.** A server with a cache of its own in front of this store has in its memory what clients
//! use. The page cache would have the same bytes once more, and the processor would copy them. It
//! would also decide when they are written.
//!
//! **How.** The parts of a transfer that consist of whole units of the file, in memory that is
//! aligned, are moved directly, through a second descriptor of the file. The other bytes are moved
//! through the page cache: an unaligned head or tail, the last block of a file if it is not full,
//! and pieces of memory at another position than in the file (`transfer/parts.rs`). A unit is the
//! largest of a page, a block of the file system, and what it demands of direct transfers
//! (`STATX_DIOALIGN`, 4096 bytes if it does not say). Which calls are made, and where:
//!
//! | what | calls | on a ring of the kernel (`transfer/ring`) | without one |
//! |---|---|---|---|
//! | aligned bytes | `preadv`, `pwritev` with `O_DIRECT`, up to 1024 pieces | ring | worker |
//! | other bytes | `preadv`, `pwritev` | ring | worker |
//! | the first transfer of a page or more | `openat`, `fstat`, `statx`, `fadvise` | worker | worker |
//! | reading a datafile that was never written | none | event loop | event loop |
//! | everything else: syncs, lengths, … | as without this mode (`transfer/at_once.rs`) | | |
//!
//! A worker is one for what is short or for what takes long, as for other transfers
//! (`files/store.rs`). Nothing is tried on the event loop first, because a direct transfer always
//! waits for the disk. Without a tokio runtime the caller's thread makes all calls. The calls of a
//! transfer are made one after the other (`transfer/course.rs`). Who wants several at the same time
//! makes several transfers.
//!
//! **Where it is not possible.** A file system refuses `O_DIRECT` when a file is opened, or at the
//! first transfer. From then on the store moves everything through the page cache, as without this
//! mode ([`FileStore::moves_directly`]). A file system without a disk (tmpfs, ramfs) is its page
//! cache, so it has no direct I/O. If a single file permits no direct transfers, because it is
//! encrypted for instance, its bytes go through the page cache.
//!
//! **Why the two ways give the same bytes.** Linux keeps them coherent, for calls that do not
//! overlap in time:
//! 1. Before a direct read, it writes the changed pages of the range to the disk. So the read sees
//!    all buffered writes that were made before.
//! 2. Before a direct write, it does the same, and drops the pages of the range. After the write it
//!    drops them once more, also if the write is asynchronous, before it reports the end. So a
//!    buffered read after that asks the disk.
//! 3. A page that is being read from the disk is locked. The second drop waits for it, so it leaves
//!    no old page behind, and buffered *reads* may overlap with direct writes.
//!
//! What remains are two *writes* at the same time, a direct and a buffered one, to the same page.
//! The buffered one may read the page from the disk before the direct one is there, and write back
//! old bytes later. It may also keep the second drop from succeeding: then the page cache has old
//! bytes, and the next sync of the file fails (`EIO`), which marks the datafile. Here this cannot
//! happen between transfers of different bytes:
//! - A unit has whole pages and whole blocks. So a page with a byte that one transfer moves
//!   directly has no byte of another transfer, unless their regions overlap.
//! - Nothing is read ahead into the page cache (`POSIX_FADV_RANDOM`), so no larger piece of the
//!   cache, which would be dropped as a whole or not at all, has pages of both.
//!
//! **What the caller must not do.** It must not make a write overlap with another transfer of the
//! same datafile at the same time. The cache in front of the store orders them. Without it,
//! requests of clients may overlap, and this mode must not be used.
//!
//! **Durability.** A direct write is in the disk's own cache at best, and lengths and new blocks
//! are in the journal. So `sync` does the same as ever, through the ordinary descriptor. An error
//! of a direct write is that of the call, and is not reported again.
//!
//! **Descriptors.** A file with direct I/O has two. So the table of open files keeps half as many
//! files ([`FileStore::keeping_open`]). If no descriptor is free for the second one and no file can
//! be closed, the transfer goes through the page cache.
//!
//! **Source.** [Unifier-PVFS §5]; open(2), statx(2), posix_fadvise(2); `mm/filemap.c` and
//! `fs/iomap/direct-io.c` of Linux.
//!
//! **Tests.** `direct_io/tests.rs`; the tests of all stores run in this mode too.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fs_proto::{DatafileHandle, FsError};
use rustix::fs::{Advice, Mode, OFlags, fadvise, openat};

use super::durability::StoreCore;
use super::names::name;
use super::store::{FileStore, Unmoved};
use crate::store::disk::steps::step;
use crate::store::open::{DirectFile, OpenFile, Way};
use crate::store::sys::{fault, no_descriptor};
use crate::store::transfer::{self, Course, DirectIo, Direction, Job, alignment_of, is_refusal, may_be_direct};
use crate::workers::on_a_loop;

/// Opens a second descriptor of a datafile's file; `None` if it permits no direct I/O. May wait for
/// the disk.
///
/// # Errors
/// `InvalidInput` if the file system permits none.
pub(super) fn opened_directly(
    core: &StoreCore,
    datafile: DatafileHandle,
    file: &OpenFile,
) -> io::Result<Option<DirectFile>> {
    let Some(dir) = core.dir.system() else { return Err(io::Error::from_raw_os_error(libc::EINVAL)) };
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let opened = match step(|| Ok(File::from(openat(dir, name(datafile), flags, Mode::empty())?))) {
        // It was removed while it was in use.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        opened => Some(opened?),
    };
    let (Some(opened), own) = (opened, file.descriptor(Way::Buffered).metadata()?) else {
        return Ok(None);
    };
    let found = opened.metadata()?;
    // It was removed and made anew.
    let is_same = (found.dev(), found.ino()) == (own.dev(), own.ino());
    let alignment = if is_same { alignment_of(&opened) } else { None };
    Ok(alignment.map(|alignment| DirectFile { file: opened, alignment }))
}

/// Opens the second descriptor of a datafile's file, for its transfers. May wait for the disk.
fn open_direct(core: &StoreCore, datafile: DatafileHandle, file: &OpenFile) -> io::Result<()> {
    let direct = opened_directly(core, datafile, file)?;
    if direct.is_some() {
        // It is advice: whoever does not take it reads ahead.
        let _ = fadvise(file.descriptor(Way::Buffered), 0, None, Advice::Random);
    }
    file.set_direct(direct);
    Ok(())
}

impl FileStore {
    /// Uses direct I/O if `on` is set, where the file system permits it.
    /// Meant for a store behind a cache: a write must not overlap with another transfer of the same
    /// datafile at the same time. Off without this. Call it before the store is used.
    ///
    /// Memory that begins at a multiple of 4096 bytes, for bytes that do so in the file, is aligned
    /// for every file system. Other bytes go through the page cache.
    #[must_use]
    pub fn direct_io(mut self, on: bool) -> FileStore {
        self.direct = on.then(|| DirectIo::on(self.core.dir.system(), self.at_once.in_memory()));
        self.with_table()
    }

    /// Returns true if the store uses direct I/O. False if the store was not told to, or the file
    /// system refuses it, which may show at the first transfer only.
    pub fn moves_directly(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| !direct.refused.load(Ordering::Relaxed))
    }

    /// Returns true if direct transfers are made by the kernel on its own (`io_uring`), and false
    /// if they are made by threads.
    pub fn has_ring(&self) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.ring.is_some())
    }

    /// Lets threads make the transfers, as where the kernel permits no ring.
    #[cfg(test)]
    pub(in crate::store) fn without_ring(mut self) -> FileStore {
        if let Some(direct) = &mut self.direct {
            direct.ring = None;
        }
        self
    }

    /// Makes a transfer, by direct I/O as far as that is possible.
    pub(super) async fn move_directly(
        &self,
        direction: Direction,
        datafile: DatafileHandle,
        file: Arc<OpenFile>,
        jobs: Vec<Job>,
    ) -> Result<(), (u64, Unmoved)> {
        let stopped = |error| (0, Unmoved::Worker(error));
        if may_be_direct(&jobs) {
            self.provide_direct(datafile, &file).await.map_err(stopped)?;
        }
        let is_long = transfer::len(&jobs) >= self.offload;
        let ring = self.direct.as_ref().and_then(|direct| direct.ring.as_ref()).filter(|_| on_a_loop());
        let place = match ring {
            Some(ring) => ring.place().await.map(|place| (ring, place)),
            None => None,
        };
        let course = Course::new(direction, file, jobs);
        let outcome = match place {
            Some((ring, place)) => ring.run(place, course, self.core.clone()).await,
            None if is_long => self.bulk(move || course.run()).await,
            None => self.short(move |_| course.run()).await,
        };
        let outcome = outcome.map_err(stopped)?;
        if outcome.refused {
            let _ = fadvise(outcome.file.descriptor(Way::Buffered), 0, None, Advice::Normal);
            self.direct.iter().for_each(DirectIo::refuse);
        }
        outcome.result.map_err(|(moved, error)| (moved, Unmoved::Disk(error)))
    }

    /// Opens the second descriptor of a file, unless it is known already whether it has one. Does
    /// without it if no descriptor is free.
    async fn provide_direct(&self, datafile: DatafileHandle, file: &Arc<OpenFile>) -> Result<(), FsError> {
        while !file.knows_direct() {
            let own = file.clone();
            match self.short(move |core| open_direct(core, datafile, &own)).await? {
                Ok(()) => {}
                Err(error) if is_refusal(&error) => {
                    self.direct.iter().for_each(DirectIo::refuse);
                    return Ok(());
                }
                Err(error) if no_descriptor(&error).is_some() => {
                    if !self.close_unused().await? {
                        return Ok(());
                    }
                }
                Err(error) => return Err(fault("opening", datafile, &error)),
            }
        }
        Ok(())
    }
}
