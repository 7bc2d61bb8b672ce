//! The bytes of requests and replies.
//!
//! ```text
//! request   kind: 1 byte │ version: 16 bytes │ key
//! reply     version: 16 bytes │ length of the block: 8 bytes      what the replica holds now
//!           nothing                                               the replica failed
//! ```

use bmi::{Error, ErrorKind};

use super::{MAX_BLOCK, MAX_KEY};

/// The version of a block. A later write has a greater version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Counts the writes of a key. The default, 0, means that there is no block.
    pub number: u64,
    /// Identifies the client that wrote the block.
    pub writer: u64,
}

impl Version {
    pub(super) fn encode(self) -> [u8; 16] {
        (u128::from(self.number) << 64 | u128::from(self.writer)).to_be_bytes()
    }

    pub(super) fn decode(bytes: [u8; 16]) -> Version {
        let both = u128::from_be_bytes(bytes);
        Version { number: (both >> 64) as u64, writer: both as u64 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Which version do you hold?
    Ask,
    /// Send me the block, if you hold this version.
    Read,
    /// Store this block, unless you hold a newer one.
    Write,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    pub(super) kind: Kind,
    pub(super) version: Version,
    pub(super) key: &'a str,
}

impl<'a> Request<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        [&[self.kind as u8], &self.version.encode()[..], self.key.as_bytes()].concat()
    }

    /// Decodes a request. Its bytes are a peer's, so nothing in them is trusted.
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Request<'a>, Error> {
        let parts = bytes.split_first().and_then(|(kind, rest)| Some((kind, rest.split_first_chunk()?)));
        let (kind, (version, key)) = parts.ok_or_else(|| bad("a request without a head"))?;
        let kinds = [Kind::Ask, Kind::Read, Kind::Write];
        let kind = kinds.into_iter().find(|known| *known as u8 == *kind).ok_or_else(|| bad("an unknown request"))?;
        let key = std::str::from_utf8(key).ok().filter(|key| key.len() <= MAX_KEY).ok_or_else(|| bad("a bad key"))?;
        Ok(Request { kind, version: Version::decode(*version), key })
    }
}

/// What a replica holds under a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Held {
    pub(super) version: Version,
    pub(super) len: u64,
}

impl Held {
    pub(super) fn encode(self) -> Vec<u8> {
        [&self.version.encode()[..], &self.len.to_be_bytes()].concat()
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Held, Error> {
        if bytes.is_empty() {
            return Err(Error::new(ErrorKind::Io, "the replica failed"));
        }
        let held = bytes.split_first_chunk().and_then(|(version, len)| {
            Some(Held { version: Version::decode(*version), len: u64::from_be_bytes(len.try_into().ok()?) })
        });
        held.filter(|held| held.len <= MAX_BLOCK).ok_or_else(|| bad("a bad reply"))
    }
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::Protocol, what)
}
