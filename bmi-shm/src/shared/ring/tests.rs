//! Tests of the ring: models for loom, plain memory for Miri, and a writer that scribbles into it.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// A ring made of words of any kind of atomic.
struct Words<A>(Arc<Vec<A>>);

impl<A> Clone for Words<A> {
    fn clone(&self) -> Words<A> {
        Words(self.0.clone())
    }
}

impl<A: Word> Words<A> {
    fn new(len: usize, make: impl Fn() -> A) -> Words<A> {
        Words(Arc::new((0..len / WORD).map(|_| make()).collect()))
    }

    fn put(&self, at: usize, value: u64) {
        self.0[at / WORD].store_relaxed(value);
    }

    fn get(&self, at: usize) -> u64 {
        self.0[at / WORD].load_relaxed()
    }
}

macro_rules! words {
    ($atomic:ty, $fence:path) => {
        impl Space for Words<$atomic> {
            type Word = $atomic;

            fn len(&self) -> usize {
                self.0.len() * WORD
            }

            fn word(&self, at: usize) -> &$atomic {
                assert!(at.is_multiple_of(LINE));
                &self.0[at / WORD]
            }

            fn fence(order: Ordering) {
                $fence(order);
            }
        }
    };
}

words!(std::sync::atomic::AtomicU64, std::sync::atomic::fence);

type Plain = Words<std::sync::atomic::AtomicU64>;

fn plain(len: usize) -> Plain {
    Words::new(len, || std::sync::atomic::AtomicU64::new(0))
}

/// Writes a record whose body is `words` times `value`. Returns false if there is no room.
fn write<A: Word>(writer: &mut Writer<Words<A>>, value: u64, words: usize) -> bool
where
    Words<A>: Space<Word = A>,
{
    let Some(reservation) = writer.reserve(words * WORD) else { return false };
    for word in 0..words {
        writer.space().put(reservation.at + word * WORD, value);
    }
    writer.publish(reservation, 1);
    true
}

/// Reads the next record and checks that its body is complete. Returns its value and length.
fn read<A: Word>(reader: &mut Reader<Words<A>>) -> Option<(u64, usize)>
where
    Words<A>: Space<Word = A>,
{
    let record = reader.next().expect("an honest writer")?;
    assert_eq!(record.kind, 1);
    let value = reader.space().get(record.at);
    for word in 1..record.len / WORD {
        assert_eq!(reader.space().get(record.at + word * WORD), value, "a torn record");
    }
    reader.consume(record);
    Some((value, record.len / WORD))
}

#[test]
fn records_of_all_lengths_go_around_many_times() {
    let rounds = if cfg!(miri) { 300 } else { 10_000 };
    let (space, consumed) = (plain(1024), std::sync::atomic::AtomicU64::new(0));
    let (mut writer, mut reader) = (Writer::new(space.clone()), Reader::new(space));
    let (mut sent, mut got) = (0u64, 0u64);
    let longest = Writer::<Plain>::max_body(1024) / WORD;
    while got < rounds {
        while write(&mut writer, sent, 1 + (sent as usize * 7) % longest) {
            sent += 1;
        }
        assert!(sent > got, "an empty ring takes the longest record");
        // Leave some records, so that later ones begin at many different places.
        for _ in 0..(sent - got).max(2) - 1 {
            assert_eq!(read(&mut reader), Some((got, 1 + (got as usize * 7) % longest)));
            got += 1;
        }
        reader.tell(&consumed);
        writer.refresh(&consumed).unwrap();
    }
}

#[test]
fn a_position_that_cannot_be_is_refused() {
    let consumed = std::sync::atomic::AtomicU64::new(0);
    let mut writer = Writer::new(plain(1024));
    assert!(write(&mut writer, 1, 1) && write(&mut writer, 1, 1));
    for (said, good) in [(64, true), (63, false), (128, true), (192, false), (u64::MAX, false)] {
        consumed.store(said, Ordering::Relaxed);
        assert_eq!(writer.refresh(&consumed).is_ok(), good, "{said}");
    }
}

/// Two threads with plain memory. Miri explores some of their interleavings and checks that there
/// is no data race.
#[test]
fn two_threads_with_plain_memory() {
    let count = if cfg!(miri) { 40 } else { 100_000 };
    let (space, consumed) = (plain(512), Arc::new(std::sync::atomic::AtomicU64::new(0)));
    let (mut writer, mut reader) = (Writer::new(space.clone()), Reader::new(space));
    let told = consumed.clone();
    let thread = std::thread::Builder::new().spawn(move || {
        for number in 0..count {
            while !write(&mut writer, number, 1 + number as usize % 15) {
                writer.refresh(&told).unwrap();
                std::thread::yield_now();
            }
        }
    });
    for number in 0..count {
        let got = loop {
            match read(&mut reader) {
                Some(got) => break got,
                None => {
                    reader.tell(&consumed);
                    std::thread::yield_now();
                }
            }
        };
        assert_eq!(got, (number, 1 + number as usize % 15));
    }
    thread.unwrap().join().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 8 } else { 512 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the ring holds, a reader stays within it, and each of its steps ends.
    #[test]
    fn a_writer_that_scribbles(words in proptest::collection::vec(scribble(), 128), more in proptest::collection::vec((0usize..128, scribble()), 0..64)) {
        let space = plain(1024);
        for (at, word) in words.iter().enumerate() {
            space.put(at * WORD, *word);
        }
        let mut reader = Reader::new(space.clone());
        let mut more = more.into_iter();
        for _ in 0..200 {
            if let Some((at, word)) = more.next() {
                space.put(at * WORD, word);
            }
            match reader.next() {
                Ok(Some(record)) => {
                    prop_assert!(record.at + record.len <= 1024 && record.len <= Writer::<Plain>::max_body(1024));
                    reader.consume(record);
                }
                Ok(None) => {}
                Err(Corrupt) => break,
            }
        }
    }
}

/// Words that are more often nearly valid than random.
fn scribble() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0u64),
        Just(u64::from(PAD) << 32),
        (0u64..10, 0u64..300).prop_map(|(kind, len)| kind << 32 | len),
        any::<u64>(),
    ]
}

#[cfg(not(miri))]
mod models {
    use loom::sync::atomic::AtomicU64;
    use loom::thread;

    use super::*;

    impl Word for AtomicU64 {
        fn load_relaxed(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }

        fn store_relaxed(&self, value: u64) {
            self.store(value, Ordering::Relaxed);
        }

        fn store_release(&self, value: u64) {
            self.store(value, Ordering::Release);
        }
    }

    words!(AtomicU64, loom::sync::atomic::fence);

    type Modelled = Words<AtomicU64>;

    /// Creates a ring of four lines, with both ends `lines` from its beginning, as after some time
    /// of use. Also returns the reader's word.
    fn used(lines: u64) -> (Writer<Modelled>, Reader<Modelled>, Arc<AtomicU64>) {
        let space = Words::new(4 * LINE, || AtomicU64::new(0));
        let consumed = Arc::new(AtomicU64::new(0));
        let (mut writer, mut reader) = (Writer::new(space.clone()), Reader::new(space));
        for _ in 0..lines {
            assert!(write(&mut writer, 99, 1));
            assert!(read(&mut reader).is_some());
            reader.tell(&consumed);
            writer.refresh(&consumed).unwrap();
        }
        (writer, reader, consumed)
    }

    fn wait_for(reader: &mut Reader<Modelled>) -> (u64, usize) {
        loop {
            match read(reader) {
                Some(got) => return got,
                None => thread::yield_now(),
            }
        }
    }

    /// Published records are seen complete and in order, on lines that held other records before,
    /// and across the end of the ring.
    #[test]
    fn records_are_seen_whole_and_in_order() {
        loom::model(|| {
            let (mut writer, mut reader, _) = used(3);
            let thread = thread::spawn(move || {
                assert!(write(&mut writer, 1, 1));
                assert!(write(&mut writer, 2, 2));
            });
            assert_eq!(wait_for(&mut reader), (1, 1));
            assert_eq!(wait_for(&mut reader), (2, 2));
            assert_eq!(read(&mut reader), None, "a word ahead of the newest record is 0");
            thread.join().unwrap();
        });
    }

    /// Room is not written again before the reader has copied the record that was there.
    #[test]
    fn places_are_used_again_after_they_were_read() {
        loom::model(|| {
            let (mut writer, mut reader, consumed) = used(1);
            assert!(write(&mut writer, 1, 1) && write(&mut writer, 2, 1) && write(&mut writer, 3, 1));
            assert!(!write(&mut writer, 4, 1), "the ring is full");
            let told = consumed.clone();
            let thread = thread::spawn(move || {
                while !write(&mut writer, 4, 1) {
                    writer.refresh(&told).unwrap();
                    thread::yield_now();
                }
            });
            for value in 1..=3 {
                assert_eq!(read(&mut reader), Some((value, 1)));
                reader.tell(&consumed);
            }
            assert_eq!(wait_for(&mut reader), (4, 1));
            thread.join().unwrap();
        });
    }

    /// A side that goes to sleep has seen the record, or is woken.
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let (mut writer, mut reader, _) = used(0);
            let sleep = Arc::new(AtomicU64::new(0));
            let announced_sleep = sleep.clone();
            let thread = thread::spawn(move || {
                assert!(write(&mut writer, 1, 1));
                announced::<Modelled>(&announced_sleep) != 0
            });
            let slept = if read(&mut reader).is_some() {
                false
            } else {
                announce_sleep::<Modelled>(&sleep, 1);
                !reader.has_next()
            };
            let woken = thread.join().unwrap();
            assert!(woken || !slept, "asleep beside a record");
        });
    }

    /// A writer that waits for room has seen the room, or is woken.
    #[test]
    fn no_room_is_lost() {
        loom::model(|| {
            let (mut writer, mut reader, consumed) = used(0);
            while write(&mut writer, 1, 1) {}
            let sleep = Arc::new(AtomicU64::new(0));
            let (announced_sleep, told) = (sleep.clone(), consumed.clone());
            let thread = thread::spawn(move || {
                assert!(read(&mut reader).is_some());
                reader.tell(&told);
                announced::<Modelled>(&announced_sleep) != 0
            });
            announce_sleep::<Modelled>(&sleep, 1);
            let slept = consumed.load_relaxed() == writer.consumed();
            assert!(thread.join().unwrap() || !slept, "asleep beside room");
        });
    }
}
