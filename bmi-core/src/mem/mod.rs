//! Memory that an adapter may touch.
//!
//! **Why.** A zero-copy adapter reads and writes user memory while the program runs on. A `&[u8]`
//! or `&mut [u8]` to such memory would be a lie to the compiler, and a borrow can end while the
//! adapter is still at work. So memory is *owned*: by a [`Memory`] handle, counted; work requests
//! and registrations hold handles of their own.
//!
//! **Invariants**
//! 1. The bytes of a [`Memory`] stay where they are, mapped and readable and writable, until the
//!    last handle is gone.
//! 2. While more than one handle exists nobody has a reference to the bytes; they are moved by the
//!    module `copy`, whose accesses to shared memory are atomic, or by the kernel.
//! 3. [`Memory::get_mut`] gives out `&mut [u8]` only when the handle is the only one: no operation,
//!    exposure or [`MemoryRegion`] is left.
//! 4. The pin-down cache holds registrations, never memory (`pin_cache`). So it keeps no bytes
//!    alive and takes no exclusive access away; to use what it holds one has to bring a handle
//!    along. The registration of a memory whose last handle is gone can be found by nobody, and is
//!    let go.
//! 5. Memory of others ([`Foreign`]) is never given out as `&mut`: more than one [`Memory`] may
//!    name the same bytes.
//!
//! So the aliasing rule of the hardware is a borrow rule. This fails to compile, because `buffer`
//! was moved into the operation:
//!
//! ```compile_fail
//! use bmi_core::{MemList, Memory};
//! let mut buffer = Memory::zeroed(4096)?;
//! let list = MemList::from(buffer);      // what `send` and `recv` take
//! buffer.get_mut();                      // error[E0382]: borrow of moved value
//! # Ok::<(), bmi_core::Error>(())
//! ```
//!
//! With a clone it compiles, and `get_mut` says `None` until the operation has ended.

pub mod copy;
mod foreign;
mod list;
mod memory;
mod pin_cache;
mod region;
mod remote;
mod shared;
#[cfg(all(feature = "userfaultfd", target_os = "linux"))]
mod watch;
pub mod zone;

pub use foreign::{Extent, Foreign};
pub use list::{MemList, MemSlice};
pub use memory::{Memory, MemoryId};
pub(crate) use pin_cache::{Limits, PinCache, PinCounts};
pub use region::{Access, LocalKey, MemoryRegion, RegionOwner, ReleaseQueue, RemoteKey, RemoteSlice, Segment};
pub(crate) use region::{CachedRegion, keys_of};
pub use remote::RemotePages;
pub use shared::SharedPages;
#[cfg(all(feature = "userfaultfd", target_os = "linux"))]
pub use watch::Watch;
