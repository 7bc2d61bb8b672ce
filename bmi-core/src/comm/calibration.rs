//! Calibration: measures the cost of an adapter's operations and of the host's copies, and derives
//! the crossovers. It takes some milliseconds over a live connection.
//!
//! **Why.** The cheapest path depends on the machine: on its copies, its registration, and its
//! adapter's latencies. The paper found 4 KiB and 64 KiB on one cluster of 2003. These values are
//! the fallback.
//!
//! **Protocol.** The peer's endpoint answers probes without involving its program
//! ([`crate::Engine`], `engine/message/probe.rs`). Times are measured by the endpoint's clock. Each
//! is the minimum of a few rounds:
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
//! **Model.** Time from the client's call to its reply, as in [PVFS-IB, Figure 11]. *n* is the
//! number of bytes, *e* the time of an empty message one way:
//!
//! | | write | read |
//! |---|---|---|
//! | inline | eager(n) + copy(n) + e | e + eager(n) + copy(n) |
//! | fast RDMA, registered | gathered(n) + e | e + written(n) |
//! | fast RDMA, not registered | copied(n) + e | e + gathered(n) + copy(n) |
//! | server-based | e + read(n) + e | e + pushed(n) + e |
//! | … not registered | and register(n) | and register(n) |
//!
//! Inline copies twice, once on each side, because the receive slot is reposted before the data is
//! used. Fast RDMA copies once, and not at all with registered memory. Server-based never copies.
//!
//! **Crossovers.** The path that needs fewer resources is preferred unless another one is
//! *materially* faster. This is also why the paper sends inline at all ([PVFS-IB §6.5]: fast RDMA
//! was always a little faster). Inline needs no slot. Server-based needs neither slot nor copy, and
//! the server can take the data when it has room. A difference is material if it is more than a
//! [fifth](MATERIAL) of the request's time.
//!
//! **Source.** [PVFS-IB §4.1, §6.5].
//!
//! **Tests.** `bmi-sim/tests/it/profiles/calibration.rs` (the paper's machines) and
//! `bmi-tcp/tests/it/calibration.rs` (TCP).

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::endpoint::threading::Threading;
use crate::endpoint::{Endpoint, Operation, Peer};
use crate::engine::{AREA, ProbePath};
use crate::error::{Error, ErrorKind};
use crate::mem::{MemList, Memory, MemoryRegion};
use crate::op::{Options, Posted};
use crate::paths::{Crossovers, Direction, Path, Policy, Thresholds};
use crate::transport::capability::Registration;

/// A difference of less than one part in this number is not material.
pub const MATERIAL: u64 = 5;
/// Rounds of each measurement. The minimum counts, because the others were disturbed.
const ROUNDS: usize = 5;
/// Measured sizes in bytes; [`AREA`] is the largest. The smallest is longer than messages that are
/// copied even if they are registered.
const SIZES: [usize; 2] = [2 << 10, 8 << 10];
/// Largest size considered for crossovers, in bytes.
const LONGEST: usize = 1 << 20;
const PAGE: usize = 4096;

/// A time as a function of bytes. It is linear between three measurements, and continues in a
/// straight line beyond them. Copies cost more once they are longer than a cache, so a line through
/// two points would be wrong at both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curve {
    /// Bytes and ns, sorted by bytes.
    points: [(u32, u64); 3],
}

impl Curve {
    /// Returns the curve through three measurements, in the order of their sizes.
    pub fn through(points: [(usize, Duration); 3]) -> Curve {
        Curve { points: points.map(|(bytes, time)| (u32::try_from(bytes).unwrap_or(u32::MAX), nanos(time))) }
    }

    /// Returns the time for `bytes` bytes, in ns.
    pub fn at(&self, bytes: usize) -> u64 {
        let [first, middle, last] = self.points.map(|(bytes, ns)| (i128::from(bytes), i128::from(ns)));
        let bytes = bytes as i128;
        let ((x, y), (to_x, to_y)) = if bytes <= middle.0 { (first, middle) } else { (middle, last) };
        // Noise may make the longer one faster, but time does not decrease with bytes.
        let rise = (to_y - y).max(0) * (bytes - x) / (to_x - x).max(1);
        u64::try_from((y + rise).max(0)).unwrap_or(u64::MAX)
    }
}

/// Results of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measured {
    /// An empty message, one way.
    pub empty_ns: u64,
    /// An eager message, one way, including this side's copy.
    pub eager: Curve,
    /// A message into a slot, one way, copied into a staging buffer first; `None` without slots.
    pub copied: Option<Curve>,
    /// As `copied`, but gathered from registered memory.
    pub gathered: Option<Curve>,
    /// An RDMA write followed by a message, one way.
    pub written: Curve,
    /// An RDMA write, from the request to its completion.
    pub pushed: Curve,
    /// An RDMA read, from the request to its completion; `None` if the adapter has no RDMA read.
    pub read: Option<Curve>,
    /// A copy from memory to memory.
    pub copy: Curve,
    /// Registering a region and releasing it again, in ns.
    pub register_region_ns: u64,
    /// Additional cost for each page of 4 KiB of the region, in ns.
    pub register_page_ns: u64,
    /// Longest payload of an eager message and of a message in a slot, in bytes.
    pub limits: (usize, usize),
}

impl Measured {
    /// Returns the cost of registering and releasing `bytes` bytes, in ns.
    pub fn register(&self, bytes: usize) -> u64 {
        self.register_region_ns + bytes.div_ceil(PAGE) as u64 * self.register_page_ns
    }

    /// Returns the time of a request with `bytes` bytes of data by a path, in ns. Returns `None` if
    /// the path is not available. Client-based transfers are not modelled, because they are never
    /// the cheapest where the other paths are available.
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

    /// Returns the crossovers of the paths, as if slots were unlimited.
    pub fn crossovers(&self, direction: Direction, registered: bool) -> Crossovers {
        let cost = |path, bytes| self.cost(direction, registered, path, bytes);
        // Returns true if `path`, which needs fewer resources, takes not materially longer than
        // `than`. A path that is not available is no rival.
        let good_enough = |path, than, bytes| match (cost(path, bytes), cost(than, bytes)) {
            (Some(cost), Some(other)) => cost <= other + other / MATERIAL,
            (Some(_), None) => true,
            (None, _) => false,
        };
        // Without slots, inline is the only path below server-based.
        let rival = if self.gathered.is_some() { Path::FastRdma } else { Path::Inline };
        let inline = (64..=self.limits.0).step_by(64).take_while(|bytes| good_enough(Path::Inline, rival, *bytes));
        let inline = inline.last().unwrap_or(0);
        let fast = (1 << 10..=LONGEST).step_by(1 << 10);
        let fast = fast.take_while(|bytes| !good_enough(Path::ServerBased, rival, *bytes)).last().unwrap_or(0);
        Crossovers { inline, fast: fast.max(inline) }
    }

    /// Returns the crossovers of all cases, limited to the room of a message and a slot.
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

    /// Returns a policy with the measured thresholds.
    pub fn policy(&self) -> Policy {
        Policy { thresholds: self.thresholds(), measured: true, ..Policy::default() }
    }
}

/// Measurements by adapter. They can be kept for a process, or stored longer in any format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibrations(BTreeMap<String, Measured>);

impl Calibrations {
    /// Returns the measurements for an adapter and its destination (see [`adapter`]).
    pub fn get(&self, adapter: &str) -> Option<&Measured> {
        self.0.get(adapter)
    }

    /// Stores measurements.
    pub fn insert(&mut self, adapter: impl Into<String>, measured: Measured) {
        self.0.insert(adapter.into(), measured);
    }
}

/// Returns a name for the adapter that leads to `peer`, for [`Calibrations`]: scheme, host, and the
/// adapter's capabilities. `None` if the peer is unknown.
pub fn adapter<S: Threading>(peer: &Peer<S>) -> Option<String> {
    let addr = peer.addr()?;
    let what = peer.endpoint.look(|engine| {
        let able = engine.capabilities();
        format!("{:?},{},{}", able.one_sided, able.rdma_read, able.max_inline)
    });
    Some(format!("{}://{}#{what}", addr.scheme(), addr.host()).replace(char::is_whitespace, ""))
}

/// Looks up the adapter in `known`, or measures it and adds it. The endpoint then uses the result.
///
/// # Errors
/// As [`measure`]. The endpoint keeps its policy in that case.
pub async fn calibrate<S: Threading>(
    peer: &Peer<S>,
    known: &mut Calibrations,
    options: Options,
) -> Result<Measured, Error> {
    let adapter = adapter(peer).ok_or_else(|| Error::new(ErrorKind::PeerLost, "not connected"))?;
    let measured = match known.get(&adapter) {
        Some(measured) => *measured,
        None => measure(peer, options).await?,
    };
    known.insert(adapter, measured);
    peer.endpoint.with(|engine| {
        let forced = engine.policy().forced;
        engine.set_policy(Policy { forced, ..measured.policy() });
    });
    Ok(measured)
}

/// Measures over an established connection that has nothing else to do for some milliseconds.
///
/// # Errors
/// `Unsupported` if the peer answers no probes, `Exhausted` if the connection is busy, `PeerLost`,
/// `TimedOut`.
pub async fn measure<S: Threading>(peer: &Peer<S>, options: Options) -> Result<Measured, Error> {
    let endpoint = &peer.endpoint;
    let limits = peer.limits().ok_or_else(|| Error::new(ErrorKind::PeerLost, "not connected"))?;
    let memory = Memory::zeroed(AREA)?;
    let rig = Rig { endpoint, peer, options, memory: &memory };
    // The first echo is not counted. It pays for one-time work: allocating memory, waking threads.
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
    let region = endpoint.with(|engine| engine.register(&memory))?;
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

/// State shared by the measurements.
struct Rig<'a, S: Threading> {
    endpoint: &'a Endpoint<S>,
    peer: &'a Peer<S>,
    options: Options,
    memory: &'a Memory,
}

impl<S: Threading> Rig<'_, S> {
    fn ask(&self, path: ProbePath, len: usize) -> Operation<S> {
        let list: MemList = self.memory.slice(0, len).into();
        let posted = self.endpoint.with(|engine| engine.post_echo(self.peer.id(), path, list, self.options));
        self.endpoint.operation(posted.map(Posted::Pending))
    }

    /// Returns the minimum round-trip time, with `len` bytes on the way there.
    async fn echo(&self, path: ProbePath, len: usize) -> Result<Duration, Error> {
        let mut least = Duration::MAX;
        for _ in 0..ROUNDS {
            let start = self.endpoint.now();
            self.ask(path, len).await?;
            least = least.min(self.endpoint.now() - start);
        }
        Ok(least)
    }

    /// Returns the time one way, for three sizes.
    async fn one_way(&self, path: ProbePath, sizes: [usize; 3], empty: Duration) -> Result<Curve, Error> {
        let mut points = sizes.map(|len| (len, Duration::ZERO));
        for (len, time) in &mut points {
            *time = self.echo(path, *len).await?.saturating_sub(empty);
        }
        Ok(Curve::through(points))
    }

    /// Returns the time one way into a slot.
    async fn fast(&self, limit: usize, empty: Duration) -> Result<Option<Curve>, Error> {
        let long = limit.min(AREA);
        if long < 4 * SIZES[0] {
            return Ok(None);
        }
        let sizes = [SIZES[0], SIZES[1].min(long / 2), long];
        Ok(Some(self.one_way(ProbePath::Fast, sizes, empty).await?))
    }

    /// Returns the minimum time of a copy between buffers that are no longer in the caches, unless
    /// the caches are larger than the buffers.
    fn copy(&self, len: usize) -> Result<Duration, Error> {
        const AROUND: usize = 1 << 20;
        let (from, to) = (Memory::zeroed(AROUND)?, Memory::zeroed(AROUND)?);
        let mut least = Duration::MAX;
        // The first round only touches the pages.
        for round in 0..=ROUNDS {
            let copies = (AROUND / len).min(16);
            let start = self.endpoint.now();
            for at in 0..copies {
                let at = at * (AROUND / copies);
                to.slice(at, len).copy_from_slice_of(&from.slice(at, len));
                self.endpoint.copied(len as u64, 1);
            }
            if round > 0 {
                least = least.min((self.endpoint.now() - start) / copies as u32);
            }
        }
        Ok(least)
    }

    /// Returns the cost of registering and releasing, for a region and for a page. `round` is the
    /// time of an echo, during which the adapter notices the release.
    async fn registration(&self, round: Duration) -> Result<(u64, u64), Error> {
        if self.endpoint.with(|engine| engine.capabilities().registration == Registration::Free) {
            return Ok((0, 0));
        }
        let mut times = [0; 2];
        for (time, pages) in times.iter_mut().zip([1, 16]) {
            let mut least = Duration::MAX;
            for _ in 0..ROUNDS.min(4) {
                // New memory each time, with its pages present, as a program's would be.
                let memory = Memory::from(vec![1; pages * PAGE]);
                let start = self.endpoint.now();
                // Registered directly with the adapter, because the pin-down cache would keep the
                // registration.
                drop(self.endpoint.with(|engine| engine.transport_mut().register(&memory))?);
                self.ask(ProbePath::Eager, 0).await?;
                least = least.min((self.endpoint.now() - start).saturating_sub(round));
            }
            *time = nanos(least);
        }
        let page = times[1].saturating_sub(times[0]) / 15;
        Ok((times[0].saturating_sub(page), page))
    }

    /// Measures RDMA writes and reads between `region` and the peer's area.
    async fn one_sided(&self, empty: Duration, region: &MemoryRegion) -> Result<OneSided, Error> {
        let (endpoint, peer) = (self.endpoint, self.peer);
        let opened = endpoint.with(|engine| engine.post_open(peer.id(), self.options));
        endpoint.operation(opened.map(Posted::Pending)).await?;
        let area = endpoint.with(|engine| engine.probe_area(peer.id()));
        let area = area
            .filter(|area| area.len() >= AREA as u64)
            .ok_or_else(|| Error::new(ErrorKind::Exhausted, "the peer has no memory to measure with"))?;
        let can_read = endpoint.with(|engine| engine.capabilities().rdma_read);
        let mut written = [SIZES[0], SIZES[1], AREA].map(|len| (len, Duration::MAX));
        let (mut pushed, mut read) = (written, written);
        for at in 0..written.len() {
            let len = written[at].0;
            let piece = || region.memory().slice(0, len);
            for _ in 0..ROUNDS {
                let start = endpoint.now();
                let push = peer.push(&area, 0, piece(), self.options);
                self.ask(ProbePath::Eager, 0).await?;
                written[at].1 = written[at].1.min((endpoint.now() - start).saturating_sub(empty));
                push.await?;
                let start = endpoint.now();
                peer.push(&area, 0, piece(), self.options).await?;
                pushed[at].1 = pushed[at].1.min(endpoint.now() - start);
                if can_read {
                    let start = endpoint.now();
                    peer.pull(&area, 0, piece(), self.options).await?;
                    read[at].1 = read[at].1.min(endpoint.now() - start);
                }
            }
        }
        let read = can_read.then(|| Curve::through(read));
        Ok(OneSided { written: Curve::through(written), pushed: Curve::through(pushed), read })
    }
}

/// Times of one-sided operations.
struct OneSided {
    written: Curve,
    pushed: Curve,
    read: Option<Curve>,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl fmt::Display for Curve {
    /// Writes the three measurements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (bytes, ns)) in self.points.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{bytes} bytes {}.{:03} µs", ns / 1_000, ns % 1_000)?;
        }
        Ok(())
    }
}

impl fmt::Display for Measured {
    /// Writes a table for people.
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
