//! The packets of one direction of the cable, without clock and without system calls: packets and
//! times in, packets out.
//!
//! **Invariants**, each with a test
//! 1. Packets leave in the order in which they came, each at its time or later, never before.
//! 2. At most `most` bytes wait. A packet that does not fit is dropped and counted.
//! 3. Which packets are lost depends on the seed and on their number, and on nothing else.

use std::collections::VecDeque;
use std::time::Duration;

use super::link::Loss;
use bmi_report::stats::Random;

/// One direction.
#[derive(Debug)]
pub(super) struct Queue {
    waiting: VecDeque<(u64, Vec<u8>)>,
    bytes: usize,
    last_due_ns: u64,
    delay_ns: u64,
    loss: Loss,
    random: Random,
    most: usize,
    counts: Counts,
}

/// What became of the packets that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) came: u64,
    pub(super) lost: u64,
    /// There was no room for them.
    pub(super) dropped: u64,
}

impl Queue {
    pub(super) fn new(delay: Duration, loss: Loss, seed: u64, most: usize) -> Queue {
        Queue {
            waiting: VecDeque::new(),
            bytes: 0,
            last_due_ns: 0,
            delay_ns: delay.as_nanos() as u64,
            loss,
            random: Random::new(seed),
            most,
            counts: Counts::default(),
        }
    }

    /// Takes a packet that came at `now_ns`. It does not overtake the one before.
    pub(super) fn push(&mut self, now_ns: u64, packet: &[u8]) {
        self.counts.came += 1;
        // The draw comes first, so that it does not depend on the room.
        if self.random.below(1_000_000) < self.loss.0 as usize {
            self.counts.lost += 1;
        } else if self.bytes + packet.len() > self.most {
            self.counts.dropped += 1;
        } else {
            self.bytes += packet.len();
            let due = (now_ns + self.delay_ns).max(self.last_due_ns);
            self.last_due_ns = due;
            self.waiting.push_back((due, packet.to_vec()));
        }
    }

    /// Returns the next packet whose time has come.
    pub(super) fn pop(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        self.due_ns().filter(|due| *due <= now_ns)?;
        let (_, packet) = self.waiting.pop_front()?;
        self.bytes -= packet.len();
        Some(packet)
    }

    /// Returns when the next packet leaves.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.waiting.front().map(|(due, _)| *due)
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;

    /// Sends packets at random times, of random lengths, with their numbers in them, and lets the
    /// queue give them out at other random times. Returns the numbers with the times at which they
    /// came and left.
    fn run(seed: u64, delay_ns: u64, loss: u32, most: usize) -> (Vec<(u32, u64, u64)>, Counts) {
        let mut random = Random::new(seed);
        let mut queue = Queue::new(Duration::from_nanos(delay_ns), Loss(loss), seed, most);
        let (mut now, mut came, mut left) = (0, Vec::new(), Vec::new());
        let mut waiting = 0;
        for _ in 0..4000 {
            now += random.below(2000) as u64;
            if random.below(2) == 0 {
                let mut packet = vec![0; 4 + random.below(1497)];
                packet[..4].copy_from_slice(&(came.len() as u32).to_le_bytes());
                queue.push(now, &packet);
                came.push(now);
            } else {
                while let Some(packet) = queue.pop(now) {
                    let number = u32::from_le_bytes(packet[..4].try_into().unwrap());
                    left.push((number, came[number as usize], now));
                }
            }
            waiting = queue.waiting.iter().map(|(_, packet)| packet.len()).sum();
            assert!(waiting <= most && waiting == queue.bytes);
            assert!(queue.due_ns().is_none_or(|due| due >= delay_ns));
        }
        let counts = queue.counts();
        assert_eq!(counts.came, came.len() as u64);
        assert_eq!(counts.came, counts.lost + counts.dropped + left.len() as u64 + queue.waiting.len() as u64);
        assert!(waiting > 0 || queue.waiting.is_empty());
        (left, counts)
    }

    #[test]
    fn packets_leave_in_order_and_never_early() {
        for seed in 0..200 {
            let delay = Random::new(seed).below(100_000) as u64;
            let (left, _) = run(seed, delay, 50_000, ROOM);
            assert!(left.len() > 100);
            assert!(left.windows(2).all(|two| two[0].0 < two[1].0), "seed {seed}");
            assert!(left.iter().all(|(_, came, left)| left - came >= delay), "seed {seed}");
        }
    }

    #[test]
    fn a_packet_leaves_at_its_time_and_not_a_nanosecond_before() {
        let mut queue = Queue::new(Duration::from_millis(1), Loss(0), 1, ROOM);
        queue.push(5, b"one");
        queue.push(7, b"two");
        assert_eq!(queue.due_ns(), Some(1_000_005));
        assert_eq!(queue.pop(1_000_004), None);
        assert_eq!(queue.pop(1_000_006).as_deref(), Some(&b"one"[..]));
        assert_eq!(queue.pop(1_000_006), None);
        assert_eq!(queue.pop(2_000_000).as_deref(), Some(&b"two"[..]));
        assert_eq!(queue.due_ns(), None);
    }

    #[test]
    fn a_packet_that_came_before_its_predecessor_does_not_overtake_it() {
        let mut queue = Queue::new(Duration::from_nanos(100), Loss(0), 1, ROOM);
        queue.push(50, b"one");
        queue.push(40, b"two");
        queue.push(60, b"three");
        assert_eq!(queue.pop(149), None);
        assert_eq!(queue.pop(150).as_deref(), Some(&b"one"[..]));
        assert_eq!(queue.pop(150).as_deref(), Some(&b"two"[..]));
        assert_eq!(queue.pop(159), None);
        assert!(queue.pop(160).is_some());
    }

    #[test]
    fn as_many_are_lost_as_was_asked_and_the_same_ones_for_the_same_seed() {
        let (mut came, mut lost) = (0, 0);
        for seed in 0..200 {
            let (left, counts) = run(seed, 1000, 10_000, ROOM);
            assert_eq!((&left, counts), (&run(seed, 1000, 10_000, ROOM).0, counts));
            came += counts.came;
            lost += counts.lost;
        }
        let part = lost as f64 / came as f64;
        // 400,000 draws: the standard deviation is 0.00016.
        assert!((0.0093..0.0107).contains(&part), "{part}");
        assert_ne!(run(1, 1000, 10_000, ROOM).0, run(2, 1000, 10_000, ROOM).0);
        assert_eq!(run(1, 1000, 0, ROOM).1.lost, 0);
        let (left, all) = run(1, 1000, 1_000_000, ROOM);
        assert!(left.is_empty() && all.lost == all.came);
    }

    #[test]
    fn the_bytes_that_wait_are_bounded_and_room_comes_back() {
        for seed in 0..100 {
            let (left, counts) = run(seed, 100_000, 0, 10_000);
            assert!(counts.dropped > 0 && counts.dropped < counts.came, "seed {seed}: {counts:?}");
            assert!(left.windows(2).all(|two| two[0].0 < two[1].0));
        }
        let mut queue = Queue::new(Duration::ZERO, Loss(0), 1, 10);
        queue.push(0, &[0; 10]);
        queue.push(0, &[1; 1]);
        assert_eq!(queue.counts().dropped, 1);
        assert!(queue.pop(0).is_some());
        queue.push(0, &[2; 10]);
        assert_eq!(queue.counts(), Counts { came: 3, lost: 0, dropped: 1 });
    }

    /// The loss of a packet does not depend on whether others found room.
    #[test]
    fn losses_do_not_depend_on_the_room() {
        let lost = |most| run(3, 100_000, 100_000, most).1.lost;
        assert_eq!(lost(ROOM), lost(5000));
    }
}
