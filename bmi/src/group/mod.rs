//! Groups of processes over the transport itself: ranks, barriers, small values to all, and parts
//! from each to each. No MPI and no process manager.
//!
//! All members call [`Groups::meet`] with the same address. Rank 0 listens there, the others
//! connect to it, and all learn each other's addresses. Then all call the same operations in the
//! same order.
//!
//! ```
//! use std::thread;
//!
//! use bmi::config::HandleConfig;
//! use bmi::group::{GroupOptions, Groups};
//! use bmi::{Config, Error, OpenOptions, Scheme};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("bmi-group-{}", std::process::id()));
//! let place = format!("shm://{}/group", folder.display());
//! // As a rule each member is a process.
//! let member = |rank| {
//!     let place = place.parse()?;
//!     let config = Config::named("member");
//!     let handle = bmi::handle(Scheme::Shm, &OpenOptions::default(), config, 1, HandleConfig::default())?;
//!     let groups = Groups::of(&handle)?;
//!     let values = handle.block_on(async {
//!         let group = groups.meet(&place, rank, 3, GroupOptions::default()).await?;
//!         let values = group.all_gather(format!("rank {rank}").as_bytes()).await?;
//!         group.leave().await?;
//!         Ok::<_, Error>(values)
//!     });
//!     values
//! };
//! let values = thread::scope(|scope| {
//!     let members = [0, 1, 2].map(|rank| scope.spawn(move || member(rank)));
//!     members.map(|member| member.join().expect("a member"))
//! });
//! for values in values {
//!     assert_eq!(values?, ["rank 0", "rank 1", "rank 2"]);
//! }
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```
//!
//! **Why here.** A group needs endpoints and peers, and nothing of a file system. The file system's
//! collective operations are built on it, and so can be those of any program that embeds the
//! transport.
//!
//! **Sharing.** [`Groups`] takes the unexpected messages of its endpoint, so the endpoint must not
//! serve calls. A client makes none of them, so the endpoint of a client of a file system can have
//! groups as well. Any number of groups can be on one endpoint. Each has connections of its own.
//! They are made when an operation needs them.
//!
//! **Progress.** A group starts no task. It makes progress while one of its operations is polled,
//! and a driver drives the endpoint. An operation has its number from its call on, so several may
//! be under way, if all members call them in the same order.
//!
//! **Failures.** Every operation ends within [`GroupOptions::limit`]. If a member dies, does not
//! answer in time or breaks the protocol, the operations of all others end with a [`GroupError`]
//! that names it. So they do when two members do not do the same, and when a future is dropped
//! before its end. A group that has failed stays so. The operations of a program whose members have
//! begun far apart, by more than half of the limit, may name a member that waits as well.
//!
//! **Trust.** Whoever knows the place and the name can join. What a peer sends is checked, and
//! bounded before memory is taken. A stranger loses its connection, and the group goes on.
//!
//! | file | contents; each uses those below it |
//! |---|---|
//! | this | the interface |
//! | `meet`, `gather`, `exchange` | what members do together |
//! | `operation` | one operation: connecting, waiting, whom to blame |
//! | `door` | what comes to the endpoint for its groups |
//! | `members`, `act` | connections and failure of one group; checks of what arrives |
//! | `wire`, `wakers`, `options`, `error` | bytes; tasks that wait; settings; errors |
//!
//! **Tests.** `bmi/tests/it/group`: in worlds against a model, with members killed at each message,
//! and over TCP and shared memory.

mod act;
mod door;
mod error;
mod exchange;
mod gather;
mod meet;
mod members;
mod operation;
mod options;
mod wakers;
mod wire;

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use self::door::Door;
use self::error::{COUNT_BITS, LANE};
pub use self::error::{Collective, GroupError};
use self::members::Members;
use self::operation::Running;
pub use self::options::GroupOptions;
#[cfg(any(test, fuzzing))]
pub(crate) use self::wire::fuzz;
use crate::threading::{AnyThread, OneThread, Threading};
use crate::{Addr, Endpoint, Error, ErrorKind, Handle, MemList, Options};

/// The groups of an endpoint. A clone is another handle to them.
pub struct Groups<S: Threading = OneThread> {
    door: Arc<Door<S>>,
}

impl<S: Threading> Clone for Groups<S> {
    fn clone(&self) -> Self {
        Groups { door: Arc::clone(&self.door) }
    }
}

impl Groups<AnyThread> {
    /// Returns the groups of a handle. Call it once for a handle.
    ///
    /// # Errors
    /// `Invalid` for a handle with several endpoints, which share the members that connect.
    pub fn of(handle: &Handle) -> Result<Groups<AnyThread>, Error> {
        let mut endpoints = handle.endpoints();
        match (endpoints.next(), endpoints.len()) {
            (Some(endpoint), 0) => Ok(Groups::new(endpoint)),
            _ => Err(Error::new(ErrorKind::Invalid, "groups on a handle with several endpoints: open one with one")),
        }
    }
}

impl<S: Threading> Groups<S> {
    /// Returns the groups of an endpoint. Call it once for an endpoint.
    pub fn new(endpoint: &Endpoint<S>) -> Groups<S> {
        Groups { door: Door::new(endpoint.clone()) }
    }

    /// Accepts members at `addr`. Returns the address with the port that was taken. The first of
    /// such addresses is the one that other members connect to.
    ///
    /// [`Groups::meet`] does this by itself, but for the place of a meeting with port 0, for
    /// simulated worlds, for backends outside of this tree, and where others reach this host by
    /// another address than rank 0 does.
    ///
    /// # Errors
    /// Those of [`Endpoint::listen`].
    pub fn listen(&self, addr: &Addr) -> Result<Addr, Error> {
        self.door.listen(addr)
    }

    /// Meets the other members at `at`, as number `rank` of `size`. Rank 0 listens there. The
    /// others may come first.
    ///
    /// # Errors
    /// [`GroupError::Member`] names a member that does not come or is lost, and this one if its
    /// arguments are wrong, the place is taken, or rank 0 refuses it.
    pub async fn meet(&self, at: &Addr, rank: u32, size: u32, options: GroupOptions) -> Result<Group<S>, GroupError> {
        let members = meet::meet(&self.door, at, (rank, size), options).await?;
        // The meeting was number 1.
        let own = Lane { door: Arc::clone(&self.door), members, number: 0, last: AtomicU64::new(1) };
        Ok(Group { own, lanes: AtomicU64::new(0) })
    }
}

/// One member's handle to its group.
///
/// All members call the same operations in the same order. An operation begins when it is called,
/// and goes on while its future is polled. When this is dropped, the connections end. Whoever still
/// waits for this member then fails, so a member [leaves](Group::leave) first.
///
/// The operations are those of the group's own [`Lane`].
pub struct Group<S: Threading = OneThread> {
    own: Lane<S>,
    /// The number of the last lane.
    lanes: AtomicU64,
}

/// A sequence of operations of a group, numbered by itself.
///
/// **Why.** Operations match by their order. A library that does several steps in the background
/// cannot know what else the program does with the group meanwhile. In a lane of its own its steps
/// match by their order there, as in a communicator of `MPI_Comm_dup`.
pub struct Lane<S: Threading = OneThread> {
    door: Arc<Door<S>>,
    members: Arc<Members<S>>,
    /// 0 for the group's own.
    number: u64,
    /// The number of the last operation.
    last: AtomicU64,
}

impl<S: Threading> Deref for Group<S> {
    type Target = Lane<S>;

    fn deref(&self) -> &Lane<S> {
        &self.own
    }
}

impl<S: Threading> Group<S> {
    /// Returns a new lane. All members take the lanes of a group in the same order. Operations of
    /// one lane are independent of those of others. When the group is dropped, they fail.
    pub fn lane(&self) -> Lane<S> {
        let number = self.lanes.fetch_add(1, Ordering::Relaxed) + 1;
        Lane { door: self.door.clone(), members: self.members.clone(), number, last: AtomicU64::new(0) }
    }

    /// Sets the time that operations have which begin from now on, in all lanes. The default is
    /// [`GroupOptions::limit`].
    pub fn set_limit(&self, limit: Duration) {
        self.members.set_limit(limit);
    }

    /// Waits until all members leave, and ends the connections.
    ///
    /// # Errors
    /// As those of a barrier. The connections end all the same.
    pub async fn leave(self) -> Result<(), GroupError> {
        let mut running = self.begin(Collective::Leave);
        let done = running.gather(None).await;
        let left = running.end(done.map(drop)).await;
        let peers = self.members.take_peers();
        // Whoever is faster has ended them already.
        join_all(peers.iter().map(|peer| peer.disconnect(Options::default()))).await;
        left
    }
}

impl<S: Threading> Lane<S> {
    /// Returns the number of this member, from 0.
    pub fn rank(&self) -> u32 {
        self.members.rank
    }

    /// Returns the number of members.
    pub fn size(&self) -> u32 {
        self.members.size
    }

    /// Returns the number that tells the group from others. It is random, and the same at all
    /// members.
    pub fn id(&self) -> u64 {
        self.members.id()
    }

    /// Returns the number of the lane, the same at all members: 0 for the group's own.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Ends the group with an error that names this member, and tells the others.
    pub fn abort(&self, why: &str) {
        self.members.fail(GroupError::member(self.rank(), ErrorKind::Cancelled, why));
        self.door.wakers.wake_others(0);
    }

    fn begin(&self, call: Collective) -> Running<S> {
        let count = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let number = match self.number {
            0 => count,
            lane => LANE | lane << COUNT_BITS | count,
        };
        let running = Running::begin(&self.door, &self.members, (number, call), self.members.endpoint.now());
        if self.number > 0 && count >> COUNT_BITS > 0 {
            let text = "a lane has no number for one more operation: take another one";
            self.members.fail(GroupError::member(self.rank(), ErrorKind::Exhausted, text));
        }
        running
    }

    /// Waits until all members have called it.
    pub fn barrier(&self) -> impl Future<Output = Result<(), GroupError>> + use<S> {
        let mut running = self.begin(Collective::Barrier);
        async move {
            let done = running.gather(None).await;
            running.end(done.map(drop)).await
        }
    }

    /// Gives each member the values of all, in the order of ranks. A value has at most
    /// [`GroupOptions::max_value`] bytes.
    pub fn all_gather(&self, value: &[u8]) -> impl Future<Output = Result<Vec<Bytes>, GroupError>> + use<S> {
        let (mut running, value) = (self.begin(Collective::AllGather), Bytes::copy_from_slice(value));
        async move {
            let done = running.gather(Some(value)).await;
            running.end(done).await
        }
    }

    /// Gives each member the value of `root`. The values of others are not used. It has at most
    /// [`GroupOptions::max_value`] bytes.
    pub fn broadcast(&self, root: u32, value: &[u8]) -> impl Future<Output = Result<Bytes, GroupError>> + use<S> {
        let mut running = self.begin(Collective::Broadcast { root });
        let value = if root == self.rank() { Bytes::copy_from_slice(value) } else { Bytes::new() };
        async move {
            let done = match root < running.members.size {
                true => running.gather(Some(value)).await.map(|mut values| values.swap_remove(root as usize)),
                false => Err(running.act.invalid("a root that is no member")),
            };
            running.end(done).await
        }
    }

    /// Sends each member its part, and returns the parts that the members have for this one. There
    /// is a part for each rank, also for this one, and it may be empty. What comes is bounded by
    /// [`GroupOptions::max_received`].
    ///
    /// The bytes of a part must not change before the end.
    pub fn all_to_all(&self, parts: Vec<MemList>) -> impl Future<Output = Result<Vec<Bytes>, GroupError>> + use<S> {
        let mut running = self.begin(Collective::AllToAll);
        async move {
            let done = running.exchange(parts, None).await;
            running.end(done).await
        }
    }

    /// Does what [`Lane::all_to_all`] does for members that know how long the parts are which they
    /// get. Each comes into its list, without a copy on the way if it is long. After an error the
    /// contents of the lists are unspecified.
    ///
    /// Nothing is sent for an empty part, and nobody connects for it. Both sides must agree on the
    /// lengths. A member that waits for what the other one has as empty ends with an error at the
    /// limit. What a member sends where the other one has an empty list is lost.
    pub fn exchange(
        &self,
        parts: Vec<MemList>,
        into: Vec<MemList>,
    ) -> impl Future<Output = Result<(), GroupError>> + use<S> {
        let mut running = self.begin(Collective::Exchange);
        async move {
            let done = running.exchange(parts, Some(into)).await;
            running.end(done.map(drop)).await
        }
    }
}

impl<S: Threading> Drop for Group<S> {
    fn drop(&mut self) {
        self.members.disconnect();
        let gone = GroupError::member(self.rank(), ErrorKind::Cancelled, "this member has left the group");
        self.members.fail(gone);
        self.door.wakers.wake_others(0);
    }
}

/// A group of a handle, and its futures, may go to any thread.
const _: fn() = || {
    fn is_shared<V: Send + Sync>() {}
    fn can_be_sent<V: Send>(_: V) {}
    is_shared::<Groups<AnyThread>>();
    is_shared::<Group<AnyThread>>();
    is_shared::<Lane<AnyThread>>();
    let _ = |groups: Groups<AnyThread>, addr: Addr| can_be_sent(groups.meet(&addr, 0, 1, GroupOptions::default()));
    let _ = |group: Group<AnyThread>, parts: Vec<MemList>| {
        can_be_sent(group.barrier());
        can_be_sent(group.all_gather(b""));
        can_be_sent(group.broadcast(0, b""));
        can_be_sent(group.all_to_all(parts.clone()));
        can_be_sent(group.exchange(parts.clone(), parts));
        can_be_sent(group.leave());
    };
};

#[cfg(test)]
mod tests {
    use bmi_sim::World;

    use super::*;

    /// The last operation of a lane works. The one behind it ends with an error, and the group too.
    #[test]
    fn a_lane_has_an_end() {
        let world = World::new(1);
        let node = world.node("alone");
        world.block_on(node.run(async {
            let groups = Groups::new(&node.endpoint(crate::Config::default()).expect("the node is up"));
            let group = groups.meet(&node.addr(1), 0, 1, GroupOptions::default()).await.expect("it meets");
            let lane = group.lane();
            lane.last.store((1 << COUNT_BITS) - 2, Ordering::Relaxed);
            lane.barrier().await.expect("the last one");
            let error = lane.barrier().await.expect_err("there is no further one");
            let GroupError::Member { rank: 0, error } = error else { panic!("{error}") };
            assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
            group.barrier().await.expect_err("the group has ended");
        }));
    }
}
