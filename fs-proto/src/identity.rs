//! Who a server is: what a client that may reach it in several ways compares before it takes
//! another way than the first.
//!
//! **Why.** A configuration is shared by all machines of a cluster, and a path or a device name in
//! it means something else on each. A client that finds a socket at the right path may have found
//! another server's. So it asks, both over the connection that it trusts and over the new one; only
//! the same instance of the same server has the same answer.

use bmi_core::Addr;
use serde::{Deserialize, Deserializer, Serialize};

use crate::limits::{self, MAX_ADDR, MAX_ADDRS, MAX_HOST};

/// What a server is in its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Role {
    /// The manager.
    Manager,
    /// The I/O server that layouts count by this number.
    Iod(u32),
}

/// Who a server is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// What it is in its cluster.
    pub role: Role,
    /// The machine that it runs on, in a form that only its own processes share (the boot id of
    /// Linux); empty if it does not know.
    #[serde(deserialize_with = "limits::text::<MAX_HOST, _>")]
    pub host: String,
    /// Drawn at random when it was started: another start is another instance.
    pub instance: u128,
    /// Where it listens, at most [`MAX_ADDRS`], the one that it is known by first.
    #[serde(deserialize_with = "addresses")]
    pub addrs: Vec<Addr>,
}

impl Identity {
    /// Whether `other` is the same start of the same server. Where it listens does not matter.
    pub fn is_same(&self, other: &Identity) -> bool {
        (self.role, self.instance, &self.host) == (other.role, other.instance, &other.host)
    }

    /// With as many addresses as `room` bytes of an encoded reply take.
    #[must_use]
    pub fn within(&self, room: usize) -> Identity {
        // Beside the addresses: version, variants, role, instance, and lengths, each at its
        // longest.
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

/// An address is text on the wire; its own check bounds the host, this the text before it is
/// copied.
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
