//! A view of bytes of a file: lent by the servers and read where they are, or in memory of its own.
//!
//! **Invariants**
//! 1. No reference to lent bytes is created, except by the caller's own `unsafe`. The server may
//!    take them back at any moment. They stay mapped and can be read, but may then be anything.
//! 2. A view that is checked successfully has shown, from its creation until then, the bytes that
//!    each of the datafiles contained at the time of the check.
//!
//! **Source.** Sequence locks: [`fs_proto::ViewGrant`] has the protocol.

use std::fmt;
use std::marker::PhantomData;

use bmi::Memory;
use bmi::memory::RemoteView;

/// The bytes of a view may have changed since it was made. Read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server has taken back the bytes of a shared read")
    }
}

impl std::error::Error for Stale {}

/// A part of one view segment, with the versions of the granules that it touches.
#[derive(Clone, Debug)]
pub(crate) struct Loan {
    pub(crate) view: RemoteView,
    /// The place of each entry in the segment, and the version that it had.
    pub(crate) versions: Vec<(usize, u64)>,
}

impl Loan {
    fn is_valid(&self) -> bool {
        self.versions.iter().all(|(entry, version)| self.view.word(*entry) == Some(*version))
    }
}

/// Bytes of a view that lie side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The index of the loan.
    pub(crate) loan: usize,
    pub(crate) at: usize,
    pub(crate) len: usize,
}

enum Bytes {
    Lent { loans: Vec<Loan>, parts: Vec<Part> },
    Own { memory: Memory, why: String },
}

/// Bytes of a file, from [`File::read_shared`](crate::File::read_shared). It may be sent to another
/// thread. Dropping it costs no message.
pub struct SharedView {
    bytes: Bytes,
    len: usize,
}

impl SharedView {
    pub(crate) fn lent(loans: Vec<Loan>, mut parts: Vec<Part>, len: usize) -> SharedView {
        let mut left = len;
        for part in &mut parts {
            part.len = part.len.min(left);
            left -= part.len;
        }
        parts.retain(|part| part.len > 0);
        SharedView { bytes: Bytes::Lent { loans, parts }, len }
    }

    /// `why` is the reason why nobody lends the bytes.
    pub(crate) fn own(memory: Memory, len: usize, why: String) -> SharedView {
        SharedView { bytes: Bytes::Own { memory, why }, len }
    }

    /// Returns the number of bytes: less than was asked for only at the end of the file.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true if the bytes are the servers' own pages. If not, they were read into memory of
    /// this view, and are never stale.
    pub fn is_lent(&self) -> bool {
        matches!(self.bytes, Bytes::Lent { .. })
    }

    /// Returns why the bytes were read into memory of this view, or `None` if they are lent.
    pub fn why_copied(&self) -> Option<&str> {
        match &self.bytes {
            Bytes::Lent { .. } => None,
            Bytes::Own { why, .. } => Some(why),
        }
    }

    /// Returns the bytes in the order of the file, in pieces that lie side by side.
    pub fn pieces(&self) -> impl Iterator<Item = ViewPiece<'_>> {
        let (lent, own) = match &self.bytes {
            Bytes::Lent { loans, parts } => {
                let piece =
                    |part: &Part| ViewPiece::new(loans[part.loan].view.as_ptr().wrapping_add(part.at), part.len);
                (Some(parts.iter().map(piece)), None)
            }
            Bytes::Own { memory, .. } => (None, Some(ViewPiece::new(memory.as_ptr(), self.len))),
        };
        lent.into_iter().flatten().chain(own)
    }

    /// Checks that the bytes were valid all the time: what was read from them before this call, in
    /// whatever way, is what the file contained. Of a file on several servers, that holds for each
    /// server's part by itself. Costs some loads, and a system call for each 16 MiB or server.
    ///
    /// # Errors
    /// `Stale` if a byte may have changed, or a server's process has died.
    pub fn check(&self) -> Result<(), Stale> {
        let Bytes::Lent { loans, .. } = &self.bytes else { return Ok(()) };
        if let Some(loan) = loans.first() {
            loan.view.end_read();
        }
        // The processes come last: while they live, the words are true.
        let valid = loans.iter().all(Loan::is_valid) && loans.iter().all(|loan| loan.view.is_alive());
        if valid { Ok(()) } else { Err(Stale) }
    }

    /// Copies the bytes from `offset` on, as many as `to` has, and checks them.
    ///
    /// # Errors
    /// As [`SharedView::check`]. `to` may then contain anything.
    ///
    /// # Panics
    /// If the range is not within the view.
    pub fn copy_to(&self, offset: usize, to: &mut [u8]) -> Result<(), Stale> {
        let within = offset.checked_add(to.len()).is_some_and(|end| end <= self.len);
        assert!(within, "{} bytes at {offset} of a view of {}", to.len(), self.len);
        match &self.bytes {
            Bytes::Own { memory, .. } => memory.copy_to(offset, to),
            Bytes::Lent { loans, parts } => {
                let (mut skip, mut to) = (offset, to);
                for part in parts {
                    let begin = skip.min(part.len);
                    skip -= begin;
                    let here = (part.len - begin).min(to.len());
                    let (now, later) = to.split_at_mut(here);
                    if here > 0 {
                        loans[part.loan].view.copy_to(part.at + begin, now);
                    }
                    to = later;
                }
            }
        }
        self.check()
    }
}

impl fmt::Debug for SharedView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.is_lent() { "lent" } else { "own" };
        write!(f, "SharedView[{}, {how}]", self.len)
    }
}

/// Bytes of a [`SharedView`] that lie side by side.
#[derive(Clone, Copy, Debug)]
pub struct ViewPiece<'a> {
    ptr: *const u8,
    len: usize,
    view: PhantomData<&'a SharedView>,
}

// SAFETY: the address stays valid as long as the view is borrowed, on every thread.
unsafe impl Send for ViewPiece<'_> {}
// SAFETY: as above.
unsafe impl Sync for ViewPiece<'_> {}

impl<'a> ViewPiece<'a> {
    fn new(ptr: *const u8, len: usize) -> ViewPiece<'a> {
        ViewPiece { ptr, len, view: PhantomData }
    }

    /// Returns the number of bytes, at least one unless the view is empty.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the address of the bytes, for the kernel and for whoever reads them as a sequence
    /// lock requires. Nobody may write there.
    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    /// Returns the bytes themselves.
    ///
    /// # Safety
    /// Rust takes it for granted that bytes behind a reference do not change. The server may change
    /// or take them at any time, which [`SharedView::check`] tells only afterwards. So the caller
    /// must know that no client writes to these bytes of the file, or cuts them off, while the
    /// reference lives, and that the server does not need the memory, because the lease holds. Or
    /// the caller accepts, as a user of a file that is mapped into memory does, that bytes differ
    /// from one look to the next: then it must not base any decision about memory safety on them,
    /// and it discards all results if the view turns out to be stale.
    pub unsafe fn bytes(&self) -> &'a [u8] {
        // SAFETY: the bytes stay mapped while the view is borrowed. The caller vouches for the
        // rest.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

/// Whether a shared read lends the servers' pages, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedPlan {
    /// True if the pages are lent, unless a server refuses.
    pub lends: bool,
    /// The reason.
    pub why: String,
}

impl fmt::Display for SharedPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.lends { "the servers' pages, without a copy" } else { "an ordinary read" };
        write!(f, "shared read: {how}: {}", self.why)
    }
}
