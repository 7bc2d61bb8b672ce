//! Tickets: what a client shows to the I/O servers of a file that it has opened at the manager.
//!
//! **Why.** The manager knows modes and owners, and the I/O servers do not. Asking it for each
//! access would put it into the data path. So it says once what a client may do with a file, and
//! the servers check that by themselves.
//!
//! **Protocol**
//!
//! ```text
//!   manager   draws a key for each epoch ──── with each registration ────▶ I/O servers: the last two keys
//!   client    opens a file ──▶ manager: a Grant, with a tag for each datafile
//!             reads, writes ─▶ I/O server: the ticket of the datafile, until one was accepted on this
//!                              connection. From then on the connection has the right.
//! ```
//!
//! **Layout** of what a tag is made of: one block of BLAKE3, keyed with the key of the epoch. All
//! numbers are little-endian.
//!
//! ```text
//!   0      8       16        24      25         32                      64
//!   │epoch │ number │ datafile │rights│ 7 zeros  │ BLAKE3 of the holder    │     tag: the first 16 bytes
//! ```
//!
//! **Invariants**
//! 1. Who has no key makes no ticket, for no other file, right, holder or epoch than he was given.
//! 2. A tag is compared in a time that does not depend on it.
//! 3. The number says when the ticket was made. Servers accept none that is older than the manager
//!    says; what was accepted before stays.
//!
//! **Tests.** Here: a ticket is good for what it says, and a change of any bit is found. The check
//! at a server is in `fs-server/src/iod/gate.rs`.

use std::fmt;

use bmi::hooks::mutated;
use constant_time_eq::constant_time_eq;
use serde::{Deserialize, Serialize};

use crate::distribution::Layout;
use crate::handle::DatafileHandle;
use crate::limits::{self, MAX_SERVERS};

use super::access::Access;

/// Bytes of a tag.
const TAG: usize = 16;

/// The proof in a ticket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tag([u8; TAG]);

/// Nobody reads it in a log.
impl fmt::Debug for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tag(..)")
    }
}

/// Whom a ticket is for: a digest of the name that the servers know him by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderDigest([u8; 32]);

impl HolderDigest {
    /// Returns the digest of a name.
    pub fn of(name: &str) -> HolderDigest {
        HolderDigest(*blake3::hash(name.as_bytes()).as_bytes())
    }
}

/// The key of an epoch. Only the manager and the I/O servers have it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketKey {
    /// The epoch. Later ones have higher numbers, also those of the manager's next start.
    pub epoch: u64,
    key: [u8; 32],
}

/// Nobody reads it in a log.
impl fmt::Debug for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TicketKey({}, ..)", self.epoch)
    }
}

/// What a manager tells an I/O server of tickets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketNews {
    /// The key of this epoch.
    pub key: TicketKey,
    /// The key of the one before, if this start of the manager had one.
    pub earlier: Option<TicketKey>,
    /// A ticket with a smaller number is too old to be shown for the first time.
    pub floor: u64,
    /// The names of holders who were shut out.
    #[serde(deserialize_with = "limits::bounded::<MAX_REVOKED, _, _>")]
    pub revoked: Vec<Name>,
}

/// The most holders that are shut out by name. Beyond that, certificates are revoked.
pub const MAX_REVOKED: usize = 64;
/// Longest name of a holder: `pvfs:user/` and 64 characters.
const MAX_HOLDER: usize = 80;

/// The name of a holder, bounded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name(#[serde(deserialize_with = "limits::text::<MAX_HOLDER, _>")] pub String);

/// Tickets for all datafiles of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    epoch: u64,
    number: u64,
    access: Access,
    /// In the order of the layout.
    #[serde(deserialize_with = "limits::bounded::<MAX_SERVERS, _, _>")]
    tags: Vec<Tag>,
}

impl Grant {
    /// Returns the ticket for each datafile of the file that this was granted for.
    pub fn tickets(&self, layout: &Layout) -> Vec<(DatafileHandle, Ticket)> {
        let Grant { epoch, number, access, ref tags } = *self;
        let both = layout.datafiles().iter().zip(tags);
        both.map(|((_, datafile), tag)| (*datafile, Ticket { epoch, number, access, tag: *tag })).collect()
    }
}

/// The right to a datafile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The epoch of its key.
    pub epoch: u64,
    /// The count of tickets when it was made.
    pub number: u64,
    /// What it allows: to read, to write, or both.
    pub access: Access,
    /// The proof.
    pub tag: Tag,
}

impl TicketKey {
    /// Makes the key of an epoch from a secret of a start of the manager, which no other start has.
    pub fn of(secret: &[u8; 32], epoch: u64) -> TicketKey {
        TicketKey { epoch, key: *blake3::keyed_hash(secret, &epoch.to_le_bytes()).as_bytes() }
    }

    /// Makes tickets for all datafiles of a file.
    pub fn grant(&self, number: u64, access: Access, layout: &Layout, holder: &HolderDigest) -> Grant {
        let access = access.within(Access::BOTH);
        let tags = layout.datafiles().iter().map(|(_, datafile)| self.tag(number, access, *datafile, holder));
        Grant { epoch: self.epoch, number, access, tags: tags.collect() }
    }

    /// Returns true if a ticket was made with this key, for this datafile and holder.
    pub fn made(&self, ticket: &Ticket, datafile: DatafileHandle, holder: &HolderDigest) -> bool {
        let Tag(tag) = self.tag(ticket.number, ticket.access, datafile, holder);
        let len = if mutated("fs/tags-compared-in-part") { 1 } else { TAG };
        ticket.epoch == self.epoch && constant_time_eq(&tag[..len], &ticket.tag.0[..len])
    }

    fn tag(&self, number: u64, access: Access, datafile: DatafileHandle, holder: &HolderDigest) -> Tag {
        let mut block = [0; 64];
        block[..8].copy_from_slice(&self.epoch.to_le_bytes());
        block[8..16].copy_from_slice(&number.to_le_bytes());
        block[16..24].copy_from_slice(&datafile.0.to_le_bytes());
        block[24] = access.into();
        block[32..].copy_from_slice(&holder.0);
        let mut tag = [0; TAG];
        tag.copy_from_slice(&blake3::keyed_hash(&self.key, &block).as_bytes()[..TAG]);
        Tag(tag)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::distribution::Distribution;

    fn layout(first: u64) -> Layout {
        let datafiles = (0..3).map(|iod| (iod, DatafileHandle(first + u64::from(iod)))).collect();
        Layout::new(Distribution::simple_stripe(4096, 3).unwrap(), datafiles).unwrap()
    }

    #[test]
    fn a_ticket_is_good_for_its_datafile_its_holder_and_its_epoch() {
        let (key, anna) = (TicketKey::of(&[7; 32], 5), HolderDigest::of("pvfs:user/anna"));
        let grant = key.grant(9, Access::READ.and(Access::SEARCH), &layout(40), &anna);
        let tickets = grant.tickets(&layout(40));
        assert_eq!(tickets.iter().map(|(datafile, _)| datafile.0).collect::<Vec<_>>(), [40, 41, 42]);
        for (datafile, ticket) in &tickets {
            assert!(key.made(ticket, *datafile, &anna) && ticket.access == Access::READ);
            assert!(!key.made(ticket, DatafileHandle(datafile.0 + 1), &anna));
            assert!(!key.made(ticket, *datafile, &HolderDigest::of("pvfs:user/ann")));
            assert!(!key.made(&Ticket { access: Access::BOTH, ..*ticket }, *datafile, &anna));
            assert!(!key.made(&Ticket { number: 10, ..*ticket }, *datafile, &anna), "nor is it made younger");
            for other in [TicketKey::of(&[7; 32], 6), TicketKey::of(&[8; 32], 5)] {
                assert!(!other.made(ticket, *datafile, &anna));
                assert!(!other.made(&Ticket { epoch: 6, ..*ticket }, *datafile, &anna));
            }
        }
    }

    #[test]
    fn nothing_secret_is_printed() {
        let key = TicketKey::of(&[0xab; 32], 5);
        let (_, ticket) = key.grant(1, Access::READ, &layout(1), &HolderDigest::of("x")).tickets(&layout(1))[0];
        assert_eq!(format!("{key:?}"), "TicketKey(5, ..)");
        assert!(format!("{ticket:?}").ends_with("tag: Tag(..) }"));
    }

    proptest! {
        /// Whatever bit is changed, of the tag or of what it says.
        #[test]
        fn a_changed_ticket_is_not_good(byte in 0..TAG, bit in 0..8u8, secret in any::<[u8; 32]>()) {
            let (key, anna) = (TicketKey::of(&secret, 5), HolderDigest::of("pvfs:user/anna"));
            let grant = key.grant(9, Access::BOTH, &layout(40), &anna);
            let (datafile, ticket) = grant.tickets(&layout(40))[0];
            let mut tag = ticket.tag;
            tag.0[byte] ^= 1 << bit;
            let changed = Ticket { tag, ..ticket };
            prop_assert!(!key.made(&changed, datafile, &anna));
        }
    }
}
