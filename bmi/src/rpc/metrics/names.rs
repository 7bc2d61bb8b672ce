//! The names of all values, for the recorder and for `docs/embedding.md`.

use ::metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

use super::engine::{COUNTERS, LEVELS, PATHS};

/// The values of servers and clients, with their units and meanings.
const CALLS: &[(&str, Unit, &str)] = &[
    (
        "bmi_client_calls_total",
        Unit::Count,
        "calls that have ended, by `outcome`: `ok`, the kind of the error, or `dropped` by the program",
    ),
    ("bmi_client_calls_in_flight", Unit::Count, "calls that have not ended"),
    ("bmi_client_call_seconds", Unit::Seconds, "time of a call, with connecting and waiting for its turn"),
    ("bmi_client_sent_bytes_total", Unit::Bytes, "bytes of requests and their data, those made again too"),
    ("bmi_client_received_bytes_total", Unit::Bytes, "bytes of replies and their data"),
    ("bmi_client_repeats_total", Unit::Count, "calls made again"),
    (
        "bmi_client_connects_total",
        Unit::Count,
        "attempts to connect, by `outcome`: `first`, `again` after a connection was lost, or `failed`",
    ),
    ("bmi_client_links_up", Unit::Count, "addresses with a connection, as the calls have found them"),
    (
        "bmi_server_calls_total",
        Unit::Count,
        "calls whose handler has run, by `outcome`: `ok`, the kind of the error, or `dropped` with the runtime",
    ),
    ("bmi_server_calls_in_flight", Unit::Count, "handlers that run"),
    ("bmi_server_call_seconds", Unit::Seconds, "time of a handler"),
    (
        "bmi_server_refusals_total",
        Unit::Count,
        "calls refused before their handler began, by `outcome`: `Busy`, `TooLarge`, `Refused`, and others",
    ),
    ("bmi_server_sent_bytes_total", Unit::Bytes, "bytes of replies and their data"),
    ("bmi_server_received_bytes_total", Unit::Bytes, "bytes of requests and their data"),
];

/// Returns all names, with their units and meanings.
fn all() -> impl Iterator<Item = (&'static str, Unit, &'static str)> {
    let of_engines = |(name, meaning): &(&'static str, &'static str)| {
        let unit = if name.contains("bytes") { Unit::Bytes } else { Unit::Count };
        (*name, unit, *meaning)
    };
    CALLS.iter().copied().chain(COUNTERS.iter().chain(LEVELS).chain(&PATHS).map(of_engines))
}

/// Tells the recorder what the values are.
pub(super) fn describe() {
    for (name, unit, meaning) in all() {
        if name.ends_with("_total") {
            describe_counter!(name, unit, meaning);
        } else if name.ends_with("_seconds") {
            describe_histogram!(name, unit, meaning);
        } else {
            describe_gauge!(name, unit, meaning);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const HEAD: &str = "| name | unit | meaning |";

    /// The document has the table of all names. `WRITE_NAMES=1` writes it anew.
    #[test]
    fn the_document_has_the_table_of_all_names() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/embedding.md");
        let document = std::fs::read_to_string(&path).unwrap();
        let row = |(name, unit, meaning): (&str, Unit, &str)| format!("| `{name}` | {} | {meaning} |", unit.as_str());
        let table: Vec<String> = [HEAD, "|---|---|---|"].map(str::to_owned).into_iter().chain(all().map(row)).collect();
        let mut lines: Vec<String> = document.lines().map(str::to_owned).collect();
        let begin = lines.iter().position(|line| line == HEAD).expect("the head of the table");
        let end = begin + lines[begin..].iter().position(|line| !line.starts_with('|')).unwrap();
        if std::env::var_os("WRITE_NAMES").is_some() {
            lines.splice(begin..end, table);
            return std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        }
        assert_eq!(lines[begin..end], table, "WRITE_NAMES=1 writes the table anew");
    }
}
