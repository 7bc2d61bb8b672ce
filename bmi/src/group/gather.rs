//! Dissemination: in ⌈log₂ n⌉ rounds each member has something from all others.
//!
//! ```text
//!  round k, d = 2ᵏ:   rank r  ── the values of r, r-1, … r-min(d, n-d)+1 ──>  rank r+d     (mod n)
//! ```
//!
//! A barrier is a dissemination without values, and a broadcast one in which one member has a
//! value. So no member ends any of them before all have begun.
//!
//! All heads are received from the beginning on. So what a member sends and does not wait for is
//! not lost if it ends its connections then.
//!
//! **Source.** The barrier: Hensgen, Finkel, Manber: "Two Algorithms for Barrier Synchronization",
//! International Journal of Parallel Programming 17(1), 1988. The all-gather: Bruck, Ho, Kipnis,
//! Upfal, Weathersby: "Efficient Algorithms for All-to-All Communications in Multiport
//! Message-Passing Systems", IEEE Transactions on Parallel and Distributed Systems 8(11), 1997,
//! mirrored.

use bytes::Bytes;

use super::error::GroupError;
use super::operation::Running;
use super::wire::{decode_values, encode_values};
use crate::threading::Threading;
use crate::{ErrorKind, MemList};

impl<S: Threading> Running<S> {
    /// Synchronizes the members. If each has a value, returns all values in the order of ranks.
    pub(super) async fn gather(&mut self, value: Option<Bytes>) -> Result<Vec<Bytes>, GroupError> {
        let (rank, size) = (self.members.rank, self.members.size);
        let longest = self.members.options.max_value;
        let (act, has_values) = (self.act, value.is_some());
        if let Some(value) = value.as_ref().filter(|value| value.len() > longest) {
            let text = format!("a value of {} bytes for {}, where max_value is {longest}", value.len(), act.call);
            return Err(GroupError::member(rank, ErrorKind::Invalid, text));
        }
        let distances: Vec<u32> = (0..32).map(|round| 1 << round).take_while(|distance| *distance < size).collect();
        let ahead = |distance: u32| (rank + distance) % size;
        let both = distances.iter().flat_map(|distance| [ahead(*distance), ahead(size - distance)]);
        let peers = self.connect(&both.collect::<Vec<_>>()).await?;
        let receives: Vec<_> = peers.chunks(2).map(|pair| self.receive((pair[1].0, &pair[1].1))).collect();
        // Of the ranks before this one, backwards.
        let mut values = vec![value.unwrap_or_default()];
        for ((round, pair), receive) in (0u8..).zip(peers.chunks(2)).zip(receives) {
            let count = distances[usize::from(round)].min(size - distances[usize::from(round)]) as usize;
            let payload = if has_values { encode_values(&values[..count]) } else { Bytes::new() };
            self.send((pair[0].0, &pair[0].1), round, &MemList::from(payload));
            let most = if has_values { count as u64 * (4 + longest as u64) } else { 0 };
            let (from, peer) = (pair[1].0, &pair[1].1);
            let payload = self.payload((from, peer), receive, round, most).await?;
            let count = if has_values { count } else { 0 };
            let bad = || GroupError::member(from, ErrorKind::Protocol, format!("values that are none in {}", act.call));
            values.extend(decode_values(payload, count, longest).ok_or_else(bad)?);
        }
        if has_values {
            values = (0..size).map(|of| values[((rank + size - of) % size) as usize].clone()).collect();
        }
        Ok(values)
    }
}
