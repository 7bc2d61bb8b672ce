//! The settings of an endpoint, in groups, with their defaults and the reasons for them.
//!
//! **Why groups.** A program reads and changes a few settings that belong together: flow control,
//! bounds, the cost of memory, or timeouts. The fields of a group can be read and assigned. A
//! setting can also be changed in a chain of calls; each call is named like its field. All types
//! are `#[non_exhaustive]`, so a new setting breaks no program.
//!
//! ```
//! use std::time::Duration;
//! use bmi_core::Config;
//!
//! let config = Config::named("replica-2").eager_limit(4 << 10).connect_timeout(Duration::from_secs(2));
//! assert_eq!(config.credits.eager_limit, 4096);
//! config.validate()?;
//! # Ok::<(), bmi_core::Error>(())
//! ```

use std::time::Duration;

use crate::error::{Error, ErrorKind};
use crate::identity::{Newcomer, PeerPolicy};
use crate::lists::Lists;
use crate::mem::MAX_PIECES;

/// The settings of an endpoint. Start from `Config::default()` or [`Config::named`].
///
/// [`Config::validate`] checks all values; [`Engine::new`](crate::Engine::new) calls it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// A name for logs and for the peer's errors, at most 64 bytes.
    pub name: String,
    /// The version of the program's own protocol. Both sides of a connection need the same:
    /// otherwise connecting ends with `Incompatible`, and the text names both. The default is 0.
    pub protocol: u32,
    /// Whom this endpoint lets in. The default lets in everybody whom the backend lets in.
    pub peer_policy: PeerPolicy,
    /// Limits on what each peer may have in flight to this endpoint.
    pub credits: CreditConfig,
    /// Bounds on peers, messages and transfers.
    pub limits: LimitConfig,
    /// Registration of memory, and how lists are moved.
    pub memory: MemoryConfig,
    /// Time limits.
    pub timeouts: TimeoutConfig,
    /// What no program has had a reason to change. Tests make it scarce.
    #[doc(hidden)]
    pub tuning: Tuning,
}

/// Flow control: limits on what each peer may have in flight to this endpoint. The memory for all
/// of it is allocated and registered for each connection.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreditConfig {
    /// Length of the longest eager message, in bytes. It is also the limit of unexpected messages.
    ///
    /// The default is 8 KiB. [PVFS-IB §6.5] sends up to 4 KiB of data inline. 8 KiB have room for a
    /// page of data and its request or reply in one message.
    pub eager_limit: usize,
    /// Receives posted for each connection, which are the peer's credits in messages. Each costs
    /// `eager_limit` bytes of memory and a header.
    ///
    /// Four more receives are reserved for credits. With them the default makes 128, the smallest
    /// receive queue that a transport may have. If there are fewer credits than two windows of a
    /// program's small messages, the two sides take turns: 64 credits halved the rate at a window
    /// of 64 (`bmi-perf here --test rate`).
    pub messages: u16,
    /// The peer's credits in bytes: the bytes that its messages which have arrived, but are not yet
    /// received, may take here.
    pub bytes: u32,
    /// Length of the longest message in a fast-RDMA slot, in bytes. The default has room for 64 KiB
    /// of data [PVFS-IB §6.5] and the request before it.
    pub fast_slot_bytes: usize,
}

/// Bounds on peers, messages and transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitConfig {
    /// Largest number of connections at a time, incoming and outgoing. Further peers are refused,
    /// unless `evict_idle_after` makes room. Each connection costs its slots, 1.3 MiB by default.
    /// Over TCP only the pages that messages have reached are resident, and only while the
    /// connection is in use. Over verbs all are pinned.
    pub max_peers: usize,
    /// If there are `max_peers` connections and another peer wants to connect, the incoming
    /// connection that was idle longest is closed, provided that it was idle for this long. A
    /// connection is idle if no message comes or goes, and neither an operation nor a message, an
    /// exposure or a [`Kept`](crate::Kept) belongs to it. `None` closes none, and is the default.
    ///
    /// While closed connections end, there may be an eighth more of them than `max_peers`.
    pub evict_idle_after: Option<Duration>,
    /// Length of the longest message and of the longest bulk transfer, in bytes.
    pub max_message: u64,
}

/// Registration of the program's memory, and how lists are moved.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// Bytes of memory that may stay registered after use. Memory that is longer than this is
    /// registered for each use.
    ///
    /// No other program can use pinned pages, so the owner of the machine should decide. The
    /// default of 1 GiB holds ten of the 100 MB requests of [PVFS-IB §4.2]. If the system allows
    /// less (`RLIMIT_MEMLOCK`), the adapter refuses a registration, and the cache makes room.
    pub pin_cache_bytes: u64,
    /// If true and registration has a cost, the pieces of one [`Memory`](crate::Memory) are exposed
    /// to a peer as one range, from the first piece to the last (group registration, [PVFS-IB §5]).
    /// There is then one key instead of one for each piece.
    ///
    /// The peer can then also access the gaps between the pieces, with the rights of the exposure,
    /// while the operation lasts. Set it to false if peers must not.
    pub expose_groups: bool,
    /// How lists of memory are moved, unless the operation sets
    /// [`Options::lists`](crate::Options::lists).
    pub lists: Lists,
}

/// Time limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimeoutConfig {
    /// The time for connecting if the call has no deadline, and the time for a peer to send its
    /// hello.
    pub connect: Duration,
    /// How long an operation waits, after its deadline or a cancel, until the peer no longer
    /// accesses its memory. Then the connection is cut.
    pub fence_grace: Duration,
    /// How long a server may use the memory of a call that has no deadline and was dropped before
    /// its reply (see [`comm::Call`](crate::comm::Call)), and how long a client may use memory of a
    /// server that has ended a move of the client early (see
    /// [`Incoming::fetch`](crate::comm::Incoming::fetch)). Afterwards the access is revoked, which
    /// ends the connection if the peer is at the memory.
    ///
    /// The default of 30 s is longer than a server should work for a client that names no time.
    pub dropped_call: Duration,
}

/// What no program has had a reason to change. The defaults are for a host of today, and tests set
/// others so that everything runs out often.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// Number of fast-RDMA slots that each peer may write into: at most 8, or 0 for none. They stay
    /// registered as long as the connection lasts.
    ///
    /// One is enough for a peer with one request outstanding [PVFS-IB §4.1.2]. With four, four
    /// requests can be on their way or in handling.
    pub fast_slots: u8,
    /// Largest number of pieces that a list may have, on either side.
    pub max_pieces: usize,
    /// Length of a transfer unit, in bytes. Bulk and rendezvous transfers are cut into units, which
    /// are interleaved.
    pub transfer_unit: usize,
    /// Bytes of bulk and rendezvous work that the adapter may have at a time, over all peers. On an
    /// adapter without service levels, this work is ahead of everything that is posted later. So it
    /// should be no more than keeps the adapter and the peers busy.
    pub in_flight_bytes: u64,
    /// As `in_flight_bytes`, for one peer. At least one unit is always allowed.
    pub peer_in_flight_bytes: u64,
    /// Number of registrations that the pin-down cache keeps after use. 0 keeps none.
    ///
    /// The default, 4096, is the number of pieces of a long list. So a list of separate buffers
    /// finds all of its registrations again. An adapter has room for a hundred thousand
    /// registrations and more.
    pub pin_cache_entries: usize,
    /// If no transfer of a peer has moved for this long, the peer no longer counts in
    /// `in_flight_bytes`. So it cannot halt the others.
    pub stall_patience: Duration,
}

impl Default for CreditConfig {
    fn default() -> CreditConfig {
        CreditConfig { eager_limit: 8 << 10, messages: 124, bytes: 1 << 20, fast_slot_bytes: (64 + 4) << 10 }
    }
}

impl Default for LimitConfig {
    fn default() -> LimitConfig {
        LimitConfig { max_peers: 16_384, evict_idle_after: None, max_message: 1 << 40 }
    }
}

impl Default for MemoryConfig {
    fn default() -> MemoryConfig {
        MemoryConfig { pin_cache_bytes: 1 << 30, expose_groups: true, lists: Lists::Auto }
    }
}

impl Default for TimeoutConfig {
    fn default() -> TimeoutConfig {
        TimeoutConfig {
            connect: Duration::from_secs(5),
            fence_grace: Duration::from_secs(1),
            dropped_call: Duration::from_secs(30),
        }
    }
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            fast_slots: 4,
            max_pieces: MAX_PIECES,
            transfer_unit: 256 << 10,
            in_flight_bytes: 4 << 20,
            peer_in_flight_bytes: 2 << 20,
            pin_cache_entries: 4096,
            stall_patience: Duration::from_millis(2),
        }
    }
}

/// Defines a setter for each setting: `name: Type => path.to.field`.
macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $type:ty => $($field:ident).+;)*) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub fn $name(mut self, $name: $type) -> Config {
                self.$($field).+ = $name;
                self
            }
        )*
    };
}

/// Setters. Each changes one setting and returns the settings, to be used in a chain.
impl Config {
    setters! {
        /// Sets [`Config::protocol`].
        protocol: u32 => protocol;
        /// Sets [`CreditConfig::eager_limit`], in bytes.
        eager_limit: usize => credits.eager_limit;
        /// Sets [`CreditConfig::messages`].
        credit_messages: u16 => credits.messages;
        /// Sets [`CreditConfig::bytes`].
        credit_bytes: u32 => credits.bytes;
        #[doc(hidden)]
        fast_slots: u8 => tuning.fast_slots;
        /// Sets [`CreditConfig::fast_slot_bytes`].
        fast_slot_bytes: usize => credits.fast_slot_bytes;
        /// Sets [`LimitConfig::max_peers`].
        max_peers: usize => limits.max_peers;
        /// Sets [`LimitConfig::evict_idle_after`].
        evict_idle_after: Option<Duration> => limits.evict_idle_after;
        #[doc(hidden)]
        max_pieces: usize => tuning.max_pieces;
        /// Sets [`LimitConfig::max_message`], in bytes.
        max_message: u64 => limits.max_message;
        #[doc(hidden)]
        transfer_unit: usize => tuning.transfer_unit;
        #[doc(hidden)]
        in_flight_bytes: u64 => tuning.in_flight_bytes;
        #[doc(hidden)]
        peer_in_flight_bytes: u64 => tuning.peer_in_flight_bytes;
        #[doc(hidden)]
        pin_cache_entries: usize => tuning.pin_cache_entries;
        /// Sets [`MemoryConfig::pin_cache_bytes`].
        pin_cache_bytes: u64 => memory.pin_cache_bytes;
        /// Sets [`MemoryConfig::expose_groups`].
        expose_groups: bool => memory.expose_groups;
        /// Sets [`MemoryConfig::lists`].
        lists: Lists => memory.lists;
        /// Sets [`TimeoutConfig::connect`].
        connect_timeout: Duration => timeouts.connect;
        /// Sets [`TimeoutConfig::fence_grace`].
        fence_grace: Duration => timeouts.fence_grace;
        #[doc(hidden)]
        stall_patience: Duration => tuning.stall_patience;
        /// Sets [`TimeoutConfig::dropped_call`].
        dropped_call: Duration => timeouts.dropped_call;
    }

    /// Sets [`Config::name`].
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Config {
        self.name = name.into();
        self
    }

    /// Sets [`Config::peer_policy`] to a function, see [`PeerPolicy`].
    #[must_use]
    pub fn admit(mut self, decide: impl Fn(&Newcomer<'_>) -> Result<(), String> + Send + Sync + 'static) -> Config {
        self.peer_policy = PeerPolicy::new(decide);
        self
    }
}

impl Config {
    /// Returns the default settings with a name.
    pub fn named(name: impl Into<String>) -> Config {
        Config::default().name(name)
    }

    /// Checks every value against its bounds.
    ///
    /// # Errors
    /// `Invalid`; the text names the setting, its value and the bounds.
    pub fn validate(&self) -> Result<(), Error> {
        let within = |setting: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(Error::new(ErrorKind::Invalid, format!("{setting} is {value}; it must be from {low} to {high}")))
        };
        let Config { name, protocol: _, peer_policy: _, credits, limits, memory, timeouts: _, tuning } = self;
        within("name's length", name.len() as u64, 0, 64)?;
        within("eager_limit", credits.eager_limit as u64, 256, 1 << 20)?;
        within("credit_messages", credits.messages.into(), 4, 4096)?;
        within("credit_bytes", credits.bytes.into(), 4 * (credits.eager_limit as u64 + 64), 1 << 30)?;
        within("fast_slots", tuning.fast_slots.into(), 0, 8)?;
        within("fast_slot_bytes", credits.fast_slot_bytes as u64, credits.eager_limit as u64, 16 << 20)?;
        within("transfer_unit", tuning.transfer_unit as u64, 4096, 1 << 30)?;
        within("in_flight_bytes", tuning.in_flight_bytes, tuning.transfer_unit as u64, 1 << 40)?;
        within("peer_in_flight_bytes", tuning.peer_in_flight_bytes, 1, 1 << 40)?;
        within("max_peers", limits.max_peers as u64, 1, 1 << 24)?;
        within("pin_cache_entries", tuning.pin_cache_entries as u64, 0, 1 << 24)?;
        within("pin_cache_bytes", memory.pin_cache_bytes, 0, 1 << 62)?;
        within("max_pieces", tuning.max_pieces as u64, 1, 1 << 20)?;
        within("max_message", limits.max_message, 1, 1 << 62)
    }
}
