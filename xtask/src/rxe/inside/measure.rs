//! Measures our verbs against `perftest`, in the same machine and the same minute.
//!
//! **Why only ratios.** In emulation, an operation costs what the emulator costs. That is true of
//! both programs, so a ratio shows how much our code adds. No figure here shows how fast an adapter
//! is. The rounds alternate, so that other load on the host affects both, and the median is taken.

use super::perftest::perftest;
use super::scenario::Scene;
use crate::rxe::build::MEASURE;

/// A measurement that both programs make.
struct Series {
    /// The program of `perftest`, and the name of the series in our program.
    program: &'static str,
    /// The column of the value in its last line: the typical latency, or the average bandwidth.
    column: usize,
    /// True if more is better.
    is_rate: bool,
}

const SERIES: &[Series] = &[
    Series { program: "ib_send_lat", column: 4, is_rate: false },
    Series { program: "ib_write_lat", column: 4, is_rate: false },
    Series { program: "ib_read_lat", column: 4, is_rate: false },
    Series { program: "ib_send_bw", column: 3, is_rate: true },
    Series { program: "ib_write_bw", column: 3, is_rate: true },
    Series { program: "ib_read_bw", column: 3, is_rate: true },
];

/// Sizes, and the number of operations with which a round takes less than a second.
const SIZES: &[(usize, usize)] = &[(64, 4000), (4 << 10, 3000), (64 << 10, 200), (1 << 20, 24)];
const ROUNDS: usize = 5;
/// The aims: at most this many times the latency, and at least this part of the bandwidth.
const LATENCY_AIM: f64 = 1.3;
const BANDWIDTH_AIM: f64 = 0.9;

pub(crate) fn ratios(scene: &Scene<'_>) -> Result<(), String> {
    scene.note("Ratios to perftest in the same emulated machine; emulated speeds say nothing of an adapter.".into());
    scene.note(format!(
        "aims: latency at most {LATENCY_AIM}, bandwidth at least {BANDWIDTH_AIM}; median of {ROUNDS} rounds"
    ));
    let sizes: String = SIZES.iter().map(|(size, _)| format!("{size:>10}")).collect();
    scene.note(format!("{:<14}{sizes}", "bytes"));
    for series in SERIES {
        let mut line = format!("{:<14}", series.program);
        for &(size, operations) in SIZES {
            let mut ratios = Vec::new();
            for _ in 0..ROUNDS {
                ratios.push(ours(scene, series, size, operations)? / theirs(scene, series, size, operations)?);
            }
            ratios.sort_by(f64::total_cmp);
            let ratio = ratios[ROUNDS / 2];
            let met = if series.is_rate { ratio >= BANDWIDTH_AIM } else { ratio <= LATENCY_AIM };
            line += &format!("{ratio:>9.2}{}", if met { ' ' } else { '!' });
        }
        scene.note(line);
    }
    Ok(())
}

/// Runs `ib_measure SERIES SIZE OPERATIONS`, which prints one number in the unit of `perftest`: the
/// typical time of an operation in µs (half a round trip for send and write), or MB/s.
fn ours(scene: &Scene<'_>, series: &Series, size: usize, operations: usize) -> Result<f64, String> {
    let output = scene.ok(&[MEASURE, series.program, &size.to_string(), &operations.to_string()])?;
    output.trim().parse().map_err(|_| format!("{MEASURE} printed no number:\n{output}"))
}

fn theirs(scene: &Scene<'_>, series: &Series, size: usize, operations: usize) -> Result<f64, String> {
    // Without "-F" it does not report if its clock and its processor disagree. Emulated ones do so
    // now and then.
    let output = perftest(scene, series.program, &["-F", "-s", &size.to_string(), "-n", &operations.to_string()])?;
    number(&output, size, series.column).ok_or_else(|| format!("{} printed no number:\n{output}", series.program))
}

/// Returns the number in `column` of the line that begins with the size.
pub(super) fn number(output: &str, size: usize, column: usize) -> Option<f64> {
    let size = size.to_string();
    let line = output.lines().find(|line| line.split_whitespace().next() == Some(&size))?;
    line.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_perftest_are_found() {
        let latency = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]\n 64      500          10.08          135.24       13.66    \t       15.26\n";
        assert_eq!(number(latency, 64, 4), Some(13.66));
        let bandwidth = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      1000             49.10              48.90              0.000782\n";
        assert_eq!(number(bandwidth, 65_536, 3), Some(48.9));
        assert_eq!(number(bandwidth, 64, 3), None);
    }
}
