//! A peer's memory that stands in this process too: what a server hands to the disk without a copy
//! of its own.
//!
//! **Why.** [pNFS-Lustre §4.3]: for bulk data between client and server of one host the pages
//! themselves are shared, and the server's storage reads and writes them directly. Here that is a
//! `pwrite` from, or a `pread` into, the client's pages.
//!
//! **Invariants**
//! 1. Nobody gets a reference to the bytes. The peer may change them at any moment, in the middle
//!    of a `pwrite` too; then the file gets some mixture of old and new bytes, as when a thread
//!    changes its own buffer. Nothing worse: the kernel does the copying.
//! 2. The bytes stay mapped, whatever the peer does, until the last clone is gone, also when the
//!    connection ends meanwhile.
//! 3. While a clone lives the peer is told that its memory is in use (see
//!    [`Transport::map_remote`](crate::Transport::map_remote)).

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::{MemSlice, Memory};

/// A piece of a peer's memory, mapped here. For the kernel only. Cheap to clone; may go to another
/// thread.
#[derive(Clone)]
pub struct RemotePages {
    slice: MemSlice,
    _claim: Arc<dyn Any + Send + Sync>,
}

impl RemotePages {
    /// For backends: `claim` is dropped with the last clone, and tells the peer that its memory is
    /// free again.
    pub fn new(slice: MemSlice, claim: Arc<dyn Any + Send + Sync>) -> RemotePages {
        RemotePages { slice, _claim: claim }
    }

    /// Where the bytes stand. For system calls; making a reference of it breaks invariant 1.
    pub fn as_ptr(&self) -> *mut u8 {
        self.slice.as_ptr()
    }

    /// The bytes as a memory, for a store that takes one. The peer has its pages back when the last
    /// handle is dropped. Nothing ever gets a reference to them: [`Memory::get_mut`] says `None`.
    pub fn into_memory(self) -> Memory {
        Memory::lent(self)
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.slice.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slice.is_empty()
    }
}

impl fmt::Debug for RemotePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemotePages[{}]", self.len())
    }
}
