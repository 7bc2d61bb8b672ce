//! A model of the possible contents of a file, given the operations on it, their results, and the
//! times of power failures.
//!
//! **Rules.** For each byte, a read between two points in time may find one of these values:
//! 1. The value of any write that had begun by the end of the read, or zero, the initial value.
//!    Cutting off counts as a write of zeros.
//! 2. A value is excluded if it was overwritten. That needs a write that was acknowledged before
//!    the read began, that began after the other one had ended, and that is *settled*.
//! 3. A write is settled if it was acknowledged and cannot be lost: it was synced, or no power
//!    failed since it began. A change of size is settled when it is acknowledged.
//! 4. A sync covers all earlier acknowledged writes of its own client, whatever failed in between.
//!    Otherwise the sync would have reported an error. It covers the writes of other clients if no
//!    power failed in between.
//! 5. A failed write may still take effect for [`ZOMBIE`] after it was given up. Only a write that
//!    begins after that time overwrites it.
//! 6. The same holds for a write whose client crashed before it had the result. After a crash a
//!    client counts as a new one: it does not know what a server has lost of its earlier writes. So
//!    its syncs do not cover them if a server failed in between.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use bmi::Time;

/// How long a request may still take effect after its client has given it up: its time limit, a
/// pause, and a disk's queue.
pub const ZOMBIE: Duration = Duration::from_secs(2);

/// A change of a file's bytes.
#[derive(Clone, Debug)]
pub enum What {
    /// Bytes as returned by [`byte`].
    Write { ranges: Vec<Range<u64>>, salt: u64 },
    /// All bytes from here on become zeros, durably.
    Cut { size: u64 },
}

impl What {
    fn covers(&self, at: u64) -> bool {
        match self {
            What::Write { ranges, .. } => ranges.iter().any(|range| range.contains(&at)),
            What::Cut { size, .. } => at >= *size,
        }
    }

    fn value(&self, at: u64) -> u8 {
        match self {
            What::Write { salt, .. } => byte(*salt, at),
            What::Cut { .. } => 0,
        }
    }
}

/// Returns the byte that the write with this `salt` puts at an offset. It is never zero.
pub fn byte(salt: u64, at: u64) -> u8 {
    let mixed = (salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at).wrapping_mul(0xd6e8_feb8_6659_fd93);
    1 + ((mixed >> 40) % 255) as u8
}

#[derive(Clone, Debug)]
struct Op {
    who: usize,
    what: What,
    start: Time,
    end: Time,
    done: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
struct Sync {
    who: usize,
    start: Time,
    end: Time,
    good: bool,
}

/// A file's history.
#[derive(Clone, Debug, Default)]
pub struct Model {
    ops: Vec<Op>,
    syncs: Vec<Sync>,
}

impl Model {
    /// Records the beginning of a change. Returns its number.
    pub fn begin(&mut self, who: usize, what: What, now: Time) -> usize {
        self.ops.push(Op { who, what, start: now, end: now, done: None });
        self.ops.len() - 1
    }

    /// Records the end of a change.
    pub fn end(&mut self, op: usize, now: Time, good: bool) {
        let op = &mut self.ops[op];
        (op.end, op.done) = (now, Some(good));
    }

    /// Records that a failed change has happened as a whole, or not at all and will not.
    pub fn decided(&mut self, op: usize, happened: bool) {
        if happened {
            self.ops[op].done = Some(true);
        } else {
            self.ops.remove(op);
        }
    }

    /// Records that a client is gone. Its operations in progress may have happened, or may still
    /// happen.
    pub fn died(&mut self, who: usize, now: Time) {
        for op in self.ops.iter_mut().filter(|op| op.who == who && op.done.is_none()) {
            (op.end, op.done) = (now, Some(false));
        }
    }

    /// Records the end of a sync.
    pub fn synced(&mut self, who: usize, start: Time, end: Time, good: bool) {
        self.syncs.push(Sync { who, start, end, good });
    }

    /// Returns the length that the file must have had between two points in time. Returns `None`
    /// unless all its changes are settled and none was in progress then.
    pub fn size(&self, from: Time, to: Time, crashes: &[Time]) -> Option<u64> {
        let sure = self.ops.iter().all(|op| op.end <= from && self.settled(op, to, crashes));
        // If changes overlapped in time, their order is not known.
        let ordered = self.ops.windows(2).all(|pair| pair[0].end <= pair[1].start);
        (sure && ordered).then(|| {
            self.ops.iter().fold(0, |size, op| match &op.what {
                What::Write { ranges, .. } => ranges.iter().map(|range| range.end).fold(size, u64::max),
                What::Cut { size, .. } => *size,
            })
        })
    }

    fn settled(&self, op: &Op, now: Time, crashes: &[Time]) -> bool {
        let failed = |from: Time, to: Time| crashes.iter().any(|at| (from..=to).contains(at));
        if op.done != Some(true) {
            return false;
        }
        if matches!(op.what, What::Cut { .. }) {
            return true;
        }
        let covers = |sync: &Sync| {
            let told =
                |other: &Sync| !other.good && other.who == op.who && other.start >= op.end && other.start < sync.start;
            let own = sync.who == op.who && !self.syncs.iter().any(told);
            sync.good && sync.start >= op.end && sync.end <= now && (own || !failed(op.start, sync.end))
        };
        !failed(op.start, now) || self.syncs.iter().any(covers)
    }

    /// Compares bytes that were read between two points in time, from `offset` on.
    pub fn check(&self, from: Time, to: Time, offset: u64, bytes: &[u8], crashes: &[Time]) -> Result<(), String> {
        let end = offset + bytes.len() as u64;
        let mut bounds = BTreeSet::from([offset, end]);
        for op in &self.ops {
            match &op.what {
                What::Write { ranges, .. } => bounds.extend(ranges.iter().flat_map(|range| [range.start, range.end])),
                What::Cut { size, .. } => bounds.extend([*size]),
            }
        }
        let settled: Vec<bool> = self.ops.iter().map(|op| op.end <= from && self.settled(op, to, crashes)).collect();
        let bounds: Vec<u64> = bounds.into_iter().filter(|at| (offset..=end).contains(at)).collect();
        for pair in bounds.windows(2) {
            let (low, high) = (pair[0], pair[1]);
            let here: Vec<(usize, &Op)> = self.ops.iter().enumerate().filter(|(_, op)| op.what.covers(low)).collect();
            let overwriters: Vec<&Op> = here.iter().filter(|(index, _)| settled[*index]).map(|(_, op)| *op).collect();
            let possible = |op: &Op| {
                let over = match op.done {
                    None => Time::from_nanos(u64::MAX),
                    Some(true) => op.end,
                    Some(false) => op.end + ZOMBIE,
                };
                op.start < to && !overwriters.iter().any(|later| later.start >= over)
            };
            let candidates: Vec<&Op> = here.iter().map(|(_, op)| *op).filter(|op| possible(op)).collect();
            let zero = overwriters.is_empty();
            for at in low..high {
                let found = bytes[(at - offset) as usize];
                if (found == 0 && zero) || candidates.iter().any(|op| op.what.value(at) == found) {
                    continue;
                }
                let wrong = (at..high).take_while(|at| {
                    let found = bytes[(at - offset) as usize];
                    !candidates.iter().any(|op| op.what.value(*at) == found)
                });
                let source = self.ops.iter().position(|op| op.what.covers(at) && op.what.value(at) == found);
                return Err(format!(
                    "byte {at} is {found} (zero: {zero}; it could be of change {source:?}), and so are some of {} after it; what could be there: {candidates:?}",
                    wrong.count()
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn write(model: &mut Model, salt: u64, from: u64, to: u64, good: bool) {
        let op = model.begin(0, What::Write { ranges: std::iter::once(0..10).collect(), salt }, at(from));
        model.end(op, at(to), good);
    }

    fn bytes(salt: u64) -> Vec<u8> {
        (0..10).map(|at| byte(salt, at)).collect()
    }

    #[test]
    fn an_acknowledged_write_is_there_and_an_older_one_is_not() {
        let mut model = Model::default();
        write(&mut model, 1, 1, 2, true);
        write(&mut model, 2, 3, 4, true);
        let check = |salt| model.check(at(5), at(6), 0, &bytes(salt), &[]);
        assert!(check(2).is_ok() && check(1).is_err());
        assert!(model.check(at(5), at(6), 0, &[0; 10], &[]).is_err());
        assert!(model.check(at(3), at(6), 0, &bytes(1), &[]).is_ok(), "the read began before the write ended");
    }

    #[test]
    fn a_crash_may_lose_what_was_not_synced_and_nothing_else() {
        let mut model = Model::default();
        write(&mut model, 1, 1, 2, true);
        model.synced(0, at(3), at(4), true);
        write(&mut model, 2, 5, 6, true);
        let crash = [at(7)];
        assert!(model.check(at(8), at(9), 0, &bytes(1), &crash).is_ok());
        assert!(model.check(at(8), at(9), 0, &bytes(2), &crash).is_ok());
        assert!(model.check(at(8), at(9), 0, &[0; 10], &crash).is_err(), "that was synced over");
        model.synced(0, at(10), at(11), true);
        assert!(model.check(at(12), at(13), 0, &bytes(1), &crash).is_err(), "the sync said that all is well");
    }

    #[test]
    fn what_a_client_that_died_had_begun_may_have_happened() {
        let mut model = Model::default();
        write(&mut model, 1, 1, 2, true);
        model.begin(0, What::Write { ranges: std::iter::once(0..10).collect(), salt: 2 }, at(3));
        model.died(0, at(4));
        let check = |model: &Model, when, salt| model.check(at(when), at(when + 1), 0, &bytes(salt), &[]);
        assert!(check(&model, 5, 1).is_ok() && check(&model, 5, 2).is_ok(), "happened or not");
        write(&mut model, 3, 5, 6, true);
        assert!(check(&model, 7, 2).is_ok() && check(&model, 7, 1).is_err(), "or only now");
        write(&mut model, 4, 3000, 3001, true);
        assert!(check(&model, 3002, 2).is_err(), "not for ever");
    }

    #[test]
    fn a_sync_after_a_crash_says_nothing_of_a_former_life() {
        let mut model = Model::default();
        write(&mut model, 1, 1, 2, true);
        let crash = [at(3)];
        model.synced(2, at(4), at(5), true);
        assert!(model.check(at(6), at(7), 0, &[0; 10], &crash).is_ok(), "the new client knows nothing of the write");
        model.synced(0, at(8), at(9), true);
        assert!(model.check(at(10), at(11), 0, &[0; 10], &crash).is_err());
    }

    #[test]
    fn a_change_of_size_is_decided_as_a_whole() {
        let mut model = Model::default();
        write(&mut model, 1, 1, 2, true);
        let cut = model.begin(0, What::Cut { size: 4 }, at(3));
        model.end(cut, at(4), false);
        let mut mixture = bytes(1);
        mixture[6] = 0;
        assert!(model.check(at(5), at(6), 0, &mixture, &[]).is_ok(), "each byte alone is possible");
        for happened in [true, false] {
            let mut model = model.clone();
            model.decided(cut, happened);
            assert!(model.check(at(5), at(6), 0, &mixture, &[]).is_err());
            assert_eq!(model.check(at(5), at(6), 0, &bytes(1), &[]).is_ok(), !happened);
            assert_eq!(model.size(at(5), at(6), &[]), Some(if happened { 4 } else { 10 }));
        }
    }

    #[test]
    fn a_failed_write_may_come_late_but_not_for_ever() {
        let mut model = Model::default();
        write(&mut model, 1, 1, 2, false);
        write(&mut model, 2, 3, 4, true);
        assert!(model.check(at(5), at(6), 0, &bytes(1), &[]).is_ok());
        write(&mut model, 3, 2100, 2101, true);
        assert!(model.check(at(2200), at(2201), 0, &bytes(1), &[]).is_err());
    }
}
