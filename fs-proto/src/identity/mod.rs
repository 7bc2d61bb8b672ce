//! The identity of a server, and the question that opens every connection.
//!
//! **Why.** Addresses lead to the wrong server more easily than one would think. A port is given to
//! another cluster, a path in the shared configuration is another server's socket on this machine,
//! two data directories are swapped, or a directory is restored from an old copy. Handles do not
//! tell: they are numbers, and those of two clusters can be equal. So the first request on every
//! connection is a [`Hello`]. It names the server that the sender expects. A server that is another
//! one refuses it and serves nothing on that connection.
//!
//! **Invariants**
//! 1. A server answers no other request before it has accepted a Hello on the connection.
//! 2. Cluster, role and store of the two sides match wherever both know them.
//! 3. A server is never older than what the sender has seen of it: see [`Start`].
//! 4. The instance is not part of the match. It tells starts apart, and it shows that two routes
//!    lead to the same server.

mod access;
mod caller;
mod claims;
mod own;
mod ticket;

use std::fmt;

use bmi::Addr;
use bmi::hooks::mutated;
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{ErrorCode, FsError};
use crate::limits::{self, MAX_ADDR, MAX_ADDRS, MAX_HOST};

pub use access::Access;
pub use caller::{BadName, Caller, Ids, NOBODY, Span};
pub use claims::{Claims, Duty, Holder, Speaker};
pub use own::{user_folder, user_transports};
pub use ticket::{Grant, HolderDigest, MAX_REVOKED, Name, Tag, Ticket, TicketKey, TicketNews};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            /// Parses 32 hexadecimal digits.
            fn from_str(text: &str) -> Result<$name, String> {
                let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
                number.map($name).ok_or_else(|| format!("{text:?} is not a number of 32 hexadecimal digits"))
            }
        }
    };
}

number!(
    /// The number of a cluster, drawn at random when it is formatted. Printed as 32 hexadecimal
    /// digits.
    ClusterId
);
number!(
    /// The number of a store: one data directory of one server. Drawn at random when the directory
    /// is first used. Printed as 32 hexadecimal digits.
    StoreId
);

/// The role of a server in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// The manager.
    Manager,
    /// The I/O server that layouts refer to by this number.
    Iod(u32),
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Manager => f.write_str("the manager"),
            Role::Iod(number) => write!(f, "iod {number}"),
        }
    }
}

/// One start of a server. A store counts its starts, and the count is part of the store. So a store
/// that was copied back has a lower count than the one that others have seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Start {
    /// The number of this start of the store, from 1.
    pub epoch: u64,
    /// A number drawn at random at this start. Two starts with the same epoch are those of two
    /// copies.
    pub instance: u128,
}

impl Start {
    /// Returns true if this start can follow `seen`: it is the same start or one with a higher
    /// epoch. Otherwise the store has gone back in time.
    pub fn may_follow(&self, seen: &Start) -> bool {
        self == seen || self.epoch > seen.epoch
    }
}

impl fmt::Display for Start {
    /// Prints the epoch, a hyphen, and the instance as 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:032x}", self.epoch, self.instance)
    }
}

impl std::str::FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Start, String> {
        let start = text.split_once('-').and_then(|(epoch, instance)| {
            Some(Start { epoch: epoch.parse().ok()?, instance: instance.parse::<StoreId>().ok()?.0 })
        });
        start.ok_or_else(|| format!("{text:?} is not a start: an epoch, a hyphen, and 32 hexadecimal digits"))
    }
}

/// The sender of a [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sender {
    /// A client.
    Client,
    /// A server of the cluster, with its current start.
    Server(Role, Start),
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sender::Client => f.write_str("a client"),
            Sender::Server(role, _) => role.fmt(f),
        }
    }
}

/// The first request on a connection: the server that the sender expects. Answered by
/// [`crate::ReplyBody::Identity`], or by `WrongServer`; by `Busy` if the server does not serve yet,
/// because the manager has not confirmed its store; by `OutOfDate`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The cluster. `None` if the sender does not know it yet.
    pub cluster: Option<ClusterId>,
    /// The role of the server.
    pub role: Role,
    /// The server's store. `None` if the sender does not know it yet.
    pub store: Option<StoreId>,
    /// The newest start of the server that the sender has seen.
    pub seen: Option<Start>,
    /// The sender.
    pub sender: Sender,
    /// For whom requests over the connection are made that do not say it themselves.
    pub caller: Caller,
}

impl Hello {
    /// Creates a Hello of a client, for root, to a server of which it knows only the role.
    pub fn to(role: Role) -> Hello {
        Hello { cluster: None, role, store: None, seen: None, sender: Sender::Client, caller: Caller::ROOT }
    }
}

/// The identity of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The server's cluster.
    pub cluster: ClusterId,
    /// The server's role in its cluster.
    pub role: Role,
    /// The server's store.
    pub store: StoreId,
    /// The current start of the server.
    pub start: Start,
    /// The machine that the server runs on, in a form that only processes of that machine know (the
    /// boot id of Linux). Empty if the server does not know it.
    #[serde(deserialize_with = "limits::text::<MAX_HOST, _>")]
    pub host: String,
    /// The addresses that the server listens on, at most [`MAX_ADDRS`]. The first is the one that
    /// it is known by.
    #[serde(deserialize_with = "addresses")]
    pub addrs: Vec<Addr>,
}

impl Identity {
    /// Returns true if `other` is the same start of the same server. The addresses are not
    /// compared.
    pub fn is_same(&self, other: &Identity) -> bool {
        (self.cluster, self.role, self.store, self.start, &self.host)
            == (other.cluster, other.role, other.store, other.start, &other.host)
    }

    /// Checks that this is the server that `hello` expects.
    ///
    /// # Errors
    /// `WrongServer`; `OutOfDate` if it is the expected server, but has gone back in time. The text
    /// names both sides.
    pub fn check(&self, hello: &Hello) -> Result<(), FsError> {
        let wrong = |text: String| Err(FsError::new(ErrorCode::WrongServer, text));
        let Identity { cluster, role, store, start, .. } = self;
        if mutated("identity/any-server-is-accepted") {
            return Ok(());
        }
        if let Some(expected) = hello.cluster
            && expected != *cluster
        {
            return wrong(format!(
                "this is {role} of cluster {cluster}; {} expects {} of cluster {expected}",
                hello.sender, hello.role
            ));
        }
        if hello.role != *role {
            return wrong(format!("this is {role} of cluster {cluster}; {} expects {}", hello.sender, hello.role));
        }
        if let Some(expected) = hello.store
            && expected != *store
        {
            return wrong(format!("this is {role} with store {store}; {} expects store {expected}", hello.sender));
        }
        match &hello.seen {
            Some(seen) if !start.may_follow(seen) => {
                let text = format!(
                    "this is start {} of {role}, store {store}; {} has seen start {}: the store has gone back in time",
                    start.epoch, hello.sender, seen.epoch
                );
                Err(FsError::new(ErrorCode::OutOfDate, text))
            }
            _ => Ok(()),
        }
    }

    /// Returns the identity with only as many addresses as fit into `room` bytes of an encoded
    /// reply.
    #[must_use]
    pub fn within(&self, room: usize) -> Identity {
        // Beside the addresses: version, variants, the numbers and lengths, each at its longest.
        let mut left = room.saturating_sub(self.host.len() + 96);
        let fits = |addr: &&Addr| {
            let needed = addr.to_string().len() + 2;
            let fits = needed <= left;
            left = left.saturating_sub(needed);
            fits
        };
        let addrs = self.addrs.iter().take(MAX_ADDRS).take_while(fits).cloned().collect();
        Identity { addrs, host: self.host.clone(), ..*self }
    }
}

/// An address, as text on the wire. Parsing the address bounds the host; this type bounds the text
/// before it is copied.
#[derive(Deserialize)]
struct Text(#[serde(deserialize_with = "limits::text::<MAX_ADDR, _>")] String);

/// Deserializes an address.
pub(crate) fn one_address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Addr, D::Error> {
    Text::deserialize(deserializer)?.0.parse().map_err(serde::de::Error::custom)
}

/// Deserializes at most [`MAX_ADDRS`] addresses.
fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Addr>, D::Error> {
    let texts = limits::bounded::<MAX_ADDRS, Text, D>(deserializer)?;
    texts.into_iter().map(|text| text.0.parse().map_err(serde::de::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            cluster: ClusterId(7),
            role: Role::Iod(1),
            store: StoreId(11),
            start: Start { epoch: 5, instance: 50 },
            host: String::new(),
            addrs: Vec::new(),
        }
    }

    #[test]
    fn a_server_is_the_expected_one_or_an_error_names_both() {
        let full = Hello {
            cluster: Some(ClusterId(7)),
            store: Some(StoreId(11)),
            seen: Some(Start { epoch: 4, instance: 40 }),
            ..Hello::to(Role::Iod(1))
        };
        assert_eq!(identity().check(&full), Ok(()));
        assert_eq!(identity().check(&Hello::to(Role::Iod(1))), Ok(()), "what is not known is not compared");
        let (seven, eight) = (ClusterId(7).to_string(), ClusterId(8).to_string());
        let cases = [
            (Hello { cluster: Some(ClusterId(8)), ..full.clone() }, [seven.as_str(), eight.as_str()]),
            (Hello { role: Role::Iod(2), ..full.clone() }, ["iod 1", "iod 2"]),
            (Hello { role: Role::Manager, ..full.clone() }, ["iod 1", "the manager"]),
            (Hello { store: Some(StoreId(12)), ..full.clone() }, ["0000000b", "0000000c"]),
            (Hello { seen: Some(Start { epoch: 6, instance: 60 }), ..full.clone() }, ["start 5", "start 6"]),
            (Hello { seen: Some(Start { epoch: 5, instance: 51 }), ..full.clone() }, ["start 5", "back in time"]),
        ];
        for (hello, both) in cases {
            let error = identity().check(&hello).unwrap_err();
            let code = if hello.seen == full.seen { ErrorCode::WrongServer } else { ErrorCode::OutOfDate };
            assert_eq!(error.code, code);
            assert!(both.iter().all(|side| error.detail.contains(side)), "{error}");
        }
    }

    #[test]
    fn numbers_are_read_as_they_are_printed() {
        let cluster = ClusterId(0x9f0c);
        assert_eq!(cluster.to_string().parse(), Ok(cluster));
        let start = Start { epoch: 12, instance: 0xab };
        assert_eq!(start.to_string().parse(), Ok(start));
        assert!("12".parse::<Start>().is_err() && "-12".parse::<Start>().is_err());
        assert!("9f0c".parse::<ClusterId>().is_err());
        assert!(format!("+{}", "0".repeat(31)).parse::<StoreId>().is_err());
    }
}
