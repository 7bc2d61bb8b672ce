//! When each case runs, and when enough is known.
//!
//! **Order.** A round runs all cases that are not done. Their groups are in random order, and so are
//! the cases within a group. So what changes slowly on the hosts affects all alike, and none is
//! always behind the same other one.
//!
//! **End.** A group is done when the interval of every ratio in it is narrow enough. Whether a ratio
//! differs from 1 is no reason to stop: who stops when there is a difference finds one by chance.
//!
//! It knows no clock and no network.

use bmi_report::Row;
use bmi_report::stats::{self, Interval, LEAST_ROUNDS, Random};

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enough {
    /// An interval is narrow enough if its upper end is at most this many times its lower end.
    pub(crate) width: f64,
    /// Least number of rounds.
    pub(crate) least: usize,
    /// Most rounds.
    pub(crate) most: usize,
}

/// A group and the order of its cases.
pub(crate) type Turn = (usize, Vec<usize>);

/// The groups that are not done.
#[derive(Debug)]
pub(crate) struct Schedule {
    enough: Enough,
    random: Random,
    /// For each group: its number of cases, and whether it is done.
    groups: Vec<(usize, bool)>,
    round: u32,
}

impl Schedule {
    /// Begins. `sizes` are the numbers of cases of the groups.
    pub(crate) fn new(enough: Enough, seed: u64, sizes: impl IntoIterator<Item = usize>) -> Schedule {
        let groups = sizes.into_iter().map(|size| (size, false)).collect();
        Schedule { enough, random: Random::new(seed), groups, round: 0 }
    }

    /// Returns the next round, its number and its groups with the order of their cases, or `None`
    /// if all is done.
    pub(crate) fn next_round(&mut self) -> Option<(u32, Vec<Turn>)> {
        let open = self.groups.iter().enumerate().filter(|(_, (size, done))| *size > 0 && !done);
        let mut order: Vec<Turn> = open.map(|(group, (size, _))| (group, (0..*size).collect())).collect();
        if order.is_empty() {
            return None;
        }
        self.random.shuffle(&mut order);
        order.iter_mut().for_each(|(_, cases)| self.random.shuffle(cases));
        self.round += 1;
        Some((self.round - 1, order))
    }

    /// Looks whether a group is done. The first row is the one that others are compared with.
    pub(crate) fn judge(&mut self, group: usize, rows: &[&Row]) {
        let rounds = rows.iter().map(|row| row.rounds.len()).min().unwrap_or(0);
        let narrow = |interval: Interval| interval.width() <= self.enough.width;
        let is_narrow = |row: &&Row| match rows[0].pairs(row) {
            _ if std::ptr::eq(*row, rows[0]) => narrow(stats::median(&row.values(), 1)) || rows.len() > 1,
            pairs => narrow(stats::paired_ratio(&pairs, 1)),
        };
        let enough = rounds >= self.enough.least.max(LEAST_ROUNDS) && rows.iter().all(is_narrow);
        self.groups[group].1 = enough || rounds >= self.enough.most;
    }

    /// Returns how many groups are not done.
    pub(crate) fn open(&self) -> usize {
        self.groups.iter().filter(|(size, done)| *size > 0 && !done).count()
    }
}

#[cfg(test)]
mod tests {
    use bmi_report::Step;

    use super::*;

    const ENOUGH: Enough = Enough { width: 1.02, least: 8, most: 50 };

    fn row(values: impl Iterator<Item = f64>) -> Row {
        let step = |(round, value): (usize, f64)| Step { round: round as u32, value };
        Row { rounds: values.enumerate().map(step).collect(), ..Row::default() }
    }

    #[test]
    fn a_round_has_each_case_once_and_the_order_changes() {
        let mut schedule = Schedule::new(ENOUGH, 7, [2, 3, 0, 1]);
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
            let mut schedule = Schedule::new(ENOUGH, 1, [rows.len()]);
            schedule.judge(0, rows);
            schedule.open()
        };
        assert_eq!((open(&[&steady, &twice]), open(&[&steady, &wild]), open(&[&steady])), (0, 1, 0));
        let few = row((0..7).map(|_| 1.0));
        assert_eq!(open(&[&few]), 1, "7 rounds are too few");
        let long = row((0..50).map(|round| 1.0 + f64::from(round % 3)));
        assert_eq!(open(&[&long]), 0, "50 rounds are enough");
        let mut done = Schedule::new(ENOUGH, 1, [1]);
        done.judge(0, &[&steady]);
        assert!(done.next_round().is_none());
    }
}
