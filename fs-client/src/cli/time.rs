//! Times: the dates that are shown, and those that `touch` takes.

use std::ops::RangeInclusive;
use std::time::SystemTime;

use bmi_report::units::day;

const NS: i128 = 1_000_000_000;

/// Returns the time of this machine.
#[expect(clippy::disallowed_methods, reason = "the time of this machine is what is asked for")]
pub(crate) fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Formats a time in nanoseconds since 1970 as `2026-11-21 03:45:00`, UTC.
pub(crate) fn show_time(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let of_day = seconds % 86_400;
    format!("{} {:02}:{:02}:{:02}", day(seconds), of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// Parses `@SECONDS`, or a time of RFC 3339 whose end may be left out, in nanoseconds since 1970.
pub(crate) fn date(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no time since 1970; write @1795867200 or 2026-11-28T12:00:00Z");
    parse_date(text).and_then(|ns| u64::try_from(ns).ok()).ok_or_else(bad)
}

fn parse_date(text: &str) -> Option<i128> {
    let mut rest = Text(text);
    if rest.skip("@") {
        let seconds = rest.number(None, 0..=i64::MAX)?;
        let ns = i128::from(seconds) * NS + rest.fraction()?;
        return rest.0.is_empty().then_some(ns);
    }
    let year = rest.number(Some(4), 1970..=9999)?;
    let month = rest.after("-")?.number(Some(2), 1..=12)?;
    let day = rest.after("-")?.number(Some(2), 1..=31)?;
    let mut seconds = midnight(year, month, day)?;
    let mut ns = 0;
    if rest.skip("T") || rest.skip("t") || rest.skip(" ") {
        seconds += rest.number(Some(2), 0..=23)? * 3600;
        seconds += rest.after(":")?.number(Some(2), 0..=59)? * 60;
        if rest.skip(":") {
            seconds += rest.number(Some(2), 0..=60)?;
            ns = rest.fraction()?;
        }
        let sign = if rest.skip("+") { -1 } else { i64::from(rest.skip("-")) };
        if sign != 0 {
            seconds += sign * rest.number(Some(2), 0..=23)? * 3600;
            seconds += sign * rest.after(":")?.number(Some(2), 0..=59)? * 60;
        } else if !rest.skip("Z") {
            rest.skip("z");
        }
    }
    rest.0.is_empty().then_some(i128::from(seconds) * NS + ns)
}

/// Parses `[[CC]YY]MMDDhhmm[.ss]` in UTC, in nanoseconds since 1970.
pub(crate) fn stamp(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no stamp since 1970; write [[CC]YY]MMDDhhmm[.ss], such as 202611281200");
    parse_stamp(text).and_then(|ns| u64::try_from(ns).ok()).ok_or_else(bad)
}

fn parse_stamp(text: &str) -> Option<i128> {
    let mut rest = Text(text);
    let year = match text.split('.').next()?.len() {
        12 => rest.number(Some(4), 1970..=9999)?,
        // As POSIX has it.
        10 => match rest.number(Some(2), 0..=99)? {
            year @ 69.. => 1900 + year,
            year => 2000 + year,
        },
        _ => year_of(now_ns()),
    };
    let (month, day) = (rest.number(Some(2), 1..=12)?, rest.number(Some(2), 1..=31)?);
    let (hour, minute) = (rest.number(Some(2), 0..=23)?, rest.number(Some(2), 0..=59)?);
    let second = if rest.skip(".") { rest.number(Some(2), 0..=60)? } else { 0 };
    let seconds = midnight(year, month, day)? + hour * 3600 + minute * 60 + second;
    rest.0.is_empty().then_some(i128::from(seconds) * NS)
}

/// Returns the year of a time.
fn year_of(ns: u64) -> i64 {
    show_time(ns).split('-').next().and_then(|year| year.parse().ok()).unwrap_or(1970)
}

/// Returns the beginning of a day, in seconds since 1970. `None` if the month has no such day.
fn midnight(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    // Years begin in March here, so that the leap day is the last day of its year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_before = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5;
    (day <= days).then_some((days_before + day - 1 - 719_468) * 86_400)
}

/// What is left of a text.
struct Text<'a>(&'a str);

impl Text<'_> {
    fn skip(&mut self, what: &str) -> bool {
        let rest = self.0.strip_prefix(what);
        rest.into_iter().for_each(|rest| self.0 = rest);
        rest.is_some()
    }

    fn after(&mut self, what: &str) -> Option<&mut Self> {
        self.skip(what).then_some(self)
    }

    /// Reads a number of so many digits, or of all that there are.
    fn number(&mut self, digits: Option<usize>, range: RangeInclusive<i64>) -> Option<i64> {
        let there = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
        let (number, rest) = self.0.split_at(digits.map_or(there, |digits| digits.min(there)));
        self.0 = rest;
        let is_whole = digits.is_none_or(|digits| digits == number.len());
        number.parse().ok().filter(|value| is_whole && range.contains(value))
    }

    /// Reads a part of a second, in nanoseconds. What is shorter is cut off.
    fn fraction(&mut self) -> Option<i128> {
        if !self.skip(".") {
            return Some(0);
        }
        let there = self.0.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.0.len());
        let (digits, rest) = self.0.split_at(there);
        self.0 = rest;
        format!("{digits:0<9}")[..9].parse().ok().filter(|_| !digits.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_199, "2024-02-29 23:59:59"),
            (1_795_232_700, "2026-11-21 03:45:00"),
        ] {
            assert_eq!(show_time(seconds * 1_000_000_000), text);
        }
    }

    #[test]
    fn times_are_those_of_rfc_3339() {
        for (text, seconds, part) in [
            ("@0", 0, 0),
            ("@1795867200.25", 1_795_867_200, 250_000_000),
            ("2026-11-28T12:00:00Z", 1_795_867_200, 0),
            ("2026-11-28 13:30:00.000000001+01:30", 1_795_867_200, 1),
            ("2026-11-28t11:00-01:00", 1_795_867_200, 0),
            ("2000-02-29", 951_782_400, 0),
        ] {
            assert_eq!(date(text), Ok(seconds * 1_000_000_000 + part), "{text}");
        }
        for wrong in ["", "@", "@-1", "@1x", "now", "2026-02-29", "2026-1-1", "2026-11-28T24:00", "2026-11-28T1:00Z"]
            .iter()
            .chain(&["1969-12-31", "1970-01-01T00:00:00+00:01", "2026-11-28T12:00:00.Z", "2026-11-28T12:00Zx"])
        {
            assert!(date(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn stamps_are_those_of_posix() {
        let shown = |text| stamp(text).map(show_time);
        assert_eq!(shown("202402291234.56").unwrap(), "2024-02-29 12:34:56");
        assert_eq!(shown("6812312359").unwrap(), "2068-12-31 23:59:00");
        assert_eq!(shown("7001010000").unwrap(), "1970-01-01 00:00:00");
        assert!(shown("03041122").unwrap().ends_with("-03-04 11:22:00"));
        for wrong in ["", "1", "6912312359", "202402301200", "20240229123", "2024022912345", "202402291234.5"] {
            assert!(stamp(wrong).is_err(), "{wrong}");
        }
    }
}
