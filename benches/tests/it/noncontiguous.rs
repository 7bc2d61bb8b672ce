//! Runs every pattern of noncontiguous access by every way, in the simulator and over TCP. The
//! program compares what it reads with what it wrote. No duration is asserted.

use std::sync::Arc;

use benches::workload::noncontiguous::{Done, Noncontiguous, Way};
use benches::workload::patterns::{ALL, Pattern, Share, Size};
use benches::workload::{Bed, Failed, Rank, Setup, Workload, bed};
use bmi::Scheme;
use bmi_sim::Profile;
use fs_client::{CollectiveOptions, Datatype, FileView};

const RANKS: usize = 4;

fn places() -> [Bed; 2] {
    [Bed::sim(Profile::default()), Bed::Real(Scheme::Tcp)]
}

/// Runs a pattern by all ways, with strips that cut its pieces.
fn run(place: &Bed, pattern: Arc<dyn Pattern>) -> Result<Vec<Vec<Done>>, Failed> {
    let setup = Setup { strip: 4100, ..Setup::new(RANKS, 2) };
    let (ways, collective) = (Way::ALL.to_vec(), CollectiveOptions::default());
    bed::run(place, &setup, &Noncontiguous { pattern, ways, rounds: 1, singles: 12, collective })
}

#[test]
fn every_pattern_is_read_back_by_every_way() {
    for known in ALL {
        let pattern = (known.of)(Size { piece: 12, bytes: 6000, ranks: RANKS as u64 });
        for place in places() {
            let ranks = run(&place, Arc::clone(&pattern)).unwrap_or_else(|error| panic!("{}: {error}", known.name));
            for (number, done) in ranks.iter().enumerate() {
                let share = pattern.share(number as u64, RANKS as u64).unwrap();
                let what = format!("{}, {place:?}, rank {number}: {done:?}", known.name);
                assert_eq!(done.iter().map(|one| one.way).collect::<Vec<_>>(), Way::ALL, "{what}");
                assert!(done[0].pieces <= 12 && done[0].bytes <= share.bytes(), "{what}");
                for one in done {
                    assert!(one.way == Way::Single || one.bytes == share.bytes(), "{what}");
                    for took in [&one.write, &one.read] {
                        assert_eq!((took.spans.len(), took.wire > one.bytes), (1, true), "{what}");
                        // In the simulator servers always take time. The first rank looks.
                        let is_counted = matches!(place, Bed::Sim(_)) && number == 0;
                        assert!(!is_counted || !took.servers.is_zero(), "{what}");
                    }
                }
            }
        }
    }
}

/// A pattern that is none: all its regions have the same memory.
#[derive(Debug)]
struct SameMemory;

impl Pattern for SameMemory {
    fn parameters(&self) -> String {
        String::new()
    }

    fn share(&self, rank: u64, _ranks: u64) -> Result<Share, Failed> {
        let element = Datatype::bytes(8)?;
        let view = FileView::new(16 * rank, Datatype::BYTE, Datatype::bytes(16)?)?;
        Ok(Share { view, datatype: Datatype::hvector(2, 1, 0, &element)?, count: 1 })
    }
}

#[test]
fn bytes_in_the_wrong_place_are_found() {
    for place in places() {
        let error = run(&place, Arc::new(SameMemory)).unwrap_err().to_string();
        assert!(error.contains("wrong bytes in the file"), "{error}");
    }
}

#[derive(Clone)]
struct Met;

impl Workload for Met {
    type Out = Vec<usize>;

    async fn run(&self, rank: Rank) -> Result<Vec<usize>, Failed> {
        let mut all = Vec::new();
        for _ in 0..2 {
            let values = rank.group().await?.all_gather(&[rank.number() as u8]).await?;
            all.extend(values.iter().map(|value| usize::from(value[0])));
        }
        // Nobody leaves while others still wait for it.
        rank.barrier().await?;
        Ok(all)
    }
}

#[test]
fn ranks_have_a_group() {
    for place in places().into_iter().chain([Bed::Real(Scheme::Shm)]) {
        let all = bed::run(&place, &Setup::new(3, 1), &Met).unwrap_or_else(|error| panic!("{place:?}: {error}"));
        assert_eq!(all, vec![vec![0, 1, 2, 0, 1, 2]; 3]);
    }
}

#[derive(Clone)]
struct Leaves;

impl Workload for Leaves {
    type Out = ();

    async fn run(&self, rank: Rank) -> Result<(), Failed> {
        if rank.number() == 1 {
            return Err("this one leaves".into());
        }
        rank.barrier().await
    }
}

/// A process that fails ends the run. The others do not wait for it without end.
#[test]
fn one_failure_ends_the_run_with_its_cause() {
    for place in places() {
        let error = bed::run(&place, &Setup::new(3, 1), &Leaves).unwrap_err().to_string();
        assert_eq!(error, "this one leaves");
    }
}
