//! The rows of a report: all rounds of shared memory, and the limits and other libraries beside
//! them.

use benches::report::{row, steps};
use bmi_report::{Kind, Step};

use crate::{Line, ROUNDS, Row};

/// The figures of a row in the order in which they were measured.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// One for each round.
    pub(crate) ours: Vec<f64>,
    /// One for each pass.
    pub(crate) limit: Vec<Option<f64>>,
    pub(crate) ucx: Vec<Option<f64>>,
    pub(crate) libfabric: Vec<Option<f64>>,
}

/// What a reader of a report must know besides.
pub(crate) const NOTE: &str =
    "Rows of shared memory have all rounds of all passes. The table of the program has the best pass.";

/// Returns the rows of a report for a line, whose first round has the number `first`.
pub(crate) fn rows_of(line: &Line, first: usize) -> Vec<bmi_report::Row> {
    let Row { level, test, size } = line.row;
    let name = test.name();
    let new = |over, kind, rounds| bmi_report::Row {
        size: Some(size as u64),
        rounds,
        ..row(&name, over, kind, test.unit(), &[("level", level)])
    };
    let mut rows = vec![new("shm", Kind::Library, steps(first, line.recorded.ours.iter().copied()))];
    let others =
        [("limit", &line.recorded.limit), ("ucx", &line.recorded.ucx), ("libfabric", &line.recorded.libfabric)];
    for (over, passes) in others {
        // The limit was measured right after the last round of its pass, the libraries soon after.
        let step = |(pass, value): (usize, &Option<f64>)| {
            Some(Step { round: (first + pass * ROUNDS + ROUNDS - 1) as u32, value: (*value)? })
        };
        let rounds: Vec<Step> = passes.iter().enumerate().filter_map(step).collect();
        if !rounds.is_empty() {
            rows.push(new(over, Kind::Baseline, rounds));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{Cli, empty_lines};

    #[test]
    fn a_limit_was_measured_right_after_the_last_round_of_its_pass() {
        let mut line = empty_lines(&Cli::parse_from(["shm_bench", "--only", "raw latency 8 B"])).unwrap().remove(0);
        let ours = (0..2 * ROUNDS).map(|round| round as f64).collect();
        line.recorded = Recorded { ours, limit: vec![None, Some(0.5)], ..Recorded::default() };
        let rows = rows_of(&line, 100);
        assert_eq!(
            rows.iter().map(|row| row.name()).collect::<Vec<_>>(),
            ["shm latency 8 B, raw", "limit latency 8 B, raw"]
        );
        assert_eq!((rows[0].rounds[0].round, rows[0].rounds.len()), (100, 2 * ROUNDS));
        assert_eq!(rows[0].pairs(&rows[1]), [((2 * ROUNDS - 1) as f64, 0.5)]);
    }
}
