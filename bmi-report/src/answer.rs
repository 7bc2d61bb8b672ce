//! The answer of a report in sentences. The table for a terminal and the page begin with it.
//!
//! **Order.** That the run was interrupted; how transports compare with each other, and then with
//! their baselines; figures of each test at one size; what cannot be claimed.
//!
//! **Which rows.** Transports are compared in what the library does by itself. Rows of a forced
//! path show what the path costs; they count only where there are no others.

use crate::groups::{Group, Ratio, Verdict};
use crate::report::{Kind, Report, Row, Unit};
use crate::stats::{Interval, LEAST_ROUNDS};
use crate::units;

/// Places that are listed where the outcome differs from most.
const MOST_PLACES: usize = 4;
/// Tests of which figures are given.
const MOST_TESTS: usize = 3;

/// Returns the answer, most important first.
pub fn sentences(report: &Report, groups: &[Group<'_>]) -> Vec<String> {
    let mut sentences = Vec::new();
    if let Some(why) = &report.interrupted {
        sentences.push(format!("The run was interrupted: {why}. What follows is not everything."));
    }
    if report.rows.is_empty() {
        sentences.push("Nothing was measured.".to_owned());
        return sentences;
    }
    let unforced: Vec<Group<'_>> = groups.iter().filter(|group| !group.is_forced()).cloned().collect();
    let groups = if unforced.is_empty() { groups } else { &unforced };
    let duels = duels(report, groups);
    sentences.extend(duels.iter().filter_map(Duel::sentence));
    let (overs, baselines) = (overs(report, Kind::Library), overs(report, Kind::Baseline));
    if let ([over], []) = (&overs[..], &baselines[..]) {
        sentences.push(format!("Only {over} was measured, so there is nothing to compare it with."));
    }
    sentences.extend(figures(groups));
    let few: usize = duels.iter().map(|duel| duel.count(Verdict::TooFewRounds)).sum();
    if few > 0 {
        let rows = if few == 1 { "1 pair of rows has".to_owned() } else { format!("{few} pairs of rows have") };
        sentences.push(format!("{rows} fewer than {LEAST_ROUNDS} rounds in common, and no verdict."));
    }
    sentences
}

fn overs(report: &Report, kind: Kind) -> Vec<&str> {
    let is = |over: &str| report.rows.iter().any(|row| row.over == over && row.kind == kind);
    report.overs().into_iter().filter(|over| is(over)).collect()
}

/// Two of those that rows ran over, and the ratio of each pair of rows.
struct Duel<'a> {
    one: &'a str,
    other: &'a str,
    rows: Vec<(&'a Row, Ratio<'a>)>,
}

/// Returns the duels of transports with each other, then those with the baselines of their groups.
fn duels<'a>(report: &'a Report, groups: &[Group<'a>]) -> Vec<Duel<'a>> {
    let mut duels: Vec<Duel<'a>> = Vec::new();
    let overs = overs(report, Kind::Library);
    for (number, other) in overs.iter().enumerate() {
        for one in &overs[number + 1..] {
            duels.push(Duel { one, other, rows: Vec::new() });
        }
    }
    let mut add = |one: &'a Row, ratio: Ratio<'a>| {
        let found = duels.iter_mut().find(|duel| duel.one == one.over && duel.other == ratio.to.over);
        match found {
            Some(duel) => duel.rows.push((one, ratio)),
            None => duels.push(Duel { one: &one.over, other: &ratio.to.over, rows: vec![(one, ratio)] }),
        }
    };
    for group in groups {
        let library = || group.figures.iter().filter(|figure| figure.row.kind == Kind::Library);
        for (number, other) in library().enumerate() {
            for one in library().skip(number + 1) {
                // The first one's ratio is known already.
                let known = one.to_first.filter(|ratio| ratio.to.over == other.row.over);
                add(one.row, known.unwrap_or_else(|| Ratio::of(one.row, other.row)));
            }
        }
        library().for_each(|one| one.to_baseline.into_iter().for_each(|ratio| add(one.row, ratio)));
    }
    duels
}

impl Duel<'_> {
    fn count(&self, verdict: Verdict) -> usize {
        self.rows.iter().filter(|(_, ratio)| ratio.verdict == verdict).count()
    }

    /// Returns what the duel says, or nothing if nothing can be claimed.
    fn sentence(&self) -> Option<String> {
        let (faster, slower) = (self.count(Verdict::Faster), self.count(Verdict::Slower));
        let (same, total) = (self.count(Verdict::NoDifference), self.rows.len());
        let (one, other) = (self.one, self.other);
        let rows = |count: usize| match total {
            1 => "in the only row".to_owned(),
            _ if count == total => format!("in all {total} rows"),
            _ => format!("in {count} of {total} rows"),
        };
        if faster + slower + same == 0 {
            return None;
        }
        if faster + slower == 0 {
            return Some(format!("There is no difference between {one} and {other} {}.", rows(same)));
        }
        let (main, rest, word, against) = match faster >= slower {
            true => (Verdict::Faster, Verdict::Slower, "faster", "slower"),
            false => (Verdict::Slower, Verdict::Faster, "slower", "faster"),
        };
        let mut text = format!("{one} is {word} than {other} {}: {}", rows(self.count(main)), self.ranges(main));
        if self.count(rest) > 0 {
            text += &format!("; {against} in {}: {}", self.count(rest), self.places(rest));
        }
        if same > 0 {
            text += &format!("; no difference in {same}");
        }
        Some(text + ".")
    }

    /// Returns the range of ratios for each test: `latency 0.11 to 0.40 of the time`.
    fn ranges(&self, verdict: Verdict) -> String {
        let of = || self.rows.iter().filter(|(_, ratio)| ratio.verdict == verdict);
        let mut tests: Vec<(&str, Unit)> = Vec::new();
        of().for_each(|(row, _)| {
            if !tests.contains(&(&row.test, row.unit)) {
                tests.push((&row.test, row.unit));
            }
        });
        let range = |(test, unit): &(&str, Unit)| {
            let all = of().filter(|(row, _)| (row.test.as_str(), row.unit) == (*test, *unit));
            let all = all.map(|(_, ratio)| unit.cost(ratio.interval.middle));
            let (low, high) =
                all.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), one| (low.min(one), high.max(one)));
            let (low, high) = (rough(low), rough(high));
            let range = if low == high { low } else { format!("{low} to {high}") };
            let of = match unit {
                Unit::Seconds => "of the time",
                Unit::BytesPerSecond | Unit::PerSecond => "times as much",
                Unit::Instructions => "times the instructions",
                Unit::Calls => "times the system calls",
            };
            let of = if *unit == Unit::Seconds && verdict == Verdict::Slower { "times as long" } else { of };
            format!("{test} {range} {of}")
        };
        tests.iter().map(range).collect::<Vec<_>>().join(", ")
    }

    /// Returns where else it is: the sizes of each test, or the names of rows without a size.
    fn places(&self, verdict: Verdict) -> String {
        let of: Vec<&Row> =
            self.rows.iter().filter(|(_, ratio)| ratio.verdict == verdict).map(|(row, _)| *row).collect();
        let mut places: Vec<String> = Vec::new();
        for row in &of {
            let sizes = of.iter().filter(|other| other.test == row.test).filter_map(|other| other.size);
            let (low, high) = sizes.fold((u64::MAX, 0), |(low, high), size| (low.min(size), high.max(size)));
            let size = |size: u64| units::size(size as usize);
            let place = match row.size {
                None => row.what(),
                Some(_) if low == high => format!("{} {}", row.test, size(low)),
                Some(_) => format!("{} {} to {}", row.test, size(low), size(high)),
            };
            if !places.contains(&place) {
                places.push(place);
            }
        }
        let more = places.len().saturating_sub(MOST_PLACES);
        places.truncate(MOST_PLACES);
        let and = if more > 0 { format!(" and {more} more") } else { String::new() };
        places.join(", ") + &and
    }
}

/// Returns a sentence for each test: its smallest size, or its largest where rates are compared.
fn figures(groups: &[Group<'_>]) -> Vec<String> {
    let mut tests: Vec<(&str, Unit)> = Vec::new();
    groups.iter().for_each(|group| {
        let row = group.row();
        if !tests.contains(&(&row.test, row.unit)) {
            tests.push((&row.test, row.unit));
        }
    });
    let sentence = |test: &(&str, Unit)| {
        let is_of = |row: &Row| (row.test.as_str(), row.unit) == *test;
        let of: Vec<&Group<'_>> = groups.iter().filter(|group| is_of(group.row())).collect();
        // Of rows that differ in their setup, those with the setup of the first one.
        let first = of.first()?.row();
        let is_rate = !first.unit.less_is_better();
        let of = of.iter().filter(|group| group.row().setup == first.setup);
        let group = match is_rate {
            true => of.max_by_key(|group| group.row().size)?,
            false => of.min_by_key(|group| group.row().size)?,
        };
        let list = |kind, by: &str| {
            let of = group.figures.iter().filter(|figure| figure.row.kind == kind && !figure.median.middle.is_nan());
            of.map(|figure| format!("{} {by} {}", figure.row.unit.figure(figure.median.middle), figure.row.over))
                .collect::<Vec<String>>()
        };
        let list = [list(Kind::Library, "over"), list(Kind::Baseline, "with")].concat();
        let counted = group.counted().map(|what| format!(", {what}")).unwrap_or_default();
        (!list.is_empty()).then(|| format!("{}{counted}: {}.", capital(&group.row().what()), list.join(", ")))
    };
    tests.iter().filter_map(sentence).take(MOST_TESTS).collect()
}

/// Returns a text with a capital.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// Formats a ratio with two digits, because a range needs no more.
fn rough(ratio: f64) -> String {
    match ratio {
        ..0.1 => format!("{ratio:.3}"),
        ..3.0 => format!("{ratio:.2}"),
        ..10.0 => format!("{ratio:.1}"),
        f64::INFINITY => "∞".to_owned(),
        _ => format!("{ratio:.0}"),
    }
}

/// Formats an interval without repeating the unit: `10.98 to 11.42 us`.
pub(crate) fn span(unit: Unit, interval: Interval) -> String {
    if interval.middle.is_nan() {
        return "-".to_owned();
    }
    let (low, high) = (unit.figure(interval.low), unit.figure(interval.high));
    match (low.split_once(' '), high.split_once(' ')) {
        (Some((figure, unit)), Some((_, other))) if unit == other => format!("{figure} to {high}"),
        _ => format!("{low} to {high}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::groups;
    use crate::report::Step;

    fn row(test: &str, over: &str, size: u64, value: f64) -> Row {
        let rounds = (0..8).map(|round| Step { round, value: value * (1.0 + f64::from(round % 3) / 1000.0) }).collect();
        Row { test: test.into(), over: over.into(), size: Some(size), rounds, ..Row::default() }
    }

    fn answer(report: &Report) -> Vec<String> {
        sentences(report, &groups(report))
    }

    fn report(rows: Vec<Row>) -> Report {
        Report { rows, ..Report::new("", "") }
    }

    #[test]
    fn a_transport_that_wins_is_named_with_the_range_of_its_ratios() {
        let mut report = report(vec![
            row("latency", "tcp", 8, 10e-6),
            row("latency", "shm", 8, 1.1e-6),
            row("latency", "tcp", 4096, 10e-6),
            row("latency", "shm", 4096, 4e-6),
            row("latency", "tcp", 65_536, 4e-6),
            row("latency", "shm", 65_536, 4e-6),
            row("latency", "tcp", 1 << 20, 4e-6),
            row("latency", "shm", 1 << 20, 8e-6),
        ]);
        assert_eq!(
            answer(&report),
            [
                "shm is faster than tcp in 2 of 4 rows: latency 0.11 to 0.40 of the time; slower in 1: latency 1 MiB; \
                no difference in 1.",
                "Latency 8 B: 10.01 us over tcp, 1.10 us over shm.",
            ]
        );
        report.interrupted = Some("the server is gone".into());
        assert_eq!(answer(&report)[0], "The run was interrupted: the server is gone. What follows is not everything.");
    }

    #[test]
    fn the_baseline_has_a_sentence_and_bandwidth_its_own_words() {
        let rate =
            |over: &str, kind, value| Row { kind, unit: Unit::BytesPerSecond, ..row("bandwidth", over, 8, value) };
        let report = report(vec![
            rate("sockets", Kind::Baseline, 2e9),
            rate("tcp", Kind::Library, 1e9),
            rate("shm", Kind::Library, 4e9),
        ]);
        assert_eq!(
            answer(&report),
            [
                "shm is faster than tcp in the only row: bandwidth 4.0 times as much.",
                "tcp is slower than sockets in the only row: bandwidth 0.50 times as much.",
                "shm is faster than sockets in the only row: bandwidth 2.00 times as much.",
                "Bandwidth 8 B: 1.00 GB/s over tcp, 4.00 GB/s over shm, 2.00 GB/s with sockets.",
            ]
        );
    }

    #[test]
    fn counts_have_a_sentence_each() {
        let count = |over: &str, unit, value| {
            let row = row("send", over, 8, value);
            Row { unit, rounds: row.rounds.iter().map(|step| Step { value, ..*step }).collect(), ..row }
        };
        let report = report(vec![
            count("shm", Unit::Instructions, 800.0),
            count("tcp", Unit::Instructions, 1200.0),
            count("shm", Unit::Calls, 0.0),
            count("tcp", Unit::Calls, 2.0),
        ]);
        assert_eq!(
            answer(&report),
            [
                "tcp is slower than shm in all 2 rows: send 1.50 times the instructions, send ∞ times the system calls.",
                "Send 8 B, instructions: 800 over shm, 1200 over tcp.",
                "Send 8 B, system calls: 0.00 over shm, 2.00 over tcp.",
            ]
        );
    }

    #[test]
    fn forced_paths_count_only_where_there_is_nothing_else() {
        let call = |over: &str, path: &str, value| Row {
            setup: [("path".to_owned(), path.to_owned())].into(),
            ..row("call", over, 8, value)
        };
        let forced = vec![call("tcp", "inline", 2e-6), call("shm", "inline", 1e-6)];
        let chosen = vec![call("tcp", "chosen", 1e-6), call("shm", "chosen", 4e-6)];
        let both = report([chosen, forced.clone()].concat());
        assert_eq!(answer(&both)[0], "shm is slower than tcp in the only row: call 4.0 times as long.");
        let alone = report(forced);
        assert_eq!(answer(&alone)[0], "shm is faster than tcp in the only row: call 0.50 of the time.");
    }

    #[test]
    fn what_cannot_be_compared_is_said() {
        let one = report(vec![row("latency", "tcp", 8, 1e-6)]);
        assert_eq!(answer(&one)[0], "Only tcp was measured, so there is nothing to compare it with.");
        let same = report(vec![row("latency", "tcp", 8, 1e-6), row("latency", "shm", 8, 1e-6)]);
        assert_eq!(answer(&same)[0], "There is no difference between shm and tcp in the only row.");
        let mut few = same.clone();
        few.rows[0].rounds.truncate(3);
        assert_eq!(answer(&few)[1], "1 pair of rows has fewer than 8 rounds in common, and no verdict.");
        assert_eq!(answer(&report(Vec::new())), ["Nothing was measured."]);
    }
}
