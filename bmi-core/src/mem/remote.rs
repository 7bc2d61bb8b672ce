//! A peer's memory that is mapped in this process too. A server hands it to the disk without
//! copying it.
//!
//! **Why.** [pNFS-Lustre §3.3]: for bulk data between client and server on one host the pages
//! themselves are shared, and the server's storage reads and writes them directly. Here that is a
//! `pwrite` from, or a `pread` into, the client's pages.
//!
//! **Invariants**
//! 1. No reference to the bytes is ever created. The peer may change them at any moment, even in
//!    the middle of a `pwrite`. The file then gets a mixture of old and new bytes, as when a thread
//!    changes its own buffer. Nothing worse happens, because the kernel does the copying.
//! 2. The bytes stay mapped until the last clone is dropped, whatever the peer does, and even if
//!    the connection ends meanwhile.
//! 3. While a clone exists, the peer sees that its memory is in use (see
//!    [`Transport::map_remote`](crate::Transport::map_remote)).

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::{MemSlice, Memory};

/// A piece of a peer's memory, mapped here. For use by the kernel only. Cheap to clone; may be sent
/// to another thread.
#[derive(Clone)]
pub struct RemotePages {
    slice: MemSlice,
    _claim: Arc<dyn Any + Send + Sync>,
}

impl RemotePages {
    /// Wraps a mapped piece. For backends. `claim` is dropped with the last clone, which tells the
    /// peer that its memory is free again.
    pub fn new(slice: MemSlice, claim: Arc<dyn Any + Send + Sync>) -> RemotePages {
        RemotePages { slice, _claim: claim }
    }

    /// Returns the address of the bytes, for system calls. Creating a reference from it breaks
    /// invariant 1.
    pub fn as_ptr(&self) -> *mut u8 {
        self.slice.as_ptr()
    }

    /// Returns the bytes as a memory, for a store that takes one. The pages return to the peer when
    /// the last handle is dropped. No reference to them is ever created: [`Memory::get_mut`]
    /// returns `None`.
    pub fn into_memory(self) -> Memory {
        Memory::lent(self)
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.slice.is_empty()
    }
}

impl fmt::Debug for RemotePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemotePages[{}]", self.len())
    }
}
