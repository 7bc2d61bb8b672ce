//! Runs `bmi-perf` in the machine: every test over verbs and over TCP, in one run.

use std::path::Path;

use bmi_report::Report;

use super::await_some;
use super::scenario::Scene;

/// The server's address. Its control connection and its verbs are on the loopback, which the device
/// of this machine serves, too.
const HOST: &str = "127.0.0.1";
const TESTS: &str = "latency,bandwidth,both-ways,rate,latency-at-rate,write-latency,write-bandwidth,read-latency,\
                     read-bandwidth,write-imm,call-write,call-read,list-write,list-read";
const ROUNDS: usize = 1;

/// Measures everything, a few messages of each, because an emulated machine is slow. Some figures
/// go to the report. They mean nothing.
pub(crate) fn every_test(scene: &Scene<'_>) -> Result<(), String> {
    const JSON: &str = "/tmp/perf.json";
    let server = scene.start(&["bmi-perf", "serve", HOST])?;
    server.await_output("listening at")?;
    let line = format!(
        "bmi-perf run {HOST} --over ib,tcp --test {TESTS} --size 20000 --depth 4 --pieces 7 --rate 200 --count 5 \
         --rounds {ROUNDS} --waiting sleeping --no-baseline --json {JSON}"
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    scene.ok(&words).map_err(|why| format!("{why}\nthe server said:\n{}", server.output()))?;
    let report = Report::read(Path::new(JSON)).map_err(|error| error.to_string())?;
    for over in ["ib", "tcp"] {
        let rows: Vec<_> = report.rows.iter().filter(|row| row.over == over).collect();
        // Twelve tests of one row, and two with a row for each path.
        if rows.len() != 12 + 2 * 5 {
            return Err(format!("{} rows over {over}: {:?}", rows.len(), report.notes));
        }
        if let Some(row) = rows.iter().find(|row| row.rounds.len() != ROUNDS || row.values().contains(&0.0)) {
            return Err(format!("{}: {:?}", row.name(), row.rounds));
        }
        for row in rows.iter().filter(|row| row.test.contains("latency")) {
            scene.note(format!("{}: {}", row.name(), row.unit.figure(row.median().middle)));
        }
    }
    without_a_link(scene)
}

/// A device whose link is down is a line with its name, and an exit status. Afterwards it works
/// again.
fn without_a_link(scene: &Scene<'_>) -> Result<(), String> {
    const WHY: &str = "no port of rxe0 is active";
    scene.ok(&["ip", "link", "set", "d0", "down"])?;
    let run = ["bmi-perf", "run", HOST, "--over", "ib", "--test", "latency", "--size", "8", "--quick"];
    // The port follows its link after a moment.
    let ends = |well: bool| {
        await_some("the port to follow its link", || {
            let finished = scene.finish(&run);
            ((finished.status == 0) == well).then_some(finished)
        })
    };
    let refused = ends(false);
    scene.ok(&["ip", "link", "set", "d0", "up"])?;
    ends(true)?;
    let refused = refused?;
    match refused.status == 2 && refused.output.contains(WHY) {
        true => Ok(()),
        false => Err(format!("without a link, exit status {}: {}", refused.status, refused.output)),
    }
}
