//! The buffers that data is staged in between network and disk: a bounded pool, shared by all requests, fair among clients.
//!
//! **Invariants**
//! 1. There are never more than `count` buffers, in use or free; each is allocated and registered when it is first needed, and kept.
//! 2. A buffer is in the pool or in one [`Unit`]. Dropping the unit gives it back; whoever holds a unit drops it only when no operation is at its
//!    memory any more.
//! 3. Waiting clients get buffers in turn, one each; the requests of one client in the order in which they asked.
//!
//! **No deadlock.** A buffer is asked for by a step of a request that holds none: the steps of a transfer (get a buffer, move its bytes through
//! network and disk, give it back) are independent of each other, and none takes a second buffer or waits for another step while it
//! has one. So a held buffer waits only for network and disk, both of which end by their deadlines, and comes back; with one
//! buffer or more in the pool every step gets its turn, since the queues are served in order. A request works at no more than a fixed number of
//! steps at a time ([`super::IodSettings::depth`]), so none can hold them all unless nobody else asks.
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
}

struct Buffer {
    memory: Memory,
    _region: MemoryRegion,
}

impl Shelf {
    /// Gives a buffer to who is next, or puts it back.
    fn hand_on(&mut self, mut buffer: Buffer) {
        while let Some(peer) = self.turns.pop_front() {
            let Some(queue) = self.waiting.get_mut(&peer) else { continue };
            let waiter = queue.pop_front();
            if queue.is_empty() {
                self.waiting.remove(&peer);
            } else {
                self.turns.push_back(peer);
            }
            match waiter.map(|waiter| waiter.send(buffer)) {
                Some(Ok(())) => return,
                // Whoever waited is gone: the buffer comes back.
                Some(Err(returned)) => buffer = returned,
                None => return,
            }
        }
        self.free.push(buffer);
    }
}

impl<T: Transport> Buffers<T> {
    /// A pool of up to `count` buffers of `size` bytes.
    pub(crate) fn new(endpoint: AsyncEndpoint<T>, count: usize, size: usize) -> Buffers<T> {
        let shelf = Shelf { free: Vec::new(), unmade: count, waiting: BTreeMap::new(), turns: VecDeque::new() };
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
            if let Some(buffer) = shelf.free.pop() {
                return Ok(self.unit(buffer));
            }
            if shelf.unmade > 0 {
                let buffer = self.make()?;
                shelf.unmade -= 1;
                return Ok(self.unit(buffer));
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
            Ok(buffer) => Ok(self.unit(buffer)),
            Err(_) => Err(FsError::new(ErrorCode::Busy, "the server is stopping")),
        }
    }

    fn make(&self) -> Result<Buffer, FsError> {
        let memory = Memory::zeroed(self.size)?;
        let region = self.endpoint.with(|endpoint| endpoint.register(&memory))?;
        Ok(Buffer { memory, _region: region })
    }

    fn unit(&self, buffer: Buffer) -> Unit {
        Unit { buffer: Some(buffer), shelf: self.shelf.clone() }
    }
}

/// A buffer in use.
pub(crate) struct Unit {
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
            self.shelf.borrow_mut().hand_on(buffer);
        }
    }
}
