//! Formats figures for people: sizes in binary units, rates in decimal units, times in the unit
//! that fits. Parses sizes.

use std::time::Duration;

/// Formats a size in bytes, exactly: `64 KiB`, `4 B`.
pub fn size(bytes: usize) -> String {
    const UNITS: [(usize, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit)) {
        Some((unit, name)) => format!("{} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

/// Parses `64`, `64K`, `1M`, `2G`: bytes in binary units.
///
/// # Errors
/// For anything else, and for no bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let none = || format!("`{text}` is no size: write 64, 4K, 1M");
    let (digits, unit) = match text.trim().char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: u64 = digits.trim().parse().map_err(|_| none())?;
    match number.checked_mul(1 << unit) {
        Some(size) if size > 0 => Ok(size),
        _ => Err(none()),
    }
}

/// Formats an amount of bytes, rounded: `12.3 MiB`.
pub fn amount(bytes: u64) -> String {
    const UNITS: [(f64, &str); 3] = [(1073741824.0, "GiB"), (1048576.0, "MiB"), (1024.0, "KiB")];
    let bytes = bytes as f64;
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes / unit),
        None => format!("{bytes} B"),
    }
}

/// Formats bytes per second, in units of 10^6 or 10^9.
pub fn bandwidth(bytes_per_second: f64) -> String {
    if bytes_per_second >= 1e9 {
        format!("{:.2} GB/s", bytes_per_second / 1e9)
    } else {
        format!("{:.1} MB/s", bytes_per_second / 1e6)
    }
}

/// Formats a rate per second, in thousands or millions.
pub fn rate(per_second: f64) -> String {
    match per_second {
        1e6.. => format!("{:.2} M/s", per_second / 1e6),
        1e5.. => format!("{:.0} k/s", per_second / 1e3),
        1e4.. => format!("{:.1} k/s", per_second / 1e3),
        _ => format!("{:.2} k/s", per_second / 1e3),
    }
}

/// Formats a duration in ns, µs, ms or s.
pub fn time(seconds: f64) -> String {
    if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 1e-3 {
        format!("{:.2} ms", seconds * 1e3)
    } else if seconds > 0.0 && seconds < 1e-7 {
        format!("{:.1} ns", seconds * 1e9)
    } else {
        format!("{:.2} us", seconds * 1e6)
    }
}

/// Formats a [`Duration`] as [`time`] does.
pub fn duration(duration: Duration) -> String {
    time(duration.as_secs_f64())
}

/// Formats seconds since 1970: `2026-03-01 12:00 UTC`.
pub fn date(seconds: u64) -> String {
    let (day, of_day) = (day(seconds), seconds % 86_400);
    let (hour, minute) = (of_day / 3600, of_day / 60 % 60);
    format!("{day} {hour:02}:{minute:02} UTC")
}

/// Formats the day of a time in seconds since 1970: `2026-03-01`, in UTC.
///
/// **Source.** Hinnant: chrono-compatible low-level date algorithms, `civil_from_days`.
pub fn day(seconds: u64) -> String {
    let days = seconds / 86_400;
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_as_expected() {
        assert_eq!(
            [size(4), size(4096), size(65536), size(1 << 20), size(1500)],
            ["4 B", "4 KiB", "64 KiB", "1 MiB", "1500 B"]
        );
        assert_eq!([amount(10), amount(1536), amount(3 << 20)], ["10 B", "1.5 KiB", "3.0 MiB"]);
        assert_eq!([bandwidth(2.5e9), bandwidth(1e7)], ["2.50 GB/s", "10.0 MB/s"]);
        let rates = [rate(1.25e6), rate(180e3), rate(18.04e3), rate(1804.0)];
        assert_eq!(rates, ["1.25 M/s", "180 k/s", "18.0 k/s", "1.80 k/s"]);
        let times = [time(2.0), time(0.0015), time(4.2e-6), time(1e-7), time(61.26e-9), time(0.0)];
        assert_eq!(times, ["2.00 s", "1.50 ms", "4.20 us", "0.10 us", "61.3 ns", "0.00 us"]);
    }
}
