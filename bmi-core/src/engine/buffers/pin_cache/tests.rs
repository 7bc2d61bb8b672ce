use proptest::prelude::*;

use std::collections::BTreeMap;

use super::*;
use crate::mem::{LocalKey, ReleaseQueue};

const LINGER: Duration = Duration::from_nanos(100);

/// An adapter that counts registrations and refusals.
#[derive(Default)]
struct Adapter {
    owner: Arc<ReleaseQueue>,
    live: BTreeMap<u64, MemoryId>,
    room: usize,
    failing: usize,
    made: u64,
    refused: u64,
}

impl Adapter {
    fn with_room(room: usize) -> Adapter {
        Adapter { room, ..Adapter::default() }
    }

    fn collect(&mut self) {
        let mut released = Vec::new();
        self.owner.drain(&mut released);
        for key in released {
            assert!(self.live.remove(&key.0).is_some(), "deregistered twice");
        }
    }

    fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.collect();
        if self.failing > 0 || self.live.len() >= self.room {
            self.failing = self.failing.saturating_sub(1);
            self.refused += 1;
            return Err(Error::new(ErrorKind::Exhausted, "no more"));
        }
        self.made += 1;
        let key = LocalKey(self.made);
        self.live.insert(key.0, memory.id());
        Ok(MemoryRegion::new(memory.clone(), key, self.owner.clone()))
    }
}

fn cache(entries: usize, bytes: u64) -> PinCache {
    PinCache::new(Limits { entries, bytes, linger: LINGER })
}

fn memory(len: usize) -> Memory {
    Memory::from(vec![0; len])
}

#[test]
fn a_registration_is_found_again_and_the_oldest_goes_first() {
    let (mut cache, mut adapter) = (cache(3, 1000), Adapter::with_room(100));
    let memories: Vec<Memory> = (0..4).map(|_| memory(10)).collect();
    for memory in &memories[..3] {
        cache.register_by(memory, |m| adapter.register(m)).unwrap();
    }
    assert!(cache.check_if_registered(&memories[0]).is_some());
    cache.register_by(&memories[3], |m| adapter.register(m)).unwrap();
    let there: Vec<bool> = memories.iter().map(|memory| cache.is_registered(memory)).collect();
    assert_eq!(there, [true, false, true, true]);
    assert_eq!(cache.counts(), PinCounts { hits: 1, misses: 4, evictions: 1, failures: 0, batches: 1 });
}

#[test]
fn a_cached_registration_is_no_handle_and_keeps_nothing_alive() {
    let (mut cache, mut adapter) = (cache(3, 1000), Adapter::with_room(100));
    let kept = Arc::new(());
    let ptr = std::ptr::NonNull::from(Box::leak(Box::new([0u8; 8]))).cast();
    // SAFETY: the bytes are never freed, and no other code knows them.
    let mut memory = unsafe { Memory::from_raw_parts(ptr, 8, Box::new(Arc::clone(&kept))) };
    let region = cache.register_by(&memory, |m| adapter.register(m)).unwrap();
    assert!(memory.get_mut().is_none(), "a region in use is a handle");
    drop(region);
    assert!(memory.get_mut().is_some(), "a cached one is not");
    assert!(cache.is_registered(&memory));
    drop(memory);
    assert_eq!(Arc::strong_count(&kept), 1, "the bytes went with their last handle");
    assert!(!cache.poll(Time::from_nanos(0)), "the registration waits for others");
    assert_eq!((cache.held().0, cache.next_deadline()), (1, Some(Time::from_nanos(100))));
    assert!(cache.poll(Time::from_nanos(100)));
    adapter.collect();
    assert!(adapter.live.is_empty() && cache.held() == (0, 0));
    let vec = vec![1u8; 100];
    let (place, memory) = (vec.as_ptr(), Memory::from(vec));
    cache.register_by(&memory, |m| adapter.register(m)).unwrap();
    let vec = memory.into_vec();
    assert_eq!(vec.as_ptr(), place, "a vector comes back without a copy, registered or not");
}

#[test]
fn a_refusal_makes_room_and_what_is_in_use_stays() {
    let (mut cache, mut adapter) = (cache(100, 1000), Adapter::with_room(3));
    let memories: Vec<Memory> = (0..5).map(|_| memory(10)).collect();
    let held = cache.register_by(&memories[0], |m| adapter.register(m)).unwrap();
    for memory in &memories[1..] {
        cache.register_by(memory, |m| adapter.register(m)).unwrap();
    }
    assert!(cache.is_registered(&memories[0]) && cache.is_registered(&memories[4]));
    let counts = cache.counts();
    assert_eq!((counts.failures, counts.evictions, counts.batches), (2, 2, 2));
    adapter.failing = 2;
    assert!(cache.register_by(&memories[1], |m| adapter.register(m)).is_ok(), "the third try");
    adapter.failing = 9;
    assert!(cache.register_by(&memories[2], |m| adapter.register(m)).is_err());
    assert_eq!((cache.held().0, cache.in_use()), (1, 1));
    drop(held);
}

#[derive(Clone, Debug)]
enum Step {
    New(usize),
    Use(usize),
    End(usize),
    Drop(usize),
    Check(usize),
    Exclusive(usize),
    Fail(usize),
    Poll(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1usize..120).prop_map(Step::New),
        6 => (0usize..100).prop_map(Step::Use),
        4 => (0usize..100).prop_map(Step::End),
        2 => (0usize..100).prop_map(Step::Drop),
        2 => (0usize..100).prop_map(Step::Check),
        1 => (0usize..100).prop_map(Step::Exclusive),
        1 => (1usize..4).prop_map(Step::Fail),
        3 => (0u64..80).prop_map(Step::Poll),
    ]
}

proptest! {
    #[test]
    fn any_sequence_keeps_the_bounds_and_is_never_stale(
        entries in 0usize..6,
        bytes in 0u64..300,
        room in 1usize..10,
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let (mut cache, mut adapter) = (cache(entries, bytes), Adapter::with_room(room));
        let (mut memories, mut regions): (Vec<Memory>, Vec<MemoryRegion>) = (Vec::new(), Vec::new());
        let (mut now, mut uses, mut failed, mut checks) = (0, 0u64, 0u64, 0u64);
        for step in steps {
            match step {
                Step::New(len) => memories.push(memory(len)),
                Step::Use(at) if !memories.is_empty() => {
                    let memory = &memories[at % memories.len()];
                    uses += 1;
                    match cache.register_by(memory, |m| adapter.register(m)) {
                        Ok(region) => {
                            prop_assert_eq!(region.memory().id(), memory.id());
                            prop_assert_eq!(adapter.live.get(&region.local_key().0), Some(&memory.id()), "stale");
                            regions.push(region);
                        }
                        Err(_) => {
                            failed += 1;
                            prop_assert_eq!(cache.held().0, cache.in_use(), "it gave up while something idle was left");
                        }
                    }
                }
                Step::End(at) if !regions.is_empty() => drop(regions.swap_remove(at % regions.len())),
                Step::Drop(at) if !memories.is_empty() => drop(memories.swap_remove(at % memories.len())),
                Step::Check(at) if !memories.is_empty() => {
                    let memory = &memories[at % memories.len()];
                    let made = adapter.made;
                    if let Some(region) = cache.check_if_registered(memory) {
                        checks += 1;
                        prop_assert_eq!(adapter.live.get(&region.local_key().0), Some(&memory.id()), "stale");
                    }
                    prop_assert_eq!(adapter.made, made, "a check registers nothing");
                }
                Step::Exclusive(at) if !memories.is_empty() => {
                    let at = at % memories.len();
                    let used = regions.iter().any(|region| region.memory().id() == memories[at].id());
                    prop_assert_eq!(memories[at].get_mut().is_some(), !used);
                }
                Step::Fail(count) => adapter.failing = count,
                Step::Poll(ns) => {
                    now += ns;
                    cache.poll(Time::from_nanos(now));
                    let (held, held_bytes) = cache.held();
                    let used: BTreeMap<MemoryId, u64> =
                        regions.iter().map(|region| (region.memory().id(), region.memory().len() as u64)).collect();
                    prop_assert_eq!(cache.in_use(), used.len());
                    prop_assert!(held - used.len() <= entries, "{held} held, {} in use", used.len());
                    prop_assert!(held_bytes - used.values().sum::<u64>() <= bytes);
                }
                _ => {}
            }
            adapter.collect();
            prop_assert_eq!(adapter.live.len(), cache.held().0, "what is registered is what the cache holds");
            let counts = cache.counts();
            prop_assert_eq!(counts.hits + counts.misses, uses + checks);
            prop_assert_eq!(counts.misses, adapter.made + failed);
            prop_assert_eq!(counts.failures, adapter.refused);
        }
        drop((regions, memories));
        cache.poll(Time::from_nanos(now));
        cache.poll(Time::from_nanos(now) + LINGER);
        adapter.collect();
        prop_assert!(adapter.live.is_empty(), "the end is as the beginning");
        prop_assert_eq!(cache.held(), (0, 0));
    }
}
