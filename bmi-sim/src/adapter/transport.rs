//! The calls of the contract.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::task::Waker;

use bmi_backend::{check_private, total_len};
use bmi_core::transport::{
    Armed, ConnId, Event, HostWork, InlineReceiver, Payload, PostError, Transport, WorkId, WorkOptions, WriteTarget,
    check_exposure, check_writable,
};
use bmi_core::{
    Access, Addr, Capabilities, Error, MemSlice, Memory, MemoryRegion, RemoteKey, RemoteSlice, Scheme, Segment, Time,
};

use super::{BATCH, PAGE, SimTransport, begin_poll, charge_released, end_poll};
use crate::error::SimError;
use crate::model::connection::{Conn, ReadWork, RecvWork, State};
use crate::model::processor::Work;

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
        if check_private(private).is_ok() {
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
        if self.check_owner(std::slice::from_ref(segment)).is_err() {
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
            self.limits.check_recv(segments)?;
            self.check_owner(segments)?;
            if places >= depth {
                return Err(PostError::QueueFull);
            }
            let (len, segments) = (total_len(segments), core.pool.segments(segments));
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
        let len = self.limits.check_send(head, payload)?;
        self.check_owner(segments)?;
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
        let len = self.limits.check_write(head, segments, &target)?;
        self.check_owner(segments)?;
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
        let len = self.limits.check_read(segments, &remote)?;
        self.check_owner(segments)?;
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

    fn spread(&mut self, members: usize) {
        self.sim.0.with(|core| {
            let first = core.adapters[self.id as usize].group;
            core.adapters[first as usize].taking = members.max(1);
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
