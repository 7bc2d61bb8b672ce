//! Each member sends a part to each other.
//!
//! **Protocol.** A head to everybody and the part behind it. Where both sides know the lengths,
//! there is nothing for an empty part. Rank r sends
//! to r+1 first, then to r+2, and so on, [`GroupOptions::window`](super::GroupOptions::window)
//! parts at a time. So the members do not all send to one at first.
//!
//! **Why it cannot deadlock.** A member that has begun receives the heads of all others, and each
//! part when its head is there. So every part that is under way is taken, in any order. What is not
//! under way waits for those before it alone.
//!
//! **Memory.** Parts stay where they are until they are taken, and come into the memory that they
//! are for. A member that does not know how long they are takes memory when it has seen the head,
//! within [`GroupOptions::max_received`](super::GroupOptions::max_received).

use std::collections::{BTreeMap, BTreeSet};
use std::task::Poll;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::error::GroupError;
use super::members::Of;
use super::operation::Running;
use super::wire::ATTACHED;
use crate::threading::Threading;
use crate::{ErrorKind, MemList, Memory, Options};

impl<S: Threading> Running<S> {
    /// Sends the parts, one for each rank. What others send comes into the lists; without lists it
    /// is returned.
    pub(super) async fn exchange(
        &mut self,
        parts: Vec<MemList>,
        into: Option<Vec<MemList>>,
    ) -> Result<Vec<Bytes>, GroupError> {
        let (act, rank, size) = (self.act, self.members.rank as usize, self.members.size);
        let wrong = |list: &Vec<MemList>| list.len() != size as usize || list.iter().any(MemList::is_read_only);
        if parts.len() != size as usize || into.as_ref().is_some_and(wrong) {
            return Err(act.invalid(&format!("not {size} parts, or not as many lists that can be written")));
        }
        let mut came = vec![Bytes::new(); size as usize];
        match &into {
            Some(lists) if lists[rank].len() != parts[rank].len() => {
                return Err(act.invalid("a part for this member that is not as long as its list"));
            }
            Some(lists) => copy(&parts[rank], &lists[rank]),
            None => came[rank] = Bytes::from(parts[rank].to_vec()),
        }
        // Where the lengths are known, nothing is said about nothing.
        let is_sent = |to: &u32| into.is_none() || !parts[*to as usize].is_empty();
        let comes = |from: &u32| into.as_ref().is_none_or(|lists| !lists[*from as usize].is_empty());
        let others = (1..size).map(|step| (self.members.rank + step) % size);
        let others: Vec<u32> = others.filter(|other| is_sent(other) || comes(other)).collect();
        let peers = self.connect(&others).await?;
        let (mut heads, mut bodies) = (FuturesUnordered::new(), FuturesUnordered::new());
        for (from, peer) in peers.iter().filter(|(from, _)| comes(from)) {
            heads.push(self.receive((*from, peer)));
            if let Some(list) = into.as_ref().map(|lists| &lists[*from as usize]).filter(|list| list.len() > ATTACHED) {
                bodies.push(Of(*from, peer.recv(act.number, list.clone(), Options::default())));
            }
        }
        let by_rank: BTreeMap<u32, _> = peers.iter().cloned().collect();
        let mut missing: BTreeSet<u32> = others.into_iter().filter(&comes).collect();
        let (mut rooms, mut allowed) = (BTreeMap::<u32, Memory>::new(), self.members.options.max_received);
        let (window, mut next) = (self.members.options.window, peers.iter().filter(|(to, _)| is_sent(to)));
        self.wait(|cx, waits| {
            // A part is two operations at most.
            while waits.sends.len() < 2 * window
                && let Some((to, peer)) = next.next()
            {
                waits.send((*to, peer), act, 0, &parts[*to as usize]);
            }
            while let Poll::Ready(Some((from, _, arrived))) = heads.poll_next_unpin(cx) {
                let (len, attached) = act.opened(from, arrived, 0)?;
                let at = from as usize;
                match (&into, attached) {
                    (Some(lists), _) if lists[at].len() as u64 != len => {
                        let text = format!("a part of {len} bytes for a list of {}", lists[at].len());
                        return Poll::Ready(Err(act.wrong(from, &text)));
                    }
                    (Some(_), None) => continue,
                    (Some(lists), Some(part)) => {
                        lists[at].copy_from(0, &part);
                    }
                    (None, attached) => {
                        let text = || format!("a part of {len} bytes, and {allowed} of max_received are left");
                        allowed = allowed
                            .checked_sub(len)
                            .ok_or_else(|| GroupError::member(from, ErrorKind::TooLarge, text()))?;
                        let Some(part) = attached else {
                            let memory = act.room(len)?;
                            bodies.push(Of(from, by_rank[&from].recv(act.number, &memory, Options::default())));
                            rooms.insert(from, memory);
                            continue;
                        };
                        came[at] = part;
                    }
                }
                missing.remove(&from);
            }
            while let Poll::Ready(Some((from, filled))) = bodies.poll_next_unpin(cx) {
                let at = from as usize;
                let room = rooms.remove(&from);
                let len = room.as_ref().map_or_else(|| into.as_ref().map_or(0, |lists| lists[at].len()), Memory::len);
                act.filled(from, filled.map(|done| done.len), len as u64)?;
                came[at] = room.map_or_else(Bytes::new, Memory::into_bytes);
                missing.remove(&from);
            }
            waits.awaited.extend(&missing);
            if missing.is_empty() && next.clone().next().is_none() { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await?;
        Ok(came)
    }
}

/// Copies a part to a list of the same length.
fn copy(part: &MemList, list: &MemList) {
    let mut at = 0;
    for piece in part.pieces() {
        let mut done = 0;
        for to in list.range(at, piece.len()) {
            done += to.copy_from_slice_of(&piece.slice(done, to.len()));
        }
        at += piece.len();
    }
}
