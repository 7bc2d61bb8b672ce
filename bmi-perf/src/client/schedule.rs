//! When each case runs, and when enough is known.
//!
//! **Order.** A round runs all cases that are not done. Their groups are in random order, and so
//! are the cases within a group. So what changes slowly on the hosts affects all alike, and none is
//! always behind the same other one.
//!
//! **End.** A group is done when the interval of every ratio in it is narrow enough. Whether a
//! ratio differs from 1 is no reason to stop: who stops when there is a difference finds one by
//! chance.
//!
//! It knows no clock and no network.

use bmi_report::Row;
use bmi_report::stats::{self, Interval, Random, Stop};

/// A group and the order of its cases.
pub(crate) type Turn = (usize, Vec<usize>);

/// The groups that are not done.
#[derive(Debug)]
pub(crate) struct Schedule {
    stop: Stop,
    random: Random,
    groups: Vec<Group>,
    round: u32,
}

#[derive(Debug)]
struct Group {
    cases: usize,
    is_done: bool,
    /// The number of rounds at which to look next whether it is done. Each look at the data makes
    /// chance a little more likely to end the group, so there are few.
    look: usize,
}

impl Schedule {
    /// Begins. `sizes` are the numbers of cases of the groups.
    pub(crate) fn new(stop: Stop, seed: u64, sizes: impl IntoIterator<Item = usize>) -> Schedule {
        let look = stop.next_look(&Interval::NONE, 0);
        let groups = sizes.into_iter().map(|cases| Group { cases, is_done: cases == 0, look }).collect();
        Schedule { stop, random: Random::new(seed), groups, round: 0 }
    }

    /// Returns the next round, its number and its groups with the order of their cases, or `None`
    /// if all is done.
    pub(crate) fn next_round(&mut self) -> Option<(u32, Vec<Turn>)> {
        let open = self.groups.iter().enumerate().filter(|(_, group)| !group.is_done);
        let mut order: Vec<Turn> = open.map(|(index, group)| (index, (0..group.cases).collect())).collect();
        if order.is_empty() {
            return None;
        }
        self.random.shuffle(&mut order);
        order.iter_mut().for_each(|(_, cases)| self.random.shuffle(cases));
        self.round += 1;
        Some((self.round - 1, order))
    }

    /// Looks whether a group is done, if it is time to. The first row is the one that others are
    /// compared with.
    pub(crate) fn judge(&mut self, index: usize, rows: &[&Row]) {
        let group = &mut self.groups[index];
        let rounds = rows.iter().map(|row| row.rounds.len()).min().unwrap_or(0);
        if rounds < group.look {
            return;
        }
        let ratios = rows.iter().skip(1).map(|row| stats::paired_ratio(&rows[0].pairs(row), 1));
        let alone = (rows.len() == 1).then(|| stats::median(&rows[0].values(), 1));
        let widest = ratios.chain(alone).max_by(|a, b| a.width().total_cmp(&b.width())).unwrap_or(Interval::NONE);
        group.is_done = self.stop.is_done(&widest, rounds);
        group.look = self.stop.next_look(&widest, rounds);
    }

    /// Returns how many groups are not done.
    pub(crate) fn open(&self) -> usize {
        self.groups.iter().filter(|group| !group.is_done).count()
    }
}

#[cfg(test)]
mod tests {
    use bmi_report::Step;

    use super::*;

    const STOP: Stop = Stop { width: 1.02, least: 8, most: 50 };

    fn row(values: impl Iterator<Item = f64>) -> Row {
        let step = |(round, value): (usize, f64)| Step { round: round as u32, value };
        Row { rounds: values.enumerate().map(step).collect(), ..Row::default() }
    }

    #[test]
    fn a_round_has_each_case_once_and_the_order_changes() {
        let mut schedule = Schedule::new(STOP, 7, [2, 3, 0, 1]);
        let mut orders = Vec::new();
        for number in 0..20 {
            let (round, order) = schedule.next_round().unwrap();
            assert_eq!(round, number);
            let mut all: Vec<(usize, usize)> =
                order.iter().flat_map(|(group, cases)| cases.iter().map(move |case| (*group, *case))).collect();
            orders.push(all.clone());
            all.sort_unstable();
            assert_eq!(all, [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (3, 0)]);
        }
        orders.sort();
        orders.dedup();
        assert!(orders.len() > 10, "{orders:?}");
    }

    #[test]
    fn a_group_is_done_when_its_ratios_are_narrow_or_its_rounds_are_many() {
        let steady = row((0..10).map(|_| 1.0));
        let twice = row((0..10).map(|round| 2.0 + f64::from(round % 2) * 1e-3));
        let wild = row((0..10).map(|round| 1.0 + f64::from(round % 3)));
        let open = |rows: &[&Row]| {
            let mut schedule = Schedule::new(STOP, 1, [rows.len()]);
            schedule.judge(0, rows);
            schedule.open()
        };
        assert_eq!((open(&[&steady, &twice]), open(&[&steady, &wild]), open(&[&steady])), (0, 1, 0));
        let few = row((0..7).map(|_| 1.0));
        assert_eq!(open(&[&few]), 1, "7 rounds are too few");
        let long = row((0..50).map(|round| 1.0 + f64::from(round % 3)));
        assert_eq!(open(&[&long]), 0, "50 rounds are enough");
        let mut done = Schedule::new(STOP, 1, [1]);
        done.judge(0, &[&steady]);
        assert!(done.next_round().is_none());
    }
}
