//! Formats the result of a comparison.

use std::collections::BTreeMap;

use bmi_report::table::Table;
use serde_json::json;

use super::bench::Line;
use super::ratio::{Judged, Pair, Verdict};
use super::source::Revision;
use crate::command::Failure;

/// Returns the names of `rows` in the order in which B printed them, then those that only A has.
pub(super) fn in_order<'a>(printed: &[Line], rows: &BTreeMap<&'a str, Vec<Pair<'_>>>) -> Vec<&'a str> {
    let mut names: Vec<&str> = rows.keys().copied().collect();
    names.sort_by_key(|name| printed.iter().position(|line| line.name == **name).unwrap_or(usize::MAX));
    names
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Worse => "WORSE",
        Verdict::Better => "better",
        Verdict::Same => "same",
        Verdict::Unclear => "unclear",
        Verdict::OnlyInA => "only in A",
        Verdict::OnlyInB => "only in B",
    }
}

/// Formats the rows as a table, with a sentence that sums them up.
pub(super) fn render(judged: &[Judged]) -> String {
    let mut table = Table::new(2, ["benchmark", "row", "A", "B", "ratio", "interval", "pairs", "verdict"]);
    for line in judged {
        let is_judged = line.pairs > 0;
        let ratio = |text: String| if is_judged { text } else { "-".into() };
        let figure = |value: Option<f64>| value.map_or("-".into(), |value| line.unit.figure(value));
        table.row([
            line.bench.to_owned(),
            line.line.clone(),
            figure(line.a),
            figure(line.b),
            ratio(format!("{:.3}", line.ratio)),
            ratio(format!("{:.3}..{:.3}", line.low, line.high)),
            line.pairs.to_string(),
            word(line.verdict).to_owned(),
        ]);
    }
    table.render() + "\n" + &sum(judged) + "\n"
}

/// Counts how many rows differ, and how many are unclear.
fn sum(judged: &[Judged]) -> String {
    let count = |verdict: Verdict| judged.iter().filter(|row| row.verdict == verdict).count();
    let (rows, worse, better) = (judged.len(), count(Verdict::Worse), count(Verdict::Better));
    let (same, unclear) = (count(Verdict::Same), count(Verdict::Unclear));
    let mut text = match (worse, better) {
        (0, 0) => format!("No difference was found: {same} of {rows} rows are the same"),
        _ => format!("Of {rows} rows {worse} are worse, {better} are better, {same} are the same"),
    };
    if unclear > 0 {
        text += &format!(", {unclear} are unclear: give them more time (--limit) or a narrower --width");
    }
    text + "."
}

/// Formats everything as JSON.
pub(super) fn json(revisions: &[Revision; 2], seed: u64, judged: &[Judged]) -> Result<String, Failure> {
    let [a, b] = revisions.each_ref().map(|revision| json!({ "name": revision.name, "tree": revision.tree }));
    let all = json!({ "a": a, "b": b, "seed": seed, "lines": judged });
    serde_json::to_string_pretty(&all).map_err(|error| Failure::new(error.to_string()))
}

#[cfg(test)]
mod tests {
    use bmi_report::Unit;

    use super::*;

    fn line(name: &str, verdict: Verdict) -> Judged {
        Judged {
            bench: "bmi-perf",
            line: name.into(),
            unit: Unit::Seconds,
            a: Some(5.5e-6),
            b: Some(0.25),
            ratio: 1.5,
            low: 1.4,
            high: 1.625,
            pairs: 9,
            verdict,
        }
    }

    #[test]
    fn a_report_names_what_is_worse_and_ends_with_the_sum() {
        let text = render(&[line("latency 4 B", Verdict::Worse), line("rate", Verdict::Unclear)]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("benchmark  row"), "{text}");
        let words: Vec<&str> = lines[2].split_whitespace().collect();
        let expected =
            ["bmi-perf", "latency", "4", "B", "5.50", "us", "250.00", "ms", "1.500", "1.400..1.625", "9", "WORSE"];
        assert_eq!(words, expected);
        assert!(
            text.ends_with("Of 2 rows 1 are worse, 0 are better, 0 are the same, 1 are unclear: give them more time (--limit) or a narrower --width.\n")
        );
        assert!(render(&[line("a", Verdict::Same)]).ends_with("No difference was found: 1 of 1 rows are the same.\n"));
    }

    #[test]
    fn rows_are_in_the_order_in_which_they_were_printed() {
        let printed = ["b", "a"].map(|name| Line { name: name.into(), value: 1.0, unit: Unit::Seconds });
        let lines: BTreeMap<&str, Vec<Pair<'_>>> = ["a", "b", "gone"].into_iter().map(|name| (name, vec![])).collect();
        assert_eq!(in_order(&printed, &lines), ["b", "a", "gone"]);
    }
}
