//! A resource that is booked for times to come.
//!
//! **Why.** The clock of a core that works is ahead of the world's time. So two cores may book a
//! resource in another order than that in which they need it. A plain "free from" would make the
//! one that books later wait for the one that needs it later. A calendar has gaps.
//!
//! **Invariants**
//! 1. Bookings do not overlap. They are in order of time.
//! 2. Bookings that ended before the world's time are forgotten, except for the last one.

use std::collections::VecDeque;

/// A booking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Booking {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The core that has booked; not used where it does not matter.
    pub(crate) core: usize,
}

/// The bookings of a resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calendar(VecDeque<Booking>);

impl Calendar {
    /// Returns how long the resource is booked for after `now`.
    pub(crate) fn booked_after(&self, now: u64) -> u64 {
        self.0.iter().map(|booking| booking.end.saturating_sub(booking.start.max(now))).sum()
    }

    /// Forgets what is over.
    fn forget(&mut self, now: u64) {
        while self.0.len() > 1 && self.0[1].end <= now {
            self.0.pop_front();
        }
    }

    /// Books the resource for `core` in one piece, at the first gap from `from` on. `length` gives
    /// the length for the booking before the gap, if there is one.
    pub(crate) fn book(
        &mut self,
        now: u64,
        from: u64,
        core: usize,
        length: impl Fn(Option<Booking>) -> u64,
    ) -> Booking {
        self.forget(now);
        let mut at = self.0.partition_point(|booking| booking.end <= from);
        loop {
            let before = at.checked_sub(1).map(|before| self.0[before]);
            let start = from.max(before.map_or(0, |before| before.end));
            let end = start.saturating_add(length(before));
            if self.0.get(at).is_none_or(|next| end <= next.start) {
                let booking = Booking { start, end, core };
                self.0.insert(at, booking);
                return booking;
            }
            at += 1;
        }
    }

    /// Books the resource for `length` in the gaps from `from` on, in as many pieces as that takes.
    /// Returns the end of the last one.
    pub(crate) fn book_in_pieces(&mut self, now: u64, from: u64, length: u64) -> u64 {
        self.forget(now);
        let mut at = self.0.partition_point(|booking| booking.end < from);
        let (mut start, mut left) = (from, length);
        while left > 0 {
            let until = self.0.get(at).map_or(u64::MAX, |next| next.start);
            let piece = left.min(until.saturating_sub(start));
            let mut end = start.saturating_add(piece);
            left -= piece;
            if piece > 0 {
                // Pieces that touch become one booking.
                if let Some(before) = at.checked_sub(1).filter(|before| self.0[*before].end == start) {
                    self.0[before].end = end;
                } else {
                    self.0.insert(at, Booking { start, end, core: 0 });
                    at += 1;
                }
                if left == 0 {
                    return end;
                }
            }
            end = end.max(self.0[at].end);
            (start, at) = (end, at + 1);
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(calendar: &mut Calendar, from: u64, core: usize, length: u64) -> (u64, u64) {
        let Booking { start, end, .. } = calendar.book(0, from, core, |_| length);
        (start, end)
    }

    #[test]
    fn a_piece_takes_the_first_gap_that_has_room() {
        let mut calendar = Calendar::default();
        assert_eq!(whole(&mut calendar, 100, 0, 50), (100, 150));
        assert_eq!(whole(&mut calendar, 10, 1, 50), (10, 60), "booked later, needed earlier");
        assert_eq!(whole(&mut calendar, 20, 0, 50), (150, 200));
        assert_eq!(whole(&mut calendar, 20, 0, 40), (60, 100));
        assert_eq!(whole(&mut calendar, 300, 0, 1), (300, 301));
        assert_eq!([0, 180, 300, 400].map(|now| calendar.booked_after(now)), [191, 21, 1, 0]);
    }

    #[test]
    fn the_length_depends_on_who_was_before() {
        let mut calendar = Calendar::default();
        let length =
            |core: usize| move |before: Option<Booking>| if before.is_some_and(|b| b.core != core) { 30 } else { 10 };
        assert_eq!(calendar.book(0, 0, 1, length(1)).end, 10);
        assert_eq!(calendar.book(0, 0, 1, length(1)).end, 20);
        assert_eq!(calendar.book(0, 0, 2, length(2)).end, 50);
        // What is over is forgotten, and who was the last is known.
        assert_eq!(calendar.book(1000, 1000, 1, length(1)).end, 1030);
        assert_eq!(calendar.0.len(), 2);
    }

    #[test]
    fn pieces_fill_the_gaps() {
        let mut calendar = Calendar::default();
        assert_eq!(calendar.book_in_pieces(0, 100, 50), 150);
        assert_eq!(calendar.book_in_pieces(0, 200, 50), 250);
        assert_eq!(calendar.book_in_pieces(0, 90, 30), 170, "10 before, 20 behind");
        assert_eq!(calendar.book_in_pieces(0, 120, 40), 260, "30 in the gap, 10 behind it");
        assert_eq!(calendar.book_in_pieces(0, 0, 0), 0);
        assert_eq!(calendar.book_in_pieces(0, 0, 90), 90);
        assert_eq!(calendar.book_in_pieces(0, 0, 1), 261);
    }

    /// Whatever is booked in pieces, the sum is what was asked for, and nothing overlaps.
    #[test]
    fn no_piece_is_lost() {
        let mut rng = crate::rng::Rng::new(7);
        for _ in 0..200 {
            let (mut calendar, mut sum) = (Calendar::default(), 0);
            for _ in 0..40 {
                let (from, length) = (rng.below(1000), rng.below(60));
                assert!(calendar.book_in_pieces(0, from, length) >= from + length);
                sum += length;
            }
            let booked = calendar.0.make_contiguous();
            assert_eq!(booked.iter().map(|booking| booking.end - booking.start).sum::<u64>(), sum);
            assert!(booked.windows(2).all(|pair| pair[0].end <= pair[1].start), "{booked:?}");
        }
    }
}
