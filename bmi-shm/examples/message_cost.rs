//! Messages between two endpoints of one process, for a tool that counts instructions: nothing here waits, so every run does the same.
//!
//! ```sh
//! cargo build --release -p bmi-shm --example message_cost
//! for how in idle ping rate push pull raw-idle raw-ping raw-rate; do valgrind --tool=callgrind --toggle-collect='*counted*' \
//!     target/release/examples/message_cost $how 8 1000; done
//! ```
//! *idle* polls two endpoints that have nothing to do; *ping* sends one message there and one back; *rate* sends 32 and then polls; *push* and *pull* move bytes to and from
//! memory that the other side has exposed, and poll until that is done. *raw* is the transport alone.

use bmi_core::transport::{ConnId, Event, Payload, PostError, Transport, WorkId, WorkOptions};
use bmi_core::{
    Access, Addr, Completion, Config, Endpoint, Error, ErrorKind, Exposure, Memory, MemoryRegion, Options, PeerEvent,
    PeerId, Segment, Time,
};
use bmi_shm::{ShmConfig, ShmTransport};

const ROOM: usize = 32 << 20;

struct Side {
    endpoint: Endpoint<ShmTransport>,
    peer: Option<PeerId>,
    out: Memory,
    into: Memory,
    /// What the other side may reach: all of `into`.
    exposed: Option<Exposure>,
    done: Vec<Completion>,
    now: u64,
}

impl Side {
    fn new(name: &str) -> Result<Side, Error> {
        let endpoint = Endpoint::new(ShmTransport::new(ShmConfig::default())?, Config::named(name), Time::ZERO)?;
        Ok(Side {
            endpoint,
            peer: None,
            out: Memory::shareable(ROOM)?,
            into: Memory::shareable(ROOM)?,
            exposed: None,
            done: vec![],
            now: 0,
        })
    }

    fn peer(&self) -> Result<PeerId, Error> {
        self.peer.ok_or_else(|| Error::new(ErrorKind::PeerLost, "not connected"))
    }

    fn poll(&mut self) -> usize {
        self.now += 20_000;
        self.endpoint.poll(Time::from_nanos(self.now));
        self.done.clear();
        self.endpoint.poll_all(&mut self.done)
    }

    fn recv(&mut self, at: usize, len: usize) -> Result<usize, Error> {
        let (peer, list) = (self.peer()?, self.into.slice(at, len));
        Ok(usize::from(self.endpoint.post_recv(peer, 1, list, Options::default())?.pending().is_some()))
    }

    fn send(&mut self, at: usize, len: usize) -> Result<usize, Error> {
        let (peer, list) = (self.peer()?, self.out.slice(at, len));
        Ok(usize::from(self.endpoint.post_send(peer, 1, list, Options::default())?.pending().is_some()))
    }
}

fn connected() -> Result<(Side, Side), Error> {
    let folder = tempfile::tempdir()?;
    let addr = Addr::shm(format!("{}/names/cost", folder.path().display()));
    let (mut near, mut far) = (Side::new("near")?, Side::new("far")?);
    far.endpoint.listen(&addr)?;
    near.endpoint.connect(&addr, Options::default())?;
    while near.peer.is_none() || far.peer.is_none() {
        for side in [&mut near, &mut far] {
            side.poll();
            if let Some(PeerEvent::Connected { peer, .. }) = side.endpoint.poll_event() {
                side.peer = Some(peer);
            }
        }
    }
    far.exposed = Some(far.endpoint.expose(far.peer()?, far.into.all(), Access::READ_WRITE)?);
    for _ in 0..1000 {
        near.poll();
        far.poll();
    }
    Ok((near, far))
}

/// One message, whose receive is posted; and a receive for the next.
fn ping(near: &mut Side, far: &mut Side, len: usize) -> Result<(), Error> {
    let (mut sending, mut receiving) = (near.send(0, len)?, 1);
    while receiving > 0 {
        receiving -= far.poll().min(receiving);
        if receiving > 0 || sending > 0 {
            sending -= near.poll().min(sending);
        }
    }
    far.recv(0, len)?;
    Ok(())
}

const BATCH: usize = 32;

/// Messages one way, in batches.
fn rate(near: &mut Side, far: &mut Side, len: usize) -> Result<(), Error> {
    let (mut sending, mut receiving) = (0, 0);
    for at in 0..BATCH {
        receiving += far.recv(at * len, len)?;
    }
    near.poll();
    for at in 0..BATCH {
        sending += near.send(at * len, len)?;
    }
    while sending + receiving > 0 {
        receiving -= far.poll().min(receiving);
        sending -= near.poll().min(sending);
    }
    Ok(())
}

/// One transfer by the near side alone.
fn transfer(near: &mut Side, far: &Side, push: bool, len: usize) -> Result<(), Error> {
    let exposed = far.exposed.as_ref().ok_or_else(|| Error::new(ErrorKind::Invalid, "nothing is exposed"))?;
    let (peer, remote, list) = (near.peer()?, exposed.descriptor(), near.out.slice(0, len));
    let posted = match push {
        true => near.endpoint.post_push(peer, remote, 0, list, Options::default()),
        false => near.endpoint.post_pull(peer, remote, 0, list, Options::default()),
    };
    let mut left = usize::from(posted?.pending().is_some());
    while left > 0 {
        left -= near.poll().min(left);
    }
    Ok(())
}

#[inline(never)]
fn counted(how: &str, near: &mut Side, far: &mut Side, len: usize, count: usize) -> Result<(), Error> {
    for _ in 0..count {
        match how {
            "idle" => {
                near.poll();
                far.poll();
            }
            "ping" => {
                ping(near, far, len)?;
                ping(far, near, len)?;
            }
            "push" | "pull" => transfer(near, far, how == "push", len)?,
            _ => rate(near, far, len)?,
        }
    }
    Ok(())
}

/// A transport alone.
struct Raw {
    transport: ShmTransport,
    conn: Option<ConnId>,
    established: bool,
    region: MemoryRegion,
    events: Vec<Event>,
    now: u64,
}

impl Raw {
    fn new() -> Result<Raw, Error> {
        let mut transport = ShmTransport::new(ShmConfig::default())?;
        let region = transport.register(&Memory::shareable(ROOM)?)?;
        Ok(Raw { transport, conn: None, established: false, region, events: vec![], now: 0 })
    }

    fn conn(&self) -> Result<ConnId, Error> {
        self.conn.ok_or_else(|| Error::new(ErrorKind::PeerLost, "not connected"))
    }

    /// How many events there were.
    fn poll(&mut self) -> usize {
        self.now += 100;
        self.transport.poll(Time::from_nanos(self.now), &mut self.events);
        self.events.drain(..).count()
    }

    fn connect(&mut self) -> Result<(), Error> {
        self.now += 20_000;
        self.transport.poll(Time::from_nanos(self.now), &mut self.events);
        for event in std::mem::take(&mut self.events) {
            match event {
                Event::ConnectRequest { conn, .. } => {
                    self.conn = Some(conn);
                    self.transport.accept(conn, &[])?;
                }
                Event::Established { .. } => self.established = true,
                other => return Err(Error::new(ErrorKind::Io, format!("{other:?}"))),
            }
        }
        Ok(())
    }

    fn recv(&mut self, segments: &[Segment]) -> Result<(), Error> {
        let conn = self.conn()?;
        self.transport.post_recv(conn, WorkId(1), segments).map_err(refused)
    }

    /// What fits a head goes as one; the rest is gathered.
    fn send(&mut self, segments: &[Segment]) -> Result<(), Error> {
        let conn = self.conn()?;
        let len: usize = segments.iter().map(Segment::len).sum();
        let (head, payload) =
            if len <= 256 { (&HEAD[..len], Payload::EMPTY) } else { (&[][..], Payload::Gather(segments)) };
        self.transport.post_send(conn, WorkId(2), head, payload, WorkOptions::UNSIGNALLED).map_err(refused)
    }
}

const HEAD: [u8; 256] = [7; 256];

fn refused(error: PostError) -> Error {
    Error::new(ErrorKind::Exhausted, format!("{error:?}"))
}

fn raw_connected() -> Result<(Raw, Raw), Error> {
    let folder = tempfile::tempdir()?;
    let addr = Addr::shm(format!("{}/names/cost", folder.path().display()));
    let (mut near, mut far) = (Raw::new()?, Raw::new()?);
    far.transport.listen(&addr)?;
    near.conn = Some(near.transport.connect(&addr, &[], Time::from_nanos(u64::MAX))?);
    while !near.established || !far.established {
        near.connect()?;
        far.connect()?;
    }
    // So the peer has all of it mapped, and long messages may stay there.
    for side in [&mut near, &mut far] {
        let (conn, all) = (side.conn()?, side.region.segment(0, ROOM));
        side.transport.expose(conn, &all, Access::READ)?;
    }
    for _ in 0..1000 {
        near.connect()?;
        far.connect()?;
    }
    Ok((near, far))
}

/// One message there and one back; a receive is posted again behind it.
fn raw_ping(near: &mut Raw, far: &mut Raw, room: &[Segment; 2]) -> Result<(), Error> {
    near.send(&room[..1])?;
    while far.poll() == 0 {}
    far.send(&room[1..])?;
    far.recv(&room[1..])?;
    while near.poll() == 0 {}
    near.recv(&room[..1])
}

fn raw_rate(near: &mut Raw, far: &mut Raw, room: &[Segment; 2]) -> Result<(), Error> {
    (0..BATCH).try_for_each(|_| near.send(&room[..1]))?;
    near.poll();
    let mut arrived = 0;
    while arrived < BATCH {
        let here = far.poll();
        (0..here).try_for_each(|_| far.recv(&room[1..]))?;
        arrived += here;
    }
    Ok(())
}

/// The named way, `count` times.
#[inline(never)]
fn raw_counted(how: &str, near: &mut Raw, far: &mut Raw, len: usize, count: usize) -> Result<(), Error> {
    let room = [&near, &far].map(|side| side.region.segment(0, len));
    for _ in 0..count {
        match how {
            "raw-idle" => {
                near.poll();
                far.poll();
            }
            "raw-ping" => raw_ping(near, far, &room)?,
            _ => raw_rate(near, far, &room)?,
        }
    }
    Ok(())
}

fn raw(how: &str, len: usize, count: usize) -> Result<(), Error> {
    let (mut near, mut far) = raw_connected()?;
    let rooms = [&near, &far].map(|side| side.region.segment(0, len));
    for (side, room) in [&mut near, &mut far].into_iter().zip(rooms) {
        (0..2 * BATCH).try_for_each(|_| side.recv(std::slice::from_ref(&room)))?;
    }
    warm_raw(how, &mut near, &mut far, len)?;
    raw_counted(how, &mut near, &mut far, len, count)
}

#[inline(never)]
fn warm_raw(how: &str, near: &mut Raw, far: &mut Raw, len: usize) -> Result<(), Error> {
    let room = [&near, &far].map(|side| side.region.segment(0, len));
    for _ in 0..1000 {
        match how {
            "raw-ping" => raw_ping(near, far, &room)?,
            "raw-rate" => raw_rate(near, far, &room)?,
            _ => {}
        }
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let how = words.next().unwrap_or_else(|| "ping".into());
    let mut number = |or| words.next().and_then(|word| word.parse().ok()).unwrap_or(or);
    let (len, count) = (number(8), number(1000));
    if how.starts_with("raw") {
        return raw(&how, len, count);
    }
    let (mut near, mut far) = connected()?;
    if how == "ping" {
        near.recv(0, len)?;
        far.recv(0, len)?;
        near.poll();
        far.poll();
        near.poll();
    }
    for _ in 0..1000 / (1 + len / 4096) + 20 {
        warm(&how, &mut near, &mut far, len)?;
    }
    counted(&how, &mut near, &mut far, len, count)
}

fn warm(how: &str, near: &mut Side, far: &mut Side, len: usize) -> Result<(), Error> {
    match how {
        "ping" => ping(near, far, len).and_then(|()| ping(far, near, len)),
        "rate" => rate(near, far, len),
        "push" | "pull" => transfer(near, far, how == "push", len),
        _ => Ok(()),
    }
}
