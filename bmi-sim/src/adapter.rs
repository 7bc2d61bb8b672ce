//! [`SimTransport`]: the contract of `bmi_core::transport`, implemented over the world.
//!
//! All actions are events of the world. Posting schedules events, and polling returns what they
//! reported. `poll` ignores the time that it is given and uses the world's time. A deadline of
//! [`Transport::next_deadline`] is an event of the world too.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use bmi_core::mem::{LocalKey, RegionOwner};
use bmi_core::transport::{
    Armed, ConnId, Event, HostWork, InlineReceiver, MAX_PRIVATE_DATA, Payload, PostError, Transport, WorkId,
    WorkOptions, WriteTarget, check_exposure, check_writable,
};
use bmi_core::{
    Access, Addr, Capabilities, Error, MemSlice, Memory, MemoryRegion, RemoteKey, RemoteSlice, Scheme, Segment, Time,
};
use send_wrapper::SendWrapper;

use crate::cpu::Work;
use crate::error::SimError;
use crate::events::ConnRef;
use crate::memory::Registrations;
use crate::node::Node;
use crate::queue_pair::{Bytes, Conn, ReadWork, RecvWork, SendWork, State};
use crate::world::{Core, Sim};

/// Maximum number of events that one poll reports.
const BATCH: usize = 256;
/// Bytes of a page, as registration counts them.
const PAGE: usize = 4096;

/// The task that waits on a transport.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    waker: Mutex<Option<Waker>>,
    /// Set when a waker of `Transport::waker` was used since the last poll.
    poked: AtomicBool,
}

impl Waiter {
    pub(crate) fn take(&self) -> Option<Waker> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, waker: &Waker) {
        let mut waiting = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *waiting {
            Some(waiting) => waiting.clone_from(waker),
            None => *waiting = Some(waker.clone()),
        }
    }
}

impl Wake for Waiter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.poked.store(true, Ordering::Release);
        if let Some(waker) = self.take() {
            waker.wake();
        }
    }
}

/// A transport of a simulated node.
///
/// An endpoint takes only transports that may be moved to another thread. This one may, but a world
/// has one thread: another one that uses or drops it panics.
pub struct SimTransport {
    sim: SendWrapper<Sim>,
    pub(crate) node: u32,
    pub(crate) id: u32,
    capabilities: Capabilities,
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

    fn check_segments(&self, segments: &[Segment]) -> Result<u64, PostError> {
        if segments.len() > self.capabilities.max_segments {
            return Err(PostError::Invalid("more segments than max_segments"));
        }
        let mut len = 0u64;
        for segment in segments {
            if !segment.region().is_owned_by(&self.owner) {
                return Err(PostError::Invalid("a segment belongs to another transport"));
            }
            len += segment.len() as u64;
        }
        Ok(len)
    }

    fn check_len(&self, head: &[u8], len: u64) -> Result<u64, PostError> {
        if head.len() > self.capabilities.max_head {
            return Err(PostError::Invalid("the head is longer than max_head"));
        }
        let len = len + head.len() as u64;
        if len > self.capabilities.max_work_len {
            return Err(PostError::Invalid("the request is longer than max_work_len"));
        }
        Ok(len)
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

fn check_private(private: &[u8]) -> Result<(), SimError> {
    if private.len() > MAX_PRIVATE_DATA {
        return Err(SimError::PrivateTooLong(private.len(), MAX_PRIVATE_DATA));
    }
    Ok(())
}

impl Transport for SimTransport {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        self.alive()?;
        self.sim.0.with(|core| {
            let name = core.nodes[self.node as usize].name.clone();
            if addr.scheme() != Scheme::Sim || addr.host() != name {
                return Err(SimError::WrongAddress(addr.to_string(), name).into());
            }
            let port = core.take_port(self.node, addr.port(), self.id)?;
            Ok(addr.with_port(port))
        })
    }

    fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
        self.alive()?;
        check_private(private)?;
        self.sim.0.with(|core| {
            if addr.scheme() != Scheme::Sim {
                return Err(SimError::WrongAddress(addr.to_string(), "node".to_owned()).into());
            }
            Ok(core.start_connect(self.id, addr, private, deadline.as_nanos()).id())
        })
    }

    fn accept(&mut self, conn: ConnId, private: &[u8]) -> Result<(), Error> {
        check_private(private)?;
        let at = self.at(conn);
        Ok(self.sim.0.with(|core| core.start_accept(at, private))?)
    }

    fn reject(&mut self, conn: ConnId, private: &[u8]) {
        let at = self.at(conn);
        if private.len() <= MAX_PRIVATE_DATA {
            self.sim.0.with(|core| core.start_reject(at, private));
        }
    }

    fn disconnect(&mut self, conn: ConnId, deadline: Time) {
        let at = self.at(conn);
        self.sim.0.with(|core| core.begin_close(at, deadline.as_nanos()));
    }

    fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.alive()?;
        let key = self.sim.0.with(|core| {
            let state = &mut core.adapters[self.id as usize].registrations;
            let limit = core.config.max_registrations;
            // C13: collect released regions before a registration is refused.
            if state.live >= limit {
                state.collect(&mut self.released);
                charge_released(core, self.node, &mut self.released);
            }
            let state = &mut core.adapters[self.id as usize].registrations;
            if state.failing > 0 || state.live >= limit {
                state.failing = state.failing.saturating_sub(1);
                return Err(SimError::TooManyRegistrations(limit));
            }
            state.live += 1;
            let pages = memory.len().div_ceil(PAGE) as u64;
            let key = state.fresh_key(pages);
            let profile = &core.config.profile;
            let cost = profile.register_region_ns.saturating_add(pages.saturating_mul(profile.register_page_ns));
            core.charge(self.node, Work::Registration, cost);
            Ok(key)
        })?;
        Ok(MemoryRegion::new(memory.clone(), key, self.owner.clone()))
    }

    fn expose(&mut self, conn: ConnId, segment: &Segment, access: Access) -> Result<RemoteSlice, Error> {
        check_exposure(segment, access)?;
        let at = self.at(conn);
        if !segment.region().is_owned_by(&self.owner) {
            return Err(SimError::ForeignSegment.into());
        }
        self.sim.0.with(|core| {
            let mut keys = core.keys.clone();
            let conn = core.conn_mut(at).filter(|conn| conn.state != State::Closing).ok_or(SimError::NoConnection)?;
            let remote = conn.exposures.insert(&mut keys, segment, access);
            core.keys = keys;
            Ok(remote)
        })
    }

    fn revoke(&mut self, conn: ConnId, key: RemoteKey) {
        let at = self.at(conn);
        self.sim.0.with(|core| {
            if let Some(conn) = core.conn_mut(at) {
                conn.exposures.remove(key);
            }
        });
    }

    fn post_recv(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        check_writable(segments)?;
        let at = self.at(conn);
        let depth = self.capabilities.recv_queue_depth;
        self.sim.0.with(|core| {
            let takes = |conn: &&mut Conn| conn.state != State::Closing;
            let places = core.conn_mut(at).filter(takes).ok_or(PostError::NotConnected)?.recv_places;
            let len = self.check_segments(segments)?;
            if places >= depth {
                return Err(PostError::QueueFull);
            }
            let segments = core.pool.segments(segments);
            let conn = core.conn_mut(at).ok_or(PostError::NotConnected)?;
            conn.recv_places += 1;
            conn.receives.push_back(RecvWork { work, len, segments });
            let cost = core.config.profile.cpu_post_receive_ns;
            core.charge(self.node, Work::Protocol, cost);
            Ok(())
        })
    }

    fn post_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        SimTransport::open(&mut self.sim.0.core.borrow_mut(), self.at(conn))?;
        let (inline, segments): (&[MemSlice], &[Segment]) = match payload {
            Payload::Inline(slices) => (slices, &[]),
            Payload::Gather(segments) => (&[], segments),
        };
        let inline_len: usize = inline.iter().map(MemSlice::len).sum();
        if inline_len > 0 && inline_len + head.len() > self.capabilities.max_inline {
            return Err(PostError::Invalid("head and inline payload are longer than max_inline"));
        }
        let len = self.check_len(head, self.check_segments(segments)? + inline_len as u64)?;
        self.launch(conn, work, head, inline, segments, len, None, options)
    }

    fn post_write(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        target: WriteTarget,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        SimTransport::open(&mut self.sim.0.core.borrow_mut(), self.at(conn))?;
        let len = self.check_len(head, self.check_segments(segments)?)?;
        if len > target.remote.len {
            return Err(PostError::Invalid("the write is longer than its target"));
        }
        if target.immediate.is_some() && !self.capabilities.write_with_immediate {
            return Err(PostError::Invalid("this adapter has no write with immediate data"));
        }
        self.launch(conn, work, head, &[], segments, len, Some(target), options)
    }

    fn post_read(
        &mut self,
        conn: ConnId,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        check_writable(segments)?;
        let at = self.at(conn);
        SimTransport::open(&mut self.sim.0.core.borrow_mut(), at)?;
        if !self.capabilities.rdma_read {
            return Err(PostError::Invalid("this adapter has no RDMA read"));
        }
        let len = self.check_len(&[], self.check_segments(segments)?)?;
        if len > remote.len {
            return Err(PostError::Invalid("the read is longer than its source"));
        }
        self.sim.0.with(|core| {
            self.take_place(core, at)?;
            let ready = self.charge_post(core, 0, 0);
            let segments = core.pool.segments(segments);
            SimTransport::open(core, at)?.reads.push_back(ReadWork {
                work,
                signalled: options.signalled,
                class: options.class,
                len,
                remote,
                segments,
            });
            core.launch_reads(at, ready);
            Ok(())
        })
    }

    fn poll(&mut self, _now: Time, events: &mut Vec<Event>) -> bool {
        let core = &mut *self.sim.0.core.borrow_mut();
        let nudged = begin_poll(core, self.id, &mut self.released, &self.waiter);
        let any = core.drain_reports(self.id, BATCH, events) || nudged;
        end_poll(core, self.id, any)
    }

    fn poll_inline(&mut self, now: Time, events: &mut Vec<Event>, receiver: &mut dyn InlineReceiver) -> bool {
        if self.inline_receive_bytes == 0 {
            return self.poll(now, events);
        }
        let sim = self.sim.clone();
        let nudged = begin_poll(&mut sim.0.core.borrow_mut(), self.id, &mut self.released, &self.waiter);
        let any = self.drain_inline(&sim, BATCH, events, receiver) || nudged;
        end_poll(&mut sim.0.core.borrow_mut(), self.id, any)
    }

    fn charge(&mut self, work: HostWork) {
        self.sim.0.with(|core| {
            let HostWork::Copy { bytes, pieces } = work;
            let profile = &core.config.profile;
            let (cost, bus) = (profile.copy_ns(bytes, pieces), profile.copy_bus_ns(bytes));
            core.charge_copy(self.node, cost, bus);
        });
    }

    fn next_deadline(&self) -> Option<Time> {
        let core = self.sim.0.core.borrow();
        core.adapters[self.id as usize].deadlines.first().map(|(deadline, _)| Time::from_nanos(*deadline))
    }

    fn arm(&mut self, waker: &Waker) -> Armed {
        let core = self.sim.0.core.borrow();
        let state = &core.adapters[self.id as usize];
        let busy = !state.reports.is_empty() || state.nudged || !state.registrations.owner.is_empty();
        if busy || self.waiter.poked.load(Ordering::Acquire) {
            return Armed::Busy;
        }
        self.waiter.set(waker);
        Armed::Waiting
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn waker(&self) -> Waker {
        Waker::from(self.waiter.clone())
    }
}

impl Drop for SimTransport {
    /// Ends every connection. The peers see it as a disconnect.
    fn drop(&mut self) {
        self.sim.0.with(|core| core.drop_adapter(self.id));
    }
}
