//! Memory that an adapter may touch.
//!
//! **Why.** A zero-copy adapter reads and writes user memory while the program runs on. A `&[u8]` or `&mut [u8]` to such memory
//! would be a lie to the compiler, and a borrow can end while the adapter is still at work. So memory is *owned*: by a
//! [`Memory`] handle, counted; work requests and registrations hold handles of their own.
//!
//! **Invariants**
//! 1. The bytes of a [`Memory`] stay where they are, mapped and readable and writable, until the last handle is gone.
//! 2. While more than one handle exists nobody has a reference to the bytes; they are moved by the module `copy`, whose accesses to
//!    shared memory are atomic, or by the kernel.
//! 3. [`Memory::get_mut`] gives out `&mut [u8]` only when the handle is the only one: no operation, registration or peer is left.
//!
//! So the aliasing rule of the hardware is a borrow rule. This fails to compile, because `buffer` was moved into the operation:
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
mod list;
mod memory;
mod region;
mod remote;
mod shared;

pub use list::{MemList, MemSlice};
pub use memory::{Memory, MemoryId};
pub(crate) use region::WeakRegion;
pub use region::{Access, LocalKey, MemoryRegion, RegionOwner, ReleaseQueue, RemoteKey, RemoteSlice, Segment};
pub use remote::RemotePages;
pub use shared::SharedPages;
