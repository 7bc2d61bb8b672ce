//! Memory that an adapter may touch.
//!
//! **Why.** A zero-copy adapter reads and writes user memory while the program runs. A `&[u8]` or
//! `&mut [u8]` to such memory would be unsound, and a borrow could end while the adapter is still
//! working. So memory is *owned* by a counted [`Memory`] handle. Work requests and registrations
//! hold handles of their own.
//!
//! **Invariants**
//! 1. The bytes of a [`Memory`] keep their address and stay mapped and readable until the last
//!    handle is dropped. They stay writable too, unless the memory is read-only
//!    ([`Memory::is_read_only`]). Nothing writes to read-only memory.
//! 2. While more than one handle exists, there is no reference to the bytes. They are copied by the
//!    module `copy`, whose accesses to shared memory are atomic, or by the kernel.
//! 3. [`Memory::get_mut`] returns `&mut [u8]` only when the handle is the only one: no operation,
//!    exposure or [`MemoryRegion`] is left.
//! 4. The pin-down cache holds registrations, never memory (`pin_cache`). So it keeps no bytes
//!    alive and does not prevent exclusive access. Using a cached registration requires a handle.
//!    After the last handle of a memory is dropped, no lookup can find its registration, and the
//!    cache releases it.
//! 5. Foreign memory ([`Foreign`]) is never given out as `&mut`, because more than one [`Memory`]
//!    may refer to the same bytes.
//!
//! This makes the aliasing rule of the hardware a borrow rule. The following fails to compile,
//! because `buffer` was moved into the operation:
//!
//! ```compile_fail
//! use bmi_core::{MemList, Memory};
//! let mut buffer = Memory::zeroed(4096)?;
//! let list = MemList::from(buffer);      // what `send` and `recv` take
//! buffer.get_mut();                      // error[E0382]: borrow of moved value
//! # Ok::<(), bmi_core::Error>(())
//! ```
//!
//! With a clone it compiles, and `get_mut` returns `None` until the operation has ended.

/// The most pieces of a list that a peer accepts by default.
pub(crate) const MAX_PIECES: usize = 16_384;

pub mod copy;
mod foreign;
mod list;
mod memory;
mod one_or_many;
mod pages;
mod region;
mod remote;
mod shared_pages;
mod view;
pub mod zone;

pub use foreign::{Extent, Foreign};
pub use list::{MemList, MemSlice};
pub use memory::{Memory, MemoryId, Retirement, Strided};
pub(crate) use one_or_many::OneOrMany;
pub use pages::Pages;
pub(crate) use pages::trim_allocator;
pub use region::{Access, LocalKey, MemoryRegion, RegionOwner, ReleaseQueue, RemoteKey, RemoteSlice, Segment};
pub(crate) use region::{CachedRegion, keys_of};
pub use remote::RemotePages;
pub use shared_pages::SharedPages;
pub use view::{Lender, PublishedPages, RemoteView};
