//! Two raw transports, and the events that they reported.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "a test helper, of which each file uses a part")]

use bmi_core::transport::{
    ConnId, Event, Payload, PostError, Transport, WorkCompletion, WorkId, WorkKind, WorkOptions, WorkStatus,
};
use bmi_core::{ErrorKind, Memory, MemoryRegion, Time};
use bmi_sim::{SimTransport, World};

/// A transport, one connection of it, and its completions so far.
pub struct Side {
    pub t: SimTransport,
    pub conn: ConnId,
    pub done: Vec<WorkCompletion>,
    pub ended: Option<ErrorKind>,
}

impl Side {
    /// Polls until nothing is left.
    pub fn poll(&mut self) {
        let mut events = Vec::new();
        while self.t.poll(Time::ZERO, &mut events) {}
        for event in events {
            match event {
                Event::Work(done) => {
                    assert!(self.ended.is_none(), "a completion after Disconnected");
                    self.done.push(done);
                }
                Event::Disconnected { reason, .. } => {
                    assert!(self.ended.replace(reason.kind()).is_none(), "Disconnected twice");
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }

    /// Takes the completions: request, kind, status, length.
    pub fn take(&mut self) -> Vec<(u64, WorkKind, WorkStatus, u64)> {
        self.poll();
        self.done.drain(..).map(|done| (done.work.0, done.kind, done.status, done.len)).collect()
    }

    pub fn region(&mut self, bytes: &[u8]) -> MemoryRegion {
        self.t.register(&Memory::from(bytes.to_vec())).unwrap()
    }

    /// Posts a receive into `region`.
    pub fn recv(&mut self, work: u64, region: &MemoryRegion) -> Result<(), PostError> {
        self.t.post_recv(self.conn, WorkId(work), &[region.segment(0, region.memory().len())])
    }

    /// Sends `bytes` as a head.
    pub fn send(&mut self, work: u64, bytes: &[u8]) -> Result<(), PostError> {
        self.t.post_send(self.conn, WorkId(work), bytes, Payload::EMPTY, WorkOptions::SIGNALLED)
    }
}

/// Polls one event that is not a completion.
pub fn one_event(t: &mut SimTransport) -> Event {
    let mut events = Vec::new();
    while t.poll(Time::ZERO, &mut events) {}
    assert_eq!(events.len(), 1, "{events:?}");
    events.remove(0)
}

/// Creates a connection between a transport on node `client` and one on node `server`.
pub fn pair(world: &World) -> (Side, Side) {
    pair_between(world, "client", "server")
}

/// Creates a connection between transports on two nodes, made by the first.
pub fn pair_between(world: &World, client: &str, server: &str) -> (Side, Side) {
    let (client, server) = (world.node(client), world.node(server));
    let (mut a, mut b) = (client.transport().unwrap(), server.transport().unwrap());
    let addr = b.listen(&server.addr(0)).unwrap();
    let conn_a = a.connect(&addr, b"hello", Time::from_nanos(u64::MAX)).unwrap();
    world.run();
    let Event::ConnectRequest { conn: conn_b, private, .. } = one_event(&mut b) else { panic!("no request") };
    assert_eq!(&*private, b"hello");
    b.accept(conn_b, b"welcome").unwrap();
    world.run();
    let Event::Established { conn, private, .. } = one_event(&mut a) else { panic!("not established") };
    assert_eq!((conn, &*private), (conn_a, &b"welcome"[..]));
    let Event::Established { conn, private, .. } = one_event(&mut b) else { panic!("not established") };
    assert_eq!((conn, private.len()), (conn_b, 0));
    let side = |t, conn| Side { t, conn, done: Vec::new(), ended: None };
    (side(a, conn_a), side(b, conn_b))
}
