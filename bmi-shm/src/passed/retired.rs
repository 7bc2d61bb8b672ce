//! Retired memory: its exposure has ended, but the peer may still write to it.
//!
//! **Why.** An operation ends in time, whatever the peer does. But a peer's processor or kernel
//! that has begun to copy cannot be stopped from here. A `pread` from a disk that stalls, into
//! pages that were lent, may take any time. Until it is done, the bytes must not become `&mut`, be
//! reused or be unmapped. So the operation ends with its error, and its memory stays here.
//!
//! **Claims.** A peer that reaches memory by an exposure has the exposure's key among the claims of
//! its own area (see [`crate::shared`]). The peer clears the claim when its copy is done, also
//! after the connection has ended: a claim keeps the area mapped. A process that dies clears
//! nothing, but it also writes nothing any more once all of its threads have ended. The kernel
//! reports that by a descriptor of the process. So memory comes back when the claim is gone, or
//! when the process is dead. It never comes back because of time alone.
//!
//! **Invariants**
//! 1. A retired exposure holds its memory, so the program's handle is not the only one
//!    ([`Memory::get_mut`] returns `None`). The memory knows that it is retired
//!    ([`Memory::is_retired`]), so pools of memory do not use it again.
//! 2. Retired memory is not lent again, by no transport of this process. Its exposures are not
//!    advertised, so the peer asks through the ring, and this side copies.
//! 3. Retired memory is bounded by `ShmConfig::max_retired`. Above it, no memory is lent any more
//!    until some comes back. What was lent before may still be added: on each connection at most
//!    the [`MAX_CLAIMS`](crate::shared::MAX_CLAIMS) exposures that its peer can claim.
//! 4. Nothing waits for retired memory. For [`EAGER`] every poll looks at it; later a look follows
//!    at most [`LONGEST_PAUSE`] after the one before.
//!
//! **After the transport.** The memory that a dropped transport leaves behind is kept for the
//! process. The other transports look at it, and count it with their own.
//!
//! **Limits.** The peer's process is the one that connected or listened. Memory that a process
//! claims as it executes another program stays retired until that one ends. Work that a process
//! leaves to the kernel beyond its own end (`io_uring`) is not seen.
//!
//! **Tests.** `tests/it/retired.rs` with a disk that stalls; `tests/it/process_death.rs`;
//! `hostile` with a peer that never gives up its claims.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bmi_core::mem::{MemoryId, Retirement};
use bmi_core::transport::RetiredMemory;
use bmi_core::{Memory, Segment, Time};

use crate::os::sys::Life;
use crate::shared::Area;

/// How long every poll looks at memory that was retired. Most copies are done by then.
const EAGER: Duration = Duration::from_secs(1);
/// The pause after the first look of a side that may sleep. Each pause is twice the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause between two looks.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Looks at the claims when a transport is dropped. They take longer than copying a unit.
const LAST_LOOKS: usize = 2_000;

/// An exposure that has ended and that the peer still claims.
struct Claimed {
    key: u64,
    memory: Retirement,
    _segment: Segment,
}

/// The claimed exposures of one connection.
pub(crate) struct Holder {
    /// The peer's area, in which its claims are.
    area: Area,
    life: Life,
    exposures: Vec<Claimed>,
}

impl Holder {
    /// Retires the memory of exposures, given with their keys.
    pub(crate) fn new<'a>(area: &Area, life: Life, exposures: impl Iterator<Item = (u64, &'a Segment)>) -> Holder {
        let exposures = exposures.map(|(key, segment)| Claimed {
            key,
            memory: segment.region().memory().retire(),
            _segment: segment.clone(),
        });
        Holder { area: area.clone(), life, exposures: exposures.collect() }
    }

    /// Gives back the memory that the peer has released. If `asks`, also asks the kernel whether
    /// the peer's process is dead. Returns whether any memory remains.
    fn remains(&mut self, asks: bool) -> bool {
        if asks && self.life.is_over() {
            return false;
        }
        let claims = self.area.claims();
        self.exposures.retain(|exposure| claims.contains(&exposure.key));
        !self.exposures.is_empty()
    }
}

/// Counts what the holders hold. Each memory counts once.
fn count(holders: &[Holder]) -> RetiredMemory {
    let memories = || holders.iter().flat_map(|holder| &holder.exposures).map(|exposure| exposure.memory.memory());
    let lengths: HashMap<MemoryId, u64> = memories().map(|memory| (memory.id(), memory.len() as u64)).collect();
    RetiredMemory { exposures: memories().count(), bytes: lengths.values().sum() }
}

/// The retired memory of a transport.
pub(crate) struct Retired {
    holders: Vec<Holder>,
    usage: RetiredMemory,
    /// Exposures and bytes above which no memory is lent.
    most: (usize, u64),
    eager_until: Time,
    look_at: Time,
    pause: Duration,
}

impl Retired {
    pub(crate) fn new(most: (usize, u64)) -> Retired {
        Retired {
            holders: Vec::new(),
            usage: RetiredMemory::default(),
            most,
            eager_until: Time::ZERO,
            look_at: Time::ZERO,
            pause: FIRST_PAUSE,
        }
    }

    /// Retires memory.
    pub(crate) fn add(&mut self, holder: Holder, now: Time) {
        self.holders.push(holder);
        self.usage = count(&self.holders);
        (self.eager_until, self.pause) = (now + EAGER, FIRST_PAUSE);
        self.look_at = now + self.pause;
    }

    pub(crate) fn usage(&self) -> RetiredMemory {
        self.usage
    }

    /// Returns whether every poll looks.
    #[inline]
    pub(crate) fn is_eager(&self, now: Time) -> bool {
        now < self.eager_until
    }

    /// Returns when to look next, if there is anything.
    pub(crate) fn look_at(&self) -> Option<Time> {
        (!self.holders.is_empty()).then_some(self.look_at)
    }

    /// Gives back what is free again, if it is time to look. Returns whether [`Retired::look_at`]
    /// may have changed.
    #[inline]
    pub(crate) fn look(&mut self, now: Time) -> bool {
        !self.holders.is_empty() && self.look_at_holders(now)
    }

    fn look_at_holders(&mut self, now: Time) -> bool {
        let due = now >= self.look_at;
        if !due && !self.is_eager(now) {
            return false;
        }
        self.release(due);
        if due {
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
            self.look_at = now + self.pause;
        }
        if self.holders.is_empty() {
            self.eager_until = Time::ZERO;
        }
        due || self.holders.is_empty()
    }

    fn release(&mut self, asks: bool) {
        self.holders.retain_mut(|holder| holder.remains(asks));
        let remaining: usize = self.holders.iter().map(|holder| holder.exposures.len()).sum();
        if remaining != self.usage.exposures {
            self.usage = count(&self.holders);
        }
    }

    /// Returns whether memory may be lent to a peer.
    #[inline]
    pub(crate) fn may_lend(&self, memory: &Memory) -> bool {
        let none = self.usage.exposures == 0 && ORPHANS.exposures.load(Ordering::Relaxed) == 0;
        !memory.is_retired() && (none || self.has_room_for(memory))
    }

    #[cold]
    fn has_room_for(&self, memory: &Memory) -> bool {
        let (exposures, bytes) = self.most;
        let (others, their_bytes) = (ORPHANS.exposures.load(Ordering::Relaxed), ORPHANS.bytes.load(Ordering::Relaxed));
        self.usage.exposures + others < exposures && self.usage.bytes + their_bytes + memory.len() as u64 <= bytes
    }
}

impl Drop for Retired {
    fn drop(&mut self) {
        for look in 0..LAST_LOOKS {
            if self.holders.is_empty() {
                return;
            }
            self.release(look == 0);
            std::hint::spin_loop();
        }
        ORPHANS.add(&mut self.holders);
    }
}

/// The retired memory of transports that were dropped.
struct Orphans {
    holders: Mutex<Vec<Holder>>,
    /// What they hold. Changed under the lock.
    exposures: AtomicUsize,
    bytes: AtomicU64,
}

static ORPHANS: Orphans =
    Orphans { holders: Mutex::new(Vec::new()), exposures: AtomicUsize::new(0), bytes: AtomicU64::new(0) };

impl Orphans {
    fn lock(&self) -> MutexGuard<'_, Vec<Holder>> {
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, more: &mut Vec<Holder>) {
        let mut holders = self.lock();
        holders.append(more);
        let usage = count(&holders);
        self.exposures.store(usage.exposures, Ordering::Relaxed);
        self.bytes.store(usage.bytes, Ordering::Relaxed);
    }
}

/// Gives back the memory of dropped transports that is free again. Called now and then by every
/// transport.
pub(crate) fn release_orphans() {
    if ORPHANS.exposures.load(Ordering::Relaxed) > 0 {
        // Memory is dropped outside of the lock, because that may run any code.
        let mut holders = std::mem::take(&mut *ORPHANS.lock());
        holders.retain_mut(|holder| holder.remains(true));
        ORPHANS.add(&mut holders);
    }
}
