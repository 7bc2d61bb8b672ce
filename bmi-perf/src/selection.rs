//! Which cases a run measures: the product of what the user asked for, in groups.
//!
//! **Invariant.** The cases of a group measure the same thing over different transports. They run
//! one right after the other in every round.

use bmi::paths::Path;
use bmi_report::units::parse_size;

use crate::case::{Case, Interface, Over, Station, Test, Waiting};

/// What a user asked for.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) overs: Vec<Over>,
    pub(crate) tests: Vec<Test>,
    /// Sizes in bytes. If there are none, each test has its own.
    pub(crate) sizes: Vec<u64>,
    /// If there are none, each test has its own, and so is it with the ways of waiting.
    pub(crate) depths: Vec<u32>,
    pub(crate) connections: Vec<u32>,
    pub(crate) threads: Vec<u32>,
    pub(crate) waiting: Vec<Waiting>,
    pub(crate) pieces: Vec<u32>,
    pub(crate) rates: Vec<u32>,
    /// The paths of calls. If there are none, all of them, and the library's choice.
    pub(crate) paths: Vec<Option<u8>>,
    /// The interfaces through which the client uses each transport.
    pub(crate) interfaces: Vec<Interface>,
}

impl Wanted {
    /// Returns the groups of cases, in the order in which they are shown.
    pub(crate) fn groups(&self) -> Vec<Vec<Case>> {
        self.tests.iter().flat_map(|test| self.cases(*test)).filter_map(|case| self.group(case)).collect()
    }

    /// Returns the product of all settings of a test.
    fn cases(&self, test: Test) -> Vec<Case> {
        let station = Station { over: Over::Tcp, interface: Interface::Endpoint, connections: 1, threads: 1 };
        let waiting = Waiting::Polling;
        let first = Case { test, station, waiting, size: 1, depth: 1, pieces: 1, rate: 1, path: None };
        let sizes = if self.sizes.is_empty() { usual_sizes(test) } else { &self.sizes };
        let waiting = if self.waiting.is_empty() { usual_waiting(test) } else { &self.waiting };
        let cases = times(vec![first], waiting, |case, waiting| case.waiting = waiting);
        let cases = times(cases, &self.connections, |case, connections| case.station.connections = connections);
        let mut cases = times(cases, &self.threads, |case, threads| case.station.threads = threads);
        cases.retain(|case| case.station.threads <= case.station.connections);
        let cases = times(cases, &self.depths_of(test), |case, depth| case.depth = depth);
        let cases = times(cases, &self.pieces_of(test), |case, pieces| case.pieces = pieces);
        let cases = times(cases, &self.rates_of(test), |case, rate| case.rate = rate);
        let cases = times(cases, &self.paths_of(test), |case, path| case.path = path);
        times(cases, sizes, |case, size| case.size = size)
    }

    /// Returns a case over all that it can be measured over, through each interface.
    fn group(&self, case: Case) -> Option<Vec<Case>> {
        let interfaces = |over: Over| match over.is_library() {
            _ if case.test.has_tasks() => &[Interface::Tasks],
            true => self.interfaces.as_slice(),
            false => &[Interface::Endpoint],
        };
        let stations = self.overs.iter().flat_map(|over| {
            interfaces(*over).iter().map(|interface| Station { over: *over, interface: *interface, ..case.station })
        });
        let group: Vec<Case> = stations.map(|station| Case { station, ..case }).filter(Case::is_possible).collect();
        // A baseline alone answers nothing, unless nothing else was asked for.
        let has_library = group.iter().any(|case| case.station.over.is_library());
        let is_asked_for = self.overs.iter().all(|over| !over.is_library());
        (!group.is_empty() && (has_library || is_asked_for)).then_some(group)
    }

    fn depths_of(&self, test: Test) -> Vec<u32> {
        match test.streams() {
            false => vec![1],
            true if self.depths.is_empty() => usual_depths(test).to_vec(),
            true => self.depths.clone(),
        }
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

/// Returns each of the cases with each of the values.
fn times<T: Copy>(cases: Vec<Case>, values: &[T], set: impl Fn(&mut Case, T)) -> Vec<Case> {
    let mut product = Vec::new();
    for case in cases {
        product.extend(values.iter().map(|value| {
            let mut case = case;
            set(&mut case, *value);
            case
        }));
    }
    product
}

fn usual_waiting(test: Test) -> &'static [Waiting] {
    if test.has_tasks() { &[Waiting::Sleeping] } else { &[Waiting::Polling] }
}

fn usual_depths(test: Test) -> &'static [u32] {
    if test.has_tasks() { &[1, 32] } else { &[16] }
}

/// Returns the sizes of a test for which the user gave none, in bytes.
fn usual_sizes(test: Test) -> &'static [u64] {
    const K: u64 = 1 << 10;
    match test {
        Test::Latency | Test::WriteLatency | Test::ReadLatency | Test::WriteImm | Test::WriteSeen => {
            &[8, 64, 512, 4 * K, 32 * K, 256 * K]
        }
        Test::Bandwidth | Test::BothWays | Test::WriteBandwidth | Test::ReadBandwidth => {
            &[4 * K, 16 * K, 64 * K, 256 * K, 1024 * K]
        }
        Test::Rate | Test::LatencyAtRate => &[8],
        Test::CallWrite | Test::CallRead => &[512, 4 * K, 16 * K, 64 * K, 256 * K, 1024 * K],
        Test::TokioRead | Test::TokioWrite => &[64, 4 * K, 64 * K, 1024 * K],
        Test::ListWrite | Test::ListRead => &[64 * K],
    }
}

/// Parses `64K`, or `8..1M`: powers of two from 8 on, or `8..1M*8`: each eight times the last. A
/// range ends with its end, also where the factor does not lead to it: 32K, 256K, 1M.
pub(crate) fn sizes(text: &str) -> Result<Vec<u64>, String> {
    let Some((from, rest)) = text.split_once("..") else { return Ok(vec![parse_size(text)?]) };
    let (to, factor) = match rest.split_once('*') {
        Some((to, factor)) => (to, factor.parse().ok().filter(|factor| *factor > 1)),
        None => (rest, Some(2)),
    };
    let (from, to) = (parse_size(from)?, parse_size(to)?);
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

/// Returns the processor of a thread.
pub(crate) fn processor(processors: &[usize], index: u32) -> Option<usize> {
    (!processors.is_empty()).then(|| processors[index as usize % processors.len()])
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::ValueEnum;

    use super::*;

    pub(crate) fn wanted() -> Wanted {
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
            interfaces: vec![Interface::Endpoint],
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
        let both = Wanted {
            overs: vec![Over::Shm, Over::Memory],
            interfaces: vec![Interface::Endpoint, Interface::Backend],
            ..wanted()
        };
        assert_eq!(overs(&both), [[Over::Shm, Over::Shm, Over::Memory]]);
        let alone = Wanted { overs: vec![Over::Sockets], ..wanted() };
        assert_eq!(overs(&alone), [[Over::Sockets]]);
        let tasks =
            Wanted { tests: vec![Test::TokioRead], waiting: vec![], interfaces: vec![Interface::Backend], ..wanted() };
        assert_eq!(overs(&tasks), [[Over::Tcp, Over::Sockets, Over::Shm]; 2]);
        assert!(overs(&Wanted { waiting: vec![Waiting::Polling], ..tasks }).is_empty());
    }

    #[test]
    fn programs_on_tokio_have_depths_and_sizes_of_their_own() {
        let usual = Wanted { sizes: vec![], depths: vec![], waiting: vec![], ..wanted() };
        let setups = |test| {
            let groups = Wanted { tests: vec![test], ..usual.clone() }.groups();
            groups.iter().map(|group| (group[0].depth, group[0].waiting, group[0].size)).collect::<Vec<_>>()
        };
        let calls = setups(Test::TokioWrite);
        assert_eq!(calls.len(), 2 * 4);
        assert_eq!((calls[0], calls[7]), ((1, Waiting::Sleeping, 64), (32, Waiting::Sleeping, 1 << 20)));
        assert_eq!(setups(Test::Rate), [(16, Waiting::Polling, 8)]);
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
