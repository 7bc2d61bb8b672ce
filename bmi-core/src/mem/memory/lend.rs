//! Memory whose bytes are given out as [`Bytes`].

use bytes::Bytes;

use super::{Backing, Memory};

/// The only handle of a memory. It is never cloned, so nothing else can reach the bytes.
pub(super) struct OnlyHandle(Memory);

impl OnlyHandle {
    /// # Errors
    /// The memory, if there are other handles, or other memories refer to the bytes.
    fn of(mut memory: Memory) -> Result<OnlyHandle, Memory> {
        let may_be_shared = matches!(memory.0.backing, Backing::Passable(_));
        match may_be_shared || memory.get_mut().is_none() {
            true => Err(memory),
            false => Ok(OnlyHandle(memory)),
        }
    }
}

impl AsRef<[u8]> for OnlyHandle {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `of` has checked that this is the only handle, and that no other memory refers to
        // the bytes (`get_mut`). This value gives out no handle while it lives. So nothing writes
        // to the bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

/// The only handle of a memory, and who gets it back.
struct Loan<B: FnOnce(Memory)>(Option<(OnlyHandle, B)>);

impl<B: FnOnce(Memory)> AsRef<[u8]> for Loan<B> {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |(handle, _)| handle.as_ref())
    }
}

impl<B: FnOnce(Memory)> Drop for Loan<B> {
    fn drop(&mut self) {
        if let Some((handle, back)) = self.0.take() {
            back(handle.0);
        }
    }
}

impl Memory {
    /// Returns the bytes as [`Bytes`]. They are not copied if this is the only handle, or if the
    /// memory was made of `Bytes`.
    ///
    /// Memory of [`Memory::shareable`] is always copied, because a peer to which it was exposed may
    /// still have its pages mapped.
    pub fn into_bytes(self) -> Bytes {
        if let Backing::Shareable(bytes) = &self.0.backing {
            return bytes.clone();
        }
        match OnlyHandle::of(self) {
            Ok(handle) if matches!(handle.0.0.backing, Backing::Vec { .. }) => Bytes::from(handle.0.into_vec()),
            Ok(handle) => Bytes::from_owner(handle),
            Err(memory) => Bytes::from(memory.to_vec()),
        }
    }

    /// Returns the bytes as [`Bytes`], without a copy. When all of them are dropped, `back` gets
    /// the memory, on the thread that drops the last: a pool uses it again.
    ///
    /// # Errors
    /// The memory, if it is not the only handle to its bytes. [`Memory::into_bytes`] copies them.
    pub fn lend(self, back: impl FnOnce(Memory) + Send + 'static) -> Result<Bytes, Memory> {
        Ok(Bytes::from_owner(Loan(Some((OnlyHandle::of(self)?, back)))))
    }
}
