//! Bytes to send, and memory to receive them, with guard bytes around every piece.

use bmi_core::{MemList, MemSlice, Memory};

/// The value of every byte that no transfer may touch.
pub const GUARD: u8 = 0xa5;

/// Number of guard bytes before, between and behind the pieces. It is odd, so that pieces have
/// every alignment.
const GAP: usize = 37;

/// Returns `len` bytes that depend on `seed` and on their position.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    // A hash of the place. Tests that are not optimised make megabytes of it, in an emulator.
    let word = |at: u64| {
        let mixed = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8) as u64).flat_map(word).collect();
    bytes.truncate(len);
    bytes
}

/// Returns `len` zero bytes of memory in shareable pages. A backend that cannot share pages treats
/// it like other memory; a backend that can is tested with it.
pub fn memory(len: usize) -> Memory {
    Memory::shareable(len).expect("the machine that runs the suite has memory for it")
}

/// Returns memory that contains [`pattern`].
pub fn filled(seed: u64, len: usize) -> Memory {
    let memory = memory(len);
    memory.copy_from(0, &pattern(seed, len));
    memory
}

/// A list of pieces inside one memory, surrounded by guard bytes.
#[derive(Debug)]
pub struct Guarded {
    memory: Memory,
    pieces: Vec<MemSlice>,
}

impl Guarded {
    /// Creates pieces of these lengths. Every second pair is in the memory in reverse, so that list
    /// order is not address order.
    pub fn new(lens: &[usize]) -> Guarded {
        let total: usize = lens.iter().sum::<usize>() + GAP * (lens.len() + 1);
        let memory = memory(total);
        memory.copy_from(0, &vec![GUARD; total]);
        let mut order: Vec<usize> = (0..lens.len()).collect();
        for pair in order.chunks_exact_mut(2).step_by(2) {
            pair.swap(0, 1);
        }
        let mut places = vec![0; lens.len()];
        let mut at = GAP;
        for index in order {
            places[index] = at;
            at += lens[index] + GAP;
        }
        let pieces = lens.iter().zip(&places).map(|(len, at)| memory.slice(*at, *len)).collect();
        Guarded { memory, pieces }
    }

    /// Creates pieces of these lengths that contain `pattern(seed, total)` in list order.
    pub fn filled(seed: u64, lens: &[usize]) -> Guarded {
        let guarded = Guarded::new(lens);
        guarded.list().copy_from(0, &pattern(seed, guarded.len()));
        guarded
    }

    /// Returns the pieces as a list.
    pub fn list(&self) -> MemList {
        self.pieces.iter().cloned().collect()
    }

    /// Returns the memory that contains all pieces.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the pieces in list order.
    pub fn pieces(&self) -> &[MemSlice] {
        &self.pieces
    }

    /// Returns the total length of the pieces in bytes.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(MemSlice::len).sum()
    }

    /// Returns whether the pieces have no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks that the list contains `expected`, and guard bytes behind that and around each piece.
    ///
    /// # Panics
    /// If not, naming the first byte that is wrong.
    pub fn check(&self, what: &str, expected: &[u8]) {
        let image = self.memory.to_vec();
        let mut wanted = vec![GUARD; image.len()];
        let mut done = 0;
        for piece in &self.pieces {
            let take = piece.len().min(expected.len() - done);
            wanted[piece.offset()..piece.offset() + take].copy_from_slice(&expected[done..done + take]);
            done += take;
        }
        assert_eq!(done, expected.len(), "{what}: more bytes are expected than the list holds");
        if let Some(at) = (0..image.len()).find(|at| image[*at] != wanted[*at]) {
            let inside = self.pieces.iter().position(|p| (p.offset()..p.offset() + p.len()).contains(&at));
            panic!(
                "{what}: byte {at} of {} is {:#04x}, not {:#04x} ({})",
                image.len(),
                image[at],
                wanted[at],
                inside.map_or("a guard byte".to_owned(), |piece| format!("in piece {piece}"))
            );
        }
    }

    /// Checks that there are only guard bytes.
    ///
    /// # Panics
    /// If another byte is found.
    pub fn check_untouched(&self, what: &str) {
        self.check(what, &[]);
    }

    /// Gives up this list's own handles and returns the memory. [`is_sole`] then tells whether an
    /// operation, a registration or a peer still holds it.
    pub fn into_sole(self) -> Memory {
        self.memory
    }
}

/// Returns whether this is the only handle to the memory.
pub fn is_sole(memory: &mut Memory) -> bool {
    memory.get_mut().is_some()
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use super::*;

    #[test]
    fn a_touched_guard_byte_is_found() {
        let guarded = Guarded::filled(1, &[3, 0, 5]);
        guarded.check("as filled", &pattern(1, 8));
        let end = guarded.pieces()[2].offset() + 5;
        guarded.memory().copy_from(end, &[0]);
        assert!(std::panic::catch_unwind(AssertUnwindSafe(|| guarded.check("spoiled", &pattern(1, 8)))).is_err());
    }

    #[test]
    fn bytes_behind_a_short_message_are_guards() {
        let guarded = Guarded::new(&[4, 4]);
        guarded.check_untouched("fresh");
        guarded.list().copy_from(0, &[1, 2, 3, 4, 5]);
        guarded.check("short", &[1, 2, 3, 4, 5]);
    }
}
