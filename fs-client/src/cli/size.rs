//! Parses and formats sizes and times.

use std::time::Duration;

use crate::CacheHints;

/// Largest strip, in bytes. A larger strip has no benefit and leaves the other servers idle.
const MAX_STRIP: u64 = 1 << 30;

/// Parses a size such as `123`, `64K`, `4MiB`, `1.5G`. Units are powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(format!("{text:?} has an unknown unit; write 4096, 64K, 4M or 1G")),
    };
    let bad = || format!("{text:?} is not a size; write 4096, 64K, 4M or 1G");
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is more than 64 bits hold"));
    }
    let value: f64 = number.parse().map_err(|_| bad())?;
    let value = value * (1u64 << shift) as f64;
    if !value.is_finite() || value >= u64::MAX as f64 {
        return Err(format!("{text:?} is more than 64 bits hold"));
    }
    Ok(value as u64)
}

/// Parses a strip size.
pub(crate) fn strip(text: &str) -> Result<u32, String> {
    let size = bytes(text)?;
    if !(1..=MAX_STRIP).contains(&size) {
        return Err(format!("a strip has at least 1 byte and at most 1G, not {text}"));
    }
    u32::try_from(size).map_err(|error| error.to_string())
}

/// Parses the size of a unit of a cache.
pub(crate) fn cache_unit(text: &str) -> Result<u32, String> {
    let size = bytes(text)?;
    let known = CacheHints::UNITS.into_iter().find(|unit| u64::from(*unit) == size);
    known.ok_or_else(|| format!("a unit of a cache has 4K, 8K, 16K, 32K or 64K, not {text}"))
}

/// Parses the block size of a transfer.
pub(crate) fn block(text: &str) -> Result<u64, String> {
    let size = bytes(text)?;
    if !(4096..=1 << 30).contains(&size) {
        return Err(format!("a block has at least 4K and at most 1G, not {text}"));
    }
    Ok(size)
}

/// Parses bytes per second.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0..4096 => Err(format!("a rate is at least 4K, not {text}")),
        rate => Ok(rate),
    }
}

/// Parses a time as [`duration`] does. It may be zero.
pub(crate) fn duration_or_none(text: &str) -> Result<Duration, String> {
    let zero = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    if zero.parse() == Ok(0.0) { Ok(Duration::ZERO) } else { duration(text) }
}

/// Parses a time such as `500ms`, `10s`, `2m`, or a plain number of seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("{text:?} is not a time; write 500ms, 10s or 2m");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds_each = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    let seconds = number.parse::<f64>().map_err(|_| bad())? * seconds_each;
    if seconds <= 0.0 {
        return Err(format!("{text:?} leaves no time at all"));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| bad())
}

/// Formats a size as `1.5 GiB`, `64 KiB`, `17 B`.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 1)) > 0 {
        unit += 1;
    }
    let whole = bytes as f64 / (1u64 << (10 * unit)) as f64;
    if whole.fract() == 0.0 { format!("{whole} {}", UNITS[unit]) } else { format!("{whole:.1} {}", UNITS[unit]) }
}

/// Formats a size like [`show_bytes`], but in short: `1.5G`, `64K`, `17`.
pub(crate) fn show_short(bytes: u64) -> String {
    show_bytes(bytes).replace([' ', 'i', 'B'], "")
}

/// Formats a size like [`show_bytes`], but without a blank and without rounding: a unit is used
/// only if it divides the size.
pub(crate) fn show_exact(bytes: u64) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if bytes > 0 && bytes.is_multiple_of(1 << shift) {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// Formats a rate as `1.50 GB/s` (10^9), the unit in which the project states its goals.
pub(crate) fn show_rate(bytes: u64, took: Duration) -> String {
    let rate = bytes as f64 / took.as_secs_f64().max(1e-9);
    if rate >= 1e9 { format!("{:.2} GB/s", rate / 1e9) } else { format!("{:.1} MB/s", rate / 1e6) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (text, size) in
            [("0", 0), ("17", 17), ("64K", 65536), ("4MiB", 4 << 20), ("1.5g", 3 << 29), ("2tb", 2 << 40)]
        {
            assert_eq!(bytes(text), Ok(size), "{text}");
        }
        for text in ["", "K", "-1", "1X", "1.2.3K", "99999999999999999999", "9999999999T"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(strip("1G"), Ok(1 << 30));
        assert!(strip("2G").is_err());
        assert!(block("1K").is_err());
        assert_eq!((cache_unit("4K"), cache_unit("65536")), (Ok(4096), Ok(65536)));
        assert!(cache_unit("128K").is_err() && cache_unit("12K").is_err());
    }

    #[test]
    fn times() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1.5"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "s", "0", "-1s", "10 parsecs", "1e400h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shown() {
        assert_eq!(show_bytes(17), "17 B");
        assert_eq!(show_bytes(65536), "64 KiB");
        assert_eq!(show_bytes(3 << 29), "1.5 GiB");
        assert_eq!([17, 65536, 3 << 29].map(show_short), ["17", "64K", "1.5G"]);
        assert_eq!(show_exact(65536), "64K");
        assert_eq!(show_exact(65537), "65537");
        assert_eq!(show_rate(3_000_000_000, Duration::from_secs(2)), "1.50 GB/s");
    }
}
