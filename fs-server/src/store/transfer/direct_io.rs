//! Whether the file system of a store permits direct I/O, and what makes the calls.

use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, openat, statx};
use rustix::io::Errno;

use super::ring::Ring;
use crate::store::open::Alignment;

/// The alignment where the kernel does not tell it (before Linux 6.1). It is that of the disks with
/// the largest sectors.
const USUAL_ALIGNMENT: u32 = 4096;

/// Largest block of a file system on Linux. A larger number is a size of transfers that it likes.
const LARGEST_BLOCK: u32 = 64 << 10;

/// The direct I/O of a store.
pub(in crate::store) struct DirectIo {
    /// The file system moves nothing directly.
    pub(in crate::store) refused: AtomicBool,
    /// Makes the calls, where the kernel permits it.
    pub(in crate::store) ring: Option<Ring>,
}

/// Returns the alignment of direct transfers of a file; `None` if it permits none.
pub(in crate::store) fn alignment_of(file: &File) -> Option<Alignment> {
    let (mut offset, mut memory, mut block) = (USUAL_ALIGNMENT, USUAL_ALIGNMENT, 0);
    if let Ok(stat) = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) {
        if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 {
            (offset, memory) = (stat.stx_dio_offset_align, stat.stx_dio_mem_align);
        }
        block = if stat.stx_blksize <= LARGEST_BLOCK { stat.stx_blksize } else { 0 };
    }
    let unit = offset.max(block).max(rustix::param::page_size() as u32);
    let is_sound = offset > 0 && unit.is_power_of_two() && memory.is_power_of_two();
    is_sound.then_some(Alignment { unit: unit.into(), memory: memory as usize })
}

/// Returns false if the file system of a directory is known to refuse direct transfers.
fn may_move_directly(dir: &File) -> bool {
    // A file without a name. Some file systems know none, and are asked when a datafile is opened.
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    match openat(dir, c".", flags, Mode::from(0o600)) {
        Ok(file) => alignment_of(&File::from(file)).is_some(),
        Err(error) => error != Errno::INVAL,
    }
}

impl DirectIo {
    pub(in crate::store) fn on(dir: Option<&File>, is_in_memory: bool) -> DirectIo {
        if is_in_memory || !dir.is_some_and(may_move_directly) {
            return DirectIo { refused: AtomicBool::new(true), ring: None };
        }
        let opened = Ring::open().inspect_err(|error| tracing::debug!(%error, "threads make the transfers"));
        DirectIo { refused: AtomicBool::new(false), ring: opened.ok() }
    }

    /// Blocks this thread until the ring moves nothing, but for `patience` at most. Returns false
    /// if it still does.
    pub(in crate::store) fn wait_until_idle(&self, patience: Duration) -> bool {
        self.ring.as_ref().is_none_or(|ring| ring.wait_until_idle(patience))
    }

    pub(in crate::store) fn refuse(&self) {
        if !self.refused.swap(true, Ordering::Relaxed) {
            tracing::warn!("the file system refuses direct transfers (O_DIRECT): all go through the page cache");
        }
    }
}
