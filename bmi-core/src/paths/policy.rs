//! The choice of a path from the thresholds and from the facts at the moment of the request.

use std::fmt;

use super::path::{Direction, Miss, Path};

/// The sizes up to which paths are the cheapest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossovers {
    /// Inline is used up to this many bytes of data.
    pub inline: usize,
    /// Fast RDMA is used up to this many bytes, server-based beyond.
    pub fast: usize,
}

impl Crossovers {
    /// The crossovers of [PVFS-IB §6.5]: 4 KiB and 64 KiB.
    pub const PAPER: Crossovers = Crossovers { inline: 4 << 10, fast: 64 << 10 };
}

impl fmt::Display for Crossovers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "inline up to {} bytes, fast RDMA up to {}", self.inline, self.fast)
    }
}

/// The crossovers for each case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Writes from memory that is not registered. It must be copied or registered.
    pub write: Crossovers,
    /// Writes from memory that is registered, or is free to register.
    pub write_registered: Crossovers,
    /// Reads into memory that is not registered.
    pub read: Crossovers,
    /// Reads into memory that is registered, or is free to register.
    pub read_registered: Crossovers,
}

impl Thresholds {
    /// The paper's crossovers for all cases. Used until an adapter has been measured.
    pub const PAPER: Thresholds = Thresholds {
        write: Crossovers::PAPER,
        write_registered: Crossovers::PAPER,
        read: Crossovers::PAPER,
        read_registered: Crossovers::PAPER,
    };

    /// Returns the crossovers of one case.
    pub fn of(&self, direction: Direction, registered: bool) -> Crossovers {
        match (direction, registered) {
            (Direction::Write, false) => self.write,
            (Direction::Write, true) => self.write_registered,
            (Direction::Read, false) => self.read,
            (Direction::Read, true) => self.read_registered,
        }
    }
}

/// How an endpoint chooses paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Uses this path whenever it is available.
    pub forced: Option<Path>,
    /// The crossovers.
    pub thresholds: Thresholds,
    /// True if the thresholds were measured on this adapter; false if they are the paper's.
    pub measured: bool,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { forced: None, thresholds: Thresholds::PAPER, measured: false }
    }
}

/// The facts about a request at the moment of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The direction of the data.
    pub direction: Direction,
    /// Bytes of data.
    pub len: u64,
    /// The memory is registered, or is free to register.
    pub registered: bool,
    /// Bytes of data that fit an eager message together with this request, or with its reply.
    pub inline_room: usize,
    /// Bytes of data that fit a fast-RDMA slot together with this request, or with its reply.
    /// `None` if the peer (for a read, this side) has no slots.
    pub fast_room: Option<usize>,
    /// A slot is free. Always true for a read.
    pub slot_free: bool,
    /// The peer has a posted receive for the message.
    pub credit: bool,
    /// The adapters have RDMA read.
    pub rdma_read: bool,
    /// The adapters have RDMA write with immediate data.
    pub immediate: bool,
}

/// A path, and the reason a cheaper one was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The path taken. Never `Hybrid`.
    pub path: Path,
    /// The reason the path for this size was passed over, if it was.
    pub missed: Option<Miss>,
}

/// Largest data of a read that may be written into the client's memory ahead of the reply, in
/// bytes. The server holds all of it in memory for that time, so there is a limit, which both sides
/// know. It is four times the largest slot by default.
pub const LONGEST_AHEAD: u64 = 256 << 10;

impl Policy {
    /// Chooses a path.
    pub fn choose(&self, facts: &Facts) -> Choice {
        let wanted = self.wanted(facts);
        // Goes from the wanted path to the next more expensive one until one is available. One of
        // server-based and client-based always is.
        let mut missed = None;
        let mut path = wanted;
        while let Some(miss) = facts.obstacle(path) {
            missed.get_or_insert(miss);
            path = match path {
                Path::Inline => Path::FastRdma,
                Path::FastRdma => Path::ServerBased,
                Path::ServerBased | Path::Hybrid => Path::ClientBased,
                Path::ClientBased => Path::ServerBased,
            };
            if path == wanted {
                break;
            }
        }
        if missed.is_none() && path == Path::ServerBased && self.forced.is_none() {
            missed = self.not_registered(facts);
        }
        Choice { path, missed }
    }

    /// Returns the path that the size and the policy ask for.
    fn wanted(&self, facts: &Facts) -> Path {
        if let Some(path) = self.forced {
            return path.resolve(facts.direction);
        }
        let Crossovers { inline, fast } = self.thresholds.of(facts.direction, facts.registered);
        if facts.len <= inline as u64 {
            Path::Inline
        } else if facts.len <= fast as u64 {
            // Without slots the choice is between one message and an additional round trip.
            let fits = facts.fast_room.is_none() && facts.len <= facts.inline_room as u64;
            if fits { Path::Inline } else { Path::FastRdma }
        } else {
            Path::ServerBased
        }
    }

    /// Returns [`Miss::NotRegistered`] if registered memory would have taken a cheaper path.
    fn not_registered(&self, facts: &Facts) -> Option<Miss> {
        let registered = self.thresholds.of(facts.direction, true);
        (!facts.registered && facts.len <= registered.fast as u64).then_some(Miss::NotRegistered)
    }
}

impl Facts {
    /// Returns the reason a path is not available now, or `None` if it is available.
    fn obstacle(&self, path: Path) -> Option<Miss> {
        match path {
            Path::Inline if self.len > self.inline_room as u64 => Some(Miss::NoRoom),
            // Into registered memory the data is written ahead of the reply, so no slot is needed.
            Path::FastRdma if self.direction == Direction::Read && self.registered => {
                (self.len > LONGEST_AHEAD).then_some(Miss::NoRoom)
            }
            Path::FastRdma => match self.fast_room {
                None => Some(Miss::NoSlots),
                Some(room) if self.len > room as u64 => Some(Miss::NoRoom),
                Some(_) if !self.slot_free => Some(Miss::NoSlot),
                Some(_) if !self.credit => Some(Miss::NoCredit),
                Some(_) => None,
            },
            Path::ServerBased if self.direction == Direction::Write && !self.rdma_read => Some(Miss::NoRdmaRead),
            Path::ClientBased if self.direction == Direction::Read && !self.rdma_read => Some(Miss::NoRdmaRead),
            Path::ClientBased if self.direction == Direction::Write && !self.immediate => Some(Miss::NoRdmaRead),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn facts(direction: Direction, len: u64) -> Facts {
        Facts {
            direction,
            len,
            registered: false,
            inline_room: 7 << 10,
            fast_room: Some(66 << 10),
            slot_free: true,
            credit: true,
            rdma_read: true,
            immediate: true,
        }
    }

    #[test]
    fn sizes_choose_as_in_the_paper() {
        let policy = Policy::default();
        for direction in Direction::ALL {
            for (len, path) in [
                (0, Path::Inline),
                (4096, Path::Inline),
                (4097, Path::FastRdma),
                (65_536, Path::FastRdma),
                (65_537, Path::ServerBased),
            ] {
                assert_eq!(policy.choose(&facts(direction, len)), Choice { path, missed: None }, "{direction} {len}");
            }
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let policy = Policy::default();
        let write = facts(Direction::Write, 20_000);
        let no_slot = policy.choose(&Facts { slot_free: false, ..write });
        assert_eq!(no_slot, Choice { path: Path::ServerBased, missed: Some(Miss::NoSlot) });
        let no_slots = policy.choose(&Facts { fast_room: None, ..write });
        assert_eq!(no_slots, Choice { path: Path::ServerBased, missed: Some(Miss::NoSlots) });
        let no_read = policy.choose(&Facts { rdma_read: false, len: 1 << 20, ..write });
        assert_eq!(no_read, Choice { path: Path::ClientBased, missed: Some(Miss::NoRdmaRead) });
        let read = policy.choose(&Facts { registered: true, fast_room: None, ..facts(Direction::Read, 20_000) });
        assert_eq!(read, Choice { path: Path::FastRdma, missed: None });
        let between = policy.choose(&Facts { fast_room: None, ..facts(Direction::Write, 6000) });
        assert_eq!(between.path, Path::Inline);
    }

    #[test]
    fn each_path_can_be_forced() {
        for forced in Path::TAKEN.into_iter().chain([Path::Hybrid]) {
            let policy = Policy { forced: Some(forced), ..Policy::default() };
            for direction in Direction::ALL {
                assert_eq!(policy.choose(&facts(direction, 100)).path, forced.resolve(direction));
            }
        }
    }

    proptest! {
        /// For any facts, the chosen path is available.
        #[test]
        fn a_choice_can_be_carried_out(
            read in any::<bool>(), len in 0u64..200_000, registered in any::<bool>(), inline_room in 0usize..10_000,
            fast_room in proptest::option::of(0usize..100_000), slot_free in any::<bool>(), credit in any::<bool>(),
            rdma_read in any::<bool>(), forced in proptest::option::of(0usize..4),
        ) {
            let direction = if read { Direction::Read } else { Direction::Write };
            let facts = Facts { direction, len, registered, inline_room, fast_room, slot_free, credit, rdma_read, immediate: true };
            let policy = Policy { forced: forced.map(|path| Path::TAKEN[path]), ..Policy::default() };
            let choice = policy.choose(&facts);
            prop_assert_eq!(facts.obstacle(choice.path), None, "{:?} of {:?}", choice, facts);
        }
    }
}
