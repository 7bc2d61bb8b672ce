//! What an adversary knows of the protocol: the hello, the credits in a header, and fast-RDMA
//! slots. It is `docs/design/protocol.md`, and uses nothing of the engine.

use bmi_core::RemoteSlice;
use bmi_core::transport::WriteTarget;

/// Bytes of a header.
pub(super) const HEADER: usize = 32;
/// The longest message to a peer with a hello that cannot be read.
const SHORT: usize = 256;
/// Maximum room for a message.
const MOST: usize = 64 << 10;

/// Returns a hello without optional features, which grants 60 messages of up to 256 bytes.
pub fn hello() -> Vec<u8> {
    let mut wire = b"BMIh\x02\0\x02\0".to_vec();
    [15u64, 15].iter().for_each(|features| wire.extend(features.to_le_bytes()));
    wire.extend(256u32.to_le_bytes());
    wire.extend(60u16.to_le_bytes());
    wire.extend([4, 0]);
    wire.extend((1u32 << 30).to_le_bytes());
    wire.extend(16u32.to_le_bytes());
    wire.extend((1u64 << 30).to_le_bytes());
    wire.extend(0u32.to_le_bytes());
    wire.push(0);
    wire
}

/// Returns how many receives a hello promises, and how many bytes each has room for.
pub(super) fn promised(hello: &[u8]) -> (usize, usize) {
    let Some(known) = hello.get(24..31) else { return (1, HEADER + SHORT) };
    let eager = u32::from_le_bytes([known[0], known[1], known[2], known[3]]) as usize;
    let receives = usize::from(u16::from_le_bytes([known[4], known[5]])) + usize::from(known[6]);
    (receives.max(1), HEADER + eager.clamp(SHORT, MOST))
}

/// The fast-RDMA slots of the other side, if it has said where they are.
#[derive(Debug, Default)]
pub(super) struct Slots {
    all: Option<RemoteSlice>,
    /// Bytes of one.
    len: u64,
    /// A bit for each that is free.
    free: u8,
}

impl Slots {
    /// Handles a message of the other side: where its slots are, or which are free again.
    pub(super) fn note(&mut self, message: &[u8]) {
        let Some((header, rest)) = message.split_first_chunk::<HEADER>() else { return };
        self.free |= header[1];
        if let (11, Some(slice)) = (header[0] & 15, rest.first_chunk()) {
            self.all = Some(RemoteSlice::from_wire(slice));
            self.len = u64::from_le_bytes(header[16..24].try_into().expect("8 bytes"));
            self.free = u8::MAX >> 8u8.saturating_sub(header[24]).min(7);
        }
    }

    /// Takes a free slot that has room for `len` bytes, to be written to.
    pub(super) fn take(&mut self, len: usize) -> Option<WriteTarget> {
        let slot = self.free.trailing_zeros();
        let all = self.all.filter(|_| slot < 8 && len as u64 <= self.len)?;
        self.free &= self.free - 1;
        Some(WriteTarget { remote: all.slice(u64::from(slot) * self.len, self.len)?, immediate: Some(slot) })
    }
}

/// What goes back to the other side with the next message.
#[derive(Debug, Default)]
pub(super) struct Credits {
    messages: u16,
    control: u8,
    bytes: u32,
}

impl Credits {
    /// Counts what the other side has spent for a message.
    pub(super) fn count(&mut self, message: &[u8]) {
        let kind = message.first().map_or(0, |first| first & 15);
        let parks = match kind {
            1 | 2 | 3 | 7 => true, // eager, unexpected, announced, offered
            15 => message.get(24..HEADER).is_some_and(|op| op.iter().all(|byte| *byte == 0)),
            _ => false,
        };
        match kind {
            6 => self.control = (self.control + 1).min(15),
            _ => self.messages = self.messages.saturating_add(1),
        }
        if parks {
            let len = message.len().saturating_sub(HEADER) + 64;
            self.bytes = self.bytes.saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        }
    }

    /// Puts the credits into the header of a message, if it has one, in place of others.
    pub(super) fn put_into(&mut self, message: &mut [u8]) {
        let Some(header) = message.first_chunk_mut::<HEADER>() else { return };
        let credits = std::mem::take(self);
        header[0] = header[0] & 15 | credits.control << 4;
        header[1] = 0; // it has no fast-RDMA slots
        header[2..4].copy_from_slice(&credits.messages.to_le_bytes());
        header[4..8].copy_from_slice(&credits.bytes.to_le_bytes());
    }
}
