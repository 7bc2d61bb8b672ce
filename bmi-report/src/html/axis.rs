//! Axes: where a value is in a picture, and which values are labelled.
//!
//! **Invariant.** [`Axis::at`] is monotone, and is between the two ends of the axis for each value,
//! also for one that no axis can show.

use crate::units;

/// The width of a letter of a label, with the room between labels, somewhat more than most have.
const LETTER: f64 = 7.0;
const BETWEEN: f64 = 10.0;

/// How values are spread.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    Linear,
    Logarithmic,
}

/// One axis of a picture.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    /// Where `low` and `high` are, in the units of the picture.
    ends: (f64, f64),
    /// The labelled values.
    pub(super) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// Makes a logarithmic axis of bytes, with a tick at each size that was measured.
    pub(super) fn sizes(sizes: &[f64], ends: (f64, f64)) -> Axis {
        Axis::measured(sizes, ends, |bytes| units::size(bytes as usize))
    }

    /// Makes a logarithmic axis with a tick at each value. Where labels would overlap, a tick has
    /// none.
    pub(super) fn measured(values: &[f64], ends: (f64, f64), label: impl Fn(f64) -> String) -> Axis {
        let (low, high) = range(values);
        let mut values: Vec<f64> = values.iter().copied().filter(|value| (low..=high).contains(value)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let ticks = values.into_iter().map(|value| (value, label(value))).collect();
        // Room beside the first and the last value, and a width if there is only one.
        Axis { scale: Scale::Logarithmic, low, high, ends, ticks }.with_range(low / 1.15, high * 1.15)
    }

    /// Returns the axis with other ends of its range, and with the labels that fit then.
    pub(super) fn with_range(mut self, low: f64, high: f64) -> Axis {
        (self.low, self.high) = (low, high);
        let mut ticks = std::mem::take(&mut self.ticks);
        let half = |label: &str| label.chars().count() as f64 * LETTER / 2.0;
        // The last label always has room, so that the range can be read.
        let end = ticks.last().map_or(f64::INFINITY, |(value, label)| self.at(*value) - half(label) - BETWEEN);
        let (mut free, last) = (f64::NEG_INFINITY, ticks.len().saturating_sub(1));
        for (number, (value, label)) in ticks.iter_mut().enumerate() {
            let (x, half) = (self.at(*value), half(label));
            if number == last || (x - half >= free && x + half <= end) {
                free = x + half + BETWEEN;
            } else {
                label.clear();
            }
        }
        self.ticks = ticks;
        self
    }

    /// Makes a logarithmic axis that is labelled at 1, 2 and 5 times powers of ten, or at powers of
    /// ten only if it is long.
    pub(super) fn logarithmic(values: &[f64], ends: (f64, f64), label: impl Fn(f64) -> String) -> Axis {
        let (low, high) = range(values);
        let (low, high) = (low / 1.15, high * 1.2);
        let decades = (high / low).log10();
        let steps: &[f64] = match decades {
            ..1.7 => &[1.0, 2.0, 5.0],
            ..3.2 => &[1.0, 3.0],
            _ => &[1.0],
        };
        let powers = (low.log10().floor() as i32)..=(high.log10().ceil() as i32);
        let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        let ticks: Vec<(f64, String)> =
            all.filter(|value| (low..=high).contains(value)).map(|value| (value, label(value))).collect();
        // A short range contains few of these, so its ends are labelled.
        let ticks = if ticks.len() < 2 { [low, high].map(|value| (value, label(value))).to_vec() } else { ticks };
        Axis { scale: Scale::Logarithmic, low, high, ends, ticks }
    }

    /// Makes a linear axis from zero, labelled at round values.
    pub(super) fn from_zero(values: &[f64], ends: (f64, f64), label: impl Fn(f64) -> String) -> Axis {
        let (_, high) = range(values);
        // The longest of these steps that gives two labels or more beside that of zero. Four at
        // most, whose labels fit beside each other.
        let power = 10f64.powf((high / 2.0).log10().floor());
        let step = [5.0, 2.0, 1.0].map(|step| step * power).into_iter().find(|step| high / step >= 2.0);
        let step = step.unwrap_or(power);
        let ticks = (0..).map(|number| f64::from(number) * step).take_while(|value| *value <= high);
        let ticks = ticks.map(|value| (value, if value > 0.0 { label(value) } else { "0".to_owned() })).collect();
        Axis { scale: Scale::Linear, low: 0.0, high, ends, ticks }
    }

    /// Makes an axis of names, which are at 0, 1, 2, …
    pub(super) fn names(names: &[&str], ends: (f64, f64)) -> Axis {
        let ticks = names.iter().enumerate().map(|(place, name)| (place as f64, (*name).to_owned())).collect();
        Axis { scale: Scale::Linear, low: -0.2, high: names.len() as f64 - 0.8, ends, ticks }
    }

    /// Returns where a value is. A value beyond an end is at that end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let spread = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Logarithmic => value.max(f64::MIN_POSITIVE).ln(),
        };
        let share = (spread(value) - spread(self.low)) / (spread(self.high) - spread(self.low));
        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        self.ends.0 + share * (self.ends.1 - self.ends.0)
    }
}

/// Returns the range of the values that a logarithmic axis can show.
fn range(values: &[f64]) -> (f64, f64) {
    let shown = values.iter().copied().filter(|value| value.is_finite() && *value > 0.0);
    let (low, high) = shown.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
    if low.is_finite() { (low, high) } else { (1.0, 10.0) }
}

/// Labels seconds: `500 ns`, `20 µs`.
pub(super) fn time(seconds: f64) -> String {
    unit(seconds, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")])
}

/// Labels bytes per second: `5 GB/s`.
pub(super) fn bandwidth(rate: f64) -> String {
    unit(rate, &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")])
}

/// Labels operations per second: `20 k/s`.
pub(super) fn rate(rate: f64) -> String {
    unit(rate, &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")])
}

/// Labels a plain figure: `0.5`, `2`.
pub(super) fn plain(value: f64) -> String {
    short(value)
}

fn unit(value: f64, units: &[(f64, &str)]) -> String {
    // A value like 9.999999e-7 is 1 µs.
    let found = units.iter().find(|(unit, _)| value >= unit * 0.999_999).or(units.last());
    found.map(|(unit, name)| format!("{} {name}", short(value / unit))).unwrap_or_default()
}

/// Formats three digits, without zeros at the end.
fn short(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        0.1.. => 3,
        _ => 4,
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn ticks_have_the_labels_that_people_know() {
        let sizes = [8.0, 64.0, 4096.0, 1048576.0];
        let axis = Axis::sizes(&sizes, (0.0, 100.0));
        assert_eq!(labels(&axis), ["8 B", "", "4 KiB", "1 MiB"], "those that have room");
        let axis = Axis::sizes(&sizes, (0.0, 600.0));
        assert_eq!(labels(&axis), ["8 B", "64 B", "4 KiB", "1 MiB"]);
        assert_eq!(labels(&Axis::logarithmic(&[1e-6, 9e-6], (100.0, 0.0), time)), ["1 µs", "2 µs", "5 µs", "10 µs"]);
        assert_eq!(labels(&Axis::logarithmic(&[5e-7, 2e-3], (0.0, 1.0), time)), ["1 µs", "10 µs", "100 µs", "1 ms"]);
        let rates = Axis::logarithmic(&[2e8, 1.1e10], (0.0, 1.0), bandwidth);
        assert_eq!(labels(&rates), ["300 MB/s", "1 GB/s", "3 GB/s", "10 GB/s"]);
        assert_eq!(labels(&Axis::logarithmic(&[3.0, 3.1], (0.0, 1.0), plain)).len(), 2);
        let zero = Axis::from_zero(&[1.6e-6, 2.1e-6], (0.0, 1.0), time);
        assert_eq!(labels(&zero), ["0", "1 µs", "2 µs"]);
        assert_eq!(labels(&Axis::from_zero(&[1.0, 0.95], (0.0, 1.0), plain)), ["0", "0.5", "1"]);
        let widest = Axis::from_zero(&[9.9e8], (0.0, 1.0), bandwidth);
        assert_eq!(labels(&widest), ["0", "200 MB/s", "400 MB/s", "600 MB/s", "800 MB/s"]);
        assert_eq!(labels(&Axis::from_zero(&[1.8e-4], (0.0, 1.0), time)), ["0", "50 µs", "100 µs", "150 µs"]);
        assert_eq!([time(2e-7), time(1.0), rate(20e3), plain(0.5)], ["200 ns", "1 s", "20 k/s", "0.5"]);
    }

    proptest! {
        #[test]
        fn values_are_inside_and_in_order(values in prop::collection::vec(1e-9f64..1e12, 1..20), other in -1e15f64..1e15) {
            let sizes: Vec<f64> = values.iter().map(|value| value.ceil()).collect();
            for axis in [
                Axis::sizes(&sizes, (10.0, 90.0)),
                Axis::logarithmic(&values, (10.0, 90.0), plain),
                Axis::from_zero(&values, (10.0, 90.0), plain),
                Axis::names(&["a", "b"], (10.0, 90.0)),
            ] {
                let mut sorted = values.clone();
                sorted.extend([other, 0.0]);
                sorted.sort_by(f64::total_cmp);
                let places: Vec<f64> = sorted.iter().map(|value| axis.at(*value)).collect();
                prop_assert!(places.is_sorted() && places.iter().all(|place| (10.0..=90.0).contains(place)));
                let ticks: Vec<f64> = axis.ticks.iter().map(|(value, _)| axis.at(*value)).collect();
                prop_assert!(ticks.is_sorted_by(|a, b| a < b), "{ticks:?}");
                let labelled = axis.ticks.iter().filter(|(_, label)| !label.is_empty());
                prop_assert!(labelled.count() <= 12, "{:?}", axis.ticks);
                prop_assert!((10.0..=90.0).contains(&axis.at(f64::NAN)));
            }
        }
    }
}
