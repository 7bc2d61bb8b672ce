//! What is agreed with the kernel when it begins.

use std::io;

/// Most data of one read or write, in bytes.
pub(crate) const MOST_DATA: usize = 1 << 20;
/// Bytes of a page of the kernel.
const PAGE: usize = 4096;

/// Version 7.31 of the protocol.
pub(super) const MINOR: u32 = 31;
const ASYNC_READ: u32 = 1;
const ATOMIC_O_TRUNC: u32 = 1 << 3;
const BIG_WRITES: u32 = 1 << 5;
const AUTO_INVAL_DATA: u32 = 1 << 12;
const DO_READDIRPLUS: u32 = 1 << 13;
const READDIRPLUS_AUTO: u32 = 1 << 14;
const WRITEBACK_CACHE: u32 = 1 << 16;
const PARALLEL_DIROPS: u32 = 1 << 18;
const MAX_PAGES: u32 = 1 << 22;
const CACHE_SYMLINKS: u32 = 1 << 23;
const HANDLE_KILLPRIV_V2: u32 = 1 << 28;

/// What the kernel keeps of what it is told, and of what programs write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Coherence {
    /// An open sees what was closed before. Names and attributes are up to a second old.
    #[default]
    Open,
    /// Nothing is kept.
    Strict,
    /// Nobody else changes anything. So all is kept, and what is written goes to the servers later:
    /// `FUSE_WRITEBACK_CACHE`. The kernel believes its own sizes and times of files.
    Exclusive,
}

/// What is agreed with the kernel when it begins.
///
/// Not asked for: `FUSE_ASYNC_DIO`, with which a process that reads with `O_DIRECT` could not be
/// killed; locks, so those of the kernel apply; access control lists.
pub(super) struct Settings {
    pub(super) flags: u32,
    pub(super) read_ahead: u32,
    /// Most requests that no process waits for, such as those of the read-ahead.
    pub(super) in_background: u16,
    pub(super) most_data: u32,
    pub(super) pages: u16,
}

impl Settings {
    /// Returns what is wanted.
    pub(super) fn new(coherence: Coherence) -> Settings {
        let always = ASYNC_READ | ATOMIC_O_TRUNC | BIG_WRITES | PARALLEL_DIROPS | MAX_PAGES | HANDLE_KILLPRIV_V2;
        let kept = DO_READDIRPLUS | READDIRPLUS_AUTO | CACHE_SYMLINKS;
        let more = match coherence {
            Coherence::Open => kept | AUTO_INVAL_DATA,
            Coherence::Strict => 0,
            Coherence::Exclusive => kept | WRITEBACK_CACHE,
        };
        Settings {
            flags: always | more,
            read_ahead: MOST_DATA as u32,
            in_background: 64,
            most_data: MOST_DATA as u32,
            pages: (MOST_DATA / PAGE) as u16,
        }
    }

    /// Returns what is agreed with a kernel that offers these flags.
    ///
    /// # Errors
    /// `Unsupported` if it does not keep what is written, and the mount is to be exclusive.
    pub(super) fn agreed(coherence: Coherence, offered: u32) -> io::Result<Settings> {
        let mut settings = Settings::new(coherence);
        settings.flags &= offered;
        if coherence == Coherence::Exclusive && settings.flags & WRITEBACK_CACHE == 0 {
            let text = "this kernel does not offer the cache of writes that coherence=exclusive needs";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_the_cache_of_writes_is_refused_by_an_exclusive_mount_only() {
        let agreed = |coherence, offered| Settings::agreed(coherence, offered).map(|settings| settings.flags);
        for coherence in [Coherence::Open, Coherence::Strict] {
            assert_eq!(agreed(coherence, !WRITEBACK_CACHE).unwrap() & WRITEBACK_CACHE, 0);
            assert_eq!(agreed(coherence, u32::MAX).unwrap() & WRITEBACK_CACHE, 0);
        }
        let refused = agreed(Coherence::Exclusive, !WRITEBACK_CACHE).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
        // What other mounts change is not looked for: the kernel would drop bytes for a new time.
        let flags = agreed(Coherence::Exclusive, u32::MAX).unwrap();
        assert_eq!(flags & (WRITEBACK_CACHE | AUTO_INVAL_DATA), WRITEBACK_CACHE);
    }
}
