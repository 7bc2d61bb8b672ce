//! What is agreed with the kernel when it begins.

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
const PARALLEL_DIROPS: u32 = 1 << 18;
const MAX_PAGES: u32 = 1 << 22;
const CACHE_SYMLINKS: u32 = 1 << 23;
const HANDLE_KILLPRIV_V2: u32 = 1 << 28;

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
    pub(super) fn new(keeps_nothing: bool) -> Settings {
        let always = ASYNC_READ | ATOMIC_O_TRUNC | BIG_WRITES | PARALLEL_DIROPS | MAX_PAGES | HANDLE_KILLPRIV_V2;
        let kept = AUTO_INVAL_DATA | DO_READDIRPLUS | READDIRPLUS_AUTO | CACHE_SYMLINKS;
        Settings {
            flags: always | if keeps_nothing { 0 } else { kept },
            read_ahead: MOST_DATA as u32,
            in_background: 64,
            most_data: MOST_DATA as u32,
            pages: (MOST_DATA / PAGE) as u16,
        }
    }
}
