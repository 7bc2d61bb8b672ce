//! One record, and the buffers in which records are sealed and opened.
//!
//! **Layout** of a record (RFC 8446, 5.2): its header is authenticated, what follows is sealed too.
//!
//! ```text
//!   0x17 0x03 0x03 | length, 2 bytes | payload … | its type | tag, 16 bytes
//! ```

use std::ops::Range;

use bmi_core::mem::Pages;
use ring::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;

use crate::Breach;

/// Most bytes of payload in a record.
pub(crate) const MAX_PAYLOAD: usize = 16 << 10;
const HEADER: usize = 5;
const TAG: usize = 16;
/// Bytes of a record beside its payload.
pub(crate) const OVERHEAD: usize = HEADER + 1 + TAG;
/// Most bytes that may follow a header: a peer may pad.
const MAX_SEALED: usize = MAX_PAYLOAD + 256;
/// Bytes of the buffer for what is sealed: some long records, that leave with one system call.
const SEALED: usize = 8 * (MAX_PAYLOAD + OVERHEAD);
/// Bytes of the buffer for what has arrived.
const ARRIVED: usize = 68 << 10;

const CHANGE_CIPHER_SPEC: u8 = 20;
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;
pub(crate) const DATA: u8 = 23;

/// Returns a buffer, whose pages are there when they are used.
fn pages(len: usize) -> Pages {
    Pages::new(len).expect("memory for a connection")
}

/// A key for one direction, with the number of the next record.
pub(crate) struct Key {
    key: LessSafeKey,
    iv: [u8; aead::NONCE_LEN],
    number: u64,
}

impl Key {
    pub(crate) fn new((number, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Key, Breach> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&aead::AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&aead::AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&aead::CHACHA20_POLY1305, key, iv),
            _ => return Err(Breach::Internal("the cipher is not known".into())),
        };
        let wrong = |_| Breach::Internal("the key has another length than its cipher".into());
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).map_err(wrong)?);
        let iv = iv.as_ref().try_into().map_err(|_| Breach::Internal("the nonce has another length".into()))?;
        Ok(Key { key, iv, number })
    }

    /// Returns the nonce of the next record.
    fn nonce(&mut self) -> Nonce {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.number.to_be_bytes()) {
            *byte ^= number;
        }
        self.number += 1;
        Nonce::assume_unique_for_key(nonce)
    }

    /// Returns the number of records that it has sealed or opened.
    pub(crate) fn used(&self) -> u64 {
        self.number
    }
}

fn header(len: usize) -> [u8; HEADER] {
    let [high, low] = (len as u16).to_be_bytes();
    [DATA, 3, 3, high, low]
}

/// Records that were sealed, until the socket has them.
pub(crate) struct Sealer {
    pub(crate) key: Key,
    buf: Pages,
    start: usize,
    end: usize,
}

impl Sealer {
    pub(crate) fn new(key: Key) -> Sealer {
        Sealer { key, buf: pages(SEALED), start: 0, end: 0 }
    }

    /// Returns how many bytes of payload the next record can have beside `kept` bytes, which may be
    /// none.
    pub(crate) fn room(&self, kept: usize) -> usize {
        (self.buf.len() - self.end).saturating_sub(OVERHEAD + kept).min(MAX_PAYLOAD)
    }

    /// Seals a record of a type, whose payload `fill` writes. There must be room for it.
    #[inline]
    pub(crate) fn seal(&mut self, kind: u8, len: usize, fill: impl FnOnce(&mut [u8])) {
        let header = header(len + 1 + TAG);
        let (head, rest) = self.buf[self.end..].split_at_mut(HEADER);
        head.copy_from_slice(&header);
        fill(&mut rest[..len]);
        rest[len] = kind;
        let nonce = self.key.nonce();
        let sealed = self.key.key.seal_in_place_separate_tag(nonce, Aad::from(header), &mut rest[..=len]);
        let tag = sealed.expect("a record is shorter than what one nonce seals");
        rest[len + 1..len + 1 + TAG].copy_from_slice(tag.as_ref());
        self.end += len + OVERHEAD;
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }

    /// Notes bytes that were made before there were keys.
    pub(crate) fn begin_with(&mut self, bytes: &[u8]) {
        self.buf[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    pub(crate) fn sent(&mut self, n: usize) {
        self.start += n;
        debug_assert!(self.start <= self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0); // stay in the bytes that are in the processor's cache
        }
    }

    pub(crate) fn release(&mut self) {
        if self.end == 0 {
            self.buf.discard();
        }
    }
}

/// Bytes that have arrived, and the payload of the record that was opened last.
pub(crate) struct Opener {
    pub(crate) key: Key,
    buf: Pages,
    start: usize,
    end: usize,
    payload: Range<usize>,
}

impl Opener {
    pub(crate) fn new(key: Key) -> Opener {
        Opener { key, buf: pages(ARRIVED), start: 0, end: 0, payload: 0..0 }
    }

    /// Takes over what arrived before the keys were there: payload that is open, and what follows.
    pub(crate) fn begin_with(&mut self, payload: &[u8], sealed: &[u8]) {
        let (open, rest) = self.buf.split_at_mut(payload.len());
        open.copy_from_slice(payload);
        rest[..sealed.len()].copy_from_slice(sealed);
        self.payload = 0..payload.len();
        (self.start, self.end) = (payload.len(), payload.len() + sealed.len());
    }

    /// Returns the payload that was not consumed.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.buf[self.payload.clone()]
    }

    pub(crate) fn consume(&mut self, n: usize) {
        self.payload.start += n;
        debug_assert!(self.payload.start <= self.payload.end);
    }

    /// Returns where the next bytes of the socket go. All that is whole was opened, so there is
    /// room for the rest of a record.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        debug_assert!(self.payload.is_empty());
        self.buf.copy_within(self.start..self.end, 0);
        (self.start, self.end, self.payload) = (0, self.end - self.start, 0..0);
        &mut self.buf[self.end..]
    }

    pub(crate) fn filled(&mut self, n: usize) {
        self.end += n;
    }

    /// Opens the next record. Returns its type, or `None` if it is not there as a whole.
    #[inline]
    pub(crate) fn open(&mut self) -> Result<Option<u8>, Breach> {
        debug_assert!(self.payload.is_empty());
        let arrived = &mut self.buf[self.start..self.end];
        let Some((header, rest)) = arrived.split_first_chunk_mut::<HEADER>() else { return Ok(None) };
        let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
        match header[0] {
            DATA if header[1] == 3 && (1 + TAG..=MAX_SEALED).contains(&len) => {}
            ALERT | CHANGE_CIPHER_SPEC | HANDSHAKE => return Err(Breach::Violation("it sent a record in the clear")),
            _ => return Err(Breach::Violation("it sent a malformed record")),
        }
        let Some(sealed) = rest.get_mut(..len) else { return Ok(None) };
        let (nonce, aad) = (self.key.nonce(), Aad::from(*header));
        let opened = self.key.key.open_in_place(nonce, aad, sealed);
        let opened = opened.map_err(|_| Breach::Violation("it sent a record that its key has not sealed"))?;
        let last = opened.iter().rposition(|byte| *byte != 0);
        let last = last.filter(|last| *last <= MAX_PAYLOAD).ok_or(Breach::Violation("it sent a record of no type"))?;
        let kind = opened[last];
        let at = self.start + HEADER;
        self.payload = at..at + last;
        self.start = at + len;
        Ok(Some(kind))
    }

    /// Gives back the pages of the buffer if it is empty. Returns whether that is so.
    pub(crate) fn release(&mut self) -> bool {
        let idle = self.start == self.end && self.payload.is_empty();
        if idle {
            self.buf.discard();
        }
        idle
    }
}
