//! What a run counted and found, as text and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use testbed::cluster::Cluster;
use testbed::process::Usage;

use super::spec::{Done, Kind, Over};
use crate::measured::Measured;

/// The bound for the 99th percentile beside an attack, in multiples of the control's.
const MOST_RATIO: f64 = 2.0;

/// What an honest client noticed in some time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Latency {
    /// Operations that succeeded.
    pub(super) operations: u64,
    pub(super) failed: u64,
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    pub(super) max_us: u64,
    /// How often an operation failed for each reason.
    pub(super) reasons: BTreeMap<String, u64>,
}

impl Latency {
    pub(super) fn of(measured: &Measured) -> Latency {
        let [p50_us, p99_us, max_us] = measured.quantiles_us([0.5, 0.99, 1.0]);
        let (operations, failed) = (measured.succeeded(), measured.failed());
        Latency { operations, failed, p50_us, p99_us, max_us, reasons: measured.reasons.clone() }
    }
}

/// What a server used before an attack, at most during it, and afterwards: resident memory in
/// bytes, and open descriptors.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Server {
    server: String,
    resident_before: u64,
    resident_most: u64,
    resident_after: u64,
    descriptors_before: u64,
    descriptors_most: u64,
    descriptors_after: u64,
}

impl Server {
    pub(super) fn new(index: usize, before: Usage, most: Usage, after: Usage) -> Server {
        let most = most.max(before);
        Server {
            server: Cluster::name(index),
            resident_before: before.resident,
            resident_most: most.resident,
            resident_after: after.resident,
            descriptors_before: before.descriptors,
            descriptors_most: most.descriptors,
            descriptors_after: after.descriptors,
        }
    }
}

/// One attack over one transport.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    pub(super) attack: Kind,
    pub(super) over: Over,
    /// What the attackers have done.
    pub(super) done: Done,
    /// Seconds of the attack, and the processor time of the attackers in seconds.
    pub(super) seconds: f64,
    pub(super) cpu_s: f64,
    /// The honest client over the transport of the attack.
    pub(super) before: Latency,
    pub(super) during: Latency,
    pub(super) after: Latency,
    /// Beside processes that use as much processor time and connect to nobody.
    pub(super) control: Latency,
    /// The 99th percentile during the attack, divided by the control's.
    pub(super) p99_ratio: f64,
    /// Failures of the honest clients over all transports, from the beginning to the end.
    pub(super) failed: u64,
    pub(super) servers: Vec<Server>,
    /// Seconds from the end of the attack until the servers had given back what they used.
    pub(super) back_after_s: Option<f64>,
    pub(super) log_bytes: u64,
    /// What no correct server does.
    pub(super) wrong: Vec<String>,
}

impl Row {
    /// Returns true if the honest client was slower than the control allows.
    fn is_slow(&self) -> bool {
        self.p99_ratio > MOST_RATIO
    }
}

/// The whole result.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Report {
    pub(super) seed: u64,
    pub(super) seconds: f64,
    pub(super) streams: u64,
    pub(super) rows: Vec<Row>,
    /// The directory, if it was kept.
    pub(super) kept: Option<String>,
}

impl Report {
    /// Returns the number of wrong results.
    pub(super) fn wrong(&self) -> usize {
        self.rows.iter().map(|row| row.wrong.len()).sum()
    }

    /// Returns the number of attacks beside which the honest client was too slow.
    pub(super) fn slow(&self) -> usize {
        self.rows.iter().filter(|row| row.is_slow()).count()
    }

    /// Formats the report for people.
    pub(super) fn render(&self) -> String {
        let mut text = String::from(
            "                       streams   time    cpu |  honest client: p50 ms / p99 ms                       p99 to\n\
             attack       over        sent      s      s |       before       attack        after      control  control  failed\n",
        );
        for row in &self.rows {
            let pair = |of: &Latency| format!("{:.1}/{:.1}", of.p50_us as f64 / 1e3, of.p99_us as f64 / 1e3);
            let phases = [&row.before, &row.during, &row.after, &row.control].map(|of| format!(" {:>12}", pair(of)));
            let Row { attack, over, seconds, cpu_s, p99_ratio, failed, .. } = row;
            text += &format!(
                "{attack:<13}{over:<5}{:>10}{seconds:>7.1}{cpu_s:>7.1} |{}{p99_ratio:>9.2}{failed:>8}{}\n",
                row.done.streams,
                phases.concat(),
                if row.is_slow() { "  SLOW" } else { "" },
            );
        }
        text += "\n                   resident MiB, descriptors: before, most, after                              back    log\n\
                 attack       over  of each server                                                        after s     KB\n";
        for row in &self.rows {
            let each = row.servers.iter().map(|of| {
                let mib = [of.resident_before, of.resident_most, of.resident_after].map(|bytes| bytes >> 20);
                let open = [of.descriptors_before, of.descriptors_most, of.descriptors_after];
                let [mib, open] = [mib, open].map(|[before, most, after]| format!("{before}..{most}..{after}"));
                format!("{} {mib}, {open}", of.server)
            });
            let back = row.back_after_s.map_or("never".to_owned(), |seconds| format!("{seconds:.1}"));
            let each = each.collect::<Vec<_>>().join("; ");
            text +=
                &format!("{:<13}{:<6}{each:<75}{back:>7}{:>7}\n", row.attack, row.over, row.log_bytes.div_ceil(1000));
        }
        for row in &self.rows {
            row.wrong.iter().for_each(|wrong| text += &format!("\nWRONG {} over {}: {wrong}", row.attack, row.over));
        }
        self.kept.iter().for_each(|kept| text += &format!("\nkept: {kept}"));
        let (wrong, slow, rows) = (self.wrong(), self.slow(), self.rows.len());
        text + &format!(
            "\nseed {}, {:.1} s, {} streams, {wrong} wrong results; p99 above {MOST_RATIO} of the control in {slow} of \
             {rows} attacks\n",
            self.seed, self.seconds, self.streams
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_what_is_wrong_and_what_is_slow() {
        let row = |p99_ratio, wrong: &[&str]| Row {
            attack: Kind::Garbage,
            over: Over::Shm,
            done: Done { streams: 7, bytes: 9, refused: 0 },
            seconds: 1.0,
            cpu_s: 2.0,
            before: Latency::default(),
            during: Latency::default(),
            after: Latency::default(),
            control: Latency::default(),
            p99_ratio,
            failed: 0,
            servers: Vec::new(),
            back_after_s: None,
            log_bytes: 1,
            wrong: wrong.iter().map(|text| (*text).to_owned()).collect(),
        };
        let rows = vec![row(1.9, &[]), row(2.1, &["the manager ended"])];
        let report = Report { seed: 1, seconds: 2.0, streams: 14, rows, kept: None };
        assert_eq!((report.wrong(), report.slow()), (1, 1));
        let text = report.render();
        assert!(text.contains("WRONG garbage over shm: the manager ended"), "{text}");
        assert!(text.contains("SLOW") && text.contains("14 streams, 1 wrong"), "{text}");
    }
}
