//! Views: bytes of the cache that clients on this host read where they are.
//!
//! **Why.** A read of cached data over shared memory costs a copy by the processor. Most of the
//! time the bytes are in memory already, so the server can let the client look at them. It may show
//! a client the bytes of one file only, and it must get the memory back whatever the client does.
//!
//! **How.** The cache's own memory has units of many files side by side, and the kernel shares
//! files, not ranges. So the bytes of a window of one datafile have a *view segment*: pages of
//! their own ([`PublishedPages`]), which others can map only for reading. The first time that a
//! granule is wanted, its bytes are copied there from the cache. From then on reading them copies
//! nothing, until they change. [`fs_proto::ViewGrant`] has the layout.
//!
//! **Invariants**
//! 1. A granule is filled under a range lock of the cache as a reader, and withdrawn under one as a
//!    writer, before anything changes. So the bytes of a granule whose version has not changed are
//!    those of the datafile. A version is never used twice.
//! 2. A granule that is withdrawn gives its memory back to the system, although clients have it
//!    mapped. Nothing waits for a client.
//! 3. Memory, segments and leases are bounded. A lease keeps others from taking the memory for a
//!    while, and is not renewed for ever: a client that asks again and again loses its granules to
//!    one that asks for the first time.
//! 4. The lock is held for the copy of one granule at most, and never across a wait.
//!
//! **Tests** are below, and in `fs-client/tests/it/transports/views.rs`, with real clients.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bmi::hooks::step;
use bmi::memory::PublishedPages;
use bmi::{MemList, Time};
use fs_proto::{
    DatafileHandle, Region, VIEW_GRANULE, VIEW_HEADER, VIEW_SEGMENT, VIEW_WINDOW, ViewRange, ViewRefusal, view_entry,
};

use crate::lock::lock;
use crate::store::transfer::copy;

/// Most segments at a time. Each has a descriptor, of those that a server has reserved
/// (`descriptors.rs`).
pub(super) const MOST_SEGMENTS: usize = 24;
/// A lease ends at the latest when the granule has been lent for so many times its length.
const RENEWALS: u32 = 8;
/// Most granules that a search for the one to give up looks at.
const LOOK: usize = 256;

/// How much a cache lends to clients on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewSettings {
    /// Most bytes of memory for views. 0 turns them off.
    pub bytes: u64,
    /// How long a granule is not taken back without need.
    pub lease: Duration,
}

impl ViewSettings {
    /// Default length of a lease.
    pub const LEASE: Duration = Duration::from_secs(1);

    /// Returns the settings for `bytes` bytes.
    pub fn for_bytes(bytes: u64) -> ViewSettings {
        ViewSettings { bytes: bytes - bytes % VIEW_GRANULE, lease: ViewSettings::LEASE }
    }
}

/// A range of a datafile that is in a view segment.
#[derive(Debug)]
pub struct SharedRange {
    /// The segment.
    pub pages: Arc<PublishedPages>,
    /// The size of the datafile in bytes.
    pub size: u64,
    /// How long the range is not taken back without need.
    pub lease: Duration,
}

/// A datafile and a window of it.
type Place = (u64, u64);

struct Granule {
    /// Its place in the order of use.
    used: u64,
    filled: Time,
    lease_end: Time,
}

/// A view segment.
struct Segment {
    pages: Arc<PublishedPages>,
    granules: BTreeMap<u32, Granule>,
    /// Its last use in the order of use.
    used: u64,
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.pages.withdraw((0..(VIEW_WINDOW / VIEW_GRANULE) as u32).map(view_entry));
    }
}

struct State {
    segments: BTreeMap<Place, Segment>,
    /// The granules that are lent, in the order of their last use.
    order: BTreeMap<u64, (Place, u32)>,
    next_use: u64,
    next_version: u64,
}

/// The views of a cache.
pub(in crate::store) struct Views {
    settings: ViewSettings,
    state: Mutex<State>,
    /// The number of segments. A writer that finds none need not look further.
    segments: AtomicUsize,
}

fn offset_of(granule: u32) -> usize {
    (VIEW_HEADER + u64::from(granule) * VIEW_GRANULE) as usize
}

impl State {
    fn bytes(&self) -> u64 {
        self.order.len() as u64 * VIEW_GRANULE
    }

    fn stamp(&mut self) -> u64 {
        self.next_use += 1;
        self.next_use
    }

    /// Takes granules back: readers are told first, then the memory goes to the system.
    fn withdraw(&mut self, place: Place, granules: Range<u32>) {
        let Some(segment) = self.segments.get_mut(&place) else { return };
        let lent: Vec<u32> =
            segment.granules.range(granules).inspect(|_| step()).map(|(granule, _)| *granule).collect();
        if lent.is_empty() {
            return;
        }
        segment.pages.withdraw(lent.iter().map(|granule| view_entry(*granule)));
        for run in lent.chunk_by(|a, b| a + 1 == *b) {
            segment.pages.give_back(offset_of(run[0]), run.len() * VIEW_GRANULE as usize);
        }
        for granule in lent {
            if let Some(granule) = segment.granules.remove(&granule) {
                self.order.remove(&granule.used);
            }
        }
    }

    /// Returns the granules of a range that are not lent.
    fn missing(&self, place: Place, range: &ViewRange) -> Vec<u32> {
        let segment = self.segments.get(&place);
        let is_lent = |granule: &u32| segment.is_some_and(|segment| segment.granules.contains_key(granule));
        range.granules().inspect(|_| step()).filter(|granule| !is_lent(granule)).collect()
    }

    /// Makes sure that the segment exists. Gives up another one that nobody has a lease of.
    fn open(&mut self, place: Place, now: Time) -> Result<(), ViewRefusal> {
        if self.segments.contains_key(&place) {
            return Ok(());
        }
        if self.segments.len() >= MOST_SEGMENTS {
            let is_over = |granule: &Granule| granule.lease_end <= now;
            let is_free = |segment: &Segment| segment.granules.values().inspect(|_| step()).all(is_over);
            let free = self.segments.iter().filter(|(_, segment)| is_free(segment));
            let oldest = free.min_by_key(|(_, segment)| segment.used).map(|(place, _)| *place);
            let oldest = oldest.ok_or(ViewRefusal::Full)?;
            self.withdraw(oldest, 0..u32::MAX);
            self.segments.remove(&oldest);
        }
        let pages = PublishedPages::new(VIEW_SEGMENT as usize).map_err(|error| {
            tracing::debug!(%error, "no memory for a view segment");
            ViewRefusal::Full
        })?;
        let used = self.stamp();
        self.segments.insert(place, Segment { pages: Arc::new(pages), granules: BTreeMap::new(), used });
        Ok(())
    }

    /// Makes room for a granule. Gives up the one that was used least recently of those without a
    /// lease, but none of the range for which the room is.
    fn make_room(&mut self, most: u64, place: Place, range: &ViewRange, now: Time) -> Result<(), ViewRefusal> {
        while self.bytes() + VIEW_GRANULE > most {
            let is_free = |(at, granule): &(Place, u32)| {
                let own = *at == place && range.granules().contains(granule);
                !own && self.segments.get(at).is_some_and(|segment| {
                    segment.granules.get(granule).is_some_and(|granule| granule.lease_end <= now)
                })
            };
            let victim = self.order.values().take(LOOK).inspect(|_| step()).find(|at| is_free(at)).copied();
            let (at, granule) = victim.ok_or(ViewRefusal::Full)?;
            self.withdraw(at, granule..granule + 1);
        }
        Ok(())
    }
}

impl Views {
    pub(in crate::store) fn new(settings: ViewSettings) -> Views {
        let state = State { segments: BTreeMap::new(), order: BTreeMap::new(), next_use: 0, next_version: 0 };
        Views { settings, state: Mutex::new(state), segments: AtomicUsize::new(0) }
    }

    /// Calls `f` with the state.
    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        let mut state: MutexGuard<'_, State> = lock(&self.state);
        let result = f(&mut state);
        self.segments.store(state.segments.len(), Ordering::Release);
        result
    }

    /// Returns the regions of the granules of a range that must be filled before it can be lent.
    ///
    /// # Errors
    /// The range is never lent.
    pub(in crate::store) fn missing(
        &self,
        datafile: DatafileHandle,
        range: &ViewRange,
    ) -> Result<Vec<Region>, ViewRefusal> {
        if self.settings.bytes < VIEW_GRANULE {
            return Err(ViewRefusal::Off);
        }
        if range.granules().len() as u64 * VIEW_GRANULE > self.settings.bytes {
            return Err(ViewRefusal::Full);
        }
        let place = (datafile.0, range.window);
        let missing = self.with(|state| state.missing(place, range));
        let begin = |granule: u32| range.window * VIEW_WINDOW + u64::from(granule) * VIEW_GRANULE;
        Ok(missing.into_iter().map(|granule| Region::new(begin(granule), VIEW_GRANULE)).collect())
    }

    /// Fills the granules of a range that `regions` are about, from `bytes`. The caller has a range
    /// lock of them as a reader, and `size` is the size of the datafile under that lock.
    ///
    /// # Errors
    /// There is no room.
    pub(in crate::store) fn fill(
        &self,
        datafile: DatafileHandle,
        range: &ViewRange,
        regions: &[Region],
        bytes: &MemList,
        size: u64,
        now: Time,
    ) -> Result<(), ViewRefusal> {
        let place = (datafile.0, range.window);
        for (index, region) in regions.iter().enumerate() {
            let granule = (region.offset % VIEW_WINDOW / VIEW_GRANULE) as u32;
            self.with(|state| -> Result<(), ViewRefusal> {
                state.open(place, now)?;
                if state.segments[&place].granules.contains_key(&granule) {
                    return Ok(()); // others have filled it
                }
                state.make_room(self.settings.bytes, place, range, now)?;
                state.next_version += 1;
                let (version, used) = (state.next_version, state.stamp());
                let segment = state.segments.get_mut(&place).ok_or(ViewRefusal::Full)?;
                let from = bytes.range(index * VIEW_GRANULE as usize, VIEW_GRANULE as usize).collect();
                let to = segment.pages.memory().slice(offset_of(granule), VIEW_GRANULE as usize);
                copy(&from, &MemList::from(to));
                let entry = view_entry(granule);
                segment.pages.publish(entry + 8, size.saturating_sub(region.offset).min(VIEW_GRANULE));
                segment.pages.publish(entry, version);
                let lease_end = now + self.settings.lease;
                segment.granules.insert(granule, Granule { used, filled: now, lease_end });
                state.order.insert(used, (place, granule));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Lends a range if all of it is there. Returns the segment and the length of the lease.
    pub(in crate::store) fn lend(
        &self,
        datafile: DatafileHandle,
        range: &ViewRange,
        now: Time,
    ) -> Option<(Arc<PublishedPages>, Duration)> {
        let place = (datafile.0, range.window);
        self.with(|state| {
            if !state.missing(place, range).is_empty() {
                return None;
            }
            let mut lease = self.settings.lease;
            for number in range.granules() {
                let used = state.stamp();
                let segment = state.segments.get_mut(&place)?;
                segment.used = used;
                let granule = segment.granules.get_mut(&number)?;
                let last = granule.filled + self.settings.lease * RENEWALS;
                granule.lease_end = (now + self.settings.lease).min(last);
                lease = lease.min(granule.lease_end.since(now));
                state.order.remove(&std::mem::replace(&mut granule.used, used));
                state.order.insert(used, (place, number));
            }
            state.segments.get(&place).map(|segment| (segment.pages.clone(), lease))
        })
    }

    /// Takes back what `regions` of a datafile touch. The caller has a range lock of them as a
    /// writer, and has changed nothing yet.
    pub(super) fn withdraw(&self, datafile: DatafileHandle, regions: &[Region]) {
        if self.segments.load(Ordering::Acquire) == 0 {
            return;
        }
        self.with(|state| {
            for region in regions.iter().filter(|region| region.len > 0) {
                let (first, last) = (region.offset, region.offset.saturating_add(region.len - 1));
                let windows = (datafile.0, first / VIEW_WINDOW)..=(datafile.0, last / VIEW_WINDOW);
                let places: Vec<Place> = state.segments.range(windows).map(|(place, _)| *place).collect();
                for place in places {
                    let begin = place.1 * VIEW_WINDOW;
                    let from = first.saturating_sub(begin) / VIEW_GRANULE;
                    let to = (last - begin).min(VIEW_WINDOW - 1) / VIEW_GRANULE;
                    state.withdraw(place, from as u32..to as u32 + 1);
                }
            }
        });
    }

    /// Takes everything of a datafile back: it is about to be removed. The caller has a range lock
    /// of all of it as a writer.
    pub(in crate::store) fn forget(&self, datafile: DatafileHandle) {
        if self.segments.load(Ordering::Acquire) == 0 {
            return;
        }
        self.with(|state| {
            let all = (datafile.0, 0)..=(datafile.0, u64::MAX);
            let places: Vec<Place> = state.segments.range(all).map(|(place, _)| *place).collect();
            for place in places {
                state.withdraw(place, 0..u32::MAX);
                state.segments.remove(&place);
            }
        });
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use bmi::Memory;

    use super::*;

    /// Returns the number of segments, the bytes of granules that are lent, and those of memory
    /// that the segments take, with their headers and what clients have touched.
    fn use_of(views: &Views) -> (usize, u64, u64) {
        let resident = |state: &State| state.segments.values().map(|segment| segment.pages.resident()).sum();
        views.with(|state| (state.segments.len(), state.bytes(), resident(state)))
    }

    const LEASE: Duration = Duration::from_millis(100);
    const FILE: DatafileHandle = DatafileHandle(7);

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn views(granules: u64) -> Views {
        Views::new(ViewSettings { bytes: granules * VIEW_GRANULE, lease: LEASE })
    }

    fn range(first: u64, granules: u64) -> ViewRange {
        ViewRange::of(first * VIEW_GRANULE, granules * VIEW_GRANULE).expect("within one window")
    }

    /// Shares a range of granules that contain `byte`. Returns the length of the lease.
    fn share(views: &Views, file: u64, range: ViewRange, byte: u8, now: Time) -> Result<Duration, ViewRefusal> {
        let file = DatafileHandle(file);
        for region in views.missing(file, &range)? {
            let bytes = MemList::from(Memory::from(vec![byte; VIEW_GRANULE as usize]));
            views.fill(file, &range, &[region], &bytes, u64::MAX, now)?;
        }
        Ok(views.lend(file, &range, now).expect("all of it was filled").1)
    }

    fn word(views: &Views, file: u64, granule: u32) -> u64 {
        let pages = views.with(|state| state.segments[&(file, 0)].pages.clone());
        let mut bytes = [0; 8];
        pages.memory().copy_to(view_entry(granule), &mut bytes);
        u64::from_le_bytes(bytes)
    }

    #[test]
    fn what_is_withdrawn_has_no_version_and_no_memory() {
        let views = views(64);
        share(&views, 7, range(0, 8), 1, at(0)).unwrap();
        let before: Vec<u64> = (0..8).map(|granule| word(&views, 7, granule)).collect();
        assert!(before.iter().all(|version| *version > 0));
        assert_eq!(use_of(&views), (1, 8 << 16, (8 << 16) + 4096));
        // A byte of each of two neighbours, and a region of no bytes.
        let (last, none) = (Region::new(3 * VIEW_GRANULE - 1, 2), Region::new(0, 0));
        views.withdraw(FILE, &[last, none]);
        views.withdraw(DatafileHandle(6), &[Region::new(0, u64::MAX)]);
        let gone: Vec<u32> = (0..8).filter(|granule| word(&views, 7, *granule) == 0).collect();
        assert_eq!(gone, [2, 3]);
        assert_eq!(use_of(&views).2, (6 << 16) + 4096);
        share(&views, 7, range(0, 8), 2, at(0)).unwrap();
        assert!((2..4).all(|granule| !before.contains(&word(&views, 7, granule))), "no version comes twice");
        assert_eq!((word(&views, 7, 1), word(&views, 7, 4)), (before[1], before[4]), "the others stay");
        // A truncation: from somewhere to the end of all offsets.
        views.withdraw(FILE, &[Region::new(5 * VIEW_GRANULE + 5, u64::MAX - 5)]);
        assert_eq!((word(&views, 7, 4) > 0, word(&views, 7, 5), word(&views, 7, 7)), (true, 0, 0));
        let pages = views.with(|state| state.segments[&(7, 0)].pages.clone());
        views.forget(FILE);
        assert_eq!(use_of(&views), (0, 0, 0));
        let mut entry = [1; 8];
        pages.memory().copy_to(view_entry(0), &mut entry);
        assert_eq!(entry, [0; 8], "who still has it mapped is told");
    }

    #[test]
    fn memory_is_bounded_and_leases_hold_until_it_is_wanted() {
        let views = views(4);
        share(&views, 1, range(0, 3), 1, at(0)).unwrap();
        share(&views, 2, range(0, 1), 2, at(50)).unwrap();
        assert_eq!(share(&views, 3, range(0, 1), 3, at(99)), Err(ViewRefusal::Full), "all of it is leased");
        share(&views, 1, range(1, 1), 1, at(99)).unwrap();
        share(&views, 3, range(0, 1), 3, at(100)).unwrap();
        assert_eq!(word(&views, 1, 0), 0, "the one that was used least recently");
        assert!([1, 2].iter().all(|granule| word(&views, 1, *granule) > 0) && word(&views, 2, 0) > 0);
        share(&views, 3, range(1, 1), 3, at(100)).unwrap();
        assert_eq!((word(&views, 1, 1) > 0, word(&views, 1, 2)), (true, 0), "its lease was renewed");
        assert_eq!(use_of(&views).1, 4 * VIEW_GRANULE);
        // Nothing of the range itself is given up for it. What can never fit is refused at once.
        share(&views, 4, range(0, 4), 4, at(1000)).unwrap();
        assert_eq!(share(&views, 4, range(0, 5), 4, at(5000)), Err(ViewRefusal::Full));
        assert_eq!(share(&views, 5, ViewRange::of(0, VIEW_WINDOW).unwrap(), 5, at(5000)), Err(ViewRefusal::Full));
        assert_eq!(use_of(&views).1, 4 * VIEW_GRANULE);
        let off = self::views(0);
        assert_eq!(share(&off, 1, range(0, 1), 1, at(0)), Err(ViewRefusal::Off));
    }

    /// A client that asks for its granules again and again does not keep them for ever.
    #[test]
    fn a_lease_is_not_renewed_for_ever() {
        let views = views(1);
        let mut refused = 0;
        for now in (0..2000).step_by(10) {
            if share(&views, 1, range(0, 1), 1, at(now)).is_ok() && word(&views, 1, 0) == 1 {
                let lease = views.lend(DatafileHandle(1), &range(0, 1), at(now)).unwrap().1;
                let left = Duration::from_millis(u64::from(8 * 100_u32).saturating_sub(now));
                assert_eq!(lease, LEASE.min(left), "{now}");
            }
            if share(&views, 2, range(0, 1), 2, at(now)).is_ok() {
                assert_eq!(now, 800);
                break;
            }
            refused += 1;
        }
        assert_eq!((refused, word(&views, 1, 0)), (80, 0));
    }

    #[test]
    fn segments_are_bounded() {
        let views = views(1024);
        for file in 0..1000 {
            let shared = share(&views, file, range(0, 1), 1, at(0));
            assert_eq!(shared.is_ok(), file < MOST_SEGMENTS as u64, "{file}");
        }
        assert_eq!(use_of(&views).0, MOST_SEGMENTS);
        for file in 1000..2000 {
            share(&views, file, range(0, 1), 1, at(file * 100)).unwrap();
        }
        let (segments, bytes, resident) = use_of(&views);
        assert_eq!((segments, bytes), (MOST_SEGMENTS, MOST_SEGMENTS as u64 * VIEW_GRANULE));
        assert_eq!(resident, MOST_SEGMENTS as u64 * (VIEW_GRANULE + 4096));
    }

    #[test]
    fn a_granule_knows_how_much_of_it_is_before_the_end() {
        let views = views(8);
        let whole = range(0, 3);
        let regions = views.missing(FILE, &whole).unwrap();
        let bytes = MemList::from(Memory::zeroed(3 * VIEW_GRANULE as usize).unwrap());
        views.fill(FILE, &whole, &regions, &bytes, VIEW_GRANULE + 5, at(0)).unwrap();
        let pages = views.lend(FILE, &whole, at(0)).unwrap().0;
        let length = |granule| {
            let mut bytes = [0; 8];
            pages.memory().copy_to(view_entry(granule) + 8, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        assert_eq!([length(0), length(1), length(2)], [VIEW_GRANULE, 5, 0]);
    }
}
