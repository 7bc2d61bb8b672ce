//! The buffers of a case, and the operations in flight on them.

use std::collections::VecDeque;

use bmi::{Error, MemList, MemSlice, Memory, Operation};

use crate::case::{Case, Over};

/// The buffers that a connection uses in turn.
pub(super) struct Ring {
    pub(super) memory: Memory,
    messages: Vec<MemSlice>,
}

impl Ring {
    pub(super) fn new(case: &Case) -> Result<Ring, Error> {
        Ring::of(case.len(), case.buffers())
    }

    /// Creates `number` buffers of `len` bytes.
    pub(super) fn of(len: usize, number: usize) -> Result<Ring, Error> {
        let memory = Memory::zeroed(len * number)?;
        // Touch every page now, and not during the measurement.
        memory.copy_from(0, &vec![1; memory.len()]);
        let messages = (0..number).map(|index| memory.slice(index * len, len)).collect();
        Ok(Ring { memory, messages })
    }

    /// Returns the buffer of a message.
    pub(super) fn turn(&self, number: u64) -> &MemSlice {
        &self.messages[(number % self.messages.len() as u64) as usize]
    }
}

/// Writes a message that is about to leave, if another processor reads it where it is.
///
/// **Why.** Over shared memory the receiver copies from these very lines. Lines that nobody has
/// written since the last message are still in its own cache: then nothing moves between the two
/// processors, and what is measured is a copy within a cache. Adapters and the kernel of a network
/// read them on the sender's side, where they stay.
pub(super) fn produce(case: &Case, message: &MemSlice) {
    if case.station.over == Over::Shm {
        message.zero();
    }
}

/// Returns `pieces` pieces with gaps of the same length between them, `len` bytes in all.
pub(super) fn pieces(len: usize, pieces: usize) -> Result<(Memory, MemList), Error> {
    let memory = Memory::zeroed(2 * len)?;
    memory.copy_from(0, &vec![1; memory.len()]);
    let bound = |index: usize| len * index / pieces;
    let list = (0..pieces).map(|index| {
        let piece = bound(index + 1) - bound(index);
        memory.slice(2 * bound(index), piece)
    });
    let list = list.collect();
    Ok((memory, list))
}

/// A limited number of operations in flight. The oldest is awaited before another is posted.
pub(super) struct Window {
    under_way: VecDeque<Operation>,
    most: usize,
}

impl Window {
    pub(super) fn new(case: &Case) -> Window {
        Window { under_way: VecDeque::with_capacity(case.buffers()), most: case.buffers() }
    }

    /// Waits until another operation may be added.
    pub(super) async fn room(&mut self) -> Result<(), Error> {
        if self.under_way.len() == self.most
            && let Some(oldest) = self.under_way.pop_front()
        {
            oldest.await?;
        }
        Ok(())
    }

    pub(super) fn add(&mut self, operation: Operation) {
        self.under_way.push_back(operation);
    }

    pub(super) async fn drain(&mut self) -> Result<(), Error> {
        while let Some(oldest) = self.under_way.pop_front() {
            oldest.await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_have_all_bytes_and_gaps_between_them() {
        for (len, number) in [(8, 8), (100, 7), (4096, 64)] {
            let (_memory, list) = pieces(len, number).unwrap();
            assert_eq!((list.len(), list.pieces().len()), (len, number));
        }
    }
}
