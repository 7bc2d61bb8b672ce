//! How lists of memory are moved: piece by piece, or packed into one piece first.
//!
//! **Why.** A chain of requests moves the pieces of two lists without a copy and ends in one
//! completion. But each request has a cost, at both adapters and at the processor that posts it.
//! Copying has a cost for each byte. Below some piece length the copy is cheaper.
//!
//! **The rule** of [`Lists::Auto`]. Packing saves work requests. It also saves registrations where
//! memory must be registered. It costs a copy:
//!
//! ```text
//!   pack if requests saved × request_ns + registrations saved  >  bytes × copy_byte_ps / 1000 + pieces × copy_piece_ns
//! ```
//!
//! How much each side can save:
//! - *The side that pulls or pushes* sees the peer's list unpacked. It needs a request for each of
//!   the peer's pieces. Packing its own list saves only the requests needed because a request has
//!   no more than [`Capabilities::max_segments`](crate::Capabilities::max_segments) entries. These
//!   are `pieces / max_segments` at most.
//! - *The side that exposes* decides how many pieces the other side sees. Packing saves all
//!   requests but one, and the descriptions of the pieces in the request.
//!
//! **Three schemes.** With the same setting on both sides:
//!
//! | setting | exposed list | list of the side that pulls or pushes | the paper's |
//! |---|---|---|---|
//! | [`Lists::Chain`] | piece by piece | piece by piece | zero copy |
//! | [`Lists::PackExposed`] | packed | piece by piece | IB-LIO |
//! | [`Lists::Pack`] | packed | packed | packing and unpacking |
//!
//! An adapter that gathers for an RDMA write and scatters for an RDMA read, but knows one remote
//! range for each request, saves the copy on its own side and not on the other.
//!
//! **Exceptions.** A message that is announced exposes its pieces as they are, if there is room to
//! describe them. Where the client of a call moves the data, the server's memory is not packed.
//!
//! **Source.** [Quadrics-PVFS2 §3]: zero copy by a chain of RDMA operations with one event,
//! compared with the packing and unpacking of PVFS2. [Quadrics-PVFS2 §4.2]: scatter and gather of
//! one side, by PVFS2 over InfiniBand.

/// How lists of memory are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Lists {
    /// The method that is cheaper according to the prices.
    #[default]
    Auto,
    /// Never copied. Uses a chain of requests, of which only the last of a transfer unit is
    /// signalled.
    Chain,
    /// Copied into, or out of, registered memory in one piece, whenever a list has more than one
    /// piece.
    Pack,
    /// Copied as for `Pack` on the side that exposes its list, and never on the side that pulls or
    /// pushes: packing on one side.
    PackExposed,
}

impl Lists {
    /// Returns this method, or `other` if this one is `Auto`.
    #[must_use]
    pub fn or(self, other: Lists) -> Lists {
        if self == Lists::Auto { other } else { self }
    }

    /// Returns true if copying `bytes` in `pieces` costs less than `requests` work requests plus
    /// `registering_ns` of registrations. `Lists::Auto` decides by it.
    pub fn packing_pays(bytes: u64, pieces: u64, requests: u64, registering_ns: u64) -> bool {
        let saved = requests.saturating_mul(REQUEST_NS).saturating_add(registering_ns);
        let copied = bytes.saturating_mul(COPY_BYTE_PS) / 1000;
        saved > copied.saturating_add(pieces.saturating_mul(COPY_PIECE_NS))
    }
}

// The prices of the simulator's default profile: 200 ns to post, 50 ns at each adapter, and copying
// at 10 GB/s. One more piece costs a cache miss on each side.

/// Cost of one more work request, at the processor that posts it and at both adapters, in ns.
const REQUEST_NS: u64 = 300;
/// Cost of copying a byte, in ps.
const COPY_BYTE_PS: u64 = 100;
/// Cost of copying one more piece, whatever its length, in ns.
const COPY_PIECE_NS: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_pieces_are_packed_and_large_ones_are_not() {
        let exposed = |len: u64| Lists::packing_pays(1000 * len, 1000, 999, 0);
        assert!(exposed(64) && exposed(2048), "a request costs more than copying 2 KiB");
        assert!(!exposed(4096) && !exposed(1 << 20));
        assert!(!Lists::packing_pays(0, 1, 0, 0), "nothing to save");
        assert!(Lists::packing_pays(64 << 10, 1, 0, 100_000), "a registration saved");
    }
}
