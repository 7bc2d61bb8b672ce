//! The shared half of a connection: both areas, the ends of both rings, and the ways to the peer's
//! memory.
//!
//! **Ways to the peer's memory.** The first open way is taken; `direct` chooses it.
//!
//! | way | condition | cost of a transfer |
//! |---|---|---|
//! | mapped | the memory is in pages that the peer has passed | one copy by this processor, no system call |
//! | kernel | it is not, and the kernel may copy between the processes | one copy and a system call per unit |
//! | ring | neither, or the advice does not allow it | two copies, the peer's processor, and its check |
//!
//! So nothing is ever refused because of advice alone. If the advice does not allow a transfer,
//! this side asks the owner, and the owner's answer counts.
//!
//! **The bell.** A poll that finds something for the peer looks whether the peer sleeps
//! ([`Link::finds_sleeper`]). The look costs a full fence, and nothing else if the peer is awake.
//! Published records and acknowledged in-place messages are for any peer. Room is only for a peer
//! that waits for it, so this side looks once for each quarter of the ring. That is enough. A peer
//! that waits for room knows of at most half of its ring and a line as free: a padded end and the
//! longest record take no more. It has published everything before it slept. So this side passes
//! such a quarter before it has read all.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bmi_backend::software::slot_of;
use bmi_core::mem::{RemotePages, RemoteView, copy};
use bmi_core::transport::BulkWay;
use bmi_core::{Access, Memory, RemoteSlice, Segment};

use crate::config::{MAX_IN_PLACE_PIECES, MAX_INLINE};
use crate::error::{BAD_RING, Violation};
use crate::os::sys::{LenderProcess, Process};
use crate::passed::{Mapped, Passed};
use crate::shared::ring::{Reader, Space, Writer};
use crate::shared::{Area, MAX_CLAIMS, Place, RingSpace};

/// Most bytes of a record's body. In a smaller ring it is an eighth of the ring, so that sender and
/// receiver work at the same time.
pub(super) const CHUNK: usize = 32 << 10;

/// The shared half of a connection.
pub(crate) struct Link {
    pub(crate) own: Area,
    pub(crate) peer: Area,
    pub(crate) writer: Writer<RingSpace>,
    pub(crate) reader: Reader<RingSpace>,
    pub(crate) process: Option<Process>,
    pub(crate) mapped: Mapped,
    pub(crate) passed: Passed,
    /// Most bytes of a record body that this side writes.
    pub(super) chunk: usize,
    /// Most bytes of a message that is sent inline, in one record.
    pub(crate) short: usize,
    /// A quarter of the peer's ring in bytes. While messages move, this side reads that much before
    /// it tells the writer its position.
    pub(crate) quarter: u64,
    /// The end of the last record that makes the peer write to its own memory. Until the peer has
    /// passed it, a write that does not go through the ring would overtake that record.
    pub(super) ring_writes_until: u64,
    /// The writer's position when this side last looked whether the peer sleeps.
    rung: u64,
    /// How far the peer knew that this side had read, at that moment.
    rung_for_room: u64,
    /// The last nap of the peer that this side has ended.
    woken: u64,
    /// Set if the peer is to be woken from that nap.
    bell: bool,
    /// Set if the peer reaches all of this process's memory through the kernel.
    pub(crate) trusted: bool,
    /// Memory that a long message was sent from and that is to be passed.
    pub(crate) to_pass: Option<Memory>,
    /// In-place messages from this side: how many were announced, and how many of these the peer
    /// was seen to have copied.
    pub(crate) in_place: u64,
    pub(crate) in_place_copied: u64,
    /// In-place messages from the peer: how many this side has copied, how many of these it has
    /// acknowledged, and whether it has acknowledged any since the bell was last rung.
    taken: u64,
    said: u64,
    took: bool,
    lent: Arc<AtomicU64>,
    /// The peer's process, once it has lent a view.
    lender: Option<Arc<LenderProcess>>,
}

/// A way to a piece of the peer's memory. It stays claimed until [`Link::done`].
pub(crate) enum Way {
    Mapped(*mut u8),
    Kernel(u64),
}

impl Link {
    pub(crate) fn new(own: Area, peer: Area, process: Option<Process>, mapped: Mapped) -> Link {
        let (writer, reader) = (Writer::new(own.ring()), Reader::new(peer.ring()));
        let chunk = CHUNK.min(writer.space().len() / 8);
        let quarter = reader.space().len() as u64 / 4;
        Link {
            own,
            peer,
            writer,
            reader,
            process,
            mapped,
            passed: Passed::default(),
            chunk,
            short: chunk.min(MAX_INLINE),
            quarter,
            ring_writes_until: 0,
            rung: 0,
            rung_for_room: 0,
            woken: 0,
            bell: false,
            trusted: false,
            to_pass: None,
            in_place: 0,
            in_place_copied: 0,
            taken: 0,
            said: 0,
            took: false,
            lent: Arc::new(AtomicU64::new(1)),
            lender: None,
        }
    }

    /// Reads how far the peer has read this side's ring.
    pub(crate) fn refresh(&mut self) -> Result<(), Violation> {
        self.writer.refresh(self.peer.consumed()).map_err(|_| BAD_RING)
    }

    /// Reads how many in-place messages the peer has copied.
    pub(crate) fn refresh_taken(&mut self) -> Result<(), Violation> {
        let said = self.peer.taken().load(Ordering::Acquire);
        if said < self.in_place_copied || said > self.in_place {
            return Err(BAD_RING);
        }
        self.in_place_copied = said;
        Ok(())
    }

    /// Returns whether the peer has copied more in-place messages than this side knows of.
    #[inline]
    pub(crate) fn has_taken(&self) -> bool {
        self.peer.taken().load(Ordering::Relaxed) != self.in_place_copied
    }

    /// Counts an in-place message that was copied. [`Link::say_taken`] acknowledges it later.
    #[inline]
    pub(super) fn has_copied(&mut self) {
        self.taken += 1;
    }

    /// Acknowledges the in-place messages that were copied.
    #[inline]
    pub(crate) fn say_taken(&mut self) {
        if self.taken != self.said {
            self.own.taken().store(self.taken, Ordering::Release);
            (self.said, self.took) = (self.taken, true);
        }
    }

    /// Returns the number under which the peer has these segments mapped, if they are all in one
    /// memory. If the peer does not have that memory yet and may get it, notes that it is to be
    /// passed.
    #[inline]
    pub(crate) fn number_of(&mut self, segments: &[Segment], share_pages: bool) -> Option<u32> {
        let first = segments.first()?.region();
        if !share_pages
            || segments.len() > MAX_IN_PLACE_PIECES
            || !segments.iter().all(|other| other.region().is_same(first))
        {
            return None;
        }
        let memory = first.memory();
        memory.shared_pages()?;
        let number = self.passed.mapped_number(memory);
        if number.is_none() && self.trusted && self.passed.number(memory).is_none() {
            self.to_pass.get_or_insert_with(|| memory.clone());
        }
        number
    }

    /// Reserves room for a record's body. If there seems to be none, first reads how far the peer
    /// has read.
    pub(crate) fn reserve(&mut self, len: usize) -> Result<Option<crate::shared::ring::Reservation>, Violation> {
        if let Some(reservation) = self.writer.reserve(len) {
            return Ok(Some(reservation));
        }
        self.refresh()?;
        Ok(self.writer.reserve(len))
    }

    /// Returns a way to the `len` bytes at `remote.addr + at` other than the ring, if there is one.
    pub(super) fn direct(&mut self, remote: &RemoteSlice, at: u64, len: u64, rights: Access) -> Option<Way> {
        self.own.claim(0, remote.key.0);
        let way = self.find_way(remote, at, len, rights);
        if way.is_none() {
            self.own.unclaim(0);
        }
        way
    }

    /// Returns where the first `len` bytes of `remote` are mapped, if they are. Like
    /// [`Link::direct`], for callers that have no use for another way.
    #[inline]
    pub(crate) fn mapped(&mut self, remote: &RemoteSlice, len: u64, rights: Access) -> Option<*mut u8> {
        self.own.claim(0, remote.key.0);
        let way = self.find_way(remote, 0, len, rights);
        if let Some(Way::Mapped(ptr)) = way {
            return Some(ptr);
        }
        self.own.unclaim(0);
        None
    }

    /// Ends the transfer for which [`Link::direct`] or [`Link::mapped`] opened the way.
    pub(crate) fn done(&self) {
        self.own.unclaim(0);
    }

    /// Looks the way up in the advice. The key must be claimed.
    fn find_way(&mut self, remote: &RemoteSlice, at: u64, len: u64, rights: Access) -> Option<Way> {
        let advice = self.peer.advice(slot_of(remote.key.0), remote.key.0)?;
        let begin = remote.addr.checked_add(at)?;
        let inside = begin.checked_add(len)? <= advice.len;
        let granted =
            (advice.access.remote_read || !rights.remote_read) && (advice.access.remote_write || !rights.remote_write);
        if !inside || !granted {
            return None;
        }
        match advice.place {
            Place::Pages { id, offset } => {
                let Some(memory) = self.mapped.find(id) else {
                    self.mapped.ask(id);
                    return None;
                };
                let offset = usize::try_from(offset.checked_add(begin)?).ok()?;
                let end = offset.checked_add(usize::try_from(len).ok()?)?;
                let way = (end <= memory.len()).then(|| Way::Mapped(memory.as_ptr().wrapping_add(offset)));
                way.filter(|_| !rights.remote_write || self.mapped.is_writable(id))
            }
            Place::Address(address) => {
                self.process.as_ref()?;
                Some(Way::Kernel(address.checked_add(begin)?))
            }
        }
    }

    /// Hands out the peer's pages themselves, with a claim of their own.
    pub(crate) fn map_remote(&mut self, remote: &RemoteSlice, access: Access) -> Option<RemotePages> {
        let number = self.take_claim()?;
        let claim = Claim { area: self.own.clone(), lent: self.lent.clone(), number };
        self.own.claim(number, remote.key.0);
        let Some(Way::Mapped(ptr)) = self.find_way(remote, 0, remote.len, access) else { return None };
        let Place::Pages { id, .. } = self.peer.advice(slot_of(remote.key.0), remote.key.0)?.place else { return None };
        let memory = self.mapped.find(id)?;
        let offset = (ptr as usize).checked_sub(memory.as_ptr() as usize)?;
        let len = usize::try_from(remote.len).ok()?;
        if offset.checked_add(len)? > memory.len() {
            return None; // the peer has changed the entry in the meantime
        }
        Some(RemotePages::new(memory.slice(offset, len), Arc::new(claim)))
    }

    /// Returns the peer's pages as they are mapped here, without a claim on them. `socket` leads to
    /// the peer.
    pub(crate) fn view_remote(&mut self, remote: &RemoteSlice, socket: &OwnedFd) -> Option<RemoteView> {
        self.find_way(remote, 0, remote.len, Access::READ)?;
        let Place::Pages { id, offset } = self.peer.advice(slot_of(remote.key.0), remote.key.0)?.place else {
            return None;
        };
        let offset = usize::try_from(offset.checked_add(remote.addr)?).ok()?;
        let len = usize::try_from(remote.len).ok()?;
        let memory = self.mapped.find(id)?;
        if offset.checked_add(len)? > memory.len() {
            return None; // the peer has changed the entry in the meantime
        }
        let slice = memory.slice(offset, len);
        let lender = match &self.lender {
            Some(lender) => lender.clone(),
            None => self.lender.insert(Arc::new(LenderProcess::of_peer(socket)?)).clone(),
        };
        Some(RemoteView::new(slice, lender))
    }

    /// Returns the open ways, for the plan: for memory in shareable pages, which this side passes
    /// if `shared`, and for any other memory.
    pub(crate) fn ways(&self, shared: bool) -> Vec<BulkWay> {
        let other = match self.process {
            Some(_) => (
                "kernel copy (process_vm_readv, process_vm_writev)",
                "the kernel lets one process reach the other's memory: one copy",
            ),
            None => {
                ("ring", "one process may not reach the other's memory (the kernel, a setting, two users): two copies")
            }
        };
        let mapped = (
            "mapped pages",
            "both processes have them mapped: one copy, or none where a server's kernel moves between them and a file",
        );
        let viewed = ("views", "the reader has them mapped, and looks at them where they are: no copy");
        let way = |memory, (way, why)| BulkWay { memory, way, why };
        let mut ways = vec![way("shareable pages", if shared { mapped } else { other }), way("other memory", other)];
        ways.extend(shared.then(|| way("published pages", viewed)));
        ways
    }

    fn take_claim(&self) -> Option<usize> {
        let mut taken = self.lent.load(Ordering::Relaxed);
        loop {
            let number = (!taken).trailing_zeros() as usize;
            if number >= MAX_CLAIMS {
                return None;
            }
            let with = taken | 1 << number;
            match self.lent.compare_exchange_weak(taken, with, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(number),
                Err(now) => taken = now,
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.say_taken();
        self.own.leave();
    }
}

/// A claim on pages that were handed out. It is given up when it is dropped, on any thread.
struct Claim {
    area: Area,
    lent: Arc<AtomicU64>,
    number: usize,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.area.unclaim(self.number);
        self.lent.fetch_and(!(1 << self.number), Ordering::Release);
    }
}

/// Copies to or from the peer's memory.
///
/// # Safety
/// `len` bytes at both must be valid, and accessed by others only through `mem::copy`, by the
/// kernel, or by another process.
pub(crate) unsafe fn copy(to: *mut u8, from: *mut u8, len: usize) {
    // SAFETY: the caller guarantees it.
    unsafe { copy::copy_between(to, from, len) };
}

/// From this length on, in bytes, a transfer bypasses the caches. Source and target together then
/// fill a large cache.
const LONG: u64 = 16 << 20;

/// Copies a part of a transfer of `all` bytes to or from the peer's memory.
///
/// # Safety
/// The same as for [`copy`].
pub(super) unsafe fn copy_part(to: *mut u8, from: *mut u8, len: usize, all: u64) {
    // SAFETY: the caller guarantees it.
    unsafe { if all < LONG { copy::copy_between(to, from, len) } else { copy::copy_past_caches(to, from, len) } };
}

impl Link {
    /// Returns whether there is something for the peer since this side last looked whether it
    /// sleeps.
    #[inline]
    fn must_look(&self) -> bool {
        let room = self.reader.told() - self.rung_for_room >= self.quarter;
        self.writer.position() != self.rung || self.took || room
    }

    /// Returns whether the next poll has something to tell the peer.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        self.must_look() || self.taken != self.said || self.reader.untold() > 0
    }

    /// Returns whether the peer must be told of room at once, although messages come.
    #[inline]
    pub(crate) fn must_tell(&self) -> bool {
        self.reader.position() - self.rung_for_room >= self.quarter
    }

    /// Tells the peer how far this side has read its ring.
    pub(crate) fn tell(&mut self) {
        if self.reader.untold() > 0 {
            self.reader.tell(self.own.consumed());
        }
    }

    /// Looks whether the peer sleeps, if there is something for it. Returns whether it must be
    /// woken.
    #[inline]
    pub(crate) fn finds_sleeper(&mut self) -> bool {
        if self.must_look() {
            self.look();
        }
        self.bell
    }

    #[inline]
    fn look(&mut self) {
        let published = self.took || self.writer.position() != self.rung;
        (self.rung, self.rung_for_room, self.took) = (self.writer.position(), self.reader.told(), false);
        let announced = crate::shared::ring::announced::<RingSpace>(self.peer.sleep());
        let (nap, starved) = (announced >> 1, announced & 1 != 0);
        if announced != 0 && nap != self.woken && (published || starved) {
            (self.woken, self.bell) = (nap, true);
        }
    }

    /// Tells the peer how far its ring was read, if it is time to. Returns whether the peer is to
    /// be woken now.
    #[inline]
    pub(crate) fn ring_bell(&mut self, moved: bool) -> bool {
        if !moved || self.must_tell() {
            self.tell();
        }
        self.finds_sleeper() && std::mem::take(&mut self.bell)
    }
}
