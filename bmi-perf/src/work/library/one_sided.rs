//! RDMA: writes and reads of memory that the server exposes, and writes with immediate data.

use bmi::bulk::{Access, BulkDescriptor, Grant};
use bmi::threading::Threading;
use bmi::{Error, ErrorKind, MemList, Memory, Options};

use super::ring::{Ring, Window, pieces};
use super::{DESCRIPTOR, Link};
use crate::measured::{Measured, Stopwatch};
use crate::work::produce::produce;

/// Bytes for a descriptor of as many pieces as a list may have.
const DESCRIPTOR_ROOM: usize = 64 << 10;
/// Most pieces of a descriptor that is accepted.
const MOST_PIECES: usize = 8192;

/// The memory of one-sided operations on a side.
struct Targets {
    memory: Memory,
    /// The buffers that operations use in turn.
    each: Vec<MemList>,
    /// All of them, as they are exposed.
    all: MemList,
}

impl<S: Threading> Link<S> {
    /// Returns the memory that is written to, or read from, on this side: a buffer for each
    /// operation in flight, or one list.
    fn targets(&self) -> Result<Targets, Error> {
        if self.case.test.has_pieces() {
            let (memory, list) = pieces(&self.case)?;
            return Ok(Targets { memory, each: vec![list.clone()], all: list });
        }
        let ring = Ring::new(&self.case)?;
        let each = (0..self.case.buffers()).map(|number| ring.turn(number as u64).into()).collect();
        Ok(Targets { each, all: (&ring.memory).into(), memory: ring.memory })
    }

    pub(super) async fn push(&self) -> Result<Measured, Error> {
        self.one_sided(true).await
    }

    pub(super) async fn pull(&self) -> Result<Measured, Error> {
        self.one_sided(false).await
    }

    async fn one_sided(&self, writes: bool) -> Result<Measured, Error> {
        let Targets { memory, each: locals, .. } = self.targets()?;
        // Register it now, and not with the first operation, which is measured. If that fails, the
        // operations copy.
        let _registered = self.peer.endpoint().with(|engine| engine.register(&memory)).ok();
        let remote = self.remote().await?;
        let streams = self.case.test.streams();
        let mut measured = if streams { Measured::in_all() } else { Measured::of_each() };
        let mut window = Window::new(&self.case);
        let watch = Stopwatch::start();
        let mut last = watch.begin;
        for number in 0..self.count {
            let turn = number as usize % locals.len();
            let (local, at) = (&locals[turn], turn as u64 * self.case.size);
            window.room().await?;
            let operation = if writes {
                local.pieces().iter().for_each(|piece| produce(self.case.station.over, piece));
                self.peer.push(&remote, at, local.clone(), Options::default())
            } else {
                self.peer.pull(&remote, at, local.clone(), Options::default())
            };
            if streams {
                window.add(operation);
            } else {
                operation.await?;
                last = measured.lap(last);
            }
        }
        window.drain().await?;
        if !streams || !writes {
            let measured = measured.ended(watch, self.count);
            self.signal().await?;
            self.await_signal().await?;
            return Ok(measured);
        }
        // An answer to a message that was sent after the writes shows that they are in place.
        self.signal().await?;
        self.await_signal().await?;
        Ok(measured.ended(watch, self.count))
    }

    /// Receives the descriptor of the server's memory.
    async fn remote(&self) -> Result<BulkDescriptor, Error> {
        let described = self.description(&Memory::zeroed(DESCRIPTOR_ROOM)?).await?;
        BulkDescriptor::decode(&described, MOST_PIECES)
    }

    pub(super) async fn expose(&self) -> Result<(), Error> {
        let all = self.targets()?.all;
        let access = if self.case.test.reads() { Access::READ } else { Access::WRITE };
        let exposure = self.peer.expose(all, access)?;
        let done = self.await_signal();
        self.describe(exposure.descriptor().encode(Vec::new())).await?;
        done.await?;
        self.signal().await
    }

    pub(super) async fn push_granted(&self) -> Result<Measured, Error> {
        let ring = Ring::new(&self.case)?;
        let room = Memory::zeroed(DESCRIPTOR_ROOM)?;
        let mut grant = grant_of(&self.description(&room).await?)?;
        let mut measured = Measured::of_each();
        let watch = Stopwatch::start();
        let mut last = watch.begin;
        for _ in 0..self.count {
            // The answer brings the next grant. Its receive is posted before the write.
            let next = self.peer.recv(DESCRIPTOR, &room, Options::default());
            produce(self.case.station.over, ring.turn(0));
            let written = self.peer.push_granted(&grant, ring.turn(0), Options::default());
            let len = next.await?.len;
            last = measured.lap(last);
            written.await?;
            grant = grant_of(&room.slice(0, len as usize).to_vec())?;
        }
        let measured = measured.ended(watch, self.count);
        // The last grant is not used.
        self.signal().await?;
        Ok(measured)
    }

    pub(super) async fn grant(&self) -> Result<(), Error> {
        let ring = Ring::new(&self.case)?;
        let done = self.await_signal();
        for _ in 0..self.count {
            let (grant, written) = self.peer.grant(ring.turn(0), Options::default())?;
            self.describe(encoded(&grant)).await?;
            written.await?;
        }
        let (grant, _unused) = self.peer.grant(ring.turn(0), Options::default())?;
        self.describe(encoded(&grant)).await?;
        done.await.map(drop)
    }
}

/// Returns a grant on the wire: the token, and the descriptor.
fn encoded(grant: &Grant) -> Vec<u8> {
    grant.descriptor.encode(grant.token.to_le_bytes().to_vec())
}

fn grant_of(bytes: &[u8]) -> Result<Grant, Error> {
    let none = || Error::new(ErrorKind::Protocol, "the peer's grant");
    let (token, descriptor) = bytes.split_first_chunk::<4>().ok_or_else(none)?;
    let descriptor = BulkDescriptor::decode(descriptor, MOST_PIECES)?;
    Ok(Grant { descriptor, token: u32::from_le_bytes(*token) })
}
