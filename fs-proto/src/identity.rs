//! The identity of a server. A client that can reach a server over several transports compares
//! identities before it switches to another transport.
//!
//! **Why.** All machines of a cluster share one configuration, but a path or a device name in it
//! can mean something different on each machine. A client that finds a socket at the right path may
//! have found another server's socket. So the client asks for the identity over the connection that
//! it trusts and over the new one. Only the same instance of the same server gives the same answer.

use bmi_core::Addr;
use serde::{Deserialize, Deserializer, Serialize};

use crate::limits::{self, MAX_ADDR, MAX_ADDRS, MAX_HOST};

/// The role of a server in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// The manager.
    Manager,
    /// The I/O server that layouts refer to by this number.
    Iod(u32),
}

/// The identity of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The server's role in its cluster.
    pub role: Role,
    /// The machine that the server runs on, in a form that only processes of that machine know (the
    /// boot id of Linux). Empty if the server does not know it.
    #[serde(deserialize_with = "limits::text::<MAX_HOST, _>")]
    pub host: String,
    /// A number drawn at random when the server was started. Each start is a new instance.
    pub instance: u128,
    /// The addresses that the server listens on, at most [`MAX_ADDRS`]. The first is the one that
    /// it is known by.
    #[serde(deserialize_with = "addresses")]
    pub addrs: Vec<Addr>,
}

impl Identity {
    /// Returns true if `other` is the same start of the same server. The addresses are not
    /// compared.
    pub fn is_same(&self, other: &Identity) -> bool {
        (self.role, self.instance, &self.host) == (other.role, other.instance, &other.host)
    }

    /// Returns the identity with only as many addresses as fit into `room` bytes of an encoded
    /// reply.
    #[must_use]
    pub fn within(&self, room: usize) -> Identity {
        // Beside the addresses: version, variants, role, instance and lengths, each at its longest.
        let mut left = room.saturating_sub(self.host.len() + 48);
        let fits = |addr: &&Addr| {
            let needed = addr.to_string().len() + 2;
            let fits = needed <= left;
            left = left.saturating_sub(needed);
            fits
        };
        let addrs = self.addrs.iter().take(MAX_ADDRS).take_while(fits).cloned().collect();
        Identity { role: self.role, host: self.host.clone(), instance: self.instance, addrs }
    }
}

/// An address, as text on the wire. Parsing the address bounds the host; this type bounds the text
/// before it is copied.
#[derive(Deserialize)]
struct Text(#[serde(deserialize_with = "limits::text::<MAX_ADDR, _>")] String);

/// Deserializes at most `MAX` addresses.
pub(crate) fn bounded_addresses<'de, const MAX: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Addr>, D::Error> {
    let texts = limits::bounded::<MAX, Text, D>(deserializer)?;
    texts.into_iter().map(|text| text.0.parse().map_err(serde::de::Error::custom)).collect()
}

fn addresses<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Addr>, D::Error> {
    bounded_addresses::<MAX_ADDRS, D>(deserializer)
}
