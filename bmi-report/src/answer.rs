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

/// Most ranges of sizes that are listed.
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
    let duels = duels(report, &groups.iter().collect::<Vec<_>>());
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
fn duels<'a>(report: &'a Report, groups: &[&Group<'a>]) -> Vec<Duel<'a>> {
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

    /// Returns what the duel says, or nothing if nothing can be claimed: `shm: 3.0 to 11 times
    /// lower latency than tcp (8 B to 64 KiB), no difference (1 MiB)`.
    fn sentence(&self) -> Option<String> {
        let mut quantities: Vec<(&str, Unit)> = Vec::new();
        for (row, _) in &self.rows {
            if !quantities.contains(&(&row.test, row.unit)) {
                quantities.push((&row.test, row.unit));
            }
        }
        let mut text = String::new();
        for (test, unit) in quantities {
            let rows: Vec<_> =
                self.rows.iter().filter(|(row, _)| (row.test.as_str(), row.unit) == (test, unit)).collect();
            let of = |verdict| rows.iter().filter(|(_, ratio)| ratio.verdict == verdict).copied().collect::<Vec<_>>();
            let mut order = [Verdict::Faster, Verdict::Slower, Verdict::NoDifference];
            if of(order[1]).len() > of(order[0]).len() {
                order.swap(0, 1);
            }
            let (quantity, mut is_first) = (quantity(test, unit), true);
            for verdict in order {
                let found = of(verdict);
                if found.is_empty() {
                    continue;
                }
                let other = if text.is_empty() { Some(self.other) } else { None };
                let place = places(&found, &rows);
                text += if text.is_empty() {
                    ""
                } else if is_first {
                    "; "
                } else {
                    ", "
                };
                text += &match direction(verdict, unit) {
                    Some(direction) => {
                        let what = if is_first { format!(" {quantity}") } else { String::new() };
                        let than = other.map(|other| format!(" than {other}")).unwrap_or_default();
                        format!("{} times {direction}{what}{than}{place}", factors(&found))
                    }
                    None => {
                        let what = if is_first { format!(" in {quantity}") } else { String::new() };
                        let from = other.map(|other| format!(" from {other}")).unwrap_or_default();
                        format!("no difference{what}{from}{place}")
                    }
                };
                is_first = false;
            }
        }
        (!text.is_empty()).then(|| format!("{}: {text}.", self.one))
    }
}

/// Returns what the rows of a test measure.
fn quantity(test: &str, unit: Unit) -> String {
    let name = match unit {
        Unit::Seconds if test.contains("latency") => return test.to_owned(),
        Unit::BytesPerSecond if test.contains("bandwidth") => return test.to_owned(),
        Unit::PerSecond if test.contains("rate") => return test.to_owned(),
        Unit::Seconds => "time",
        Unit::BytesPerSecond => "bandwidth",
        Unit::PerSecond => "rate",
        counted => counted.counted().unwrap_or_default(),
    };
    format!("{name} of {test}")
}

/// Returns the word for a quantity of a row that is faster or slower than another one.
fn direction(verdict: Verdict, unit: Unit) -> Option<&'static str> {
    let is_less = match verdict {
        Verdict::Faster => unit.less_is_better(),
        Verdict::Slower => !unit.less_is_better(),
        Verdict::NoDifference | Verdict::TooFewRounds => return None,
    };
    Some(match (unit.is_counted(), is_less) {
        (true, true) => "fewer",
        (true, false) => "more",
        (false, true) => "lower",
        (false, false) => "higher",
    })
}

/// Returns the range of the factors of rows that are all faster or all slower. A factor is above
/// one, whichever of the two is faster.
fn factors(rows: &[&(&Row, Ratio<'_>)]) -> String {
    let factor = |ratio: f64| if ratio < 1.0 { 1.0 / ratio } else { ratio };
    let all = rows.iter().map(|(_, ratio)| factor(ratio.interval.middle));
    let (low, high) = all.fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), one| (low.min(one), high.max(one)));
    let (low, high) = (rough(low), rough(high));
    if low == high { low } else { format!("{low} to {high}") }
}

/// Returns where a finding holds, in parentheses: the sizes, or how many rows of all if the rows
/// differ in something else. One row without a size needs no place.
fn places(found: &[&(&Row, Ratio<'_>)], all: &[&(&Row, Ratio<'_>)]) -> String {
    let sizes = |rows: &[&(&Row, Ratio<'_>)]| {
        let mut sizes: Vec<u64> = rows.iter().filter_map(|(row, _)| row.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    };
    let (own, every) = (sizes(found), sizes(all));
    if every.len() < all.len() {
        let count = found.len();
        return match all.len() {
            1 => String::new(),
            all if count == all => format!(" (all {all} rows)"),
            all => format!(" ({count} of {all} rows)"),
        };
    }
    // Sizes that were measured one after the other are a range.
    let place = |size: &u64| every.iter().position(|other| other == size).unwrap_or(0);
    let size = |size: u64| units::size(size as usize);
    let ranges = own.chunk_by(|a, b| place(b) == place(a) + 1).map(|range| match range {
        [one] => size(*one),
        _ => format!("{} to {}", size(range[0]), size(range[range.len() - 1])),
    });
    let ranges: Vec<String> = ranges.collect();
    match ranges.len() > MOST_PLACES {
        true => format!(" ({} of {} sizes)", own.len(), every.len()),
        false => format!(" ({})", ranges.join(", ")),
    }
}

/// Returns what the rows of a part say, in sentences like those of the answer.
pub(crate) fn findings(report: &Report, part: &[&Group<'_>]) -> Vec<String> {
    duels(report, part).iter().filter_map(Duel::sentence).collect()
}

/// Returns a title that names what was compared, and where: `Latency and rate of tcp and shm,
/// beside sockets, between a and b`. Without rows it names the hosts.
pub fn title(report: &Report) -> String {
    let mut tests: Vec<&str> = Vec::new();
    for row in &report.rows {
        if !tests.contains(&row.test.as_str()) {
            tests.push(&row.test);
        }
    }
    let (own, baselines) = (overs(report, Kind::Library), overs(report, Kind::Baseline));
    let of = if own.is_empty() { String::new() } else { format!(" of {}", listed(&own)) };
    let beside = if baselines.is_empty() { String::new() } else { format!(", beside {}", listed(&baselines)) };
    let mut hosts: Vec<&str> = report.hosts.iter().map(|host| host.name.as_str()).collect();
    hosts.dedup();
    let place = match &hosts[..] {
        [] => String::new(),
        [one] => format!(", on {one}"),
        many => format!(", between {}", listed(many)),
    };
    if tests.is_empty() { format!("A benchmark{place}") } else { capital(&(listed(&tests) + &of + &beside + &place)) }
}

/// Returns names as in `a, b and c`.
fn listed(names: &[&str]) -> String {
    match names {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
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

/// Formats a factor above one, with more digits where it is close to one.
fn rough(ratio: f64) -> String {
    match ratio {
        ..1.1 => format!("{ratio:.3}"),
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
                "shm: 2.50 to 9.1 times lower latency than tcp (8 B to 4 KiB), 2.00 times higher (1 MiB), \
                no difference (64 KiB).",
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
                "shm: 4.0 times higher bandwidth than tcp (8 B).",
                "tcp: 2.00 times lower bandwidth than sockets (8 B).",
                "shm: 2.00 times higher bandwidth than sockets (8 B).",
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
                "tcp: 1.50 times more instructions of send than shm (8 B); ∞ times more system calls of send (8 B).",
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
        assert_eq!(answer(&both)[0], "shm: 4.0 times higher time of call than tcp (8 B).");
        let alone = report(forced);
        assert_eq!(answer(&alone)[0], "shm: 2.00 times lower time of call than tcp (8 B).");
    }

    #[test]
    fn a_title_names_what_was_compared_and_where() {
        let baseline = Row { kind: Kind::Baseline, ..row("rate", "sockets", 8, 1e-6) };
        let mut report = report(vec![row("latency", "tcp", 8, 1e-6), row("rate", "shm", 8, 1e-6), baseline]);
        let host = |name: &str| crate::report::Host { name: name.into(), ..Default::default() };
        report.hosts = vec![host("a"), host("a")];
        assert_eq!(title(&report), "Latency and rate of tcp and shm, beside sockets, on a");
        report.hosts[1] = host("b");
        report.rows.truncate(1);
        assert_eq!(title(&report), "Latency of tcp, between a and b");
        assert_eq!(title(&Report::new("", "")), "A benchmark");
    }

    /// Sizes between those of a finding are not claimed, and rows that differ in more than their
    /// size are counted.
    #[test]
    fn a_finding_names_the_sizes_at_which_it_holds() {
        let pair = |size, shm| [row("latency", "tcp", size, 4e-6), row("latency", "shm", size, shm)];
        let mut report = report([pair(8, 2e-6), pair(64, 4e-6), pair(512, 1e-6)].concat());
        assert_eq!(
            answer(&report)[0],
            "shm: 2.00 to 4.0 times lower latency than tcp (8 B, 512 B), no difference (64 B)."
        );
        let all = groups(&report);
        assert_eq!(findings(&report, &[&all[2]]), ["shm: 4.0 times lower latency than tcp (512 B)."]);
        let mut more = report.rows[..2].to_vec();
        more.iter_mut().for_each(|row| _ = row.setup.insert("depth".into(), "2".into()));
        report.rows.extend(more);
        assert_eq!(
            answer(&report)[0],
            "shm: 2.00 to 4.0 times lower latency than tcp (3 of 4 rows), no difference (1 of 4 rows)."
        );
    }

    #[test]
    fn what_cannot_be_compared_is_said() {
        let one = report(vec![row("latency", "tcp", 8, 1e-6)]);
        assert_eq!(answer(&one)[0], "Only tcp was measured, so there is nothing to compare it with.");
        let same = report(vec![row("latency", "tcp", 8, 1e-6), row("latency", "shm", 8, 1e-6)]);
        assert_eq!(answer(&same)[0], "shm: no difference in latency from tcp (8 B).");
        let mut few = same.clone();
        few.rows[0].rounds.truncate(3);
        assert_eq!(answer(&few)[1], "1 pair of rows has fewer than 8 rounds in common, and no verdict.");
        assert_eq!(answer(&report(Vec::new())), ["Nothing was measured."]);
    }
}
