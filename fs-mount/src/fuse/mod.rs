//! The kernel's protocol for file systems in user space: requests that are read from `/dev/fuse`
//! (`device`, `request`), replies that are written to it (`reply`), what is agreed with the kernel
//! (`settings`), and places where such a file system is mounted (`mountpoint`). Nothing here knows
//! what is mounted.
//!
//! **Why not a crate.** A process that waits for a server must be gone a second after `SIGKILL`.
//! The kernel asks for that with the request INTERRUPT, and the request that is waited for must
//! then be answered. `fuse3` was tried, the others were read, or are known from others' reading:
//!
//! | crate | what it does |
//! |---|---|
//! | `fuser` 0.18 | answers INTERRUPT with `ENOSYS`. The kernel never sends another one |
//! | `fuse3` 0.10 | hands INTERRUPT on, but always asks for `FUSE_ASYNC_DIO`. With it the kernel sends no INTERRUPT for a read with `O_DIRECT`: the process was there until its request ended, 19.5 s later. As root it also reads the device through a second thread, which is woken for each request, and it copies each write |
//! | `fuse-backend-rs` 0.14 | does nothing at INTERRUPT, and its file systems block a thread for each request |
//! | `polyfuse` 0.5 | hands INTERRUPT on, but mounts only through the program `fusermount` |
//!
//! What is needed of the protocol is small. And so the bytes of a write are read from the device
//! into the memory that is sent to the servers.
//!
//! **Source.** fuse(4), `linux/fuse.h`, version 7.31.

mod device;
mod mountpoint;
mod reply;
mod request;
mod settings;

pub(crate) use device::{Buffers, Device};
pub(crate) use mountpoint::{Mounted, mount, mounted_at, raise_read_ahead, unmount, write_back};
pub(crate) use reply::{Attr, EntryTimes, Listing, Reply, Space};
pub(crate) use request::{Args, Request, flags, op};
pub(crate) use settings::{Coherence, MOST_DATA};
