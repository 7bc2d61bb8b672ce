//! A backend alone.

use bmi::backend::{
    AnyTransport, ConnId, Event, Payload, PostError, Segment, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget,
};
use bmi::bulk::{Access, RemoteSlice};
use bmi::memory::MemoryRegion;
use bmi::{Addr, Error, ErrorKind, Memory, Time};

use super::{DESCRIPTION, Ended, Opened, Port, produce};
use crate::case::Case;

/// Length of the longest message that is given as a head, whose bytes the post copies.
const HEAD: usize = 64;
/// The name of every work request: only their number counts.
const ANY: WorkId = WorkId(0);
/// The name of the connection before there is one.
const NONE: ConnId = ConnId { slot: u32::MAX, generation: 0 };

pub(super) struct Backend {
    transport: AnyTransport,
    conn: ConnId,
    is_established: bool,
    events: Vec<Event>,
    ended: Ended,
    outgoing: MemoryRegion,
    incoming: MemoryRegion,
    /// The peer's `incoming`.
    remote: RemoteSlice,
}

impl Backend {
    fn new(with: Opened) -> Result<Backend, Error> {
        let mut transport = with.transport()?;
        let (outgoing, incoming) = (transport.register(&with.memory()?)?, transport.register(&with.memory()?)?);
        let remote = RemoteSlice::from_wire(&[0; DESCRIPTION]);
        let (events, ended) = (Vec::new(), Ended::default());
        Ok(Backend { transport, conn: NONE, is_established: false, events, ended, outgoing, incoming, remote })
    }

    fn post_two(&mut self) -> Result<(), Error> {
        let place = self.place(false, 0, DESCRIPTION);
        (0..2).try_for_each(|_| self.post_recv(Some(&place)))
    }

    fn there(&self, at: u64, len: usize) -> Result<RemoteSlice, Error> {
        let none = || Error::new(ErrorKind::Protocol, "the peer exposes less than the case needs");
        self.remote.slice(at, len as u64).ok_or_else(none)
    }

    fn took_place(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::Work(work) if work.status == WorkStatus::Ok => match work.kind {
                WorkKind::Recv => self.ended.receives += 1,
                _ => self.ended.others += 1,
            },
            Event::ConnectRequest { conn, .. } if self.conn == NONE => {
                self.conn = conn;
                self.post_two()?;
                self.transport.accept(conn, &[])?;
            }
            Event::Established { .. } => self.is_established = true,
            // The end of the connection follows, and gives the reason.
            Event::Work(_) => {}
            Event::Disconnected { reason, .. } => return Err(reason),
            other => return Err(Error::new(ErrorKind::Protocol, format!("{other:?}"))),
        }
        Ok(())
    }
}

impl Port for Backend {
    type Place = Segment;
    const COPIED: usize = HEAD;

    fn connect(with: Opened, to: &Addr, until: Time) -> Result<Backend, Error> {
        let mut port = Backend::new(with)?;
        port.conn = port.transport.connect(to, &[], until)?;
        port.post_two()?;
        Ok(port)
    }

    fn listen(with: Opened, at: &Addr, listening: &dyn Fn(Addr)) -> Result<Backend, Error> {
        let mut port = Backend::new(with)?;
        listening(port.transport.listen(at)?);
        Ok(port)
    }

    fn is_connected(&self) -> bool {
        self.is_established
    }

    #[inline]
    fn poll(&mut self, now: Time) -> Result<bool, Error> {
        let has_moved = self.transport.poll(now, &mut self.events);
        let mut events = std::mem::take(&mut self.events);
        events.drain(..).try_for_each(|event| self.took_place(event))?;
        self.events = events;
        Ok(has_moved)
    }

    #[inline]
    fn ended(&mut self) -> &mut Ended {
        &mut self.ended
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn outgoing(&self) -> &Memory {
        self.outgoing.memory()
    }

    fn incoming(&self) -> &Memory {
        self.incoming.memory()
    }

    fn place(&self, is_outgoing: bool, at: usize, len: usize) -> Segment {
        if is_outgoing { &self.outgoing } else { &self.incoming }.segment(at, len)
    }

    fn produce(case: &Case, place: &Segment) {
        produce(case.station.over, &place.to_slice());
    }

    fn post_recv(&mut self, into: Option<&Segment>) -> Result<(), Error> {
        let segments = into.map(std::slice::from_ref).unwrap_or_default();
        posted(self.transport.post_recv(self.conn, ANY, segments)).and_then(|is_posted| match is_posted {
            true => Ok(()),
            false => Err(refused(PostError::QueueFull)),
        })
    }

    fn tell(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        posted(self.transport.post_send(self.conn, ANY, bytes, Payload::EMPTY, WorkOptions::UNSIGNALLED))
    }

    #[inline]
    fn send(&mut self, from: &Segment, counts: bool) -> Result<bool, Error> {
        let (ones, segments) = ([1; HEAD], std::slice::from_ref(from));
        let (head, payload) = match ones.get(..from.len()) {
            Some(head) => (head, Payload::EMPTY),
            None => (&[][..], Payload::Gather(segments)),
        };
        posted(self.transport.post_send(self.conn, ANY, head, payload, options(counts)))
    }

    fn write(&mut self, from: &Segment, at: u64, immediate: Option<u32>, counts: bool) -> Result<bool, Error> {
        let target = WriteTarget { remote: self.there(at, from.len())?, immediate };
        posted(self.transport.post_write(self.conn, ANY, &[], std::slice::from_ref(from), target, options(counts)))
    }

    fn read(&mut self, into: &Segment, at: u64) -> Result<bool, Error> {
        let remote = self.there(at, into.len())?;
        posted(self.transport.post_read(self.conn, ANY, std::slice::from_ref(into), remote, WorkOptions::SIGNALLED))
    }

    fn expose(&mut self) -> Result<[u8; DESCRIPTION], Error> {
        let all = self.incoming.segment(0, self.incoming.memory().len());
        Ok(self.transport.expose(self.conn, &all, Access::READ_WRITE)?.to_wire())
    }

    fn set_remote(&mut self, remote: RemoteSlice) -> Result<(), Error> {
        self.remote = remote;
        Ok(())
    }
}

fn options(counts: bool) -> WorkOptions {
    if counts { WorkOptions::SIGNALLED } else { WorkOptions::UNSIGNALLED }
}

/// Returns whether there was room.
#[inline]
fn posted(result: Result<(), PostError>) -> Result<bool, Error> {
    match result {
        Ok(()) => Ok(true),
        Err(PostError::QueueFull) => Ok(false),
        Err(other) => Err(refused(other)),
    }
}

fn refused(error: PostError) -> Error {
    Error::new(ErrorKind::Invalid, format!("the backend refuses a work request: {error:?}"))
}
