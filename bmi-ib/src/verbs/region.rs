//! Protection domains, registered memory.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Context, check_destroyed, loaded, sys};

/// A protection domain. Queue pairs can use only the regions of their own domain.
#[derive(Debug)]
pub struct Domain {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Domain {
    /// Creates a domain.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Domain>> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (loaded().ibv_alloc_pd)(context.raw()) });
        let raw = raw.ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Domain { raw, context: Arc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }

    /// Returns the domain's device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made here, and freed once, after all objects in it, which hold it.
        check_destroyed("protection domain", unsafe { (loaded().ibv_dealloc_pd)(self.raw()) });
    }
}

/// The operations that registered memory allows, besides reads by this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// This side's adapter may write it: receives, reads from a peer.
    pub local_write: bool,
    /// Peers in the domain may read it.
    pub remote_read: bool,
    /// Peers in the domain may write it.
    pub remote_write: bool,
}

impl Rights {
    fn bits(self) -> u32 {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        // The architecture allows remote writes only together with local ones.
        bit(self.local_write || self.remote_write, sys::IBV_ACCESS_LOCAL_WRITE)
            | bit(self.remote_read, sys::IBV_ACCESS_REMOTE_READ)
            | bit(self.remote_write, sys::IBV_ACCESS_REMOTE_WRITE)
    }
}

/// Registered memory: pinned, and known to the adapter by its keys.
#[derive(Debug)]
pub struct Region {
    raw: NonNull<sys::ibv_mr>,
    domain: Arc<Domain>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Registers `len` bytes at `ptr`; `len` must not be 0. Work requests and peers use the address
    /// `begin` for the first byte. Its offset in a page must be that of `ptr`.
    ///
    /// # Safety
    /// The bytes must not move, and must stay valid for everything that `rights` allow, until the
    /// region is dropped.
    ///
    /// # Errors
    /// The kernel's error; `ENOMEM` if it may not pin that much.
    pub unsafe fn new(
        domain: &Arc<Domain>,
        ptr: *mut u8,
        len: usize,
        begin: u64,
        rights: Rights,
    ) -> io::Result<Region> {
        // SAFETY: the domain exists, and the caller guarantees the bytes.
        let raw = unsafe { (loaded().ibv_reg_mr_iova)(domain.raw(), ptr.cast(), len, begin, rights.bits() as i32) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Region { raw, domain: Arc::clone(domain) })
    }

    /// Returns the key for this side's work requests.
    pub fn local_key(&self) -> u32 {
        // SAFETY: the region exists.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// Returns the key for peers.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the region exists.
        unsafe { self.raw.as_ref() }.rkey
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _domain = &self.domain;
        // SAFETY: made here, and deregistered once. When the call returns, the adapter no longer
        // accesses the memory.
        check_destroyed("memory region", unsafe { (loaded().ibv_dereg_mr)(self.raw.as_ptr()) });
    }
}
