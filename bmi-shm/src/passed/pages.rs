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
//! **Asking again.** A side that misses memory asks for its number, and the owner passes it again.
//! The side that asks keeps each request until it is sent, at most [`MAX_ASKED`] of them. While
//! there is no place, nothing is asked, and the next use of the memory tries again. The owner keeps
//! each request until it is answered: a mark at the memory, so a peer cannot make it keep more.
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
//!    has used them all can allocate no more memory. The whole length of a piece counts, whether
//!    its owner has touched it or not, because the owner can give pages back at any time. Whoever
//!    touches a page first is charged for it.
//!
//! **Limits.** Pages that this process was charged for stay charged to it while their owner keeps
//! them, also when they are not mapped here any more. So a hostile peer that passes new memory
//! again and again is bounded by the system alone.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Weak};

use bmi_core::mem::{MemoryId, SharedPages};
use bmi_core::{Memory, step, steps};

use super::room::Room;
use super::unmap::PeerMemory;
use crate::os::sys::Mapping;

/// Most numbers that were asked for and have not arrived.
pub(super) const MAX_ASKED: usize = 32;
/// Most requests of the peer that one turn answers. Each is a system call.
const ANSWERS: usize = 32;

/// The memory that this side has passed on a connection.
#[derive(Default)]
pub(crate) struct Passed {
    passes: HashMap<u32, Pass>,
    numbers: HashMap<MemoryId, u32>,
    next: u32,
    /// The numbers that the peer has asked for and that are still to be passed, each once.
    owed: VecDeque<u32>,
    /// The last memory whose mapped number was asked for, and that number. The next request is
    /// usually for the same memory.
    latest: Option<(MemoryId, u32)>,
}

struct Pass {
    memory: MemoryId,
    pages: Weak<SharedPages>,
    /// Set if the peer has confirmed that it has mapped it.
    mapped: bool,
    /// Set if the number is among those that are owed.
    owed: bool,
}

impl Passed {
    /// Returns the number under which the peer knows this memory.
    pub(crate) fn number(&self, memory: &Memory) -> Option<u32> {
        self.numbers.get(&memory.id()).copied()
    }

    /// Returns the number under which the peer has this memory mapped, if it has.
    #[inline]
    pub(crate) fn mapped_number(&mut self, memory: &Memory) -> Option<u32> {
        let id = memory.id();
        match self.latest {
            Some((latest, number)) if latest == id => Some(number),
            _ => {
                let number = *self.numbers.get(&id)?;
                self.passes.get(&number).filter(|pass| pass.mapped)?;
                self.latest = Some((id, number));
                Some(number)
            }
        }
    }

    /// Notes that the peer has mapped the memory with this number. Pages that are for one peer
    /// cannot be passed again. So no message is sent from them in place: if the peer had unmapped
    /// them by then, it could not get the message in another way.
    pub(crate) fn confirm(&mut self, number: u32) {
        if let Some(pass) = self.passes.get_mut(&number) {
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
        let pass = Pass { memory: memory.id(), pages: Arc::downgrade(pages), mapped: false, owed: false };
        self.passes.insert(number, pass);
        self.numbers.insert(memory.id(), number);
        Some(number)
    }

    /// Notes that the peer has asked for this number. Memory that it was told to be gone is not
    /// owed.
    pub(crate) fn owe(&mut self, number: u32) {
        if let Some(pass) = self.passes.get_mut(&number)
            && !std::mem::replace(&mut pass.owed, true)
        {
            self.owed.push_back(number);
        }
    }

    /// Returns true if the peer has asked for memory that is still to be passed.
    #[inline]
    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Passes the memory that the peer has asked for with `send`, at most [`ANSWERS`] pieces.
    /// Returns false if anything is left to pass, also because `send` fails.
    pub(crate) fn answer(&mut self, mut send: impl FnMut(u32, &SharedPages) -> bool) -> bool {
        for _ in 0..ANSWERS {
            let Some(&number) = self.owed.front() else { return true };
            step();
            if let Some(pass) = self.passes.get_mut(&number) {
                // The peer is told of memory that is gone in any case.
                if pass.pages.upgrade().is_some_and(|pages| !send(number, &pages)) {
                    return false;
                }
                pass.owed = false;
            }
            self.owed.pop_front();
        }
        self.owed.is_empty()
    }

    /// Calls `tell` with the number of each memory that is gone. Forgets the memory if `tell`
    /// returns true.
    pub(crate) fn sweep(&mut self, mut tell: impl FnMut(u32) -> bool) {
        // Ids are never reused, so `latest` may keep its entry.
        let numbers = &mut self.numbers;
        self.passes.retain(|number, pass| {
            let stays = pass.pages.strong_count() > 0 || !tell(*number);
            if !stays {
                numbers.remove(&pass.memory);
            }
            stays
        });
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
    /// The numbers to ask for that have not arrived yet, oldest first. The first `sent` of them
    /// were asked for.
    asked: VecDeque<u32>,
    sent: usize,
    /// The last number that arrived and could not be mapped. It is not asked for again at once.
    unmapped: Option<u32>,
    /// The memory that was found last. The next request is usually for the same one, and then needs
    /// no table look-up.
    latest: Option<(u32, Memory)>,
}

impl Mapped {
    /// Creates an empty set that keeps at most `most` pieces.
    pub(crate) fn new(most: usize, room: Arc<Room>) -> Mapped {
        Mapped {
            pieces: HashMap::new(),
            bytes: 0,
            clock: 0,
            most: (most, room.most_of_one()),
            room,
            asked: VecDeque::new(),
            sent: 0,
            unmapped: None,
            latest: None,
        }
    }

    /// Keeps a mapping under the number that the peer gave it. Fails if there is no room; the bytes
    /// then go another way.
    pub(crate) fn insert(&mut self, number: u32, mapping: Mapping) -> io::Result<()> {
        self.remove(number);
        self.has_arrived(number);
        self.unmapped = Some(number);
        let (ptr, len, writable) = (mapping.ptr(), mapping.len(), mapping.is_writable());
        if len as u64 > self.most.1 || self.most.0 == 0 {
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, "more than half of ShmConfig::max_mapped_in_all"));
        }
        if self.is_full_for(len as u64) {
            self.make_room_for(len as u64);
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
        self.unmapped = None;
        Ok(())
    }

    fn is_full_for(&self, len: u64) -> bool {
        self.pieces.len() >= self.most.0 || self.bytes + len > self.most.1
    }

    /// Unmaps the pieces that were not used for longest. Sorts them once, because a long piece may
    /// take the room of all others.
    fn make_room_for(&mut self, len: u64) {
        self.leave_latest();
        let mut oldest: Vec<_> = self.pieces.iter().map(|(number, piece)| (piece.used, *number)).collect();
        oldest.sort_unstable();
        steps(oldest.len());
        for (_, number) in oldest {
            if !self.is_full_for(len) {
                return;
            }
            step();
            self.remove(number);
        }
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

    /// Notes that the peer is to be asked for this number, unless that was done. Bytes that find
    /// no mapping go another way, so they do not insist if the memory could not be mapped the last
    /// time.
    pub(crate) fn ask(&mut self, number: u32) {
        if self.unmapped != Some(number) {
            self.insist(number);
        }
    }

    /// Like [`Mapped::ask`], for bytes that have no other way.
    pub(crate) fn insist(&mut self, number: u32) {
        if self.asked.contains(&number) {
            return;
        }
        if self.asked.len() >= MAX_ASKED {
            if self.sent == 0 {
                return; // the next use tries again
            }
            // The peer has this request, and answers it. Nothing is lost if it is forgotten here.
            self.asked.pop_front();
            self.sent -= 1;
        }
        self.asked.push_back(number);
    }

    /// Returns true if there are numbers to ask for.
    #[inline]
    pub(crate) fn has_asks(&self) -> bool {
        self.sent < self.asked.len()
    }

    /// Asks for numbers with `send`. Returns false if it fails, and some are left to ask for.
    pub(crate) fn send_asks(&mut self, mut send: impl FnMut(u32) -> bool) -> bool {
        while let Some(&number) = self.asked.get(self.sent) {
            step();
            if !send(number) {
                return false;
            }
            self.sent += 1;
        }
        true
    }

    /// Notes that this number need not be asked for any more.
    fn has_arrived(&mut self, number: u32) {
        if let Some(at) = self.asked.iter().position(|asked| *asked == number) {
            self.asked.remove(at);
            self.sent -= usize::from(at < self.sent);
        }
    }

    /// Unmaps memory whose owner says that it is gone.
    pub(crate) fn drop_number(&mut self, number: u32) {
        self.has_arrived(number);
        self.unmapped = None;
        self.remove(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(len: usize) -> Mapping {
        crate::os::sys::new_area(len).unwrap().1
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let room = Room::new((10, 1 << 20));
        let mut mapped = Mapped::new(2, room.clone());
        mapped.insert(1, mapping(4096)).unwrap();
        mapped.insert(2, mapping(4096)).unwrap();
        assert!(mapped.find(1).is_some());
        mapped.insert(3, mapping(4096)).unwrap();
        assert!(mapped.find(1).is_some() && mapped.find(2).is_none() && mapped.find(3).is_some());
        let mut small = Mapped::new(10, Room::new((10, 2 * 8192)));
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
        let mut connections = [(); 4].map(|()| Mapped::new(2, room.clone()));
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

    /// Requests wait for a place in the socket on both sides. None is lost, and a peer that asks
    /// for anything any number of times is not kept in mind more than once for each memory.
    #[test]
    fn no_request_is_overwritten_and_their_number_is_bounded() {
        let mut mapped = Mapped::new(4, Room::new((10, 1 << 20)));
        let all = 0..MAX_ASKED as u32 + 5;
        all.clone().chain(all.clone()).for_each(|number| mapped.ask(number));
        let mut asked = Vec::new();
        assert!(!mapped.send_asks(|number| {
            asked.push(number);
            number < 2
        }));
        assert!(mapped.send_asks(|number| {
            asked.push(number);
            true
        }));
        let expected: Vec<_> = (0..=2).chain(2..MAX_ASKED as u32).collect();
        assert_eq!(asked, expected, "in order, and no more than there are places");
        // Those that found no place are asked for at their next use.
        mapped.drop_number(7);
        all.clone().filter(|number| *number > 30).for_each(|number| mapped.ask(number));
        asked.clear();
        assert!(mapped.send_asks(|number| {
            asked.push(number);
            true
        }));
        assert_eq!(asked, [32, 33, 34, 35, 36]);
        assert_eq!((mapped.asked.len(), mapped.sent), (MAX_ASKED, MAX_ASKED));
        // What cannot be mapped is not asked for again, unless nothing else will do.
        assert!(mapped.insert(36, mapping(2 << 20)).is_err());
        mapped.ask(36);
        assert_eq!(mapped.sent, mapped.asked.len());
        mapped.insist(36);
        assert_eq!(mapped.sent + 1, mapped.asked.len());

        let memories: Vec<_> = (0..ANSWERS + 3).map(|_| Memory::shareable(4096).unwrap()).collect();
        let mut passed = Passed::default();
        for memory in &memories {
            passed.pass(memory, memory.shared_pages().unwrap(), |_| true).unwrap();
        }
        (0..5 * all.end).for_each(|round| passed.owe(round % (ANSWERS as u32 + 4)));
        let mut answered = Vec::new();
        assert!(!passed.answer(|number, _| answered.len() < 2 && (answered.push(number), true).1));
        let mut rest = || passed.answer(|number, _| (answered.push(number), true).1);
        assert_eq!((rest(), rest()), (false, true));
        assert_eq!(answered, (0..ANSWERS as u32 + 3).collect::<Vec<_>>(), "each once, in order");
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
        drop(pages);
        passed.sweep(|_| panic!("it lives"));
        passed.owe(0);
        drop(memory);
        assert!(passed.answer(|_, _| panic!("it is gone")));
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
