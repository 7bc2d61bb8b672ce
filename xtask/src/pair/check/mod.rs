//! `cargo xtask pair --check`: what is known of a pair, measured with programs of others.
//!
//! | known | how |
//! |---|---|
//! | delay | the median round trip (`sockperf`) grows by twice the delay, over the same kind of cable |
//! | rate | TCP (`iperf3`) gets what the headers leave of it ([`shape::goodput`]) |
//! | loss | the part of the packets of UDP that `iperf3` misses |
//! | idle | the processor time of the relay without packets |
//! | end | nothing is left of a run, whatever ends it ([`lifetime`]) |
//! | `bmi-perf` | the same, and the values of `iperf3` and `sockperf` ([`perf`]) |
//!
//! Other programs use the machine too. What is compared is measured in turns. Other load only makes
//! a round trip longer and only keeps a connection from reaching a rate. So the shortest of the
//! medians counts, and the highest rate.
//!
//! | module | what |
//! |---|---|
//! | `measure`, `perf` | `iperf3` and `sockperf`, and `bmi-perf` |
//! | `lifetime` | what a run leaves behind |
//! | `report` | the table |

mod lifetime;
mod measure;
mod perf;
mod report;

use std::fs;
use std::path::Path;
use std::time::Duration;

use self::measure::{ONE, PLAIN, bandwidth, iperf3, round_trip, served, undelayed};
use self::report::{Row, table};
use super::cable::Pair;
use super::link::{Cable, Link, Loss, Rate};
use super::{clock, shape};
use crate::setup::{self, Need};
use crate::totals::Totals;

/// The rounds of a measurement.
const ROUNDS: usize = 5;
/// The delay that is checked.
const DELAY: Duration = Duration::from_millis(1);
const GIGABIT: Rate = Rate(1_000_000_000);
/// The allowed errors of delays and rates.
const DELAY_ERROR: f64 = 0.05;
const RATE_ERROR: f64 = 0.03;
/// Without packets, the relay may use this part of a processor.
const IDLE: f64 = 0.01;
/// One in a hundred.
const LOSS: Loss = Loss(10_000);

/// Makes pairs and measures them.
type Check = fn() -> Result<Vec<Row>, String>;

/// The checks, with what they are about.
const CHECKS: &[(&str, Check)] = &[("delay", delays), ("rate", rates), ("loss", losses), ("idle", idle)];

/// Runs all checks and prints the table.
/// `folder` has the program `bmi-perf` if it need not be built.
pub(super) fn run(root: &Path, folder: Option<&Path>) -> Result<Totals, String> {
    let program = perf::program(root, folder).map_err(|failure| failure.reason)?;
    setup::install(root, Need::PairCheck).map_err(|failure| failure.reason)?;
    let mut rows = Vec::new();
    for (what, check) in CHECKS {
        rows.extend(check().unwrap_or_else(|why| vec![Row::broken(*what, "xtask", why)]));
    }
    rows.extend(lifetime::rows());
    match program {
        Some(program) => rows.extend(perf::rows(&program, DELAY, DELAY_ERROR, GIGABIT, RATE_ERROR)),
        None => eprintln!("there is no crate bmi-perf here, so it is not checked"),
    }
    print!("{}", table(&rows));
    let passed = rows.iter().filter(|row| row.is_right()).count() as u64;
    Ok(Totals { passed, failed: rows.len() as u64 - passed, skipped: 0 })
}

/// The cables that can delay and lose: the relay, and `netem` where the kernel has it.
fn cables() -> Result<Vec<Cable>, String> {
    let automatic = Pair::make(&Link { delay: DELAY, ..PLAIN }, false)?;
    let has_netem = !automatic.is_relayed();
    Ok(if has_netem { vec![Cable::Netem, Cable::Relay] } else { vec![Cable::Relay] })
}

/// How much longer a round trip takes with a delay than over the same kind of cable without one.
fn delays() -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for cable in cables()? {
        let (near, far) = (served(undelayed(cable))?, served(Link { delay: DELAY, cable, ..PLAIN })?);
        let (mut without, mut with) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..ROUNDS {
            without = without.min(round_trip(&near, ONE)?);
            with = with.min(round_trip(&far, ONE)?);
        }
        let what = format!("delay 1ms, {}: round trip beyond its {:.0} us without", name(cable), without);
        let known = 2.0 * DELAY.as_micros() as f64;
        rows.push(Row::within(what, "sockperf", "us", known, DELAY_ERROR, with - without));
    }
    Ok(rows)
}

/// Bandwidths at rates.
fn rates() -> Result<Vec<Row>, String> {
    let hundred = Rate(GIGABIT.0 / 10);
    let mut links = vec![Link { rate: Some(GIGABIT), ..PLAIN }, Link { rate: Some(hundred), ..PLAIN }];
    let delayed = cables()?.into_iter().map(|cable| Link { rate: Some(GIGABIT), delay: DELAY, cable, ..PLAIN });
    links.extend(delayed);
    links.push(Link { rate: Some(GIGABIT), mtu: 9000, ..PLAIN });
    let mut rows = Vec::new();
    for link in links {
        let pair = served(link.clone())?;
        for (direction, options) in [("to", &[][..]), ("from", &["-R"][..])] {
            let measured = (0..ROUNDS).map(|_| bandwidth(&pair, options)).collect::<Result<Vec<f64>, String>>()?;
            let highest = measured.into_iter().fold(0.0, f64::max);
            let rate = link.rate.unwrap_or(GIGABIT);
            let known = shape::goodput(rate, link.mtu, pair.is_relayed()) / 1e6;
            let cable = if link.delay.is_zero() { "veth".to_owned() } else { format!("1ms, {}", name(link.cable)) };
            let what = format!("rate {rate}, MTU {}, {cable}: {direction} the server", link.mtu);
            rows.push(Row::within(what, "iperf3", "Mb/s", known, RATE_ERROR, highest));
        }
    }
    Ok(rows)
}

/// The part of the packets that does not arrive.
fn losses() -> Result<Vec<Row>, String> {
    let mut rows = Vec::new();
    for cable in cables()? {
        let pair = served(Link { loss: LOSS, cable, ..PLAIN })?;
        // Small packets: the receiver's buffer holds them for longer when it is not scheduled.
        let report = iperf3(&pair, &["-u", "-b", "3.2M", "-l", "100", "-w", "208K", "-t", "5"])?;
        let value = |name| report["end"]["sum"][name].as_f64().ok_or("iperf3 reports no loss");
        let (packets, lost) = (value("packets")?, value("lost_packets")?);
        let known = f64::from(LOSS.0) / 1e4;
        // Four standard deviations of as many draws.
        let error = 4.0 * ((1.0 - known / 100.0) / (known / 100.0 * packets)).sqrt();
        let what = format!("loss {LOSS}, {}: lost of {packets} packets", name(cable));
        rows.push(Row::within(what, "iperf3 -u", "%", known, error, 100.0 * lost / packets));
    }
    Ok(rows)
}

/// The processor time of a relay that has nothing to do.
fn idle() -> Result<Vec<Row>, String> {
    let pair = served(Link { cable: Cable::Relay, delay: DELAY, ..PLAIN })?;
    let relay = pair.relay_id().ok_or("the pair has no relay")?;
    let used = || busy_ns(relay).ok_or_else(|| "the relay has ended".to_owned());
    let (start, before) = (clock::now_ns(), used()?);
    clock::until(Duration::from_secs(2), || false);
    let part = (used()? - before) as f64 / (clock::now_ns() - start) as f64;
    let what = format!("the relay without packets uses {:.2} % of a processor", 100.0 * part);
    Ok(vec![Row::fact(what, "schedstat", format!("below {:.0} %", 100.0 * IDLE), Ok(part < IDLE))])
}

/// Returns the first field of a process's `schedstat`: the time that it ran.
fn busy_ns(pid: u32) -> Option<u64> {
    fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

fn name(cable: Cable) -> &'static str {
    match cable {
        Cable::Auto => "auto",
        Cable::Netem => "netem",
        Cable::Relay => "relay",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_that_a_process_ran_is_read() {
        assert!(busy_ns(std::process::id()).is_some_and(|ns| ns > 0));
    }
}
