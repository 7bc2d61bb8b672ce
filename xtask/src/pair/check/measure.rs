//! Programs of others that measure a pair: `iperf3` and `sockperf`.

use std::time::Duration;

use serde_json::Value;

use crate::pair::cable::{Pair, SERVER};
use crate::pair::link::{Cable, Link, Loss};

/// The seconds of a measurement. The bucket of `tbf` adds its burst once, 0.1 % of that at 1 Gb/s.
const SECONDS: &str = "1";
/// Time limit of one measurement.
const LIMIT: Duration = Duration::from_secs(30);
/// A cable without limits.
pub(super) const PLAIN: Link =
    Link { rate: None, flow_rate: None, delay: Duration::ZERO, loss: Loss(0), mtu: 1500, cable: Cable::Auto, seed: 1 };

/// Returns the cable to compare a delayed one with. `netem` without a delay does nothing, and the
/// relay without a delay still takes its time.
pub(super) fn undelayed(cable: Cable) -> Link {
    Link { cable: if cable == Cable::Relay { Cable::Relay } else { Cable::Auto }, ..PLAIN }
}

/// Makes a pair whose server runs both.
pub(super) fn served(link: Link) -> Result<Pair, String> {
    let mut pair = Pair::make(&link, false)?;
    pair.serve("exec iperf3 -s >/dev/null 2>&1")?;
    pair.serve(&format!("exec sockperf server --tcp -i {SERVER} >/dev/null 2>&1"))?;
    Ok(pair)
}

/// What `sockperf` is told for one connection of TCP.
pub(super) const ONE: &[&str] = &["--tcp", "-i", SERVER];

/// Returns the median round trip of small messages, in microseconds.
pub(super) fn round_trip(pair: &Pair, options: &[&str]) -> Result<f64, String> {
    let fixed = ["ping-pong", "--full-rtt", "-t", SECONDS];
    let text = output(pair, "sockperf", &[&fixed, options].concat())?;
    median_of(&text).ok_or_else(|| format!("sockperf reports no median:\n{text}"))
}

/// Finds the median in the report of sockperf.
fn median_of(text: &str) -> Option<f64> {
    let (_, rest) = text.split_once("percentile 50.000 =")?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Returns the megabits per second that arrive.
pub(super) fn bandwidth(pair: &Pair, options: &[&str]) -> Result<f64, String> {
    let report = iperf3(pair, &[&["-t", SECONDS], options].concat())?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    bits.map(|bits| bits / 1e6).ok_or_else(|| format!("iperf3 reports no bandwidth: {}", report["error"]))
}

/// Returns the report of a client of `iperf3`.
pub(super) fn iperf3(pair: &Pair, args: &[&str]) -> Result<Value, String> {
    let text = output(pair, "iperf3", &[&["-J", "-c", SERVER], args].concat())?;
    serde_json::from_str(&text).map_err(|error| format!("iperf3 reports no JSON: {error}"))
}

/// Runs a program of the client and returns what it says.
fn output(pair: &Pair, program: &str, args: &[&str]) -> Result<String, String> {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let (result, text) = pair.client.limited(program, &args).captured(LIMIT);
    result.map(|()| text.clone()).map_err(|failure| format!("{failure}:\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_sockperf_is_found() {
        let text = "sockperf: ---> percentile 75.000 =  126.829\nsockperf: ---> percentile 50.000 =  114.282\n";
        assert_eq!(median_of(text), Some(114.282));
        assert_eq!(median_of("sockperf: error"), None);
    }
}
