//! What is asked of the cable, and how it is written on the command line.
//!
//! Units are those of `tc` (tc(8), *Parameters*): `kbit`, `mbit` and `gbit` are powers of 1000.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

/// What is asked of the cable. All of it holds for each direction.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// The rate. Without one, packets pass as fast as the machine can.
    pub(super) rate: Option<Rate>,
    /// The rate of each flow, instead.
    pub(super) flow_rate: Option<Rate>,
    /// How long a packet is in flight, beside its time at the rate.
    pub(super) delay: Duration,
    pub(super) loss: Loss,
    /// The longest IP packet, in bytes.
    pub(super) mtu: u32,
    pub(super) cable: Cable,
    /// Decides which packets are lost.
    pub(super) seed: u64,
}

/// What delays and loses packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Cable {
    /// The kernel's `netem` if it has it, else the relay. Without delay and loss, neither.
    Auto,
    /// The kernel's `netem` on a veth pair.
    Netem,
    /// A process that carries packets between two TUN devices.
    Relay,
}

/// Bits per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate(pub(super) u64);

/// The part of the packets that is lost, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Loss(pub(super) u32);

/// The names of units with their sizes. A longer name is before its own ending.
const RATES: &[(&str, f64)] = &[("gbit", 1e9), ("mbit", 1e6), ("kbit", 1e3)];
const TIMES: &[(&str, f64)] = &[("ms", 1e6), ("us", 1e3), ("ns", 1.0), ("s", 1e9)];

/// Reads a number with a unit.
fn number(text: &str, units: &[(&str, f64)], example: &str) -> Result<f64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let found = units.iter().find_map(|(name, size)| Some((lower.strip_suffix(name)?, size)));
    let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
    let wanted = || format!("expected a number with its unit ({}), such as {example}", names.join(", "));
    let (digits, size) = found.ok_or_else(wanted)?;
    let is_plain = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit() || c == '.');
    let value: f64 = digits.parse().ok().filter(|_| is_plain).ok_or_else(wanted)?;
    Ok(value * size)
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Rate, String> {
        let bits = number(text, RATES, "1gbit")?;
        if !(64e3..=100e9).contains(&bits) {
            return Err("a rate is from 64kbit to 100gbit".to_owned());
        }
        Ok(Rate(bits.round() as u64))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = RATES.iter().find(|(_, size)| self.0 as f64 >= *size);
        let (name, size) = unit.unwrap_or(&("bit", 1.0));
        write!(f, "{}{name}", self.0 as f64 / size)
    }
}

impl Rate {
    /// Returns the bytes that pass in this time.
    pub(super) fn bytes_in(self, time: Duration) -> u64 {
        (u128::from(self.0) * time.as_nanos() / 8_000_000_000) as u64
    }
}

/// Reads a delay.
pub(super) fn delay(text: &str) -> Result<Duration, String> {
    let ns = number(text, TIMES, "1ms")?;
    if ns > 10e9 {
        return Err("a delay is at most 10s".to_owned());
    }
    Ok(Duration::from_nanos(ns.round() as u64))
}

impl FromStr for Loss {
    type Err = String;

    fn from_str(text: &str) -> Result<Loss, String> {
        let percent = number(text, &[("%", 1.0)], "1%")?;
        if percent > 100.0 {
            return Err("a loss is at most 100%".to_owned());
        }
        Ok(Loss((percent * 1e4).round() as u32))
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 1e4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_delays_and_losses_are_read_and_written() {
        assert_eq!("1gbit".parse(), Ok(Rate(1_000_000_000)));
        assert_eq!("2.5Gbit".parse(), Ok(Rate(2_500_000_000)));
        assert_eq!("100mbit".parse::<Rate>().unwrap().to_string(), "100mbit");
        assert_eq!("64kbit".parse(), Ok(Rate(64_000)));
        assert_eq!(delay("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(delay("0.5s"), Ok(Duration::from_millis(500)));
        assert_eq!(delay("50us"), Ok(Duration::from_micros(50)));
        assert_eq!("1%".parse(), Ok(Loss(10_000)));
        assert_eq!("0.1%".parse::<Loss>().unwrap().to_string(), "0.1%");
        assert_eq!("100%".parse(), Ok(Loss(1_000_000)));
        assert_eq!(Rate(1_000_000_000).bytes_in(Duration::from_millis(1)), 125_000);
    }

    #[test]
    fn what_is_no_size_is_refused_with_the_form_that_is_expected() {
        for text in ["", "1", "gbit", "-1gbit", "1e3mbit", "1 0mbit", "1gb", "1.2.3gbit", "infmbit", "1bit"] {
            let why = text.parse::<Rate>().unwrap_err();
            assert!(why.contains("such as 1gbit"), "{text}: {why}");
        }
        assert_eq!("1kbit".parse::<Rate>().unwrap_err(), "a rate is from 64kbit to 100gbit");
        assert_eq!("101gbit".parse::<Rate>().unwrap_err(), "a rate is from 64kbit to 100gbit");
        assert!(delay("1m").unwrap_err().contains("such as 1ms"));
        assert!(delay("11s").unwrap_err().contains("at most 10s"));
        assert!("1".parse::<Loss>().unwrap_err().contains("such as 1%"));
        assert!("101%".parse::<Loss>().unwrap_err().contains("at most 100%"));
    }
}
