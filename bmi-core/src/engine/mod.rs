//! The message interface: an endpoint, its peers, and the operations between them.
//!
//! A driver drives the endpoint: it posts operations, calls [`Engine::poll`] to make progress,
//! and takes the completions. The endpoint does no I/O of its own, reads no clock, and starts no
//! thread. Each poll passes the time in. All methods take `&mut self`, so there is one owner and no
//! lock.
//!
//! ```text
//!  post_send, post_recv, post_send_unexpected, post_pull, post_push, connect …      -> Posted::{Done, Pending(op)}
//!  poll(now)                         makes progress: transport, protocol, deadlines
//!  poll_op(op), poll_some(ops), poll_all()      -> completions
//!  poll_unexpected(), poll_event()              -> unexpected messages; peers that came and went
//!  next_deadline(), arm(waker), event_fd()      -> how long to sleep, and on what
//! ```
//!
//! **Parts.** [`AdapterSide`] has the transport and all memory that is registered with it,
//! [`Operations`] the records of operations, and [`Peers`] the connections. The endpoint itself
//! only looks up who is concerned. The protocols are functions of these parts ([`books::Effect`]
//! says how), one file each. `docs/design/engine.md` follows three messages through them.
//!
//! **Rooms.** A room uses those below it only; this file has the parts together.
//!
//! ```text
//!  posts, completions, getters     the methods of an endpoint
//!  poll                            a poll, in order; the events of the adapter
//!  calls      life                 calls: ids, paths, drops; connections: begin, idle, lost, closing
//!  message                         send and receive; decide: eager, offered, fast RDMA, rendezvous
//!  ending                          effects carried out, early ends, deadlines
//!  bulk                            transfers in units, their turns, grants
//!  adapter                         the transport, exposures, unexpected messages that are held
//!  books                           records of operations, peers, transfers: data only
//!  buffers                         bounce, staging, packing, fallback; receive slots, pin-down cache
//! ```
//!
//! **Invariants**
//! 1. Every posted operation ends exactly once. The id of an operation that has ended and was
//!    collected finds nothing.
//! 2. When an operation ends, its resources (memory, exposures, credits, slots) are back, or belong
//!    to the peer.
//! 3. Messages to one peer leave in the order in which they were posted. Messages of one tag match
//!    the receives of that tag in order.
//!
//! **Source.** BMI (Carns, PVFS2): `BMI_post_send`, `post_recv`, `post_sendunexpected`, their
//! `_list` forms, `test`, `testsome`, `testcontext`, `testunexpected`, `cancel`, `memalloc`,
//! `set_info`, `addr_lookup`, `addr_rev_lookup`. There are four differences. Ids are checked. The
//! operation owns its memory. Every operation can have a deadline. Bulk transfer is part of the
//! interface.

mod adapter;
mod books;
mod buffers;
mod bulk;
mod calls;
mod completions;
mod ending;
mod getters;
mod life;
mod message;
mod poll;
mod posts;

pub(crate) use adapter::read_only;
pub use books::{Counters, Exposure, MAX_TAG, PeerEvent, PeerLimits, Pinned, ResourceUsage, Unexpected};
pub use bulk::Grant;
pub(crate) use calls::{CallPart, DroppedCall, leave_unanswered};
pub use life::Kept;
pub(crate) use life::closed;
pub(crate) use message::{AREA, ProbePath};

use adapter::{AdapterSide, Exposures, Inbox};
use books::{Operations, Peers};
use calls::Choices;
use life::Sweeps;

use crate::config::Config;
use crate::error::Error;
use crate::time::Time;
use crate::transport::{AnyTransport, Bed, Event};

/// An endpoint: a transport and the protocol over it.
pub struct Engine {
    // The first field, so that it is dropped first. After that no adapter accesses memory of the
    // fields below.
    adapter: AdapterSide,
    ops: Operations,
    peers: Peers,
    inbox: Inbox,
    exposures: Exposures,
    choices: Choices,
    sweeps: Sweeps,
    /// The events of a poll, kept for their capacity.
    events: Vec<Event>,
    /// Where a thread sleeps that waits without an executor, once one has.
    bed: Option<Box<dyn Bed>>,
    /// No new peers come, and nothing more is posted.
    closing: bool,
}

impl Engine {
    /// Creates an endpoint over `transport`. `now` is the time of the driver's clock.
    ///
    /// # Errors
    /// `Invalid` for settings out of bounds (see [`Config::validate`]), or beyond the queue depth
    /// of the transport; `Unsupported` if the heads of the transport are too short for the
    /// protocol; `Exhausted` if there is no memory.
    pub fn new(transport: AnyTransport, config: Config, now: Time) -> Result<Engine, Error> {
        Ok(Engine {
            adapter: AdapterSide::new(transport, config, now)?,
            ops: Operations::new(),
            peers: Peers::new(),
            inbox: Inbox::default(),
            exposures: Exposures::default(),
            choices: Choices::default(),
            sweeps: Sweeps::default(),
            events: Vec::new(),
            bed: None,
            closing: false,
        })
    }

    /// Gives the endpoint a number among those of one program. The ids of its peers contain it
    /// ([`PeerId::endpoint`](crate::PeerId::endpoint)), so no two endpoints have an id in common.
    #[must_use]
    pub fn numbered(mut self, number: u8) -> Engine {
        self.peers.number(number);
        self
    }
}
