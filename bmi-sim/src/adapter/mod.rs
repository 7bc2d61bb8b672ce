//! [`SimTransport`]: the contract of `bmi_core::transport`, implemented over the world.
//!
//! All actions are events of the world. Posting schedules events, and polling returns what they
//! reported. `poll` ignores the time that it is given and uses the world's time. A deadline of
//! [`bmi_core::Transport::next_deadline`] is an event of the world too.

mod inline_receive;
mod transport;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bmi_backend::WorkLimits;
use bmi_core::mem::{LocalKey, RegionOwner};
use bmi_core::transport::{ConnId, PostError, WorkId, WorkOptions, WriteTarget};
use bmi_core::{Capabilities, MemSlice, Segment};
use send_wrapper::SendWrapper;

use crate::engine::ConnRef;
use crate::error::SimError;
use crate::model::connection::{Bytes, Conn, Registrations, SendWork, State};
use crate::model::processor::Work;
use crate::model::{Core, Node, Sim, Waiter};

/// Maximum number of events that one poll reports.
const BATCH: usize = 256;
/// Bytes of a page, as registration counts them.
const PAGE: usize = 4096;

/// A transport of a simulated node.
///
/// An endpoint takes only transports that may be moved to another thread. This one may, but a world
/// has one thread: another one that uses or drops it panics.
pub struct SimTransport {
    sim: SendWrapper<Sim>,
    pub(crate) node: u32,
    pub(crate) id: u32,
    capabilities: Capabilities,
    limits: WorkLimits,
    owner: Arc<dyn RegionOwner>,
    waiter: Arc<Waiter>,
    released: Vec<LocalKey>,
    /// The value of [`SimConfig::inline_receive_bytes`](crate::SimConfig::inline_receive_bytes).
    pub(crate) inline_receive_bytes: u64,
    /// Connections for which this poll has reported something.
    pub(crate) reported: Vec<ConnId>,
    /// The bytes of the message that is being shown.
    pub(crate) shown: Vec<u8>,
}

impl SimTransport {
    pub(crate) fn new(node: &Node) -> SimTransport {
        let sim = node.sim.clone();
        let (id, capabilities, owner, waiter) = sim.0.with(|core| {
            let id = core.add_adapter(node.id);
            let state = &core.adapters[id as usize];
            (id, core.capabilities.clone(), state.registrations.owner.clone(), state.waiter.clone())
        });
        let inline_receive_bytes = sim.0.core.borrow().config.inline_receive_bytes;
        SimTransport {
            sim: SendWrapper::new(sim),
            node: node.id,
            id,
            limits: WorkLimits::of(&capabilities),
            capabilities,
            owner,
            waiter,
            released: Vec::new(),
            inline_receive_bytes,
            reported: Vec::new(),
            shown: Vec::new(),
        }
    }

    /// Returns the world of this transport.
    pub fn sim(&self) -> &Sim {
        &self.sim
    }

    pub(crate) fn at(&self, conn: ConnId) -> ConnRef {
        ConnRef { adapter: self.id, slot: conn.slot, generation: conn.generation }
    }

    fn alive(&self) -> Result<(), SimError> {
        if self.sim.0.core.borrow().adapters[self.id as usize].dead { Err(SimError::NodeKilled) } else { Ok(()) }
    }

    /// Checks that all `segments` were registered here.
    fn check_owner(&self, segments: &[Segment]) -> Result<(), PostError> {
        if segments.iter().all(|segment| segment.region().is_owned_by(&self.owner)) {
            Ok(())
        } else {
            Err(PostError::Invalid("a segment belongs to another transport"))
        }
    }

    /// Returns the connection if it accepts sends, writes and reads.
    fn open(core: &mut Core, at: ConnRef) -> Result<&mut Conn, PostError> {
        core.conn_mut(at).filter(|conn| conn.state == State::Open).ok_or(PostError::NotConnected)
    }

    /// Takes a place in the send queue.
    fn take_place(&self, core: &mut Core, at: ConnRef) -> Result<(), PostError> {
        let conn = SimTransport::open(core, at)?;
        if conn.send_places >= self.capabilities.send_queue_depth {
            core.adapters[self.id as usize].starved = true;
            return Err(PostError::QueueFull);
        }
        conn.send_places += 1;
        Ok(())
    }

    /// Charges the processor for posting, and for copying `captured` bytes of `pieces` pieces.
    /// Returns the time at which the adapter has the request.
    fn charge_post(&self, core: &mut Core, captured: usize, pieces: usize) -> u64 {
        let profile = &core.config.profile;
        let post = profile.cpu_post_ns;
        let (copy, bus) = (profile.copy_ns(captured as u64, pieces as u64), profile.copy_bus_ns(captured as u64));
        if profile.software {
            core.charge(self.node, Work::SystemCall, core.config.profile.system_call_ns);
        }
        core.charge_copy(self.node, copy, bus);
        core.charge(self.node, Work::Protocol, post)
    }

    /// Queues a send or write and starts sending it.
    #[expect(clippy::too_many_arguments, reason = "the parts of one work request")]
    fn launch(
        &self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        inline: &[MemSlice],
        segments: &[Segment],
        len: u64,
        target: Option<WriteTarget>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let at = self.at(conn);
        let WorkOptions { signalled, class } = options;
        self.sim.0.with(|core| {
            self.take_place(core, at)?;
            let mut captured = core.pool.captured();
            captured.extend_from_slice(head);
            for slice in inline {
                let from = captured.len();
                captured.resize(from + slice.len(), 0);
                slice.copy_to(&mut captured[from..]);
            }
            let ready = self.charge_post(core, captured.len(), inline.len());
            let bytes = Bytes { captured, segments: core.pool.segments(segments) };
            SimTransport::open(core, at)?.sends.push_back(SendWork { work, signalled, class, len, target, bytes });
            core.launch_send(at, ready);
            Ok(())
        })
    }
}

/// Does the first part of every poll. Returns whether a send queue that was full has a place again.
#[inline]
fn begin_poll(core: &mut Core, id: u32, released: &mut Vec<LocalKey>, waiter: &Waiter) -> bool {
    let state = &mut core.adapters[id as usize];
    let node = state.node;
    // A released region does not count as progress. Otherwise a caller that was refused by a full
    // queue would try again, register and release again, and never stop.
    state.registrations.collect(released);
    let nudged = std::mem::take(&mut state.nudged);
    charge_released(core, node, released);
    waiter.poked.store(false, Ordering::Relaxed);
    nudged
}

/// Does the last part of every poll. Returns whether the poll found anything.
#[inline]
fn end_poll(core: &mut Core, id: u32, any: bool) -> bool {
    if any {
        // The caller tries again, and is refused again if there is still no room. After a poll that
        // found nothing, the caller still waits for a notification.
        core.adapters[id as usize].starved = false;
    }
    any
}

/// Charges the processor for deregistering the released regions, in one batch.
fn charge_released(core: &mut Core, node: u32, released: &mut Vec<LocalKey>) {
    if released.is_empty() {
        return;
    }
    let profile = &core.config.profile;
    let pages: u64 = released.iter().map(|key| Registrations::pages(*key)).sum();
    let regions = (released.len() as u64).saturating_mul(profile.deregister_region_ns);
    let cost = profile.deregister_batch_ns + regions + pages.saturating_mul(profile.deregister_page_ns);
    released.clear();
    core.charge(node, Work::Registration, cost);
}
