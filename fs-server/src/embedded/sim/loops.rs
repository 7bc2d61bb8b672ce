//! The event loops of a simulated I/O server, each on a core of its own, and the locks of what they
//! share.
//!
//! **Why here.** Where several threads serve one store, each short piece of work on what they share
//! is done under a lock. In the simulator the loops are tasks of one thread, so the code needs no
//! lock, and its time has to be charged ([`Node::locked`]). A request is charged for the locks that
//! it takes on its way through [`Iod`](crate::iod::Iod):
//!
//! | request | turns | buffers | open files |
//! |---|---|---|---|
//! | a write whose data came with the request | 0 | 0 | 2 |
//! | a read whose data goes with the reply | 0 | 2 | 2 |
//! | another request of at most the smallest buffer | 0 | 2 | 2 |
//! | a longer request, for each unit | 4 | 2 | 1, and 1 for the request |
//! | another request about one datafile | 0 | 0 | 1 |
//!
//! A transfer whose data travels with a message and is longer than the smallest buffer takes and
//! passes on a turn at the disk, and takes no buffer. The last open file is looked up for the
//! length that the reply contains.
//!
//! **Who serves.** As on a real machine: the first loop serves all clients until it is full
//! ([`Balance`]).
//!
//! **Differences from a real server.** Half of the locks of turns and buffers are taken before the
//! work, and half after it, not each at its own time. The units of a request are counted as if they
//! had the longest length.
//!
//! **Tests.** `tests/sim/iod/loops.rs`.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use bmi::config::ServiceClass;
use bmi::{Endpoint, Incoming, PeerId, Time};
use bmi_sim::Node;
use fs_proto::{Hello, Identity, IodRequest, Request, RequestBody};
use tokio::sync::oneshot;

use super::SimIod;
use crate::iod::IodSettings;
use crate::service::{Answer, Balance, Context, Handler, Limits, Meter, Seat, Standing, beside, serve_beside};

const TURNS: &str = "turns";
const BUFFERS: &str = "buffers";
const OPEN_FILES: &str = "open files";

/// Most units of one request that are charged for. A client may announce any length.
const MOST_UNITS: u64 = 4096;

/// How often a request takes each lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Locks {
    turns: u64,
    buffers: u64,
    open_files: u64,
}

/// Where the data of a transfer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Data {
    WithRequest,
    WithReply,
    Apart,
}

impl Locks {
    /// Returns the locks of a read or write of `total` bytes.
    fn of_transfer(data: Data, total: u64, smallest: u64, unit: u64) -> Locks {
        let small = total <= smallest;
        let units = if small { 1 } else { total.div_ceil(unit.max(1)).min(MOST_UNITS) };
        match data {
            Data::Apart if small => Locks { turns: 0, buffers: 2, open_files: 2 },
            Data::Apart => Locks { turns: 4 * units, buffers: 2 * units, open_files: units + 1 },
            with_message => {
                let buffers = if small && with_message == Data::WithReply && total > 0 { 2 } else { 0 };
                Locks { turns: if small { 0 } else { 2 }, buffers, open_files: 2 }
            }
        }
    }
}

/// An I/O server's part of one event loop.
struct Loop {
    iod: SimIod,
    node: Node,
    settings: IodSettings,
    /// True for the loop that does the background work of the server.
    first: bool,
}

impl Loop {
    fn locks(&self, body: &RequestBody, call: &Incoming) -> Locks {
        match body {
            RequestBody::Iod(
                IodRequest::Read { .. }
                | IodRequest::Write { .. }
                | IodRequest::ReadView { .. }
                | IodRequest::WriteView { .. },
            ) => {
                let data = match () {
                    () if call.data().is_some() => Data::WithRequest,
                    () if call.replies_with_data() => Data::WithReply,
                    () => Data::Apart,
                };
                let (smallest, unit) = (self.iod.zones().smallest() as u64, self.settings.unit as u64);
                Locks::of_transfer(data, call.len(), smallest, unit)
            }
            RequestBody::Iod(IodRequest::Getsize { .. } | IodRequest::Truncate { .. }) => {
                Locks { open_files: 1, ..Locks::default() }
            }
            _ => Locks::default(),
        }
    }

    fn take(&self, locks: Locks) {
        for (lock, times) in [(TURNS, locks.turns), (BUFFERS, locks.buffers), (OPEN_FILES, locks.open_files)] {
            (0..times).for_each(|_| self.node.locked(lock));
        }
    }
}

#[async_trait(?Send)]
impl Handler for Loop {
    async fn handle(&self, context: &Context, request: Request, call: &Incoming) -> Answer {
        let all = self.locks(&request.body, call);
        let after = Locks { turns: all.turns / 2, buffers: all.buffers / 2, open_files: all.open_files.min(1) };
        self.take(Locks {
            turns: all.turns - after.turns,
            buffers: all.buffers - after.buffers,
            open_files: all.open_files - after.open_files,
        });
        let answer = self.iod.handle(context, request, call).await;
        self.take(after);
        answer
    }

    fn class(&self, data: u64) -> ServiceClass {
        self.iod.class(data)
    }

    fn never_waits(&self, request: &RequestBody) -> bool {
        self.iod.never_waits(request)
    }

    fn is_awaited(&self, stalled: &BTreeSet<PeerId>) -> bool {
        self.iod.is_awaited(stalled)
    }

    fn refused(&self, hello: &Hello, identity: &Identity) {
        self.iod.refused(hello, identity);
    }

    fn departed(&self, peer: PeerId) {
        self.iod.departed(peer);
    }

    async fn background(&self) {
        if self.first {
            return self.iod.background().await;
        }
        std::future::pending().await
    }
}

/// The meter of an event loop: the load of its node.
struct Cores {
    node: Node,
    core: usize,
}

impl Meter for Cores {
    fn used(&self) -> Duration {
        self.node.load().cores.get(self.core).copied().unwrap_or_default()
    }

    fn idle(&self) -> Duration {
        let cores = self.node.load().cores;
        (self.node.now().since(Time::ZERO) * cores.len() as u32).saturating_sub(cores.iter().sum())
    }
}

/// Serves over each endpoint on a core of its own, until `stop` ends. `iod` is the server of the
/// first endpoint.
pub(super) async fn serve_on_cores(
    node: &Node,
    endpoints: &[Endpoint],
    iod: SimIod,
    settings: IodSettings,
    standing: &Standing,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let others: Vec<_> = endpoints.iter().zip(0..).skip(1).map(|(one, at)| iod.beside(one.clone(), at)).collect();
    let (mut loops, balance) = (Vec::new(), Balance::new(endpoints.len()));
    for (core, iod) in std::iter::once(iod).chain(others).enumerate() {
        let (endpoint, standing) = (endpoints[core].clone(), standing.clone());
        let handler = Loop { iod, node: node.clone(), settings, first: core == 0 };
        let (stop, stopped) = oneshot::channel::<()>();
        let seat = Seat::new(balance.clone(), core, Cores { node: node.clone(), core });
        let task = node.spawn_on(core, async move {
            // The other end is dropped when the server stops.
            let stopped = async { drop(stopped.await) };
            let front = [(endpoint, &handler as &dyn Handler)];
            beside(&handler, serve_beside(&front, &standing, limits, Some(&seat), stopped)).await;
        });
        loops.push((stop, task));
    }
    stop.await;
    let (stops, tasks): (Vec<_>, Vec<_>) = loops.into_iter().unzip();
    drop(stops);
    for task in tasks {
        // An error means that the node was killed, and with it this future.
        let _ = task.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_the_locks_of_its_way() {
        let (smallest, unit) = (64 << 10, 512 << 10);
        let of = |data, total| {
            let Locks { turns, buffers, open_files } = Locks::of_transfer(data, total, smallest, unit);
            [turns, buffers, open_files]
        };
        assert_eq!(of(Data::WithRequest, 4 << 10), [0, 0, 2]);
        assert_eq!(of(Data::WithReply, 64 << 10), [0, 2, 2]);
        assert_eq!(of(Data::WithReply, 0), [0, 0, 2]);
        assert_eq!(of(Data::WithReply, 70 << 10), [2, 0, 2]);
        assert_eq!(of(Data::Apart, 64 << 10), [0, 2, 2]);
        assert_eq!(of(Data::Apart, 1 << 20), [8, 4, 3]);
        assert_eq!(of(Data::Apart, u64::MAX)[2], MOST_UNITS + 1);
    }
}
