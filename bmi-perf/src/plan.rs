//! Which cases a run measures: the product of what the user asked for, in groups.
//!
//! **Invariant.** The cases of a group measure the same thing over different transports. They run
//! one right after the other in every round.

use bmi::paths::Path;

use crate::case::{Case, Over, Repeat, Station, Test, Waiting};

/// What a user asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) overs: Vec<Over>,
    pub(crate) tests: Vec<Test>,
    /// Sizes in bytes. If there are none, each test has its own.
    pub(crate) sizes: Vec<u64>,
    pub(crate) depths: Vec<u32>,
    pub(crate) connections: Vec<u32>,
    pub(crate) threads: Vec<u32>,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) pieces: Vec<u32>,
    pub(crate) rates: Vec<u32>,
    /// The paths of calls. If there are none, all of them, and the library's choice.
    pub(crate) paths: Vec<Option<u8>>,
    /// Whether every case is measured again, and slowed.
    pub(crate) self_check: bool,
}

impl Wanted {
    /// Returns the groups of cases, in the order in which they are shown.
    pub(crate) fn groups(&self) -> Vec<Vec<Case>> {
        let mut groups = Vec::new();
        for &test in &self.tests {
            let sizes = if self.sizes.is_empty() { usual_sizes(test) } else { &self.sizes };
            for &waiting in &self.waiting {
                for &connections in &self.connections {
                    for &threads in self.threads.iter().filter(|threads| **threads <= connections) {
                        for depth in self.depths_of(test) {
                            for pieces in self.pieces_of(test) {
                                for rate in self.rates_of(test) {
                                    for path in self.paths_of(test) {
                                        let of = |over, size| {
                                            let station = Station { over, connections, threads };
                                            Case {
                                                test,
                                                station,
                                                waiting,
                                                size,
                                                depth,
                                                pieces,
                                                rate,
                                                path,
                                                repeat: Repeat::First,
                                            }
                                        };
                                        for &size in sizes {
                                            let group = self.overs.iter().map(|over| of(*over, size));
                                            let group: Vec<Case> = group.filter(Case::is_possible).collect();
                                            // A baseline alone answers nothing.
                                            let has_library =
                                                group.iter().any(|case| case.station.over.scheme().is_some());
                                            if has_library || self.overs.iter().all(|over| over.scheme().is_none()) {
                                                groups.push(self.repeated(group));
                                            }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        groups
    }

    /// Returns a group with all that is measured of each of its cases.
    fn repeated(&self, group: Vec<Case>) -> Vec<Case> {
        let repeats: &[Repeat] =
            if self.self_check { &[Repeat::First, Repeat::Again, Repeat::Slowed] } else { &[Repeat::First] };
        group.into_iter().flat_map(|case| repeats.iter().map(move |repeat| Case { repeat: *repeat, ..case })).collect()
    }

    fn depths_of(&self, test: Test) -> Vec<u32> {
        if test.streams() { self.depths.clone() } else { vec![1] }
    }

    fn pieces_of(&self, test: Test) -> Vec<u32> {
        if test.has_pieces() { self.pieces.clone() } else { vec![1] }
    }

    fn rates_of(&self, test: Test) -> Vec<u32> {
        if test == Test::LatencyAtRate { self.rates.clone() } else { vec![1] }
    }

    fn paths_of(&self, test: Test) -> Vec<Option<u8>> {
        match (test.has_paths(), self.paths.is_empty()) {
            (false, _) => vec![None],
            (true, false) => self.paths.clone(),
            (true, true) => std::iter::once(None).chain((0..Path::TAKEN.len() as u8).map(Some)).collect(),
        }
    }
}

/// Returns the sizes of a test for which the user gave none, in bytes.
fn usual_sizes(test: Test) -> &'static [u64] {
    const K: u64 = 1 << 10;
    match test {
        Test::Latency | Test::WriteLatency | Test::ReadLatency | Test::WriteImm => {
            &[8, 64, 512, 4 * K, 32 * K, 256 * K]
        }
        Test::Bandwidth | Test::BothWays | Test::WriteBandwidth | Test::ReadBandwidth => {
            &[4 * K, 16 * K, 64 * K, 256 * K, 1024 * K]
        }
        Test::Rate | Test::LatencyAtRate => &[8],
        Test::CallWrite | Test::CallRead => &[512, 4 * K, 16 * K, 64 * K, 256 * K, 1024 * K],
        Test::ListWrite | Test::ListRead => &[64 * K],
    }
}

/// Parses `64`, `64K`, `1M`, `2G`: bytes in binary units.
pub(crate) fn size(text: &str) -> Result<u64, String> {
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

/// Parses `64K`, or `8..1M`: powers of two from 8 on, or `8..1M*8`: each eight times the last. A
/// range ends with its end, also where the factor does not lead to it: 32K, 256K, 1M.
pub(crate) fn sizes(text: &str) -> Result<Vec<u64>, String> {
    let Some((from, rest)) = text.split_once("..") else { return Ok(vec![size(text)?]) };
    let (to, factor) = match rest.split_once('*') {
        Some((to, factor)) => (to, factor.parse().ok().filter(|factor| *factor > 1)),
        None => (rest, Some(2)),
    };
    let (from, to) = (size(from)?, size(to)?);
    let factor: u64 = factor.ok_or_else(|| format!("the factor of `{text}`: a number above 1"))?;
    if from > to {
        return Err(format!("`{text}` has no sizes: {from} is above {to}"));
    }
    let below = std::iter::successors(Some(from), |size| size.checked_mul(factor)).take_while(|size| *size < to);
    Ok(below.chain([to]).collect())
}

/// Parses a list of processors as in `taskset --cpu-list`: `0,2-3`.
pub(crate) fn processors(text: &str) -> Result<Vec<usize>, String> {
    const MOST: usize = 1024;
    let none = || format!("`{text}` is no list of processors: write 0,2-3");
    let mut list = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = first.parse().ok().zip(last.parse().ok()).ok_or_else(none)?;
        if first > last || last >= MOST {
            return Err(none());
        }
        list.extend(first..=last);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    fn wanted() -> Wanted {
        Wanted {
            overs: vec![Over::Tcp, Over::Sockets, Over::Shm, Over::Memory],
            tests: vec![Test::Latency],
            sizes: vec![8],
            depths: vec![1, 16],
            connections: vec![1],
            threads: vec![1],
            waiting: vec![Waiting::Polling],
            pieces: vec![4],
            rates: vec![1000, 2000],
            paths: vec![],
            self_check: false,
        }
    }

    #[test]
    fn settings_multiply_only_where_a_test_has_them() {
        let number = |tests: &[Test]| Wanted { tests: tests.to_vec(), ..wanted() }.groups().len();
        assert_eq!(number(&[Test::Latency]), 1);
        assert_eq!(number(&[Test::Bandwidth]), 2);
        assert_eq!(number(&[Test::LatencyAtRate]), 4);
        assert_eq!(number(&[Test::CallWrite]), 1 + Path::TAKEN.len());
        let groups = Wanted { tests: Test::value_variants().to_vec(), sizes: vec![], ..wanted() }.groups();
        assert!(groups.iter().flatten().all(|case| case.check().is_ok()));
        for group in &groups {
            assert!(group.windows(2).all(|pair| pair[0].is_beside(&pair[1])));
        }
        let mut all: Vec<&Case> = groups.iter().flatten().collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), groups.iter().map(Vec::len).sum::<usize>());
    }

    #[test]
    fn baselines_are_where_they_mean_something() {
        let overs = |wanted: &Wanted| {
            wanted
                .groups()
                .iter()
                .map(|group| group.iter().map(|case| case.station.over).collect())
                .collect::<Vec<Vec<Over>>>()
        };
        assert_eq!(overs(&wanted()), [[Over::Tcp, Over::Sockets, Over::Shm, Over::Memory]]);
        let sleeping = Wanted { waiting: vec![Waiting::Sleeping], ..wanted() };
        assert_eq!(overs(&sleeping), [[Over::Tcp, Over::Sockets, Over::Shm]]);
        let alone = Wanted { overs: vec![Over::Sockets], ..wanted() };
        assert_eq!(overs(&alone), [[Over::Sockets]]);
    }

    /// `8..1M*8` ended at 256 KiB, because 1 MiB is no power of eight times eight bytes.
    #[test]
    fn a_range_includes_its_end() {
        let last = |text: &str| sizes(text).unwrap().split_off(sizes(text).unwrap().len() - 2);
        assert_eq!(last("8..1M*8"), [256 << 10, 1 << 20]);
        assert_eq!(sizes("8..1M*8").unwrap().len(), 7);
        assert_eq!(sizes("8..100"), Ok(vec![8, 16, 32, 64, 100]));
        assert_eq!(last("1..99999999999*4"), [1 << 36, 99_999_999_999]);
    }

    #[test]
    fn sizes_and_processors_are_parsed_or_refused() {
        assert_eq!(sizes("64K"), Ok(vec![65_536]));
        assert_eq!(sizes("8..64"), Ok(vec![8, 16, 32, 64]));
        assert_eq!(sizes("1..1M*1024"), Ok(vec![1, 1024, 1 << 20]));
        assert_eq!(sizes("8..8*8"), Ok(vec![8]));
        for bad in ["", "0", "K", "-1", "64..8", "8..64*1", "99999999999G", "1.5K"] {
            assert!(sizes(bad).is_err(), "{bad}");
        }
        assert_eq!(processors("0,2-3"), Ok(vec![0, 2, 3]));
        for bad in ["", "a", "3-1", "0,,1", "0-99999999"] {
            assert!(processors(bad).is_err(), "{bad}");
        }
    }
}
