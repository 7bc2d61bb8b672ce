//! What surrounds the figures: the hosts, the notes, the command, and what the words mean.

use super::{Page, section, table};
use crate::html::escape;
use crate::report::{Host, Report};
use crate::table::Table;
use crate::text::command;
use crate::units::date;

/// The facts of a host that its line at the top has.
const MOST_FACTS: usize = 4;

/// The words of the page, in two lines each.
const WORDS: [(&str, &str); 10] = [
    (
        "Round",
        "All rows are measured once, one right after the other. What disturbs the machine slowly disturbs all \
               of a round alike.",
    ),
    (
        "Median, interval",
        "The middle of the rounds. The interval contains the true one in 99 of 100 cases; it is \
                          computed by drawing the rounds again (bootstrap).",
    ),
    (
        "Cost",
        "Time, or the inverse of a rate. So a ratio of costs below 1 is always faster, for latency as well as \
              for bandwidth.",
    ),
    (
        "Faster, slower",
        "Said only if the whole interval of the ratio is on one side of 1, and there are at least \
                        eight rounds (two where something is counted).",
    ),
    (
        "No difference",
        "The interval of the ratio contains 1. A wide interval may hide a difference that more rounds \
                       would show.",
    ),
    (
        "p50 … p99.99",
        "Percentiles of single operations: p99 is exceeded by one in a hundred, p99.99 by one in ten \
                      thousand.",
    ),
    (
        "Baseline",
        "What the library is compared with: plain sockets, or a copy of memory. Its lines are dashed and \
                  grey.",
    ),
    ("Model", "A prediction of the simulator, and no measurement. Its lines are dotted."),
    (
        "Processor time",
        "User and system time that a process used, divided by the number of messages. Waiting by \
                        polling counts too.",
    ),
    (
        "Paths",
        "Inline: with the message. Fast RDMA: into a slot of the peer. Server-based, client-based: moved by the \
               adapter of that side. Eager: sent into a posted receive. Offered receive: written into the memory that \
               the receiver has named. Rendezvous: announced, and moved when the receiver is ready. The strips show \
               where each begins.",
    ),
];

/// The hosts in one line.
pub(in crate::html) fn hosts_in_brief(report: &Report) -> String {
    let facts = |host: &Host| {
        // A number alone does not say what it counts.
        let words = |(name, fact): &(String, String)| match fact.parse::<f64>() {
            Ok(_) => format!("{fact} {name}"),
            Err(_) => fact.clone(),
        };
        let first = host.facts.iter().take(MOST_FACTS).map(|fact| escape::text(&escape::cut(&words(fact), 40)));
        first.collect::<Vec<_>>().join(", ")
    };
    let name = |host: &Host| format!("<b>{}</b> {}", escape::text(&host.role), escape::text(&host.name));
    let all: Vec<String> = report.hosts.iter().map(facts).collect();
    let is_same = all.len() > 1 && all.iter().all(|facts| *facts == all[0] && !facts.is_empty());
    let with = |(host, facts): (&Host, &String)| match facts.is_empty() || is_same {
        true => name(host),
        false => format!("{} ({facts})", name(host)),
    };
    let mut line = report.hosts.iter().zip(&all).map(with).collect::<Vec<_>>().join(", ");
    if is_same {
        line += &format!(": each {}", all[0]);
    }
    if report.began > 0 {
        line += &format!(" · {}", date(report.began));
    }
    if line.is_empty() { line } else { format!("<p class=\"hosts\">{line}</p>\n") }
}

/// All facts of the hosts, next to each other.
pub(in crate::html) fn hosts(page: &Page<'_>) -> String {
    let hosts = &page.report.hosts;
    if hosts.is_empty() {
        return String::new();
    }
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in hosts.iter().flat_map(|host| &host.facts) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let fact = |host: &Host, name: &str| {
        host.facts.iter().find(|(other, _)| other == name).map_or("-".to_owned(), |(_, fact)| fact.clone())
    };
    let heads = hosts.iter().map(|host| format!("{} {}", host.role, host.name));
    let mut contents = Table::new(1 + hosts.len(), std::iter::once(String::new()).chain(heads));
    for name in names {
        contents.row(std::iter::once(name.to_owned()).chain(hosts.iter().map(|host| fact(host, name))));
    }
    section("hosts", "The hosts", "", &table(&contents))
}

/// The notes of the report.
pub(in crate::html) fn notes(page: &Page<'_>) -> String {
    let notes = page.report.notes.iter().map(|note| format!("<li>{}</li>\n", escape::text(note))).collect::<String>();
    let list = if notes.is_empty() { notes } else { format!("<ul>{notes}</ul>\n") };
    section("notes", "What to know besides", "", &list)
}

/// How to repeat the run.
pub(in crate::html) fn repeat(page: &Page<'_>) -> String {
    let report = page.report;
    if report.command.is_empty() {
        return String::new();
    }
    let contents = format!("<pre>{}</pre>\n", escape::text(&command(report)));
    let by = format!("Measured by {}.", escape::text(&report.program));
    section("repeat", "How to repeat it", &by, &contents)
}

/// What the words mean.
pub(in crate::html) fn words() -> String {
    let words: String = WORDS.iter().map(|(word, meaning)| format!("<dt>{word}</dt><dd>{meaning}</dd>\n")).collect();
    section("words", "What the words mean", "", &format!("<dl>{words}</dl>\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_what_it_counts() {
        let facts = [("processor", "fast"), ("processors", "2"), ("frequency", "2 GHz")];
        let facts = facts.map(|(name, fact)| (name.to_owned(), fact.to_owned())).to_vec();
        let host = Host { role: "client".into(), name: "a".into(), facts };
        let report = Report { hosts: vec![host], ..Report::new("", "") };
        assert_eq!(hosts_in_brief(&report), "<p class=\"hosts\"><b>client</b> a (fast, 2 processors, 2 GHz)</p>\n");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let dates = [0, 951_782_400, 1_709_210_096, 4_102_444_799].map(date);
        assert_eq!(
            dates,
            ["1970-01-01 00:00 UTC", "2000-02-29 00:00 UTC", "2024-02-29 12:34 UTC", "2099-12-31 23:59 UTC"]
        );
    }
}
