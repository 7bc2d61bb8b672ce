//! What a user can set on an endpoint, with the defaults and their reasons.

use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// Settings of an endpoint. Start from `Config::default()`; [`Config::validate`] says what is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// A name for logs and for the peer's errors, at most 64 bytes.
    pub name: String,
    /// Longest message that is sent eagerly, in bytes: also the longest unexpected message. Paper 000, section 6.5, sends up to 4 KiB of
    /// data inline; 8 KiB leaves a request or reply and a page of data room in one message.
    pub eager_limit: usize,
    /// Receives posted for each connection: the credits in messages that its peer has. Each costs `eager_limit` and a header of memory.
    /// With the four that are reserved for credits the default makes 128, the least that a transport has room for. Fewer than two
    /// windows of a program's small messages make the two sides take turns: 64 halved the rate at a window of 64 (`micro --only rate`).
    pub credit_messages: u16,
    /// Bytes that a peer may have parked here, in messages that arrived but are not yet received: its credits in bytes.
    pub credit_bytes: u32,
    /// Fast-RDMA slots that each peer may write into, at most 8; 0 for none. One is enough for a peer with one request outstanding (paper 000, section
    /// 4.1.2); four let as many be on their way or in work. They are registered as long as the connection stands.
    pub fast_slots: u8,
    /// Longest message in a fast-RDMA slot, in bytes: 64 KiB of data (paper 000, section 6.5) and room for the request before it.
    pub fast_slot_bytes: usize,
    /// Connections that it keeps at a time, both ways; a peer beyond is refused. Each costs its receives: a MiB by default, of which the
    /// pages that messages have reached are really there.
    pub max_peers: usize,
    /// Unit in which bulk and rendezvous transfers are cut and interleaved, in bytes.
    pub transfer_unit: usize,
    /// Bytes of bulk and rendezvous work handed to the adapter at a time, over all peers; beyond them, one unit for each peer that has none.
    pub in_flight_bytes: u64,
    /// Pieces that a list may have on either side.
    pub max_pieces: usize,
    /// Longest message and longest bulk transfer, in bytes.
    pub max_message: u64,
    /// How long connecting may take when the call gives no deadline, and how long a peer may take over its hello.
    pub connect_timeout: Duration,
    /// How long after its deadline, or after a cancel, an operation waits for the peer to let go of its memory before the
    /// connection is cut.
    pub fence_grace: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            name: String::new(),
            eager_limit: 8 << 10,
            credit_messages: 124,
            credit_bytes: 1 << 20,
            fast_slots: 4,
            fast_slot_bytes: (64 + 4) << 10,
            max_peers: 4096,
            transfer_unit: 256 << 10,
            in_flight_bytes: 16 << 20,
            max_pieces: 4096,
            max_message: 1 << 40,
            connect_timeout: Duration::from_secs(5),
            fence_grace: Duration::from_secs(1),
        }
    }
}

impl Config {
    /// The default settings, under a name.
    pub fn named(name: impl Into<String>) -> Config {
        Config { name: name.into(), ..Config::default() }
    }

    /// Checks every value against its bounds.
    ///
    /// # Errors
    /// `Invalid`, naming the field, the value and the bounds.
    pub fn validate(&self) -> Result<(), Error> {
        let within = |field: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(Error::new(ErrorKind::Invalid, format!("{field} is {value}; it must be from {low} to {high}")))
        };
        within("name's length", self.name.len() as u64, 0, 64)?;
        within("eager_limit", self.eager_limit as u64, 256, 1 << 20)?;
        within("credit_messages", self.credit_messages.into(), 4, 4096)?;
        within("credit_bytes", self.credit_bytes.into(), 4 * (self.eager_limit as u64 + 64), 1 << 30)?;
        within("fast_slots", self.fast_slots.into(), 0, 8)?;
        within("fast_slot_bytes", self.fast_slot_bytes as u64, self.eager_limit as u64, 16 << 20)?;
        within("transfer_unit", self.transfer_unit as u64, 4096, 1 << 30)?;
        within("in_flight_bytes", self.in_flight_bytes, self.transfer_unit as u64, 1 << 40)?;
        within("max_peers", self.max_peers as u64, 1, 1 << 24)?;
        within("max_pieces", self.max_pieces as u64, 1, 1 << 20)?;
        within("max_message", self.max_message, 1, 1 << 62)
    }
}
