//! How the two sides find each other, and each other's memory.

use std::time::Duration;

use bmi::driver::MonotonicClock;
use bmi::{Access, Addr, AnyTransport, Clock, Error, ErrorKind, Memory, MemoryRegion, Scheme};
use bmi_core::RemoteSlice;
use bmi_core::transport::{ConnId, Event, WorkId};

use super::{Backend, UNSIGNALLED, refused};
use crate::case::{MOST_BYTES, Settings};
use crate::stop::Stop;
use crate::work::adapter;

/// How long a connection may take to be made.
const PATIENCE: Duration = Duration::from_secs(10);

/// A transport, what a side sends from, and what it receives into.
type Opened = (AnyTransport, MemoryRegion, MemoryRegion);

fn open(scheme: Scheme, settings: &Settings) -> Result<Opened, Error> {
    let mut transport = bmi::open(scheme, &adapter::options(settings)?)?;
    let room = settings.room.clamp(RemoteSlice::WIRE_LEN as u64, MOST_BYTES) as usize;
    let mut region = || {
        let memory = Memory::shareable(room)?;
        // Touch every page now, and not during the measurement.
        memory.copy_from(0, &vec![1; room]);
        transport.register(&memory)
    };
    let (out, into) = (region()?, region()?);
    Ok((transport, out, into))
}

/// Posts two receives: one for the peer's first message, and one for the begin of the first round.
fn post_two(transport: &mut AnyTransport, conn: ConnId, into: &MemoryRegion) -> Result<(), Error> {
    let segments = [into.segment(0, RemoteSlice::WIRE_LEN)];
    (0..2).try_for_each(|_| transport.post_recv(conn, WorkId(0), &segments)).map_err(refused)
}

impl Backend {
    /// Connects to a server.
    pub(in crate::work) fn connect(
        scheme: Scheme,
        settings: &Settings,
        to: &Addr,
        stop: &Stop,
    ) -> Result<Backend, Error> {
        let clock = MonotonicClock::new();
        let (mut transport, out, into) = open(scheme, settings)?;
        let conn = transport.connect(to, &[], clock.now() + PATIENCE)?;
        post_two(&mut transport, conn, &into)?;
        Backend::meet((transport, out, into), conn, clock, stop)
    }

    /// Listens, says where, and waits for a client.
    pub(in crate::work) fn accept(
        scheme: Scheme,
        settings: &Settings,
        at: &Addr,
        listening: impl FnOnce(Addr),
        stop: &Stop,
    ) -> Result<Backend, Error> {
        let clock = MonotonicClock::new();
        let (mut transport, out, into) = open(scheme, settings)?;
        listening(transport.listen(at)?);
        let (end, mut events) = (clock.now() + 2 * PATIENCE, Vec::new());
        loop {
            transport.poll(clock.now(), &mut events);
            for event in events.drain(..) {
                let Event::ConnectRequest { conn, .. } = event else { continue };
                post_two(&mut transport, conn, &into)?;
                transport.accept(conn, &[])?;
                return Backend::meet((transport, out, into), conn, clock, stop);
            }
            if stop.is_set() {
                return Err(stop.error());
            }
            if clock.now() >= end {
                return Err(Error::new(ErrorKind::TimedOut, "the client did not connect"));
            }
            std::thread::yield_now();
        }
    }

    /// Waits for the connection, and tells the peer where it may write and read.
    fn meet(of: Opened, conn: ConnId, clock: MonotonicClock, stop: &Stop) -> Result<Backend, Error> {
        let (transport, out, into) = of;
        let remote = RemoteSlice::from_wire(&[0; RemoteSlice::WIRE_LEN]);
        let (events, now) = (Vec::new(), clock.now());
        let mut side = Backend {
            transport,
            conn,
            is_established: false,
            clock,
            now,
            polls: 0,
            events,
            received: 0,
            ended: 0,
            out,
            into,
            remote,
            going: Vec::new(),
            coming: Vec::new(),
            to_post: 0,
            posted: 0,
        };
        while !side.is_established {
            side.poll(stop)?;
        }
        let all = side.into.segment(0, side.into.memory().len());
        let own = side.transport.expose(conn, &all, Access::READ_WRITE)?;
        side.send_head(&own.to_wire(), UNSIGNALLED, stop)?;
        side.receive(1, stop)?;
        let mut wire = [0; RemoteSlice::WIRE_LEN];
        side.into.memory().copy_to(0, &mut wire);
        side.remote = RemoteSlice::from_wire(&wire);
        Ok(side)
    }
}
