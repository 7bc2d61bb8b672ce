//! Protection domains, registered memory, memory windows.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Context, check_destroyed, loaded, sys};

/// A protection domain: what belongs together.
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
    /// A new domain.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(context: &Arc<Context>) -> io::Result<Arc<Domain>> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { loaded().ibv_alloc_pd(context.raw()) });
        let raw = raw.ok_or_else(io::Error::last_os_error)?;
        Ok(Arc::new(Domain { raw, context: Arc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }

    /// Its device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made here, freed once, after all that is in it, which holds it.
        check_destroyed("protection domain", unsafe { loaded().ibv_dealloc_pd(self.raw()) });
    }
}

/// What may be done with registered memory besides reading it from this side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// This side's adapter writes it: receives, reads from elsewhere.
    pub local_write: bool,
    /// Peers in the domain read it.
    pub remote_read: bool,
    /// Peers in the domain write it.
    pub remote_write: bool,
    /// Windows may be bound to it.
    pub windows: bool,
}

impl Rights {
    fn bits(self) -> u32 {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        // The architecture allows remote writes only where local ones are allowed.
        bit(self.local_write || self.remote_write, sys::IBV_ACCESS_LOCAL_WRITE)
            | bit(self.remote_read, sys::IBV_ACCESS_REMOTE_READ)
            | bit(self.remote_write, sys::IBV_ACCESS_REMOTE_WRITE)
            | bit(self.windows, sys::IBV_ACCESS_MW_BIND)
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
    /// Registers `len` bytes at `ptr`, more than none. Work requests and peers name the first byte
    /// `begin`, whose offset in a page must be that of `ptr`.
    ///
    /// # Safety
    /// The bytes must stay where they are, valid for what `rights` allow, until the region is
    /// dropped.
    ///
    /// # Errors
    /// What the kernel says; `ENOMEM` when it may not pin that much.
    pub unsafe fn new(
        domain: &Arc<Domain>,
        ptr: *mut u8,
        len: usize,
        begin: u64,
        rights: Rights,
    ) -> io::Result<Region> {
        // SAFETY: the domain is there; the caller vouches for the bytes.
        let raw = unsafe { loaded().ibv_reg_mr_iova(domain.raw(), ptr.cast(), len, begin, rights.bits() as i32) };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        Ok(Region { raw, domain: Arc::clone(domain) })
    }

    /// The key for this side's work requests.
    pub fn local_key(&self) -> u32 {
        // SAFETY: the region is there.
        unsafe { self.raw.as_ref() }.lkey
    }

    /// The key for peers.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: the region is there.
        unsafe { self.raw.as_ref() }.rkey
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_mr {
        self.raw.as_ptr()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _domain = &self.domain;
        // SAFETY: made here, deregistered once. When the call returns the adapter reaches it no
        // more.
        check_destroyed("memory region", unsafe { loaded().ibv_dereg_mr(self.raw.as_ptr()) });
    }
}

/// A memory window of type 2: once bound, a part of a region that one queue pair's peer may reach.
/// Nothing but the test that shows why the backend does without them uses it.
#[derive(Debug)]
pub struct Window {
    raw: NonNull<sys::ibv_mw>,
    domain: Arc<Domain>,
}

impl Window {
    /// A window that is bound to nothing.
    ///
    /// # Errors
    /// What the driver says; `EOPNOTSUPP` if it has none.
    pub fn new(domain: &Arc<Domain>) -> io::Result<Window> {
        let unsupported = || io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        // SAFETY: the context is open.
        let call = unsafe { (*domain.context().raw()).ops.alloc_mw }.ok_or_else(unsupported)?;
        // SAFETY: the domain is there.
        let raw = NonNull::new(unsafe { call(domain.raw(), sys::IBV_MW_TYPE_2) });
        Ok(Window { raw: raw.ok_or_else(io::Error::last_os_error)?, domain: Arc::clone(domain) })
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_mw {
        self.raw.as_ptr()
    }

    /// The key that the next binding is to have.
    pub fn next_key(&self) -> u32 {
        // SAFETY: the window is there.
        let key = unsafe { self.raw.as_ref() }.rkey;
        key & 0xffff_ff00 | (key.wrapping_add(1) & 0xff)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the context is open as long as the domain is.
        let call = unsafe { (*self.domain.context().raw()).ops.dealloc_mw };
        // SAFETY: made here, freed once.
        check_destroyed("memory window", call.map_or(0, |call| unsafe { call(self.raw()) }));
    }
}
