//! Calibration: what an adapter's operations and a host's copies cost, measured over a live
//! connection in some milliseconds, and the crossovers that follow.
//!
//! **Why.** Which path is the cheapest depends on the machine: on its copies, its registration, its
//! adapter's latencies. The paper found 4 KiB and 64 KiB on one cluster of 2003; here they are the
//! fall-back.
//!
//! **Protocol.** The peer's endpoint answers probes by itself ([`crate::Endpoint`],
//! `endpoint/probe.rs`); nothing is asked of its program. Measured by the endpoint's clock, the
//! least of a few rounds:
//!
//! ```text
//!   empty message, there and back                              -> half of it: one way
//!   eager message, empty answer                                -> one way, this side's copy included
//!   message into a slot, copied and gathered, empty answer     -> one way
//!   RDMA write of the peer's area, a message behind it         -> one way of both
//!   RDMA write of it, RDMA read of it                          -> from the request to the completion
//!   copies; registrations of 1 and of 16 pages, released again
//! ```
//!
//! **Model.** Time from the client's call to its reply, as in Figure 11 of the paper; *n* bytes,
//! *e* an empty message one way:
//!
//! | | write | read |
//! |---|---|---|
//! | inline | eager(n) + copy(n) + e | e + eager(n) + copy(n) |
//! | fast RDMA, registered | gathered(n) + e | e + written(n) |
//! | fast RDMA, not registered | copied(n) + e | e + gathered(n) + copy(n) |
//! | server-based | e + read(n) + e | e + pushed(n) + e |
//! | … not registered | and register(n) | and register(n) |
//!
//! Inline copies twice, on each side once (the receive slot goes back before the data is used);
//! fast RDMA once, and into or from registered memory not at all; server-based never.
//!
//! **Crossovers.** What needs less is preferred where it makes no *material difference*, which is
//! also why the paper sends inline at all (section 6.5: fast RDMA was always a little faster).
//! Inline needs no slot; server-based needs neither slot nor copy, and lets the server take the
//! data when it has room. Material is more than a [fifth](MATERIAL) of the request's time.
//!
//! **Source.** [PVFS-IB §4.1, §6.5]. Tested by `bmi-sim/tests/calibration.rs` (the paper's
//! machines) and `benches/tests/calibration.rs` (TCP).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::path::{Direction, Path};
use super::policy::{Crossovers, Policy, Thresholds};
use crate::async_endpoint::{AsyncEndpoint, Operation};
use crate::capability::Registration;
use crate::endpoint::{AREA, ProbePath};
use crate::error::{Error, ErrorKind};
use crate::mem::{MemList, Memory, MemoryRegion};
use crate::op::{Options, PeerId, Posted};
use crate::transport::{HostWork, Transport};

/// A difference of less than one part in so many is not material.
pub const MATERIAL: u64 = 5;
/// Rounds of each measurement; the least counts, the others were disturbed.
const ROUNDS: usize = 5;
/// Sizes at which is measured, in bytes, up to [`AREA`]: the least beyond what is copied even where
/// it is registered.
const SIZES: [usize; 2] = [2 << 10, 8 << 10];
/// Longest size that crossovers are looked for at, in bytes.
const LONGEST: usize = 1 << 20;
const PAGE: usize = 4096;

/// A time that grows with the bytes: straight between three measurements, and straight on beyond
/// them. Copies cost more once they are longer than a cache, so a line through two would be wrong
/// at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curve {
    /// Bytes and ns, by bytes.
    points: [(u32, u64); 3],
}

impl Curve {
    /// Through three measurements, in the order of their sizes.
    pub fn through(points: [(usize, Duration); 3]) -> Curve {
        Curve { points: points.map(|(bytes, time)| (u32::try_from(bytes).unwrap_or(u32::MAX), nanos(time))) }
    }

    /// Of `bytes` bytes, in ns.
    pub fn at(&self, bytes: usize) -> u64 {
        let [first, middle, last] = self.points.map(|(bytes, ns)| (i128::from(bytes), i128::from(ns)));
        let bytes = bytes as i128;
        let ((x, y), (to_x, to_y)) = if bytes <= middle.0 { (first, middle) } else { (middle, last) };
        // Noise may make the longer one faster; time does not shrink with bytes.
        let rise = (to_y - y).max(0) * (bytes - x) / (to_x - x).max(1);
        u64::try_from((y + rise).max(0)).unwrap_or(u64::MAX)
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// An empty message, one way.
    pub empty_ns: u64,
    /// An eager message, one way, with this side's copy.
    pub eager: Curve,
    /// A message into a slot, one way, copied into a staging buffer before; `None` without slots.
    pub copied: Option<Curve>,
    /// The same, gathered from registered memory.
    pub gathered: Option<Curve>,
    /// An RDMA write and a message behind it, one way.
    pub written: Curve,
    /// An RDMA write, from the request to its completion.
    pub pushed: Curve,
    /// An RDMA read, from the request to the bytes; `None` if the adapter has none.
    pub read: Option<Curve>,
    /// A copy from memory to memory.
    pub copy: Curve,
    /// Registering a region, and releasing it again, in ns.
    pub register_region_ns: u64,
    /// For each page of 4 KiB of it, in ns.
    pub register_page_ns: u64,
    /// Longest payload of an eager message and of one in a slot, in bytes.
    pub limits: (usize, usize),
}

impl Measured {
    /// Registering, using and releasing `bytes` bytes, in ns.
    pub fn register(&self, bytes: usize) -> u64 {
        self.register_region_ns + bytes.div_ceil(PAGE) as u64 * self.register_page_ns
    }

    /// Time of a request with `bytes` bytes of data by a path, in ns; `None` if it cannot be taken.
    /// Client-based transfers are not modelled: they are never the cheapest where the others can be
    /// taken.
    pub fn cost(&self, direction: Direction, registered: bool, path: Path, bytes: usize) -> Option<u64> {
        let empty = self.empty_ns;
        let copy = self.copy.at(bytes);
        let register = if registered { 0 } else { self.register(bytes) };
        Some(match (path, direction) {
            (Path::Inline, _) => self.eager.at(bytes) + copy + empty,
            (Path::FastRdma, Direction::Write) if registered => self.gathered?.at(bytes) + empty,
            (Path::FastRdma, Direction::Write) => self.copied?.at(bytes) + empty,
            (Path::FastRdma, Direction::Read) if registered => empty + self.written.at(bytes),
            (Path::FastRdma, Direction::Read) => empty + self.gathered?.at(bytes) + copy,
            (Path::ServerBased, Direction::Write) => empty + self.read?.at(bytes) + empty + register,
            (Path::ServerBased, Direction::Read) => empty + self.pushed.at(bytes) + empty + register,
            (Path::ClientBased | Path::Hybrid, _) => return None,
        })
    }

    /// Where the paths cross; fast RDMA as if slots had no end.
    pub fn crossovers(&self, direction: Direction, registered: bool) -> Crossovers {
        let cost = |path, bytes| self.cost(direction, registered, path, bytes);
        // Whether a path that needs less takes not materially longer than another one. A path that
        // cannot be taken is no rival.
        let good_enough = |path, than, bytes| match (cost(path, bytes), cost(than, bytes)) {
            (Some(cost), Some(other)) => cost <= other + other / MATERIAL,
            (Some(_), None) => true,
            (None, _) => false,
        };
        // Without slots inline is all there is below server-based.
        let rival = if self.gathered.is_some() { Path::FastRdma } else { Path::Inline };
        let inline = (64..=self.limits.0).step_by(64).take_while(|bytes| good_enough(Path::Inline, rival, *bytes));
        let inline = inline.last().unwrap_or(0);
        let fast = (1 << 10..=LONGEST).step_by(1 << 10);
        let fast = fast.take_while(|bytes| !good_enough(Path::ServerBased, rival, *bytes)).last().unwrap_or(0);
        Crossovers { inline, fast: fast.max(inline) }
    }

    /// The crossovers of all cases, within what a message and a slot have room for.
    pub fn thresholds(&self) -> Thresholds {
        let (eager, slot) = self.limits;
        let of = |direction, registered| {
            let Crossovers { inline, fast } = self.crossovers(direction, registered);
            let inline = inline.min(eager);
            Crossovers { inline, fast: fast.min(slot.max(inline)) }
        };
        Thresholds {
            write: of(Direction::Write, false),
            write_registered: of(Direction::Write, true),
            read: of(Direction::Read, false),
            read_registered: of(Direction::Read, true),
        }
    }

    /// A policy that goes by what was measured.
    pub fn policy(&self) -> Policy {
        Policy { thresholds: self.thresholds(), measured: true, ..Policy::default() }
    }
}

/// What was measured, by adapter: for a process, or longer, in whatever format the program keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibrations(BTreeMap<String, Measured>);

impl Calibrations {
    /// What is known of an adapter and where it leads to (see [`adapter`]).
    pub fn get(&self, adapter: &str) -> Option<&Measured> {
        self.0.get(adapter)
    }

    /// Remembers.
    pub fn insert(&mut self, adapter: impl Into<String>, measured: Measured) {
        self.0.insert(adapter.into(), measured);
    }
}

/// Names the adapter that leads to `peer`, for [`Calibrations`]: scheme, host, and what the adapter
/// can do. `None` without the peer.
pub fn adapter<T: Transport>(endpoint: &AsyncEndpoint<T>, peer: PeerId) -> Option<String> {
    let addr = endpoint.peer_addr(peer)?;
    let what = endpoint.with(|endpoint| {
        let able = endpoint.capabilities();
        format!("{:?},{},{}", able.one_sided, able.rdma_read, able.max_inline)
    });
    Some(format!("{}://{}#{what}", addr.scheme(), addr.host()).replace(char::is_whitespace, ""))
}

/// The memory of this process; what it does not know is measured, and then used by the endpoint.
///
/// # Errors
/// As [`measure`]. The endpoint keeps its policy then.
pub async fn calibrate<T: Transport>(
    endpoint: &AsyncEndpoint<T>,
    peer: PeerId,
    known: &mut Calibrations,
    options: Options,
) -> Result<Measured, Error> {
    let adapter = adapter(endpoint, peer).ok_or_else(|| Error::new(ErrorKind::PeerLost, "not connected"))?;
    let measured = match known.get(&adapter) {
        Some(measured) => *measured,
        None => measure(endpoint, peer, options).await?,
    };
    known.insert(adapter, measured);
    endpoint.with(|endpoint| {
        let forced = endpoint.policy().forced;
        endpoint.set_policy(Policy { forced, ..measured.policy() });
    });
    Ok(measured)
}

/// Measures, over a connection that is up and has nothing else to do for some milliseconds.
///
/// # Errors
/// `Unsupported` if the peer answers no probes, `Exhausted` if the connection is busy, `PeerLost`,
/// `TimedOut`.
pub async fn measure<T: Transport>(
    endpoint: &AsyncEndpoint<T>,
    peer: PeerId,
    options: Options,
) -> Result<Measured, Error> {
    let limits = endpoint.limits(peer).ok_or_else(|| Error::new(ErrorKind::PeerLost, "not connected"))?;
    let memory = Memory::zeroed(AREA)?;
    let rig = Rig { endpoint, peer, options, memory: &memory };
    // The first echo is for what is done once: memory made, threads woken.
    rig.echo(ProbePath::Eager, 0).await?;
    let round = rig.echo(ProbePath::Eager, 0).await?;
    let empty = round / 2;
    let eager = limits.eager;
    let eager = rig.one_way(ProbePath::Eager, [eager / 8, eager / 2, eager], empty).await?;
    let copied = rig.fast(limits.fast, empty).await?;
    let copy =
        Curve::through([(SIZES[0], rig.copy(SIZES[0])?), (SIZES[1], rig.copy(SIZES[1])?), (AREA, rig.copy(AREA)?)]);
    let (register_region_ns, register_page_ns) = rig.registration(round).await?;
    // From here on the memory is registered.
    let region = endpoint.with(|endpoint| endpoint.register(&memory))?;
    let gathered = rig.fast(limits.fast, empty).await?;
    let one_sided = rig.one_sided(empty, &region).await?;
    Ok(Measured {
        empty_ns: nanos(empty),
        eager,
        copied,
        gathered,
        written: one_sided.written,
        pushed: one_sided.pushed,
        read: one_sided.read,
        copy,
        register_region_ns,
        register_page_ns,
        limits: (limits.eager, limits.fast),
    })
}

/// What the measurements share.
struct Rig<'a, T: Transport> {
    endpoint: &'a AsyncEndpoint<T>,
    peer: PeerId,
    options: Options,
    memory: &'a Memory,
}

impl<T: Transport> Rig<'_, T> {
    fn ask(&self, path: ProbePath, len: usize) -> Operation<T> {
        let list: MemList = self.memory.slice(0, len).into();
        let posted = self.endpoint.with(|endpoint| endpoint.post_echo(self.peer, path, list, self.options));
        self.endpoint.operation(posted.map(Posted::Pending))
    }

    /// The least time there and back, with `len` bytes on the way there.
    async fn echo(&self, path: ProbePath, len: usize) -> Result<Duration, Error> {
        let mut least = Duration::MAX;
        for _ in 0..ROUNDS {
            let start = self.endpoint.now();
            self.ask(path, len).await?;
            least = least.min(self.endpoint.now() - start);
        }
        Ok(least)
    }

    /// One way, with three sizes.
    async fn one_way(&self, path: ProbePath, sizes: [usize; 3], empty: Duration) -> Result<Curve, Error> {
        let mut points = sizes.map(|len| (len, Duration::ZERO));
        for (len, time) in &mut points {
            *time = self.echo(path, *len).await?.saturating_sub(empty);
        }
        Ok(Curve::through(points))
    }

    /// One way into a slot.
    async fn fast(&self, limit: usize, empty: Duration) -> Result<Option<Curve>, Error> {
        let long = limit.min(AREA);
        if long < 4 * SIZES[0] {
            return Ok(None);
        }
        let sizes = [SIZES[0], SIZES[1].min(long / 2), long];
        Ok(Some(self.one_way(ProbePath::Fast, sizes, empty).await?))
    }

    /// The least time of a copy between buffers that the caches have lost sight of, where they are
    /// not larger than that.
    fn copy(&self, len: usize) -> Result<Duration, Error> {
        const AROUND: usize = 1 << 20;
        let (from, to) = (Memory::zeroed(AROUND)?, Memory::zeroed(AROUND)?);
        let mut least = Duration::MAX;
        // The first round only makes the pages be there.
        for round in 0..=ROUNDS {
            let copies = (AROUND / len).min(16);
            let start = self.endpoint.now();
            for at in 0..copies {
                let at = at * (AROUND / copies);
                to.slice(at, len).copy_from_slice_of(&from.slice(at, len));
                let work = HostWork::Copy { bytes: len as u64, pieces: 1 };
                self.endpoint.with(|endpoint| endpoint.transport_mut().charge(work));
            }
            if round > 0 {
                least = least.min((self.endpoint.now() - start) / copies as u32);
            }
        }
        Ok(least)
    }

    /// Registering and releasing: for a region, and for a page. `round` is what an echo takes, in
    /// which the adapter notices the release.
    async fn registration(&self, round: Duration) -> Result<(u64, u64), Error> {
        if self.endpoint.with(|endpoint| endpoint.capabilities().registration == Registration::Free) {
            return Ok((0, 0));
        }
        let mut times = [0; 2];
        for (time, pages) in times.iter_mut().zip([1, 16]) {
            let mut least = Duration::MAX;
            for _ in 0..ROUNDS.min(4) {
                // Fresh memory each time, with its pages there, as a program's would be.
                let memory = Memory::from(vec![1; pages * PAGE]);
                let start = self.endpoint.now();
                // By the adapter: the pin-down cache would keep it.
                drop(self.endpoint.with(|endpoint| endpoint.transport_mut().register(&memory))?);
                self.ask(ProbePath::Eager, 0).await?;
                least = least.min((self.endpoint.now() - start).saturating_sub(round));
            }
            *time = nanos(least);
        }
        let page = times[1].saturating_sub(times[0]) / 15;
        Ok((times[0].saturating_sub(page), page))
    }

    /// RDMA writes and reads between `region` and the peer's area.
    async fn one_sided(&self, empty: Duration, region: &MemoryRegion) -> Result<OneSided, Error> {
        let (endpoint, peer) = (self.endpoint, self.peer);
        let opened = endpoint.with(|endpoint| endpoint.post_open(peer, self.options));
        endpoint.operation(opened.map(Posted::Pending)).await?;
        let area = endpoint.with(|endpoint| endpoint.probe_area(peer));
        let area = area
            .filter(|area| area.len() >= AREA as u64)
            .ok_or_else(|| Error::new(ErrorKind::Exhausted, "the peer has no memory to measure with"))?;
        let can_read = endpoint.with(|endpoint| endpoint.capabilities().rdma_read);
        let mut written = [SIZES[0], SIZES[1], AREA].map(|len| (len, Duration::MAX));
        let (mut pushed, mut read) = (written, written);
        for at in 0..written.len() {
            let len = written[at].0;
            let piece = || region.memory().slice(0, len);
            for _ in 0..ROUNDS {
                let start = endpoint.now();
                let push = endpoint.push(peer, &area, 0, piece(), self.options);
                self.ask(ProbePath::Eager, 0).await?;
                written[at].1 = written[at].1.min((endpoint.now() - start).saturating_sub(empty));
                push.await?;
                let start = endpoint.now();
                endpoint.push(peer, &area, 0, piece(), self.options).await?;
                pushed[at].1 = pushed[at].1.min(endpoint.now() - start);
                if can_read {
                    let start = endpoint.now();
                    endpoint.pull(peer, &area, 0, piece(), self.options).await?;
                    read[at].1 = read[at].1.min(endpoint.now() - start);
                }
            }
        }
        let read = can_read.then(|| Curve::through(read));
        Ok(OneSided { written: Curve::through(written), pushed: Curve::through(pushed), read })
    }
}

/// What one-sided operations take.
struct OneSided {
    written: Curve,
    pushed: Curve,
    read: Option<Curve>,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Display for Curve {
    /// The three measurements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (bytes, ns)) in self.points.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{bytes} bytes {}.{:03} µs", ns / 1_000, ns % 1_000)?;
        }
        Ok(())
    }
}

impl fmt::Display for Measured {
    /// A table for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let optional = |curve: Option<Curve>| curve.map_or_else(|| "not there".to_owned(), |curve| curve.to_string());
        writeln!(f, "empty message, one way   {}.{:03} µs", self.empty_ns / 1_000, self.empty_ns % 1_000)?;
        writeln!(f, "eager message            {}", self.eager)?;
        writeln!(f, "slot, copied             {}", optional(self.copied))?;
        writeln!(f, "slot, gathered           {}", optional(self.gathered))?;
        writeln!(f, "write, message behind it {}", self.written)?;
        writeln!(f, "write, completion        {}", self.pushed)?;
        writeln!(f, "read, completion         {}", optional(self.read))?;
        writeln!(f, "copy                     {}", self.copy)?;
        let (region, page) = (self.register_region_ns, self.register_page_ns);
        writeln!(f, "registration             {region} ns, and {page} ns a page")?;
        for direction in Direction::ALL {
            for registered in [false, true] {
                let state = if registered { "registered" } else { "not registered" };
                writeln!(f, "{direction:<5}, {state:<14}    {}", self.crossovers(direction, registered))?;
            }
        }
        Ok(())
    }
}
