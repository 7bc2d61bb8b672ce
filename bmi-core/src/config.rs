//! What a user can set on an endpoint, with the defaults and their reasons.

use std::time::Duration;

use crate::bulk::BulkDescriptor;
use crate::error::{Error, ErrorKind};
use crate::lists::{ListPrices, Lists};

/// Settings of an endpoint. Start from `Config::default()`; [`Config::validate`] says what is wrong
/// with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// A name for logs and for the peer's errors, at most 64 bytes.
    pub name: String,
    /// Longest message that is sent eagerly, in bytes: also the longest unexpected message.
    /// [PVFS-IB §6.5], sends up to 4 KiB of data inline; 8 KiB leaves a request or reply and a page
    /// of data room in one message.
    pub eager_limit: usize,
    /// Receives posted for each connection: the credits in messages that its peer has. Each costs
    /// `eager_limit` and a header of memory. With the four that are reserved for credits the
    /// default makes 128, the least that a transport has room for. Fewer than two windows of a
    /// program's small messages make the two sides take turns: 64 halved the rate at a window of 64
    /// (`micro --only rate`).
    pub credit_messages: u16,
    /// Bytes that a peer may have parked here, in messages that arrived but are not yet received:
    /// its credits in bytes.
    pub credit_bytes: u32,
    /// Fast-RDMA slots that each peer may write into, at most 8; 0 for none. One is enough for a
    /// peer with one request outstanding ([PVFS-IB §4.1.2]); four let as many be on their
    /// way or in work. They are registered as long as the connection stands.
    pub fast_slots: u8,
    /// Longest message in a fast-RDMA slot, in bytes: 64 KiB of data ([PVFS-IB §6.5]) and
    /// room for the request before it.
    pub fast_slot_bytes: usize,
    /// Connections that it keeps at a time, both ways; a peer beyond is refused. Each costs its
    /// receives: a MiB by default, of which the pages that messages have reached are really there.
    pub max_peers: usize,
    /// Unit in which bulk and rendezvous transfers are cut and interleaved, in bytes.
    pub transfer_unit: usize,
    /// Bytes of bulk and rendezvous work handed to the adapter at a time, over all peers. What is
    /// handed over stands before everything that comes later, on an adapter without service levels;
    /// so it is no more than keeps adapter and peers busy.
    pub in_flight_bytes: u64,
    /// Registrations of the program's memory that are kept after use (the pin-down cache); 0 keeps
    /// none. 4096 are the pieces of the longest list, so that one list of separate buffers finds
    /// all of them again; an adapter has room for a hundred thousand and more.
    pub pin_cache_entries: usize,
    /// Bytes of memory that may stay registered after use; a longer memory is registered for each
    /// use. Pinned pages are lost to everybody else, so this is for the machine's owner to raise or
    /// lower: 1 GiB holds ten of the 100 MB requests of [PVFS-IB §4.2]. If the system
    /// allows less (`RLIMIT_MEMLOCK`), the adapter refuses, and the cache makes room then.
    pub pin_cache_bytes: u64,
    /// How long the registration of memory that the program has dropped may wait to be let go
    /// together with others. 10 ms make it a hundred batches a second at most, and pages do not
    /// stay pinned for longer than anybody would notice. Where registration is free nothing waits.
    pub pin_linger: Duration,
    /// Where registration costs, pieces of one [`Memory`](crate::Memory) are exposed to a peer as
    /// one range from the first to the last of them (group registration, [PVFS-IB §5]): one
    /// key and one memory window instead of one for each piece. The peer can then also reach what
    /// lies between the pieces, with the rights of the exposure and for as long as the operation
    /// lasts. Switch it off for peers that must not.
    pub expose_groups: bool,
    /// The same for one peer; always at least one unit.
    pub peer_in_flight_bytes: u64,
    /// A peer none of whose transfers has moved for so long no longer counts in `in_flight_bytes`:
    /// it must not halt the others.
    pub stall_patience: Duration,
    /// How lists of memory are moved, unless the operation says
    /// ([`Options::lists`](crate::Options::lists)).
    pub lists: Lists,
    /// What [`Lists::Auto`] goes by.
    pub list_prices: ListPrices,
    /// Pieces that a list may have on either side.
    pub max_pieces: usize,
    /// Longest message and longest bulk transfer, in bytes.
    pub max_message: u64,
    /// How long connecting may take when the call gives no deadline, and how long a peer may take
    /// over its hello.
    pub connect_timeout: Duration,
    /// How long after its deadline, or after a cancel, an operation waits for the peer to let go of
    /// its memory before the connection is cut.
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
            pin_cache_entries: 4096,
            pin_cache_bytes: 1 << 30,
            pin_linger: Duration::from_millis(10),
            expose_groups: true,
            in_flight_bytes: 4 << 20,
            peer_in_flight_bytes: 2 << 20,
            stall_patience: Duration::from_millis(2),
            lists: Lists::Auto,
            list_prices: ListPrices::default(),
            max_pieces: BulkDescriptor::MAX_PIECES,
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
        within("peer_in_flight_bytes", self.peer_in_flight_bytes, 1, 1 << 40)?;
        within("max_peers", self.max_peers as u64, 1, 1 << 24)?;
        within("pin_cache_entries", self.pin_cache_entries as u64, 0, 1 << 24)?;
        within("pin_cache_bytes", self.pin_cache_bytes, 0, 1 << 62)?;
        within("max_pieces", self.max_pieces as u64, 1, 1 << 20)?;
        within("max_message", self.max_message, 1, 1 << 62)
    }
}
