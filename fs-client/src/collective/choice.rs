//! Which way a collective operation goes: estimates of what each costs, from what was measured.
//!
//! **Why.** No way is the best for all. Pieces of some bytes cost a write of their own each unless
//! somebody puts them together, at the servers or at the clients. Long pieces cost nothing as they
//! are.
//!
//! The estimate of a way is the time of the busiest machine, for its bytes and pieces. The prices
//! are those of one machine with two processors; what matters is their ratio.

use std::fmt;
use std::time::Duration;

use fs_proto::Distribution;
use serde::{Deserialize, Serialize};

use super::member::Sample;

/// How a collective operation is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Way {
    /// Each member reads or writes its own pieces, through its view.
    Independent,
    /// Some members, the *aggregators*, have a part of the file each. All send them what they
    /// write, and the aggregators write it in few long requests; or the other way round.
    TwoPhase,
    /// As [`Way::Independent`], but the servers join the requests of all members: they write a unit
    /// of the file when all members' pieces are there, and read it once for all.
    Extended,
}

impl Way {
    /// All ways.
    pub const ALL: [Way; 3] = [Way::Independent, Way::TwoPhase, Way::Extended];

    /// Returns the name, as in options and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Way::Independent => "independent",
            Way::TwoPhase => "two-phase",
            Way::Extended => "extended",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Which way an operation went, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The way.
    pub way: Way,
    /// True if the program has asked for it.
    pub asked: bool,
    /// What each way was estimated to take, in the order of [`Way::ALL`]. None for one that is not
    /// considered: for a single member, a view that is longer than a request, or long pieces.
    pub estimates: [Option<Duration>; 3],
    /// The mean length of the pieces of all members in bytes, by some samples.
    pub piece: u64,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.way)?;
        if self.asked {
            write!(f, ", as asked")?;
        }
        write!(f, ": pieces of {} bytes; estimates:", self.piece)?;
        let mut separator = " ";
        for (way, estimate) in Way::ALL.iter().zip(self.estimates) {
            let Some(estimate) = estimate else { continue };
            write!(f, "{separator}{way} {estimate:.1?}")?;
            separator = ", ";
        }
        Ok(())
    }
}

/// What an operation moves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) is_write: bool,
    pub(super) bytes: u64,
    pub(super) sample: Sample,
    pub(super) members: u64,
    pub(super) servers: u64,
    pub(super) aggregators: u64,
    /// Steps of the two-phase way, each with a message from each member to each aggregator.
    pub(super) rounds: u64,
    /// True if a view is too long for a request.
    pub(super) is_long: bool,
}

/// Time for a piece: to pack or unpack it at a client, to put it in its place, and to write or read
/// it by itself. Each is a system call if it is written, and not if it is read.
const PACK_NS: f64 = 3.0;
const PLACE_NS: f64 = 6.0;
const WRITE_NS: f64 = 900.0;
const READ_NS: f64 = 15.0;
/// Time for a kibibyte: over the network, through one more copy, to or from the store, and for
/// short pieces, which are read with the gaps around them.
const NETWORK_KIB_NS: f64 = 600.0;
const COPY_KIB_NS: f64 = 150.0;
const STORE_KIB_NS: f64 = 200.0;
const GAPS_KIB_NS: f64 = 400.0;
/// Time for a message of an exchange.
const MESSAGE_NS: f64 = 20_000.0;

impl Load {
    /// Returns what each way takes, in the order of [`Way::ALL`]. A file may be so long and so
    /// empty that no integer holds a number of steps.
    fn estimates(&self) -> [Duration; 3] {
        let (bytes, rounds) = (self.bytes as f64, self.rounds as f64);
        let [members, servers, aggregators] =
            [self.members, self.servers, self.aggregators].map(|count| count.max(1) as f64);
        let (kib, pieces) = (bytes / 1024.0, bytes / self.sample.piece() as f64);
        // What is left when the pieces of all are put together.
        let runs = pieces * self.sample.runs as f64 / self.sample.pieces.max(1) as f64;
        let (single, together) = match self.is_write {
            true => (pieces / servers * WRITE_NS, runs / servers * WRITE_NS),
            false if self.sample.is_short() => (pieces / servers * READ_NS + kib / servers * GAPS_KIB_NS, 0.0),
            false => (pieces / servers * READ_NS, 0.0),
        };
        let packed = pieces / members * PACK_NS;
        let moved = kib / servers.min(members) * NETWORK_KIB_NS + kib / servers * STORE_KIB_NS;
        let independent = packed + moved + single;
        let extended = packed + moved + pieces / servers * PLACE_NS + kib / servers * COPY_KIB_NS + together;
        let exchanged = (kib - kib / members) / aggregators * NETWORK_KIB_NS + kib / aggregators * COPY_KIB_NS;
        let steps = rounds * members.max(aggregators) * MESSAGE_NS;
        let two_phase = packed + pieces / aggregators * PLACE_NS + exchanged + moved + together + steps;
        [independent, two_phase, extended].map(|cost| Duration::from_nanos(cost as u64))
    }

    /// Chooses a way.
    pub(super) fn choose(&self, asked: Option<Way>) -> Choice {
        let may = |way: Way| match way {
            Way::Independent => true,
            Way::Extended => !self.is_long && self.sample.is_short() && self.members > 1,
            Way::TwoPhase => self.members > 1,
        };
        let mut estimates = self.estimates().map(Some);
        for (way, estimate) in Way::ALL.into_iter().zip(&mut estimates) {
            *estimate = estimate.filter(|_| may(way));
        }
        let cheapest = Way::ALL.into_iter().zip(estimates).filter_map(|(way, cost)| Some((cost?, way))).min();
        let way = asked.unwrap_or(cheapest.map_or(Way::Independent, |(_, way)| way));
        Choice { way, asked: asked.is_some(), estimates, piece: self.sample.piece() }
    }
}

/// Returns the number of aggregators of a group: all members, but no more than keep the servers
/// busy.
pub(super) fn aggregators(asked: Option<u32>, members: u32, distribution: &Distribution) -> u32 {
    let enough = 2 * distribution.servers() as u32;
    asked.unwrap_or(enough).clamp(1, members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(is_write: bool, piece: u64, runs: u64, members: u64) -> Load {
        let sample = Sample { bytes: 1000 * piece, pieces: 1000, runs };
        let bytes = 8 << 20;
        Load { is_write, bytes, sample, members, servers: 2, aggregators: members.min(4), rounds: 1, is_long: false }
    }

    #[test]
    fn who_puts_pieces_together_depends_on_their_length() {
        let way = |is_write, piece| load(is_write, piece, 1, 4).choose(None).way;
        assert_eq!([4, 512, 1 << 16].map(|piece| way(true, piece)), [Way::TwoPhase, Way::Extended, Way::Independent]);
        assert_eq!([4, 512, 1 << 16].map(|piece| way(false, piece)), [Way::TwoPhase, Way::Extended, Way::Independent]);
        // What is not adjacent when it is together is written piece by piece in any way.
        assert_eq!(load(true, 512, 1000, 4).choose(None).way, Way::Independent);
        assert_eq!(load(true, 4, 1, 1).choose(None).way, Way::Independent);
        let long = Load { is_long: true, ..load(true, 512, 1, 4) }.choose(None);
        assert_eq!((long.way, long.estimates[2]), (Way::TwoPhase, None));
        let asked = load(true, 1 << 16, 1, 4).choose(Some(Way::TwoPhase));
        assert!(asked.to_string().starts_with("two-phase, as asked: pieces of 65536 bytes; estimates: independent "));
    }

    #[test]
    fn a_file_of_any_length_has_an_estimate() {
        let load = Load { bytes: u64::MAX, members: 4096, rounds: u64::MAX, ..load(true, 1, 1, 4) };
        assert!(load.choose(None).estimates.iter().flatten().all(|cost| *cost > Duration::from_secs(1_000_000)));
    }
}
