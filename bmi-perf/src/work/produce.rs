//! The memory of messages, and the data that a side sends.

use bmi::{Error, MemSlice, Memory};

use crate::case::Over;

/// Writes a message that is about to leave, if another processor reads it where it is.
///
/// **Why.** Over shared memory the receiver copies from these very lines. Lines that nobody has
/// written since the last message are still in its own cache: then nothing moves between the two
/// processors, and what is measured is a copy within a cache. Adapters and the kernel of a network
/// read them on the sender's side, where they stay.
pub(super) fn produce(over: Over, message: &MemSlice) {
    if [Over::Shm, Over::Memory].contains(&over) {
        message.zero();
    }
}

/// Returns memory for messages, page-aligned for baselines, too: on some processors the kernel
/// copies to or from other memory at a third of the speed. Over shared memory the peer can map it,
/// as that of a program that wants to be fast.
pub(super) fn memory(over: Over, len: usize) -> Result<Memory, Error> {
    let memory = if over == Over::Shm { Memory::shareable(len)? } else { Memory::zeroed(len)? };
    // Touch every page now, and not during the measurement.
    memory.copy_from(0, &vec![1; len]);
    Ok(memory)
}

/// Returns the bytes of memory that nothing else uses.
pub(super) fn bytes(memory: &mut Memory) -> &mut [u8] {
    memory.get_mut().expect("the only handle")
}
