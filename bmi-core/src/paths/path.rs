//! The names of the paths, and counters of their use.

use std::fmt;
use std::str::FromStr;

/// The path of a request's data (see the [module](crate::comm)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Path {
    /// With the request or the reply, in one eager message.
    Inline,
    /// With the request or the reply, written into a slot. For a read into registered memory, the
    /// data is written there ahead of the reply.
    FastRdma,
    /// Moved by the server's adapter, in transfer units.
    ServerBased,
    /// Moved by the client's adapter, as the server grants.
    ClientBased,
    /// Writes are client-based, reads server-based. Only a policy: each request takes one of the
    /// other paths.
    Hybrid,
}

impl Path {
    /// All paths that a request can take.
    pub const TAKEN: [Path; 4] = [Path::Inline, Path::FastRdma, Path::ServerBased, Path::ClientBased];

    /// Returns the name: `inline`, `fast-rdma`, `server-based`, `client-based`, `hybrid`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Path::Inline => "inline",
            Path::FastRdma => "fast-rdma",
            Path::ServerBased => "server-based",
            Path::ClientBased => "client-based",
            Path::Hybrid => "hybrid",
        }
    }

    /// Returns the path taken in one direction, which resolves `Hybrid`.
    pub const fn resolve(self, direction: Direction) -> Path {
        match (self, direction) {
            (Path::Hybrid, Direction::Write) => Path::ClientBased,
            (Path::Hybrid, Direction::Read) => Path::ServerBased,
            (path, _) => path,
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Path, String> {
        let all = Path::TAKEN.into_iter().chain([Path::Hybrid]);
        all.clone().find(|path| path.as_str() == text).ok_or_else(|| {
            let names = all.map(Path::as_str).collect::<Vec<_>>().join(", ");
            format!("{text:?} is no path; there are {names}")
        })
    }
}

/// The direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the client to the server.
    Write,
    /// From the server to the client.
    Read,
}

impl Direction {
    /// Both directions.
    pub const ALL: [Direction; 2] = [Direction::Write, Direction::Read];

    /// Returns `write` or `read`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Direction::Write => "write",
            Direction::Read => "read",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The reason a cheaper path was passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Miss {
    /// All fast-RDMA slots of the peer are in use.
    NoSlot,
    /// The peer has no posted receive for another message.
    NoCredit,
    /// The size is within the threshold for registered memory, but this memory is not registered.
    NotRegistered,
    /// The request and its data together are longer than a slot or a message.
    NoRoom,
    /// The peer has described no slots, or none are configured.
    NoSlots,
    /// The adapter has no RDMA read.
    NoRdmaRead,
}

impl Miss {
    /// All reasons.
    pub const ALL: [Miss; 6] =
        [Miss::NoSlot, Miss::NoCredit, Miss::NotRegistered, Miss::NoRoom, Miss::NoSlots, Miss::NoRdmaRead];

    /// Returns a description.
    pub const fn as_str(self) -> &'static str {
        match self {
            Miss::NoSlot => "no slot free",
            Miss::NoCredit => "no credit",
            Miss::NotRegistered => "not registered",
            Miss::NoRoom => "too long with its request",
            Miss::NoSlots => "no slots",
            Miss::NoRdmaRead => "no RDMA read",
        }
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Counts the requests of each path, and the reasons that cheaper paths were passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    requests: [[u64; 4]; 2],
    bytes: [[u64; 4]; 2],
    missed: [u64; 6],
}

impl PathCounters {
    /// Returns the number of requests that took a path.
    pub fn requests(&self, direction: Direction, path: Path) -> u64 {
        self.requests[direction as usize][path.resolve(direction) as usize]
    }

    /// Returns the number of data bytes that took a path.
    pub fn bytes(&self, direction: Direction, path: Path) -> u64 {
        self.bytes[direction as usize][path.resolve(direction) as usize]
    }

    /// Returns the number of requests for which a cheaper path was passed over for this reason.
    pub fn missed(&self, miss: Miss) -> u64 {
        self.missed[miss as usize]
    }

    /// Counts one request.
    pub fn count(&mut self, direction: Direction, path: Path, bytes: u64, missed: Option<Miss>) {
        let path = path.resolve(direction) as usize;
        self.requests[direction as usize][path] += 1;
        self.bytes[direction as usize][path] += bytes;
        if let Some(miss) = missed {
            self.missed[miss as usize] += 1;
        }
    }

    /// Returns the sum of both, for a program with several endpoints.
    #[must_use]
    pub fn plus(&self, other: &PathCounters) -> PathCounters {
        let mut sum = *self;
        let pairs = [(&mut sum.requests, &other.requests), (&mut sum.bytes, &other.bytes)];
        for (all, more) in pairs {
            all.iter_mut().flatten().zip(more.iter().flatten()).for_each(|(all, more)| *all += more);
        }
        sum.missed.iter_mut().zip(other.missed).for_each(|(all, more)| *all += more);
        sum
    }

    /// Returns the counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &PathCounters) -> PathCounters {
        let mut difference = *self;
        let pairs = [(&mut difference.requests, &earlier.requests), (&mut difference.bytes, &earlier.bytes)];
        for (now, before) in pairs {
            now.iter_mut().flatten().zip(before.iter().flatten()).for_each(|(now, before)| *now -= before);
        }
        difference.missed.iter_mut().zip(earlier.missed).for_each(|(now, before)| *now -= before);
        difference
    }
}

impl fmt::Display for PathCounters {
    /// Writes one line for each path that was taken, and one for each reason.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for direction in Direction::ALL {
            for path in Path::TAKEN {
                let requests = self.requests(direction, path);
                if requests > 0 {
                    writeln!(
                        f,
                        "{direction:<5} {path:<12} {requests:>9} requests {:>14} bytes",
                        self.bytes(direction, path)
                    )?;
                }
            }
        }
        for miss in Miss::ALL {
            if self.missed(miss) > 0 {
                writeln!(f, "passed over a cheaper path: {miss}, {} times", self.missed(miss))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for path in Path::TAKEN.into_iter().chain([Path::Hybrid]) {
            assert_eq!(path.as_str().parse(), Ok(path));
        }
        assert!("eager".parse::<Path>().unwrap_err().contains("server-based"));
    }

    #[test]
    fn counts_add_up() {
        let mut counters = PathCounters::default();
        counters.count(Direction::Write, Path::Hybrid, 10, Some(Miss::NoRdmaRead));
        let before = counters;
        counters.count(Direction::Read, Path::Inline, 5, None);
        assert_eq!(counters.requests(Direction::Write, Path::ClientBased), 1);
        let since = counters.since(&before);
        assert_eq!((since.bytes(Direction::Read, Path::Inline), since.missed(Miss::NoRdmaRead)), (5, 0));
        assert!(counters.to_string().contains("no RDMA read, 1 times"));
        assert_eq!(before.plus(&since), counters);
    }
}
