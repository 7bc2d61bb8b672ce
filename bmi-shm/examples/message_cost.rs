//! Messages between two endpoints of one process, for a tool that counts instructions: nothing here waits, so every run does the same.
//!
//! ```sh
//! cargo build --release -p bmi-shm --example message_cost
//! for how in idle ping rate push pull; do valgrind --tool=callgrind --toggle-collect='*counted*' \
//!     target/release/examples/message_cost $how 8 1000; done
//! ```
//! *idle* polls two endpoints that have nothing to do; *ping* sends one message there and one back; *rate* sends 32 and then polls; *push* and *pull* move bytes to and from
//! memory that the other side has exposed, and poll until that is done.

use bmi_core::{
    Access, Addr, Completion, Config, Endpoint, Error, ErrorKind, Exposure, Memory, Options, PeerEvent, PeerId, Time,
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

fn main() -> Result<(), Error> {
    let mut words = std::env::args().skip(1);
    let how = words.next().unwrap_or_else(|| "ping".into());
    let mut number = |or| words.next().and_then(|word| word.parse().ok()).unwrap_or(or);
    let (len, count) = (number(8), number(1000));
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
