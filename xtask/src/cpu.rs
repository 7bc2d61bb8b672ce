//! Processor time of this program and of all programs that it started, directly or not.
//!
//! The kernel adds a program's time to its parent's once the parent has waited for its end. The
//! time of a program that still runs is not included.

/// Returns the seconds of processor time since this process was created, user and system.
///
/// `cargo run` replaces itself by the program that it runs, so the time for building this program
/// is included.
pub(crate) fn seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    ticks(&stat).unwrap_or(0) as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Returns the sum of utime, stime, cutime and cstime: fields 14 to 17 in the table of proc(5).
fn ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name, in parentheses. It may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    let times = rest.split_whitespace().skip(11).take(4).map(|field| field.parse::<u64>().ok());
    times.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_behind_a_name_with_brackets_and_spaces() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 200 0 0 11 22 33 44 20 0 1 0 5";
        assert_eq!(ticks(stat), Some(110));
        assert_eq!(ticks(""), None);
        assert!(seconds() >= 0.0);
    }
}
