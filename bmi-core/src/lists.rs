//! How lists of memory are moved: piece by piece where they lie, or packed into one piece first.
//!
//! **Why.** A chain of requests moves the pieces of two lists without a copy and ends in one
//! completion; but each request has its price, at both adapters and at the processor that posts it.
//! Copying has a price for each byte. Below some length of the pieces the copy is cheaper.
//!
//! **The rule** of [`Lists::Auto`]. Packing saves work requests and, where memory must be
//! registered, registrations; it costs a copy:
//!
//! ```text
//!   pack  if  requests saved × request_ns + registrations saved  >  bytes × copy_byte_ps / 1000 + pieces × copy_piece_ns
//! ```
//!
//! Who can save what:
//! - *Whoever pulls or pushes* sees the peer's list as it is: a request for each of its pieces.
//!   Packing the list here saves only the requests that are needed because a request has no more
//!   than [`Capabilities::max_segments`](crate::Capabilities::max_segments) entries: `pieces /
//!   max_segments` at most.
//! - *Whoever exposes* decides how many pieces the other side sees: packing saves all requests but
//!   one, and the pieces' description in the request.
//!
//! **Source.** [Quadrics-PVFS2 §3]: zero copy by a chain of RDMA with one event, against PVFS2's
//! packing and unpacking.

/// How lists of memory are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lists {
    /// What the prices make cheaper.
    #[default]
    Auto,
    /// Never copied: a chain of requests, of which only the last of a unit is signalled.
    Chain,
    /// Copied into, or out of, registered memory in one piece, wherever a list has more than one
    /// piece.
    Pack,
}

impl Lists {
    /// This one, or `other` if it leaves the choice.
    #[must_use]
    pub fn or(self, other: Lists) -> Lists {
        if self == Lists::Auto { other } else { self }
    }
}

/// What `Lists::Auto` goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListPrices {
    /// A work request more, at the processor that posts it and at both adapters, in ns.
    pub request_ns: u32,
    /// Copying a byte, in ps.
    pub copy_byte_ps: u32,
    /// Copying one more piece, whatever its length, in ns.
    pub copy_piece_ns: u32,
}

impl Default for ListPrices {
    /// Those of the simulator's default profile: 200 ns to post, 50 ns at each adapter; copying at
    /// 10 GB/s. A piece more costs a cache line that is not there, on both sides: some 20 ns.
    fn default() -> ListPrices {
        ListPrices { request_ns: 300, copy_byte_ps: 100, copy_piece_ns: 20 }
    }
}

impl ListPrices {
    /// Whether copying `bytes` in `pieces` costs less than `requests` work requests and
    /// `registering_ns` of registrations.
    pub fn packing_pays(&self, bytes: u64, pieces: u64, requests: u64, registering_ns: u64) -> bool {
        let saved = requests.saturating_mul(self.request_ns.into()).saturating_add(registering_ns);
        let copied = bytes.saturating_mul(self.copy_byte_ps.into()) / 1000;
        saved > copied.saturating_add(pieces.saturating_mul(self.copy_piece_ns.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_are_packed_and_large_ones_are_not() {
        let prices = ListPrices::default();
        let exposed = |len: u64| prices.packing_pays(1000 * len, 1000, 999, 0);
        assert!(exposed(64) && exposed(2048), "a request costs more than copying 2 KiB");
        assert!(!exposed(4096) && !exposed(1 << 20));
        assert!(!prices.packing_pays(0, 1, 0, 0), "nothing to save");
        assert!(prices.packing_pays(64 << 10, 1, 0, 100_000), "a registration saved");
    }
}
