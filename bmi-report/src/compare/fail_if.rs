//! The rule by which a comparison fails: `slower:5%`.

use std::fmt;
use std::str::FromStr;

use crate::stats::Interval;

/// The most that a rule allows, in percent.
const MOST: f64 = 1000.0;

/// A comparison fails if the whole interval of a row is above this ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FailIf {
    percent: f64,
}

impl FailIf {
    /// Returns true if the whole interval is above what the rule allows.
    pub fn is_broken(&self, ratio: Option<Interval>) -> bool {
        ratio.is_some_and(|ratio| ratio.low > 1.0 + self.percent / 100.0)
    }
}

impl fmt::Display for FailIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slower:{}%", self.percent)
    }
}

impl FromStr for FailIf {
    type Err = String;

    fn from_str(text: &str) -> Result<FailIf, String> {
        let rule = "a rule is slower:N%, for example slower:5%";
        let Some((what, bound)) = text.split_once(':') else {
            return Err(format!("{text:?} has no colon; {rule}"));
        };
        if what != "slower" {
            return Err(format!("{what:?} is not `slower`; {rule}"));
        }
        let Some(percent) = bound.strip_suffix('%') else {
            return Err(format!("{bound:?} does not end with %; {rule}"));
        };
        let is_figure = percent.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        match percent.parse::<f64>() {
            Ok(percent) if is_figure && percent <= MOST => Ok(FailIf { percent }),
            Ok(_) if is_figure => Err(format!("{percent} % is too much; at most {MOST} %")),
            _ => Err(format!("{percent:?} is not a number of percent; {rule}")),
        }
    }
}
