//! The buffers of a case, and the operations in flight on them.

use std::collections::VecDeque;

use bmi::threading::Threading;
use bmi::{Error, MemList, MemSlice, Memory, Operation};

use crate::case::Case;
use crate::work::produce::memory;

/// The buffers that a connection uses in turn.
pub(super) struct Ring {
    pub(super) memory: Memory,
    messages: Vec<MemSlice>,
}

impl Ring {
    pub(super) fn new(case: &Case) -> Result<Ring, Error> {
        let (len, number) = (case.len(), case.buffers());
        let memory = memory(case.station.over, len * number)?;
        let messages = (0..number).map(|index| memory.slice(index * len, len)).collect();
        Ok(Ring { memory, messages })
    }

    /// Returns the buffer of a message.
    pub(super) fn turn(&self, number: u64) -> &MemSlice {
        &self.messages[(number % self.messages.len() as u64) as usize]
    }
}

/// Returns the pieces of a list, with gaps of the same length between them.
pub(super) fn pieces(case: &Case) -> Result<(Memory, MemList), Error> {
    let (len, pieces) = (case.len(), case.pieces as usize);
    let memory = memory(case.station.over, 2 * len)?;
    let bound = |index: usize| len * index / pieces;
    let list = (0..pieces).map(|index| {
        let piece = bound(index + 1) - bound(index);
        memory.slice(2 * bound(index), piece)
    });
    let list = list.collect();
    Ok((memory, list))
}

/// A limited number of operations in flight. The oldest is awaited before another is posted.
pub(super) struct Window<S: Threading> {
    under_way: VecDeque<Operation<S>>,
    most: usize,
}

impl<S: Threading> Window<S> {
    pub(super) fn new(case: &Case) -> Window<S> {
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

    pub(super) fn add(&mut self, operation: Operation<S>) {
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
            let base = crate::case::tests::case();
            let case = Case { size: len as u64, pieces: number as u32, ..base };
            let (_memory, list) = pieces(&case).unwrap();
            assert_eq!((list.len(), list.pieces().len()), (len, number));
        }
    }
}
