//! Memory that both sides have mapped: the memory that this side has passed, and the peer's.
//!
//! **Why.** Passing and mapping memory costs a few system calls and, the first time, a fault for
//! each page. So it is done once per memory and connection, and the mapping is kept as long as the
//! owner keeps the memory.
//!
//! **What a peer can reach.** A peer can reach all of a memory that was passed, not only the
//! exposed range, as long as it keeps the memory mapped: the kernel shares files, not ranges. An
//! honest peer respects keys, bounds and revocations. A hostile peer can corrupt the memory that
//! was shared with it, and nothing else. Memory is passed when a piece of it is exposed for the
//! first time. It is also passed when a long message is sent from it, but only to a peer that has
//! proved that it reaches all memory of this process through the kernel anyway.
//!
//! **Invariants**
//! 1. [`Passed`] keeps no memory alive. It holds a weak reference by which it learns that a memory
//!    is gone; then it tells the peer to unmap it.
//! 2. [`Mapped`] is bounded in pieces and bytes. The least recently used piece goes first, and can
//!    be asked for again.
//! 3. Memory that was passed by a descriptor for reading is mapped for reading, and nothing writes
//!    to it, whatever the peer's advice says.
//! 4. All mappings of a transport together are bounded too ([`Room`]), however many connections a
//!    peer makes. A process may have some 65,000 mappings (`vm.max_map_count`), and a process that
//!    has used them all can allocate no more memory.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Weak};

use bmi_core::Memory;
use bmi_core::mem::{MemoryId, SharedPages};

use crate::room::Room;
use crate::sys::Mapping;
use crate::unmap::PeerMemory;

/// The memory that this side has passed on a connection.
#[derive(Default)]
pub(crate) struct Passed {
    by_memory: HashMap<MemoryId, Pass>,
    next: u32,
    /// The last memory whose mapped number was asked for, and that number. The next request is
    /// usually for the same memory.
    latest: Option<(MemoryId, u32)>,
}

struct Pass {
    number: u32,
    pages: Weak<SharedPages>,
    /// Set if the peer has confirmed that it has mapped it.
    mapped: bool,
}

impl Passed {
    /// Returns the number under which the peer knows this memory.
    pub(crate) fn number(&self, memory: &Memory) -> Option<u32> {
        self.by_memory.get(&memory.id()).map(|pass| pass.number)
    }

    /// Returns the number under which the peer has this memory mapped, if it has.
    #[inline]
    pub(crate) fn mapped_number(&mut self, memory: &Memory) -> Option<u32> {
        let id = memory.id();
        match self.latest {
            Some((latest, number)) if latest == id => Some(number),
            _ => {
                let number = self.by_memory.get(&id).filter(|pass| pass.mapped)?.number;
                self.latest = Some((id, number));
                Some(number)
            }
        }
    }

    /// Notes that the peer has mapped the memory with this number. Pages that are for one peer
    /// cannot be passed again. So no message is sent from them in place: if the peer had unmapped
    /// them by then, it could not get the message in another way.
    pub(crate) fn confirm(&mut self, number: u32) {
        if let Some(pass) = self.by_memory.values_mut().find(|pass| pass.number == number) {
            pass.mapped = pass.pages.upgrade().is_some_and(|pages| !pages.was_mapped());
        }
    }

    /// Passes a memory with `send`. Returns its number, or `None` if `send` fails.
    pub(crate) fn pass(
        &mut self,
        memory: &Memory,
        pages: &Arc<SharedPages>,
        send: impl FnOnce(u32) -> bool,
    ) -> Option<u32> {
        let number = self.next;
        if !send(number) {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        self.by_memory.insert(memory.id(), Pass { number, pages: Arc::downgrade(pages), mapped: false });
        Some(number)
    }

    /// Returns the pages of this number, if they still exist.
    pub(crate) fn pages(&self, number: u32) -> Option<Arc<SharedPages>> {
        self.by_memory.values().find(|pass| pass.number == number)?.pages.upgrade()
    }

    /// Calls `tell` with the number of each memory that is gone. Forgets the memory if `tell`
    /// returns true.
    pub(crate) fn sweep(&mut self, mut tell: impl FnMut(u32) -> bool) {
        // Ids are never reused, so `latest` may keep its entry.
        self.by_memory.retain(|_, pass| pass.pages.strong_count() > 0 || !tell(pass.number));
    }
}

struct Piece {
    memory: Memory,
    /// False if the peer has passed a descriptor for reading only.
    writable: bool,
    used: u64,
}

/// The peer's memory that is mapped on a connection.
pub(crate) struct Mapped {
    pieces: HashMap<u32, Piece>,
    bytes: u64,
    clock: u64,
    most: (usize, u64),
    room: Arc<Room>,
    /// A number that was asked for and has not arrived yet.
    asked: Option<u32>,
    /// The memory that was found last. The next request is usually for the same one, and then needs
    /// no table look-up.
    latest: Option<(u32, Memory)>,
}

impl Mapped {
    pub(crate) fn new(most: (usize, u64), room: Arc<Room>) -> Mapped {
        Mapped { pieces: HashMap::new(), bytes: 0, clock: 0, most, room, asked: None, latest: None }
    }

    /// Keeps a mapping under the number that the peer gave it. Fails if there is no room; the bytes
    /// then go another way.
    pub(crate) fn insert(&mut self, number: u32, mapping: Mapping) -> io::Result<()> {
        self.remove(number);
        let (ptr, len, writable) = (mapping.ptr(), mapping.len(), mapping.is_writable());
        if len as u64 > self.most.1 || self.most.0 == 0 {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "more than ShmConfig::max_mapped"));
        }
        while self.pieces.len() >= self.most.0 || self.bytes + len as u64 > self.most.1 {
            let oldest = self.pieces.iter().min_by_key(|(_, piece)| piece.used).map(|(number, _)| *number);
            let Some(oldest) = oldest else { break };
            self.remove(oldest);
        }
        let Some(taken) = self.room.take(len as u64) else {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "no room for it (ShmConfig::max_mapped_in_all)"));
        };
        // SAFETY: the memory keeps the mapping. This process makes no references to its bytes: this
        // handle leaves only in `RemotePages`, and `get_mut` is never called on it. The peer
        // accesses the bytes as the kernel would; this process reaches them only through
        // `mem::copy` and system calls. If the mapping is not writable, nothing here writes to it
        // (`Mapped::is_writable`).
        let memory = unsafe { Memory::from_raw_parts(ptr, len, Box::new(PeerMemory::new(mapping, taken))) };
        self.clock += 1;
        self.bytes += len as u64;
        self.pieces.insert(number, Piece { memory, writable, used: self.clock });
        self.asked = self.asked.filter(|asked| *asked != number);
        Ok(())
    }

    pub(crate) fn remove(&mut self, number: u32) {
        self.leave_latest();
        if let Some(piece) = self.pieces.remove(&number) {
            self.bytes -= piece.memory.len() as u64;
        }
    }

    /// Returns the memory of this number.
    #[inline]
    pub(crate) fn find(&mut self, number: u32) -> Option<&Memory> {
        if self.latest.as_ref().is_none_or(|(latest, _)| *latest != number) {
            self.look_up(number)?;
        }
        self.latest.as_ref().map(|(_, memory)| memory)
    }

    /// Returns whether this side may write to the memory of this number.
    pub(crate) fn is_writable(&self, number: u32) -> bool {
        self.pieces.get(&number).is_some_and(|piece| piece.writable)
    }

    fn look_up(&mut self, number: u32) -> Option<()> {
        self.leave_latest();
        self.clock += 1;
        let piece = self.pieces.get_mut(&number)?;
        piece.used = self.clock;
        self.latest = Some((number, piece.memory.clone()));
        Some(())
    }

    /// Forgets the latest memory, and counts it as used until now.
    fn leave_latest(&mut self) {
        if let Some(piece) = self.latest.take().and_then(|(latest, _)| self.pieces.get_mut(&latest)) {
            self.clock += 1;
            piece.used = self.clock;
        }
    }

    /// Returns whether to ask for this number now: only one request is outstanding at a time.
    pub(crate) fn ask(&mut self, number: u32) -> bool {
        self.asked.replace(number) != Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(len: usize) -> Mapping {
        crate::sys::new_area(len).unwrap().1
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let room = Room::new((10, 1 << 20));
        let mut mapped = Mapped::new((2, 1 << 20), room.clone());
        mapped.insert(1, mapping(4096)).unwrap();
        mapped.insert(2, mapping(4096)).unwrap();
        assert!(mapped.find(1).is_some());
        mapped.insert(3, mapping(4096)).unwrap();
        assert!(mapped.find(1).is_some() && mapped.find(2).is_none() && mapped.find(3).is_some());
        assert!(mapped.ask(2) && !mapped.ask(2));
        let mut small = Mapped::new((10, 8192), room);
        small.insert(1, mapping(8192)).unwrap();
        small.insert(2, mapping(4096)).unwrap();
        assert!(small.find(1).is_none() && small.find(2).is_some());
        assert!(small.insert(3, mapping(16384)).is_err());
        assert!(small.find(3).is_none() && small.find(2).is_some(), "what is too large drives nothing out");
        small.remove(2);
        assert_eq!(small.bytes, 0);
    }

    /// A regression test. Each connection had a bound of its own, but a peer may have thousands of
    /// connections. So it could fill this process's table of mappings, and the next allocation
    /// failed.
    #[test]
    fn all_connections_together_have_a_bound() {
        let room = Room::new((3, 1 << 20));
        let mut connections = [(); 4].map(|()| Mapped::new((2, 1 << 20), room.clone()));
        let found = connections.each_mut().map(|mapped| mapped.insert(1, mapping(4096)).is_ok());
        assert_eq!(found, [true, true, true, false]);
        assert_eq!(connections.each_mut().map(|mapped| mapped.find(1).is_some()), [true, true, true, false]);
        let lent = connections[0].find(1).unwrap().clone();
        connections[0].remove(1);
        assert!(connections[3].insert(1, mapping(4096)).is_err());
        assert!(connections[3].find(1).is_none(), "what was lent is mapped still");
        drop(lent);
        assert!(connections[3].insert(1, mapping(1 << 20)).is_err());
        assert!(connections[3].find(1).is_none(), "too many bytes");
        connections[3].insert(1, mapping(4096)).unwrap();
        assert!(connections[3].find(1).is_some());
        drop(connections);
        assert_eq!(room.left(), (3, 1 << 20));
    }

    #[test]
    fn memory_that_is_gone_is_told_of_once() {
        let (mut passed, memory) = (Passed::default(), Memory::shareable(4096).unwrap());
        let pages = memory.shared_pages().unwrap().clone();
        assert_eq!(passed.pass(&memory, &pages, |_| false), None);
        assert_eq!(passed.pass(&memory, &pages, |_| true), Some(0));
        assert_eq!((passed.number(&memory), passed.mapped_number(&memory)), (Some(0), None));
        passed.confirm(1);
        assert_eq!(passed.mapped_number(&memory), None);
        passed.confirm(0);
        assert_eq!((passed.mapped_number(&memory), passed.mapped_number(&memory)), (Some(0), Some(0)));
        assert!(passed.pages(0).is_some());
        drop(pages);
        passed.sweep(|_| panic!("it lives"));
        drop(memory);
        assert!(passed.pages(0).is_none());
        let mut told = Vec::new();
        passed.sweep(|number| {
            told.push(number);
            told.len() > 1
        });
        passed.sweep(|number| {
            told.push(number);
            true
        });
        passed.sweep(|_| panic!("told already"));
        assert_eq!(told, [0, 0]);
    }
}
