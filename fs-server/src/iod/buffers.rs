//! The buffers that data is staged in between network and disk: a bounded pool, shared by all requests, fair among clients.
//!
//! **Invariants**
//! 1. There are never more than `count` buffers, in use or free; each is allocated and registered when it is first needed, and kept.
//! 2. A buffer is in the pool or in one [`Unit`]. Dropping the unit gives it back; whoever holds a unit drops it only when no operation is at its
//!    memory any more.
//! 3. Waiting clients get buffers in turn, one each; the requests of one client in the order in which they asked.
//! 4. No client holds more than half of the buffers (one, if there is only one), even while nobody else asks: a client that has come to a
//!    halt in the middle of its transfers keeps what it holds until their deadline, and must not keep the others waiting as long.
//!
//! **No deadlock.** A buffer is asked for by a step of a request that holds none: the steps of a transfer (get a buffer, move its bytes through
//! network and disk, give it back) are independent of each other, and none takes a second buffer or waits for another step while it
//! has one. So a held buffer waits only for network and disk, both of which end by their deadlines, and comes back; with one
//! buffer or more in the pool every step gets its turn, since the queues are served in order. A request works at no more than a fixed number of
//! steps at a time ([`super::IodSettings::depth`]). A client that waits because it has its share waits for a buffer of its own to come back.
//!
//! **Source.** Paper 000, section 3.3.2 (server RDMA buffers) and 4.2 (double buffering: each request needs two units, not one buffer of
//! the whole size). Here there is one size of buffer; zones of several sizes belong to the buffer manager of `bmi-core`.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use bmi_core::{AsyncEndpoint, MemSlice, Memory, MemoryRegion, PeerId, Transport};
use fs_proto::{ErrorCode, FsError};
use tokio::sync::oneshot;

/// A pool of equal buffers.
pub(crate) struct Buffers<T: Transport> {
    endpoint: AsyncEndpoint<T>,
    shelf: Rc<RefCell<Shelf>>,
    size: usize,
}

struct Shelf {
    free: Vec<Buffer>,
    /// Buffers that may still be made.
    unmade: usize,
    waiting: BTreeMap<PeerId, VecDeque<oneshot::Sender<Buffer>>>,
    /// Clients with waiting requests, the next to be served first.
    turns: VecDeque<PeerId>,
    /// Buffers in the hands of each client, and how many that may be.
    held: BTreeMap<PeerId, usize>,
    share: usize,
}

struct Buffer {
    memory: Memory,
    _region: MemoryRegion,
}

impl Shelf {
    fn may_hold_more(&self, peer: PeerId) -> bool {
        self.held.get(&peer).is_none_or(|held| *held < self.share)
    }

    /// Takes note that a buffer of `peer` comes back, and gives it to who is next.
    fn give_back(&mut self, peer: PeerId, buffer: Buffer) {
        if let Some(held) = self.held.get_mut(&peer) {
            *held -= 1;
            if *held == 0 {
                self.held.remove(&peer);
            }
        }
        self.hand_on(buffer);
    }

    /// Gives a buffer to who is next among those that may hold more, or puts it back.
    fn hand_on(&mut self, mut buffer: Buffer) {
        for _ in 0..self.turns.len() {
            let Some(peer) = self.turns.pop_front() else { break };
            if !self.may_hold_more(peer) {
                self.turns.push_back(peer);
                continue;
            }
            match self.serve(peer, buffer) {
                None => return,
                Some(returned) => buffer = returned,
            }
        }
        self.free.push(buffer);
    }

    /// Gives a buffer to the first request of `peer` that still waits; returns it if there is none.
    fn serve(&mut self, peer: PeerId, mut buffer: Buffer) -> Option<Buffer> {
        let Some(mut queue) = self.waiting.remove(&peer) else { return Some(buffer) };
        let left = loop {
            let Some(waiter) = queue.pop_front() else { break Some(buffer) };
            match waiter.send(buffer) {
                Ok(()) => {
                    *self.held.entry(peer).or_default() += 1;
                    break None;
                }
                // Whoever waited is gone: the buffer comes back.
                Err(returned) => buffer = returned,
            }
        };
        if !queue.is_empty() {
            self.waiting.insert(peer, queue);
            self.turns.push_back(peer);
        }
        left
    }
}

impl<T: Transport> Buffers<T> {
    /// A pool of up to `count` buffers of `size` bytes.
    pub(crate) fn new(endpoint: AsyncEndpoint<T>, count: usize, size: usize) -> Buffers<T> {
        let shelf = Shelf {
            free: Vec::new(),
            unmade: count,
            waiting: BTreeMap::new(),
            turns: VecDeque::new(),
            held: BTreeMap::new(),
            share: (count / 2).max(1),
        };
        Buffers { endpoint, shelf: Rc::new(RefCell::new(shelf)), size }
    }

    /// Bytes of a buffer.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// A buffer for a request of `peer`, when it is its turn.
    ///
    /// # Errors
    /// `Busy` if no memory can be had or registered.
    pub(crate) async fn take(&self, peer: PeerId) -> Result<Unit, FsError> {
        let queue = {
            let mut shelf = self.shelf.borrow_mut();
            let at_hand = if !shelf.may_hold_more(peer) {
                None
            } else if let Some(buffer) = shelf.free.pop() {
                Some(buffer)
            } else if shelf.unmade > 0 {
                let buffer = self.make()?;
                shelf.unmade -= 1;
                Some(buffer)
            } else {
                None
            };
            if let Some(buffer) = at_hand {
                *shelf.held.entry(peer).or_default() += 1;
                return Ok(self.unit(peer, buffer));
            }
            let (sender, receiver) = oneshot::channel();
            let queue = shelf.waiting.entry(peer).or_default();
            queue.push_back(sender);
            if queue.len() == 1 {
                shelf.turns.push_back(peer);
            }
            receiver
        };
        match queue.await {
            Ok(buffer) => Ok(self.unit(peer, buffer)),
            Err(_) => Err(FsError::new(ErrorCode::Busy, "the server is stopping")),
        }
    }

    fn make(&self) -> Result<Buffer, FsError> {
        let memory = Memory::zeroed(self.size)?;
        let region = self.endpoint.with(|endpoint| endpoint.register(&memory))?;
        Ok(Buffer { memory, _region: region })
    }

    fn unit(&self, peer: PeerId, buffer: Buffer) -> Unit {
        Unit { peer, buffer: Some(buffer), shelf: self.shelf.clone() }
    }
}

/// A buffer in use.
pub(crate) struct Unit {
    peer: PeerId,
    buffer: Option<Buffer>,
    shelf: Rc<RefCell<Shelf>>,
}

impl Unit {
    /// Its first `len` bytes.
    pub(crate) fn slice(&self, len: usize) -> MemSlice {
        let buffer = self.buffer.as_ref().expect("a unit has its buffer until it is dropped");
        buffer.memory.slice(0, len)
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.shelf.borrow_mut().give_back(self.peer, buffer);
        }
    }
}
