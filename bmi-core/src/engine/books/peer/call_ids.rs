//! The ids of calls, and the messages of calls that are over.
//!
//! **Why.** A caller may give up before the reply arrives: at its deadline, or because its future
//! was dropped. If a later call had the same id, it would receive the late reply, and with it the
//! wrong data. If nothing knew that the call is over, the reply would be parked until the
//! connection ends, and would keep its credits. So the endpoint draws the ids, one name space for
//! each connection, and drops what arrives for an id that is not in use.
//!
//! **Layout** of an id. It is the tag of every message of the call, in both directions:
//!
//! ```text
//!   63   62        61 ... 20    19 ... 0
//!  +----+--------+------------+---------+
//!  | 1  | drawer | generation | place   |
//!  +----+--------+------------+---------+
//!  drawer: 1 if the side that accepted the connection makes the call, 0 if the other side does
//! ```
//!
//! A program's tag has 0 in bit 63 ([`MAX_TAG`]).
//!
//! **Invariants**
//! 1. An id names one call. A place gets a new generation for each call, so an id repeats only
//!    after 2^41 calls at one place.
//! 2. The caller posts its receive before the request leaves, and the server posts its receive
//!    before it offers data. So a message of a call that finds neither a receive nor an open call
//!    is late.
//! 3. Dropping a message returns its slot and its credits, and ends the sender's operation.

use crate::error::{Error, ErrorKind};
use crate::op::Tag;

/// The largest tag that a program may use. Larger ones are the ids of calls ([`crate::comm`]).
pub const MAX_TAG: Tag = CALL - 1;

/// The bit that is set in the id of a call.
pub(in crate::engine) const CALL: u64 = 1 << 63;
/// The bit that is set if the accepting side makes the call.
pub(in crate::engine) const ACCEPTOR: u64 = 1 << 62;
const PLACE_BITS: u32 = 20;
const GENERATION: u64 = (1 << (62 - PLACE_BITS)) - 1;

/// The open calls of this side on one connection.
#[derive(Debug, Default)]
pub(in crate::engine) struct Calls {
    /// The generation of each place. It is odd while the place has an open call.
    places: Vec<u64>,
    free: Vec<u32>,
}

impl Calls {
    /// Opens a call. Returns place and generation, or `None` if too many calls are open.
    pub(in crate::engine) fn open(&mut self) -> Option<u64> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() >> PLACE_BITS > 0 => return None,
            None => {
                self.places.push(0);
                u32::try_from(self.places.len() - 1).expect("checked")
            }
        };
        let generation = &mut self.places[place as usize];
        *generation = generation.wrapping_add(1);
        Some((*generation & GENERATION) << PLACE_BITS | u64::from(place))
    }

    pub(in crate::engine) fn is_open(&self, id: u64) -> bool {
        let place = usize::try_from(id & ((1 << PLACE_BITS) - 1)).expect("20 bits");
        self.places.get(place).is_some_and(|now| now & 1 == 1 && now & GENERATION == id >> PLACE_BITS & GENERATION)
    }

    pub(in crate::engine) fn close(&mut self, id: u64) {
        if self.is_open(id) {
            let place = u32::try_from(id & ((1 << PLACE_BITS) - 1)).expect("20 bits");
            let generation = &mut self.places[place as usize];
            *generation = generation.wrapping_add(1);
            self.free.push(place);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

/// Returns true if a tag is the id of a call.
#[inline]
pub(crate) fn is_call(tag: Tag) -> bool {
    tag > MAX_TAG
}

/// The error for a program's tag that is reserved.
#[cold]
pub(in crate::engine) fn reserved_tag(tag: Tag) -> Error {
    Error::new(ErrorKind::Invalid, format!("the tag {tag:#x} belongs to a call; the largest tag is {MAX_TAG:#x}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a list of the open ids.
        #[test]
        fn an_id_is_open_until_it_is_closed_and_never_again(steps in proptest::collection::vec(any::<(bool, u8)>(), 0..200)) {
            let (mut calls, mut open, mut over) = (Calls::default(), Vec::new(), Vec::new());
            for (opens, which) in steps {
                if opens || open.is_empty() {
                    let id = calls.open().expect("few are open");
                    prop_assert!(id < ACCEPTOR && !open.contains(&id) && !over.contains(&id));
                    open.push(id);
                } else {
                    let id = open.swap_remove(usize::from(which) % open.len());
                    calls.close(id);
                    calls.close(id);
                    over.push(id);
                }
                prop_assert!(open.iter().all(|id| calls.is_open(*id)) && !over.iter().any(|id| calls.is_open(*id)));
                prop_assert_eq!(calls.len(), open.len());
            }
        }

        #[test]
        fn any_id_of_a_peer_is_survived(id: u64) {
            let mut calls = Calls::default();
            let open = calls.open().expect("none is open");
            prop_assert!(!calls.is_open(id) || id & (ACCEPTOR - 1) == open);
            calls.close(!open);
            prop_assert!(calls.is_open(open));
        }
    }
}
