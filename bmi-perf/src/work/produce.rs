//! The data that a side sends.

use bmi::MemSlice;

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
