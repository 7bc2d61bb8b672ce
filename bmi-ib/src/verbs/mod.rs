//! A safe layer over verbs: libibverbs loaded at run time, and an owner for each of its objects.
//!
//! **Why loaded.** A program that can use verbs must build without a package and start without the
//! library. Only a request for an adapter reports what is missing. So nothing is linked: `library`
//! looks for `libibverbs.so.1` once, and the calls that C declares inline go through the context's
//! own table.
//!
//! **Invariants**
//! 1. Only this module calls C. `sys` is generated and private to it.
//! 2. Objects are destroyed in the order that verbs require: queue pair, region, completion queue,
//!    channel, domain, context. Each object holds those that it was made from.
//! 3. The memory that a work request points to must outlive the request. The caller must guarantee
//!    this, which is why posting is `unsafe`.
//! 4. Only the legacy calls are used (`ibv_post_send`, `ibv_poll_cq`). The extended ones give wrong
//!    results on Soft-RoCE of kernel 6.1.
//!
//! **Not a stable interface.** It is public for the tests that play a hostile peer. It will be
//! replaced by the `ibverbs` crate once a release of that crate supports one-sided work (see
//! `docs/design/verbs.md`).

mod completion;
mod context;
mod layout;
mod queue_pair;
mod region;

/// Asserts a type's size, its alignment, and the offsets of its fields, in bytes.
macro_rules! layout {
    ($name:ident, $size:literal, $align:literal $(; $($field:ident $offset:literal),*)?) => {
        const _: () = {
            assert!(size_of::<$name>() == $size && align_of::<$name>() == $align);
            $($(assert!(std::mem::offset_of!($name, $field) == $offset);)*)?
        };
    };
}

/// Declares the functions of the library, and loads them.
macro_rules! library {
    ($($name:ident: $function:ty,)*) => {
        pub struct Ibverbs {
            $(pub $name: $function,)*
            // The functions are valid while it lives.
            _library: libloading::Library,
        }

        impl Ibverbs {
            pub unsafe fn new(path: &str) -> Result<Ibverbs, libloading::Error> {
                let library = libloading::Library::new(path)?;
                Ok(Ibverbs { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)* _library: library })
            }
        }
    };
}

#[allow(
    warnings,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    unsafe_op_in_unsafe_fn,
    missing_docs,
    unreachable_pub,
    reason = "generated"
)]
#[rustfmt::skip]
mod sys;

use std::fmt;
use std::sync::OnceLock;

pub use completion::{Channel, CompletionQueue, Outcome, WorkEnd};
pub use context::{AsyncEvent, Context, DeviceLimits, Gid, Port};
pub use layout::layout;
pub use queue_pair::{Chain, Opcode, Path, QueuePair, QueuePairLimits, SendWork, Sge};
pub use region::{Domain, Region, Rights};

/// The library's name on every Linux system.
const LIBRARY: &str = "libibverbs.so.1";

/// Why this host has no verbs.
#[derive(Debug)]
pub enum Unavailable {
    /// The library is missing, or lacks a call.
    Library(String),
    /// The library is there, but there is no device.
    Device(String),
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unavailable::Library(why) => write!(
                f,
                "{LIBRARY} cannot be loaded ({why}); install it, on Debian with `apt-get install libibverbs1 ibverbs-providers`"
            ),
            Unavailable::Device(why) => write!(
                f,
                "no RDMA device: {why}; `ibv_devices` lists them, and `rdma link add rxe0 type rxe netdev DEV` makes one of software"
            ),
        }
    }
}

impl std::error::Error for Unavailable {}

/// Returns the library, and loads it with the first call.
fn library() -> Result<&'static sys::Ibverbs, Unavailable> {
    static LOADED: OnceLock<Result<sys::Ibverbs, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| {
        // SAFETY: the library's initialisers are those of a system library. The signatures in `sys`
        // are those of its header.
        let library = unsafe { sys::Ibverbs::new(LIBRARY) }.map_err(|error| error.to_string())?;
        prepare_fork(&library);
        Ok(library)
    });
    loaded.as_ref().map_err(|why| Unavailable::Library(why.clone()))
}

/// Makes `fork` safe before the first registration. Kernels from 5.12 on copy pinned pages for the
/// child when it forks, so nothing is needed. On older kernels the library keeps registered pages
/// out of the child.
fn prepare_fork(library: &sys::Ibverbs) {
    // SAFETY: it has no arguments, and no registration has been made yet.
    let unneeded = unsafe { (library.ibv_is_fork_initialized)() } == sys::IBV_FORK_UNNEEDED;
    // SAFETY: as above.
    if !unneeded && unsafe { (library.ibv_fork_init)() } != 0 {
        tracing::warn!("fork is not safe with RDMA on this host: ibv_fork_init failed");
    }
}

/// Returns the library for a caller that has an object of it.
fn loaded() -> &'static sys::Ibverbs {
    library().expect("an object of the library exists, so it was loaded")
}

/// Logs a failure to destroy an object.
fn check_destroyed(what: &str, result: i32) {
    if result != 0 {
        tracing::warn!(what, errno = result, "cannot be destroyed");
    }
}
