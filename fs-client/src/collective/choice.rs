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
    /// What each way was estimated to take, in the order of [`Way::ALL`].
    pub estimates: [Duration; 3],
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

/// Time for a piece: to pack or unpack it at a client, to put it in its place at a server, and to
/// read or write it there by itself.
const PACK_NS: u64 = 5;
const PLACE_NS: u64 = 10;
const WRITE_NS: u64 = 1_100;
const READ_NS: u64 = 30;
/// Time for a kibibyte: over the network, through a copy, to or from the store.
const NETWORK_KIB_NS: u64 = 400;
const COPY_KIB_NS: u64 = 100;
const STORE_KIB_NS: u64 = 200;
/// Time for a message, and for a look at a member in each round.
const MESSAGE_NS: u64 = 20_000;

impl Load {
    /// Returns the pieces of all members, and those that are left when they are put together.
    fn pieces(&self) -> (u64, u64) {
        let pieces = self.bytes / self.sample.piece();
        let runs = (u128::from(pieces) * u128::from(self.sample.runs)).checked_div(u128::from(self.sample.pieces));
        (pieces, u64::try_from(runs.unwrap_or(0)).unwrap_or(u64::MAX))
    }

    /// Returns what each way takes, in the order of [`Way::ALL`].
    fn estimates(&self) -> [Duration; 3] {
        let (pieces, runs) = self.pieces();
        let (members, servers, aggregators) = (self.members.max(1), self.servers.max(1), self.aggregators.max(1));
        let kib = self.bytes / 1024;
        let single = if self.is_write { WRITE_NS } else { READ_NS };
        let packed = pieces / members * PACK_NS;
        let moved = kib / servers.min(members) * NETWORK_KIB_NS + kib / servers * STORE_KIB_NS;
        let together = if self.is_write { runs / servers * WRITE_NS } else { 0 };
        let independent = packed + moved + pieces / servers * single;
        let extended = packed + moved + pieces / servers * PLACE_NS + kib / servers * COPY_KIB_NS + together;
        let others = kib - kib / members;
        let two_phase = packed
            + pieces / aggregators * PLACE_NS
            + others / aggregators * NETWORK_KIB_NS
            + kib / aggregators * COPY_KIB_NS
            + moved
            + together
            + self.rounds * members.max(aggregators) * MESSAGE_NS;
        [independent, two_phase, extended].map(Duration::from_nanos)
    }

    /// Chooses a way.
    pub(super) fn choose(&self, asked: Option<Way>) -> Choice {
        let (estimates, piece) = (self.estimates(), self.sample.piece());
        let may = |way: Way| match way {
            Way::Independent => true,
            Way::Extended => !self.is_long && self.sample.is_short() && self.members > 1,
            Way::TwoPhase => self.members > 1,
        };
        let cheapest = Way::ALL.into_iter().zip(estimates).filter(|(way, _)| may(*way)).min_by_key(|(_, cost)| *cost);
        let way = asked.unwrap_or(cheapest.map_or(Way::Independent, |(way, _)| way));
        Choice { way, asked: asked.is_some(), estimates, piece }
    }
}

/// Returns the number of aggregators of a group: all members, but no more than keep the servers
/// busy.
pub(super) fn aggregators(asked: Option<u32>, members: u32, distribution: &Distribution) -> u32 {
    let enough = 2 * distribution.servers() as u32;
    asked.unwrap_or(enough).clamp(1, members)
}
