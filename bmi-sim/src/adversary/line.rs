//! The connections of an adversary, below the level of an endpoint: its adapter, and what comes and
//! goes over it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use bmi_core::transport::{
    Armed, ConnId, Event, Payload, PostError, Transport, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget,
};
use bmi_core::{Access, Addr, Error, ErrorKind, Memory, MemoryRegion, RemoteSlice, Time};

use super::secrets::Secrets;
use super::wire::{Credits, Slots, promised};
use crate::SimTransport;
use crate::model::overheard::{Heard, Verb};

/// The name of work whose completion says nothing.
const SENT: WorkId = WorkId(u64::MAX);
/// Bytes that one read, or one exposure for others, has at most.
const MOST: usize = 1 << 20;

/// Something that came to an adversary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The name of the node that it came from.
    pub from: String,
    /// The number of the line that it came over. An adversary counts its lines from 0.
    pub line: usize,
    /// All its bytes.
    pub bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Open,
    Over,
}

/// One connection.
struct Connection {
    id: ConnId,
    to: String,
    state: State,
    /// Where messages arrive, until it is over.
    landing: Option<MemoryRegion>,
    room: usize,
    credits: Credits,
    slots: Slots,
    /// What is read, by the name of the work.
    reads: BTreeMap<u64, Memory>,
    /// What the other side may read and write.
    exposed: Vec<Memory>,
    sent: Vec<Vec<u8>>,
}

impl Connection {
    fn end(&mut self) {
        (self.state, self.landing) = (State::Over, None);
    }
}

/// The adapter of an adversary.
pub(super) struct Adapter {
    transport: SimTransport,
    /// All that there have been.
    lines: Vec<Connection>,
    received: Vec<Received>,
    /// The name of the next read.
    next_read: u64,
    waiting: Vec<Waker>,
}

/// Takes what comes to an adapter, for ever.
pub(super) async fn drive(adapter: Rc<RefCell<Adapter>>) {
    poll_fn(|cx| {
        loop {
            let mut adapter = adapter.borrow_mut();
            adapter.poll();
            if let Armed::Waiting = adapter.transport.arm(cx.waker()) {
                return Poll::Pending;
            }
        }
    })
    .await
}

fn refused(error: PostError) -> Error {
    Error::new(ErrorKind::Refused, format!("the adapter does not take it: {error:?}"))
}

impl Adapter {
    pub(super) fn new(transport: SimTransport) -> Adapter {
        Adapter { transport, lines: Vec::new(), received: Vec::new(), next_read: 0, waiting: Vec::new() }
    }

    fn poll(&mut self) {
        let mut events = Vec::new();
        while self.transport.poll(Time::ZERO, &mut events) {}
        let any = !events.is_empty();
        for event in events {
            self.handle(event);
        }
        if any {
            self.waiting.drain(..).for_each(Waker::wake);
        }
    }

    fn handle(&mut self, event: Event) {
        let conn = match &event {
            Event::Work(done) => done.conn,
            Event::Established { conn, .. } | Event::Rejected { conn, .. } | Event::Disconnected { conn, .. } => *conn,
            // It does not listen.
            Event::ConnectRequest { .. } => return,
        };
        let Some(at) = self.lines.iter().rposition(|line| line.id == conn) else { return };
        let line = &mut self.lines[at];
        let bytes = match event {
            Event::Established { private, .. } => {
                line.state = State::Open;
                private.into_vec()
            }
            Event::Rejected { private, .. } => {
                line.end();
                private.into_vec()
            }
            Event::Disconnected { .. } => {
                line.end();
                return;
            }
            Event::Work(done) if done.kind == WorkKind::Read => match line.reads.remove(&done.work.0) {
                Some(memory) if done.status == WorkStatus::Ok => memory.to_vec(),
                _ => return,
            },
            Event::Work(done) if (done.kind, done.status) == (WorkKind::Recv, WorkStatus::Ok) => {
                let Some(landing) = &line.landing else { return };
                let at = done.work.0 as usize * line.room;
                let bytes = landing.memory().slice(at, done.len as usize).to_vec();
                line.credits.count(&bytes);
                line.slots.note(&bytes);
                let segment = landing.segment(at, line.room);
                // It may be refused: the connection is about to end.
                let _ = self.transport.post_recv(conn, done.work, &[segment]);
                bytes
            }
            Event::Work(_) | Event::ConnectRequest { .. } => return,
        };
        self.received.push(Received { from: self.lines[at].to.clone(), line: at, bytes });
    }

    pub(super) fn received(&self) -> Vec<Received> {
        let exposed = self.lines.iter().enumerate().flat_map(|(at, line)| {
            let came = move |memory: &Memory| Received { from: line.to.clone(), line: at, bytes: memory.to_vec() };
            line.exposed.iter().map(came)
        });
        self.received.iter().cloned().chain(exposed).collect()
    }

    pub(super) fn learned(&self, secrets: &Secrets<'_>) -> Vec<Received> {
        let mut told = BTreeSet::new();
        for line in &self.lines {
            for number in line.sent.iter().flat_map(|bytes| secrets.found_in(bytes)) {
                told.insert((&*line.to, number));
            }
        }
        let is_news =
            |came: &Received| secrets.found_in(&came.bytes).any(|number| !told.contains(&(&*came.from, number)));
        self.received().into_iter().filter(is_news).collect()
    }

    fn begin(&mut self, addr: &Addr, hello: &[u8], deadline: Time) -> Result<usize, Error> {
        let (receives, room) = promised(hello);
        let receives = receives.min(self.transport.capabilities().recv_queue_depth);
        let landing = self.transport.register(&Memory::zeroed(receives * room)?)?;
        let id = self.transport.connect(addr, hello, deadline)?;
        for slot in 0..receives {
            let segment = landing.segment(slot * room, room);
            self.transport.post_recv(id, WorkId(slot as u64), &[segment]).map_err(refused)?;
        }
        self.lines.push(Connection {
            id,
            to: addr.host().to_owned(),
            state: State::Connecting,
            landing: Some(landing),
            room,
            credits: Credits::default(),
            slots: Slots::default(),
            reads: BTreeMap::new(),
            exposed: Vec::new(),
            sent: Vec::new(),
        });
        Ok(self.lines.len() - 1)
    }

    /// Posts a send, or a write.
    fn post(&mut self, at: usize, bytes: Vec<u8>, target: Option<WriteTarget>) -> Result<(), Error> {
        let region = if bytes.is_empty() { None } else { Some(self.transport.register(&Memory::from(bytes.clone()))?) };
        let segment = region.map(|region| region.segment(0, bytes.len()));
        let (line, segments, how) = (&mut self.lines[at], segment.as_slice(), WorkOptions::UNSIGNALLED);
        match target {
            None => self.transport.post_send(line.id, SENT, &[], Payload::Gather(segments), how),
            Some(target) => self.transport.post_write(line.id, SENT, &[], segments, target, how),
        }
        .map_err(refused)?;
        line.sent.push(bytes);
        Ok(())
    }

    /// Returns the message with the line's credits, and with own memory in place of its sender's.
    fn fit(&mut self, at: usize, heard: &Heard) -> Result<Vec<u8>, Error> {
        let mut bytes = heard.bytes.clone();
        for (place, end) in &heard.keys {
            let memory = Memory::zeroed((*end).clamp(1, MOST))?;
            let segment = self.transport.register(&memory)?.segment(0, memory.len());
            let remote = self.transport.expose(self.lines[at].id, &segment, Access::READ_WRITE)?;
            self.lines[at].exposed.push(memory);
            if let Some(key) = bytes.get_mut(*place..*place + 8) {
                key.copy_from_slice(&remote.key.0.to_le_bytes());
            }
        }
        self.lines[at].credits.put_into(&mut bytes);
        Ok(bytes)
    }

    fn read(&mut self, at: usize, remote: RemoteSlice) -> Result<(), Error> {
        let memory = Memory::zeroed((remote.len as usize).clamp(1, MOST))?;
        let region = self.transport.register(&memory)?;
        let (line, name) = (&mut self.lines[at], WorkId(self.next_read));
        let (segments, remote) =
            ([region.segment(0, memory.len())], RemoteSlice { len: memory.len() as u64, ..remote });
        self.transport.post_read(line.id, name, &segments, remote, WorkOptions::SIGNALLED).map_err(refused)?;
        line.reads.insert(name.0, memory);
        self.next_read += 1;
        Ok(())
    }
}

/// A connection of an adversary to another node. Dropping it does not end the connection.
pub struct Line {
    adapter: Rc<RefCell<Adapter>>,
    at: usize,
}

impl Line {
    /// Begins to connect.
    pub(super) fn begin(
        adapter: &Rc<RefCell<Adapter>>,
        addr: &Addr,
        hello: &[u8],
        deadline: Time,
    ) -> Result<Line, Error> {
        let at = adapter.borrow_mut().begin(addr, hello, deadline)?;
        Ok(Line { adapter: adapter.clone(), at })
    }

    /// Waits until it is open, or over. Returns whether it is open.
    pub(super) async fn established(&self) -> bool {
        poll_fn(|cx| {
            let adapter = &mut *self.adapter.borrow_mut();
            match adapter.lines[self.at].state {
                State::Connecting => {
                    adapter.waiting.push(cx.waker().clone());
                    Poll::Pending
                }
                state => Poll::Ready(state == State::Open),
            }
        })
        .await
    }

    /// Returns whether the connection is there. A peer ends it when the adversary breaks a rule.
    pub fn is_open(&self) -> bool {
        self.adapter.borrow().lines[self.at].state == State::Open
    }

    /// Returns what came over this line; see [`Adversary::received`](super::Adversary::received).
    pub fn received(&self) -> Vec<Received> {
        let mut received = self.adapter.borrow().received();
        received.retain(|came| came.line == self.at);
        received
    }

    /// Sends a message as it is, with all of its header.
    ///
    /// # Errors
    /// `Refused` if the connection is over, or the queue is full.
    pub fn send(&self, message: &[u8]) -> Result<(), Error> {
        self.adapter.borrow_mut().post(self.at, message.to_vec(), None)
    }

    /// Writes into memory of the other side.
    ///
    /// # Errors
    /// As [`Line::send`]; also if the target has no room for the bytes.
    pub fn write(&self, target: WriteTarget, bytes: &[u8]) -> Result<(), Error> {
        self.adapter.borrow_mut().post(self.at, bytes.to_vec(), Some(target))
    }

    /// Reads memory of the other side, the first MiB of it. The bytes are received if it succeeds.
    ///
    /// # Errors
    /// As [`Line::send`]; those of registration.
    pub fn read(&self, remote: RemoteSlice) -> Result<(), Error> {
        self.adapter.borrow_mut().read(self.at, remote)
    }

    /// Does what was heard in its own name. A message is made to fit: its header returns this
    /// line's credits, and where it names memory of its sender it names memory of the adversary. So
    /// a request gets its reply and its data here. A message that was written into a fast-RDMA slot
    /// goes into such a slot again. If the line has none, it is sent: a peer gives it some if the
    /// hello has that feature. Other writes, and reads, go to the memory that they went to.
    ///
    /// It spends credits that only a peer's messages bring back: leave it time for them.
    ///
    /// # Errors
    /// As [`Line::send`]; those of registration.
    pub fn replay(&self, heard: &Heard) -> Result<(), Error> {
        match heard.verb {
            Verb::Write(target) if heard.kind().is_none() => self.write(target, &heard.bytes),
            Verb::Read(remote) => self.read(remote),
            Verb::Write(_) => {
                let bytes = self.fitted(heard)?;
                let slot = self.adapter.borrow_mut().lines[self.at].slots.take(bytes.len());
                self.adapter.borrow_mut().post(self.at, bytes, slot)
            }
            _ => self.send(&self.fitted(heard)?),
        }
    }

    /// Returns the bytes of a message, made to fit as by [`Line::replay`], to be changed and sent.
    ///
    /// # Errors
    /// Those of registration; `Protocol` if the connection is over.
    pub fn fitted(&self, heard: &Heard) -> Result<Vec<u8>, Error> {
        self.adapter.borrow_mut().fit(self.at, heard)
    }

    /// Ends the connection.
    pub fn end(&self) {
        let adapter = &mut *self.adapter.borrow_mut();
        adapter.transport.disconnect(adapter.lines[self.at].id, Time::ZERO);
    }
}
