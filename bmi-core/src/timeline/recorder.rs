//! The recorder: a ring of entries of a fixed size, and the handle through which parts of an
//! endpoint record.
//!
//! **Why a lock.** The operations, the adapter side and the pin-down cache record, and each has a
//! handle of its own, so that none is handed through the others. An endpoint is used by one thread
//! at a time, so the lock is always free. It costs some nanoseconds while something is recorded,
//! and nothing while not.
//!
//! **Invariant.** Nothing is allocated after [`Recorder::new`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Entry, TimelineOptions, What};
use crate::error::{Error, ErrorKind};
use crate::time::{Clock, Time};

/// A handle to the ring of an endpoint. It has none while nothing is recorded.
#[derive(Clone, Default)]
pub(crate) struct Recorder(Option<Arc<Mutex<Ring>>>);

struct Ring {
    entries: Vec<Entry>,
    /// The place of the next entry, once all places are taken.
    next: usize,
    room: usize,
    lost: u64,
    clock: Box<dyn Clock + Send>,
    /// The last stamp.
    last: Time,
    /// When the current attempt began.
    begun: Option<Time>,
    /// Since when the driver sleeps.
    asleep: Option<Time>,
}

impl Ring {
    fn push(&mut self, entry: Entry) {
        if self.entries.len() < self.room {
            self.entries.push(entry);
            return;
        }
        self.entries[self.next] = entry;
        self.next = (self.next + 1) % self.room;
        self.lost += 1;
    }

    /// Returns the time. It never goes back, whatever the clock does.
    fn now(&mut self) -> Time {
        self.last = self.last.max(self.clock.now());
        self.last
    }

    /// Records a span from `since` to now.
    fn span(&mut self, since: Time, entry: Entry) {
        let duration_ns = self.now().as_nanos().saturating_sub(since.as_nanos());
        self.push(Entry { start: since, duration_ns, ..entry });
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// Allocates a ring.
    ///
    /// # Errors
    /// `Invalid` without room for an entry, `Exhausted` if there is no memory.
    pub(crate) fn new(options: TimelineOptions, clock: Box<dyn Clock + Send>) -> Result<Recorder, Error> {
        let room = options.events;
        if room == 0 {
            return Err(Error::new(ErrorKind::Invalid, "a timeline without room for an entry"));
        }
        let mut entries = Vec::new();
        let text = || format!("no memory for {room} entries of a timeline");
        entries.try_reserve_exact(room).map_err(|_| Error::new(ErrorKind::Exhausted, text()))?;
        let ring = Ring { entries, next: 0, room, lost: 0, clock, last: Time::ZERO, begun: None, asleep: None };
        Ok(Recorder(Some(Arc::new(Mutex::new(ring)))))
    }

    /// Returns true while something is recorded.
    #[inline(always)]
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the entries, oldest first, and the number of lost ones; `None` if nothing is
    /// recorded.
    pub(crate) fn entries(&self) -> Option<(Vec<Entry>, u64)> {
        let ring = lock(self.0.as_ref()?);
        let (newer, older) = ring.entries.split_at(ring.next);
        Some(([older, newer].concat(), ring.lost))
    }

    /// Returns the time, for a span that begins; zero if nothing is recorded.
    #[inline(always)]
    pub(crate) fn now(&self) -> Time {
        #[cold]
        #[inline(never)]
        fn now(ring: &Mutex<Ring>) -> Time {
            lock(ring).now()
        }
        self.0.as_ref().map_or(Time::ZERO, |ring| now(ring))
    }

    /// Records something without a duration.
    #[inline(always)]
    pub(crate) fn note(&self, entry: impl FnOnce() -> Entry) {
        #[cold]
        #[inline(never)]
        fn note(ring: &Mutex<Ring>, entry: impl FnOnce() -> Entry) {
            let mut ring = lock(ring);
            let start = ring.now();
            ring.push(Entry { start, ..entry() });
        }
        if let Some(ring) = &self.0 {
            note(ring, entry);
        }
    }

    /// Records a span from `since` to now. If the recording began in between, it has no duration.
    #[inline(always)]
    pub(crate) fn span(&self, since: Time, entry: impl FnOnce() -> Entry) {
        #[cold]
        #[inline(never)]
        fn span(ring: &Mutex<Ring>, since: Time, entry: impl FnOnce() -> Entry) {
            let mut ring = lock(ring);
            let since = if since == Time::ZERO { ring.now() } else { since };
            ring.span(since, entry());
        }
        if let Some(ring) = &self.0 {
            span(ring, since, entry);
        }
    }

    /// An attempt begins.
    #[inline(always)]
    pub(crate) fn begin(&self) {
        #[cold]
        #[inline(never)]
        fn begin(ring: &Mutex<Ring>) {
            let mut ring = lock(ring);
            let now = ring.now();
            ring.begun = Some(now);
        }
        if let Some(ring) = &self.0 {
            begin(ring);
        }
    }

    /// Records the current attempt, which has succeeded.
    #[inline(always)]
    pub(crate) fn succeed(&self, entry: impl FnOnce() -> Entry) {
        #[cold]
        #[inline(never)]
        fn succeed(ring: &Mutex<Ring>, entry: impl FnOnce() -> Entry) {
            let mut ring = lock(ring);
            let since = ring.begun.take().unwrap_or_else(|| ring.now());
            ring.span(since, entry());
        }
        if let Some(ring) = &self.0 {
            succeed(ring, entry);
        }
    }

    /// The driver sleeps from now on, unless it does so already.
    #[inline(always)]
    pub(crate) fn sleep(&self) {
        #[cold]
        #[inline(never)]
        fn sleep(ring: &Mutex<Ring>) {
            let mut ring = lock(ring);
            if ring.asleep.is_none() {
                let now = ring.now();
                ring.asleep = Some(now);
            }
        }
        if let Some(ring) = &self.0 {
            sleep(ring);
        }
    }

    /// The driver is awake. Records its sleep, if it slept.
    #[inline(always)]
    pub(crate) fn wake(&self) {
        #[cold]
        #[inline(never)]
        fn wake(ring: &Mutex<Ring>) {
            let mut ring = lock(ring);
            if let Some(since) = ring.asleep.take() {
                ring.span(since, Entry::of(What::Sleep));
            }
        }
        if let Some(ring) = &self.0 {
            wake(ring);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::*;

    /// A clock that is one nanosecond later each time.
    struct Ticks(Arc<AtomicU64>);

    impl Clock for Ticks {
        fn now(&self) -> Time {
            Time::from_nanos(self.0.fetch_add(1, Ordering::Relaxed) + 1)
        }
    }

    fn recorder(events: usize) -> (Recorder, Arc<AtomicU64>) {
        let ticks = Arc::new(AtomicU64::new(0));
        let clock = Box::new(Ticks(Arc::clone(&ticks)));
        (Recorder::new(TimelineOptions { events }, clock).unwrap(), ticks)
    }

    proptest! {
        #[test]
        fn the_newest_entries_are_kept_and_the_others_counted(room in 1usize..40, count in 0u64..200) {
            let (recorder, _) = recorder(room);
            let place = |recorder: &Recorder| lock(recorder.0.as_ref().unwrap()).entries.as_ptr();
            let before = place(&recorder);
            for bytes in 0..count {
                recorder.note(|| Entry { bytes, ..Entry::of(What::CallEnd) });
            }
            let (entries, lost) = recorder.entries().unwrap();
            prop_assert_eq!(lost, count.saturating_sub(room as u64));
            let bytes: Vec<u64> = entries.iter().map(|entry| entry.bytes).collect();
            prop_assert_eq!(bytes, (lost..count).collect::<Vec<_>>());
            prop_assert!(entries.is_sorted_by_key(|entry| entry.start));
            prop_assert_eq!(place(&recorder), before, "recording allocates nothing");
        }
    }

    #[test]
    fn an_entry_is_as_large_as_the_options_say() {
        assert_eq!(size_of::<Entry>(), 56);
    }

    #[test]
    fn nothing_is_recorded_and_no_entry_is_made_while_it_is_off() {
        let off = Recorder::default();
        off.note(|| unreachable!("no entry is made"));
        off.succeed(|| unreachable!("no entry is made"));
        assert!(!off.is_on() && off.entries().is_none() && off.now() == Time::ZERO);
        let refused =
            |events| Recorder::new(TimelineOptions { events }, Box::new(Ticks(Arc::default()))).err().unwrap();
        assert_eq!(refused(0).kind(), ErrorKind::Invalid);
        assert_eq!(refused(usize::MAX).kind(), ErrorKind::Exhausted);
    }

    #[test]
    fn spans_begin_when_they_began() {
        let (recorder, ticks) = recorder(8);
        recorder.begin();
        ticks.store(10, Ordering::Relaxed);
        recorder.succeed(|| Entry::of(What::CallEnd));
        // It has no beginning of its own.
        recorder.succeed(|| Entry::of(What::CallEnd));
        recorder.wake();
        recorder.sleep();
        recorder.sleep();
        ticks.store(50, Ordering::Relaxed);
        recorder.wake();
        recorder.wake();
        // A clock that goes back is not followed.
        ticks.store(3, Ordering::Relaxed);
        recorder.note(|| Entry::of(What::CallEnd));
        let spans: Vec<_> =
            recorder.entries().unwrap().0.iter().map(|entry| (entry.start.as_nanos(), entry.duration_ns)).collect();
        assert_eq!(spans, [(1, 10), (12, 1), (14, 37), (51, 0)]);
    }
}
