//! The intruder, and the headers that it forges.
//!
//! It is a bare adapter. Its hello is a real one, taken from an endpoint that connected to it, and
//! then changed. Its messages are made here from the layout in the protocol's documentation.

use bmi_core::transport::{ConnId, Event, Payload, PostError, WorkId, WorkOptions, WriteTarget};
use bmi_core::{Addr, AnyTransport, Time, Transport};
use futures_util::future::join;

use crate::data::memory;
use crate::message::tight;
use crate::net::{Bare, Net, soon};
use crate::rig::conn_of;

/// Number of receives that an intruder posts, so that the victim's messages find one.
const RECEIVES: u64 = 12;
/// Room in each receive, in bytes.
const ROOM: usize = 2048;

/// A bare adapter that knows a real hello.
pub(super) struct Intruder {
    pub(super) bare: Bare,
    pub(super) hello: Vec<u8>,
    landing: bmi_core::Memory,
}

/// A connection of an intruder to its victim.
pub(super) struct Breach {
    pub(super) conn: ConnId,
}

impl Intruder {
    pub(super) async fn new(net: &Net<'_>) -> Intruder {
        let bare = net.bare("intruder");
        let addr = bare.with(|t| t.listen(&net.listen_addr("intruder"))).expect("listen");
        let model = net.endpoint("model", &tight());
        let (connected, private) = join(model.connect(&addr, soon(&model)), async {
            let asked = |event: &Event| matches!(event, Event::ConnectRequest { .. });
            let Event::ConnectRequest { conn, private, .. } = net.event(&bare, "a real hello", asked).await else {
                unreachable!("asked for")
            };
            bare.with(|t| t.reject(conn, b""));
            private
        })
        .await;
        connected.expect_err("rejected");
        drop(model);
        net.kill("model");
        // The intruder does without fast-RDMA slots, so that the first message it gets is one that
        // a test provoked.
        let mut hello = private.to_vec();
        hello[8] &= !16;
        Intruder { bare, hello, landing: memory(ROOM * RECEIVES as usize) }
    }

    /// Connects with a hello. Returns `Ok` if the victim accepts it, otherwise the victim's answer.
    pub(super) async fn knock(&self, net: &Net<'_>, addr: &Addr, hello: &[u8]) -> Result<Breach, Vec<u8>> {
        let deadline = net.backend().now() + crate::net::SOON;
        let conn = self.bare.with(|t| t.connect(addr, hello, deadline)).expect("connect starts");
        self.bare.with(|t| {
            let region = t.register(&self.landing);
            let region = (0..100).fold(region, |region, _| region.or_else(|_| t.register(&self.landing)));
            let region = region.expect("register");
            for work in 0..RECEIVES {
                t.post_recv(conn, WorkId(work), &[region.segment(work as usize * ROOM, ROOM)]).expect("post a receive");
            }
        });
        let answer = |event: &Event| conn_of(event) == conn && !matches!(event, Event::Work(_));
        match net.event(&self.bare, "an answer to a hello", answer).await {
            Event::Established { .. } => Ok(Breach { conn }),
            Event::Rejected { private, .. } => Err(private.to_vec()),
            other => panic!("an answer to a hello: {other:?}"),
        }
    }

    pub(super) async fn breach(&self, net: &Net<'_>, addr: &Addr) -> Breach {
        match self.knock(net, addr, &self.hello).await {
            Ok(breach) => breach,
            Err(refusal) => panic!("a real hello was refused: {}", String::from_utf8_lossy(&refusal)),
        }
    }

    /// Sends these bytes as one message, unless the connection is already gone.
    pub(super) async fn say(&self, net: &Net<'_>, breach: &Breach, message: &[u8]) {
        let bytes = bmi_core::Memory::from(message.to_vec());
        loop {
            let posted = self.bare.with(|t| {
                let Ok(region) = t.register(&bytes) else { return Err(PostError::QueueFull) };
                let segments = [region.segment(0, message.len())];
                t.post_send(breach.conn, WorkId(99), &[], Payload::Gather(&segments), WorkOptions::UNSIGNALLED)
            });
            match posted {
                Err(PostError::QueueFull) => net.turns(1).await,
                Ok(()) | Err(PostError::NotConnected) => return,
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    /// Writes these bytes into memory of the victim.
    pub(super) async fn write(&self, net: &Net<'_>, breach: &Breach, bytes: &[u8], target: WriteTarget) {
        let bytes = bmi_core::Memory::from(bytes.to_vec());
        let write = |t: &mut AnyTransport| {
            let Ok(region) = t.register(&bytes) else { return Err(PostError::QueueFull) };
            let segments = [region.segment(0, bytes.len())];
            t.post_write(breach.conn, WorkId(98), &[], &segments, target, WorkOptions::UNSIGNALLED)
        };
        while self.bare.with(write) == Err(PostError::QueueFull) {
            net.turns(1).await;
        }
    }

    pub(super) async fn is_cut(&self, net: &Net<'_>, breach: &Breach, what: &str) {
        let what = format!("{what}: the intruder is cut off");
        let ended = |event: &Event| conn_of(event) == breach.conn && matches!(event, Event::Disconnected { .. });
        net.event(&self.bare, &what, ended).await;
        while self.bare.take(|event| conn_of(event) == breach.conn).is_some() {}
    }

    pub(super) fn leave(&self, breach: &Breach) {
        self.bare.with(|t| t.disconnect(breach.conn, Time::ZERO));
    }

    /// Returns the bytes of the victim's next message.
    pub(super) async fn hear(&self, net: &Net<'_>, breach: &Breach) -> Vec<u8> {
        let received = |event: &Event| matches!(event, Event::Work(done) if done.conn == breach.conn && done.kind == bmi_core::transport::WorkKind::Recv);
        match net.event(&self.bare, "a message of the victim", received).await {
            Event::Work(done) => self.landing.slice(done.work.0 as usize * ROOM, done.len as usize).to_vec(),
            _ => unreachable!("asked for"),
        }
    }
}

/// A header of the protocol, 32 bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Forged {
    pub(super) kind: u8,
    pub(super) control: u8,
    pub(super) slots: u8,
    pub(super) messages: u16,
    pub(super) bytes: u32,
    pub(super) tag: u64,
    pub(super) len: u64,
    pub(super) op: u64,
}

pub(super) const EAGER: u8 = 1;
pub(super) const UNEXPECTED: u8 = 2;
pub(super) const ANNOUNCE: u8 = 3;
pub(super) const FINISH: u8 = 4;
pub(super) const CANCEL: u8 = 5;
pub(super) const CREDIT: u8 = 6;
pub(super) const READY: u8 = 7;
pub(super) const WRITTEN: u8 = 8;
pub(super) const WITHDRAW: u8 = 9;
pub(super) const WITHDRAWN: u8 = 10;
pub(super) const SLOTS: u8 = 11;
pub(super) const WANT: u8 = 12;
pub(super) const PROBE: u8 = 15;

impl Forged {
    pub(super) fn with(self, payload: &[u8]) -> Vec<u8> {
        let mut wire = vec![self.kind | self.control << 4, self.slots];
        wire.extend(self.messages.to_le_bytes());
        wire.extend(self.bytes.to_le_bytes());
        for word in [self.tag, self.len, self.op] {
            wire.extend(word.to_le_bytes());
        }
        wire.extend(payload);
        wire
    }
}

pub(super) fn word(message: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(message[at..at + 8].try_into().expect("eight bytes"))
}
