//! How the members of a group find each other.
//!
//! ```text
//!  rank r                                     rank 0
//!    connect, again until it listens   ──────>  listens at the place of the meeting
//!    join: rank, size, name, own address ────>  takes it; or refuses it: failed ──────> r ends
//!                                               when all have come:
//!    <──────────── the id of the group and the addresses of all members ──────
//!    a barrier, for which members connect to each other <────> the same
//! ```
//!
//! The connections to rank 0 stay, and those of the barrier. They are what tells most members of a
//! loss at once.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::door::Door;
use super::error::{Collective, GroupError};
use super::members::Members;
use super::operation::Running;
use super::options::GroupOptions;
use super::wire::{Greeting, decode_table, encode_table, longest_table};
use crate::threading::Threading;
use crate::{Addr, Error, ErrorKind, MemList, Options, Peer};

/// Size of the largest group.
const MOST_MEMBERS: u32 = 4096;
/// The first pause and the longest one before a member connects again.
const PAUSES: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(200)];
/// The meeting as an operation.
const MEETING: (u64, Collective) = (1, Collective::Meet);

/// Meets.
pub(super) async fn meet<S: Threading>(
    door: &Arc<Door<S>>,
    at: &Addr,
    (rank, size): (u32, u32),
    options: GroupOptions,
) -> Result<Arc<Members<S>>, GroupError> {
    let (endpoint, begun) = (&door.endpoint, door.endpoint.now());
    let deadline = begun + options.limit;
    let own = |error| GroupError::Member { rank, error };
    if size > MOST_MEMBERS || rank >= size || options.name.len() > 255 {
        let text = format!("rank {rank} of {size}, where {MOST_MEMBERS} is the most, and a name of at most 255 bytes");
        return Err(own(Error::new(ErrorKind::Invalid, text)));
    }
    let new = || Members::new(door.endpoint.clone(), (rank, size), options.clone(), Arc::clone(&door.wakers));
    if rank == 0 {
        let members = new();
        let addr = if size == 1 { at.clone() } else { door.listen(at).map_err(own)? };
        door.open(&members).map_err(own)?;
        let mut running = Running::begin(door, &members, MEETING, begun);
        let met = host(&mut running, addr).await;
        return running.end(met).await.map(|()| members);
    }
    let listening = door.own_addr(at, rank).map_err(own)?;
    let join = Greeting::Join { rank, size: size.into(), name: options.name.clone(), addr: listening };
    let mut pause = PAUSES[0];
    loop {
        let members = new();
        let failed = match endpoint.connect(at, Options::by(deadline)).await {
            Ok(host) => {
                members.connected(0, &host, None);
                let mut running = Running::begin(door, &members, MEETING, begun);
                running.greet((0, &host), &join);
                match join_in(&mut running, &host).await {
                    // It is too early, or too late.
                    Err(GroupError::Member { rank: _, error }) if error.kind() == ErrorKind::Busy => {
                        running.give_up();
                        error
                    }
                    met => return running.end(met).await.map(|()| members),
                }
            }
            Err(error) => error,
        };
        if !failed.is_retryable() || endpoint.now() + pause >= deadline {
            return Err(GroupError::Member { rank: 0, error: failed });
        }
        endpoint.sleep(pause).await;
        pause = (2 * pause).min(PAUSES[1]);
    }
}

/// Rank 0 waits for the others, and tells them of each other.
async fn host<S: Threading>(running: &mut Running<S>, addr: Addr) -> Result<(), GroupError> {
    let members = Arc::clone(&running.members);
    running
        .wait(|_, waits| {
            waits.awaited = members.missing();
            if waits.awaited.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
        })
        .await?;
    let addrs: Vec<Addr> = std::iter::once(addr).chain(members.addrs()).collect();
    let id = crate::runtime::random().max(1);
    let table = MemList::from(encode_table(id, &addrs));
    members.met(id, addrs);
    running.door.admit(&members);
    let others: Vec<u32> = (1..members.size).collect();
    for (rank, peer) in running.connect(&others).await? {
        running.send((rank, &peer), 0, &table);
    }
    running.gather(None).await.map(drop)
}

/// A member waits for the table.
async fn join_in<S: Threading>(running: &mut Running<S>, host: &Peer<S>) -> Result<(), GroupError> {
    let members = Arc::clone(&running.members);
    let table = running.receive((0, host));
    let table = running.payload((0, host), table, 0, longest_table(members.size)).await?;
    let (id, addrs) = decode_table(table, members.size)
        .filter(|(id, _)| *id > 0)
        .ok_or_else(|| running.act.wrong(0, "a table that is none"))?;
    members.met(id, addrs);
    running.door.admit(&members);
    running.gather(None).await.map(drop)
}
