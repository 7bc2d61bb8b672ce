//! The addresses of one transport. An address has a text and, while there is one, a connection.
//!
//! **Life.** An address that was looked up stays, with its number, until it is dropped. It connects
//! when something is posted to it, and again after a connection was lost. A peer that connected to
//! this side gets a number with its first unexpected message. It keeps that number while its
//! connection lives; a later connection of the same peer is another number. Of such addresses whose
//! connection is gone, the last [`LOST`] are still known, and those that the program counts.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;

use bmi::polled::Engine;
use bmi::{Addr, Options, PeerId};

use crate::handle::{Key, Table};
use crate::number::{Number, Outcome};

/// Addresses of lost peers that are still known.
const LOST: usize = 1024;

pub(crate) struct Address {
    pub(crate) addr: Addr,
    /// What the program looked up, or the text of `addr`.
    pub(crate) text: CString,
    /// The host alone.
    pub(crate) host: CString,
    pub(crate) peer: Option<PeerId>,
    /// The peer connected to this side, so that this side cannot connect again.
    incoming: bool,
    /// What the program has counted up.
    counted: i64,
    /// Something was sent, and nothing has come since.
    pub(crate) awaits: bool,
}

pub(crate) struct Addresses {
    table: Table<Address>,
    by_peer: HashMap<PeerId, Key>,
    by_text: HashMap<CString, Key>,
    /// Incoming ones without a connection, the oldest first.
    lost: VecDeque<Key>,
}

impl Addresses {
    pub(crate) fn new() -> Addresses {
        Addresses { table: Table::new(), by_peer: HashMap::new(), by_text: HashMap::new(), lost: VecDeque::new() }
    }

    pub(crate) fn get(&self, key: Key) -> Outcome<&Address> {
        self.table.get(key).ok_or(Number::EPROTO)
    }

    /// Returns the address of a text that was looked up before.
    pub(crate) fn of_text(&self, text: &CString) -> Option<Key> {
        self.by_text.get(text).copied()
    }

    /// Adds an address that the program looks up.
    pub(crate) fn add(&mut self, text: CString, addr: Addr) -> Key {
        let key = self.insert(text.clone(), addr, None, false);
        self.by_text.insert(text, key);
        key
    }

    fn insert(&mut self, text: CString, addr: Addr, peer: Option<PeerId>, incoming: bool) -> Key {
        let host = CString::new(addr.host()).unwrap_or_default();
        self.table.insert(Address { addr, text, host, peer, incoming, counted: 0, awaits: false })
    }

    /// Returns the address of a peer that has sent an unexpected message, and counts it if
    /// `counts`.
    pub(crate) fn of_peer(&mut self, peer: PeerId, engine: &Engine, counts: bool) -> Key {
        let known = self.by_peer.get(&peer).copied();
        let key = known.unwrap_or_else(|| {
            // A peer that is lost by now has a text for a while.
            let addr = engine.peer_addr(peer).unwrap_or_else(|| Addr::shm("/unknown"));
            let is_there = engine.limits(peer).is_some();
            let text = CString::new(addr.to_string()).unwrap_or_default();
            let key = self.insert(text, addr, is_there.then_some(peer), true);
            match is_there {
                true => drop(self.by_peer.insert(peer, key)),
                false => self.keep_lost(key),
            }
            key
        });
        if let Some(address) = self.table.get_mut(key) {
            address.awaits = false;
            address.counted += i64::from(counts);
        }
        key
    }

    /// Notes that a message was sent to an address, or has come from it.
    #[inline]
    pub(crate) fn note(&mut self, key: Key, sent: bool) {
        if let Some(address) = self.table.get_mut(key) {
            address.awaits = sent;
        }
    }

    /// Returns true if a peer that is connected may not have taken what was sent last.
    pub(crate) fn await_one(&self) -> bool {
        let awaits = |key: &Key| self.table.get(*key).is_some_and(|address| address.awaits);
        self.by_peer.values().any(awaits)
    }

    /// Returns the peer of an address, and connects if there is none.
    #[inline]
    pub(crate) fn connected(&mut self, key: Key, engine: &mut Engine) -> Outcome<PeerId> {
        let address = self.table.get_mut(key).ok_or(Number::EPROTO)?;
        if let Some(peer) = address.peer {
            return Ok(peer);
        }
        if address.incoming {
            return Err(Number::ECONNRESET);
        }
        let (peer, _) = engine.connect(&address.addr, Options::default())?;
        address.peer = Some(peer);
        self.by_peer.insert(peer, key);
        Ok(peer)
    }

    /// Notes that a connection is gone.
    pub(crate) fn lose(&mut self, peer: PeerId) {
        let Some(key) = self.by_peer.remove(&peer) else { return };
        let Some(address) = self.table.get_mut(key) else { return };
        address.peer = None;
        if address.incoming {
            self.keep_lost(key);
        }
    }

    fn keep_lost(&mut self, key: Key) {
        self.lost.push_back(key);
        if self.lost.len() > LOST
            && let Some(oldest) = self.lost.pop_front()
            && self.table.get(oldest).is_some_and(|address| address.counted <= 0)
        {
            self.table.remove(oldest);
        }
    }

    /// Counts an address up or down. One that is counted down to 0 is dropped if its peer cannot
    /// come back.
    pub(crate) fn count(&mut self, key: Key, by: i64) -> Outcome<()> {
        let address = self.table.get_mut(key).ok_or(Number::EINVAL)?;
        if address.counted + by < 0 {
            return Err(Number::EINVAL);
        }
        address.counted += by;
        if address.counted == 0 && address.incoming && address.peer.is_none() {
            self.table.remove(key);
        }
        Ok(())
    }

    /// Drops an address. Returns its peer.
    pub(crate) fn remove(&mut self, key: Key) -> Outcome<Option<PeerId>> {
        let address = self.table.remove(key).ok_or(Number::EINVAL)?;
        self.by_text.remove(&address.text);
        if let Some(peer) = address.peer {
            self.by_peer.remove(&peer);
        }
        Ok(address.peer)
    }

    /// Returns the peers that are connected.
    pub(crate) fn peers(&self) -> Vec<PeerId> {
        self.by_peer.keys().copied().collect()
    }
}

/// Returns the addresses of a text, which may have several, separated by commas. BMI writes
/// `ib://host:port`, which has no adapter of this host.
pub(crate) fn parse(text: &str) -> impl Iterator<Item = Outcome<Addr>> {
    text.split(',').map(|one| {
        let one = one.trim();
        let addr = match one.strip_prefix("ib://") {
            Some(rest) if !rest.contains('/') => format!("ib:///{rest}").parse(),
            _ => one.parse::<Addr>(),
        };
        addr.map_err(Number::from)
    })
}

/// Returns whether a host is in a range: `tcp://10.1.*`, or a network and the number of the bits of
/// its mask. With `netmask` -1 the range has a star, or fewer parts than an address.
pub(crate) fn in_range(host: &str, range: &str, netmask: i32) -> Outcome<bool> {
    let host: std::net::Ipv4Addr = host.parse().map_err(|_| Number::EINVAL)?;
    if netmask == -1 {
        let parts: Vec<_> = range.split('.').filter(|part| !part.is_empty()).collect();
        if parts.len() > 4 {
            return Err(Number::EINVAL);
        }
        let mut matches = true;
        for (part, octet) in parts.iter().zip(host.octets()) {
            matches &= *part == "*" || part.parse::<u8>().map_err(|_| Number::EINVAL)? == octet;
        }
        return Ok(matches);
    }
    let network: std::net::Ipv4Addr = range.parse().map_err(|_| Number::EINVAL)?;
    let bits = u32::try_from(netmask).ok().filter(|bits| *bits <= 32).ok_or(Number::EINVAL)?;
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    Ok((host.to_bits() ^ network.to_bits()) & mask == 0)
}
