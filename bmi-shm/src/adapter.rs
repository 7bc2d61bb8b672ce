//! What the adapter does for each call of [`Transport`]: checks it, and does it at once or queues
//! it.

use std::os::fd::{AsFd, BorrowedFd};
use std::task::Waker;

use bmi_core::mem::{RemotePages, RemoteView};
use bmi_core::transport::{
    BulkWay, ConnId, Event, IdleMemory, InlineReceiver, Payload, PostError, ReceivesNothing, RetiredMemory, Transport,
    WorkId, WorkKind, WorkOptions, WriteTarget,
};
use bmi_core::{
    Access, Capabilities, Error, MemSlice, Memory, MemoryRegion, RemoteSlice, Segment, Time, forward_transport,
};

use crate::ShmTransport;
use crate::life::{Connection, Phase};
use crate::records::{LEFT_LEN, Link, Outbound, POST_BUDGET, Ring, len_now, len_now_into, read_now, write_now};
use crate::work::{Pending, QueuePair};

impl ShmTransport {
    /// Posts a send that was not done at once. The caller has checked that its segments belong to
    /// this transport.
    #[inline(never)]
    fn post_any_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let share_pages = self.config.share_pages;
        let working = self.working(conn)?;
        if let Payload::Gather(segments) = payload
            && payload.len() as u64 >= LEFT_LEN
            && let Some(number) = working.link.number_of(segments, share_pages)
        {
            working.queues.leave_send(work, head, segments, number, options)?;
            working.start();
            self.has_moved();
            return Ok(());
        }
        let ring = Ring(working.link);
        working.queues.post_send(work, head, payload, options, ring, working.pending)?;
        if working.queues.has_requests() {
            *working.more = true;
        }
        self.has_moved();
        Ok(())
    }

    /// Returns the queues and the link of a connection on which work may be posted, and the list
    /// for its completions.
    #[inline]
    fn working(&mut self, conn: ConnId) -> Result<Working<'_>, PostError> {
        let connection = self.slots.find_mut(conn).ok_or(PostError::NotConnected)?;
        if !matches!(connection.phase, Phase::Established) {
            return Err(PostError::NotConnected);
        }
        if connection.wake() {
            self.schedule.wake(conn.slot);
        }
        let Connection { link: Some(link), queues: Some(queues), more, .. } = connection else {
            return Err(PostError::NotConnected);
        };
        Ok(Working { link, queues, more, pending: &mut self.pending, pieces: &mut self.scratch.pieces })
    }
}

struct Working<'a> {
    link: &'a mut Link,
    queues: &'a mut QueuePair,
    more: &'a mut bool,
    pending: &'a mut Pending,
    pieces: &'a mut Vec<libc::iovec>,
}

impl Working<'_> {
    /// Does a write at once if nothing is queued before it and its target is mapped; otherwise
    /// queues it.
    fn write(
        self,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        target: WriteTarget,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let len = self.queues.check_write(head, segments, &target)?;
        if len <= POST_BUDGET && write_now(self.link, self.queues, head, segments, &target, len) {
            self.queues.complete_immediately(work, WorkKind::Write, len, options, self.pending);
            self.pending.hold(segments);
            return Ok(());
        }
        self.queues.add_write(work, head, segments, target, options)?;
        self.start();
        Ok(())
    }

    /// Does a read at once if nothing is queued before it and its source is mapped; otherwise
    /// queues it.
    fn read(
        self,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let len = self.queues.check_read(segments, &remote)?;
        if len <= POST_BUDGET && read_now(self.link, self.queues, segments, &remote, len) {
            self.queues.complete_immediately(work, WorkKind::Read, len, options, self.pending);
            self.pending.hold(segments);
            return Ok(());
        }
        self.queues.add_read(work, segments, remote, options);
        self.start();
        Ok(())
    }

    /// Does the work that can be done at once. A violation shows again in the next poll.
    fn start(self) {
        let mut outbound = Outbound { link: self.link, queues: self.queues, pieces: self.pieces, budget: POST_BUDGET };
        let turn = outbound.turn(false, self.pending);
        *self.more |= !turn.is_ok_and(|turn| !turn.more);
    }
}

impl Transport for ShmTransport {
    // Methods of the same names in `life` and `poll`.
    forward_transport!(self => self; listen, connect, accept, reject, disconnect, expose, revoke, flush, arm);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.regions.collect(drop);
        self.regions.register(memory)
    }

    fn post_recv(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        self.regions.check_targets(segments)?;
        let connection = self.slots.find_mut(conn).filter(|connection| connection.phase.takes_receives());
        let queues = connection.and_then(|connection| connection.queues.as_deref_mut());
        queues.ok_or(PostError::NotConnected)?.post_recv(work, segments)
    }

    fn post_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        if let (Payload::Inline(slices), false) = (payload, options.signalled)
            && self.slots.find_mut(conn).is_some_and(|connection| connection.send_immediately(head, slices))
        {
            self.has_moved();
            return Ok(());
        }
        if let Payload::Gather(segments) = payload {
            self.regions.check(segments)?;
            let len = (head.len() + payload.len()) as u64;
            let (share_pages, long) = (self.config.share_pages, payload.len() as u64 >= LEFT_LEN);
            let what = (segments, len);
            if long
                && self.slots.find_mut(conn).is_some_and(|connection| {
                    connection.leave_in_place(work, head, what, options.signalled, share_pages)
                })
            {
                self.has_moved();
                return Ok(());
            }
        }
        self.post_any_send(conn, work, head, payload, options)
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
        self.regions.check(segments)?;
        self.working(conn)?.write(work, head, segments, target, options)
    }

    fn post_read(
        &mut self,
        conn: ConnId,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.regions.check_targets(segments)?;
        self.working(conn)?.read(work, segments, remote, options)
    }

    fn write_now(&mut self, conn: ConnId, from: &[MemSlice], remote: RemoteSlice) -> bool {
        let Some(len) = len_now(from, &remote) else { return false };
        let Ok(Working { link, queues, .. }) = self.working(conn) else { return false };
        write_now(link, queues, &[], from, &remote.into(), len)
    }

    fn read_now(&mut self, conn: ConnId, into: &[MemSlice], remote: RemoteSlice) -> bool {
        let Some(len) = len_now_into(into, &remote) else { return false };
        let Ok(Working { link, queues, .. }) = self.working(conn) else { return false };
        read_now(link, queues, into, &remote, len)
    }

    fn map_remote(&mut self, conn: ConnId, remote: RemoteSlice, access: Access) -> Option<RemotePages> {
        self.working(conn).ok()?.link.map_remote(&remote, access)
    }

    fn view_remote(&mut self, conn: ConnId, remote: RemoteSlice) -> Option<RemoteView> {
        let connection = self.slots.find_mut(conn).filter(|found| matches!(found.phase, Phase::Established))?;
        if connection.wake() {
            self.schedule.wake(conn.slot);
        }
        connection.link.as_mut()?.view_remote(&remote, connection.socket.as_ref()?)
    }

    /// The peer may write into exposed memory at any time, without a poll of this side.
    fn release_idle(&mut self, conn: ConnId) -> IdleMemory {
        let established = |connection: &&mut Connection| matches!(connection.phase, Phase::Established);
        let receives =
            self.slots.find_mut(conn).filter(established).is_some_and(|connection| connection.inbound.is_empty());
        if receives { IdleMemory::Receives } else { IdleMemory::Nothing }
    }

    fn retired_memory(&self) -> RetiredMemory {
        self.retired.usage()
    }

    fn bulk_ways(&mut self, conn: ConnId) -> Vec<BulkWay> {
        let shared = self.config.share_pages;
        self.working(conn).map(|working| working.link.ways(shared)).unwrap_or_default()
    }

    fn poll(&mut self, now: Time, events: &mut Vec<Event>) -> bool {
        self.make_progress(now, events, false, &mut ReceivesNothing)
    }

    fn poll_inline(&mut self, now: Time, events: &mut Vec<Event>, receiver: &mut dyn InlineReceiver) -> bool {
        self.make_progress(now, events, true, receiver)
    }

    fn next_deadline(&self) -> Option<Time> {
        self.deadlines.earliest()
    }

    fn spread(&mut self, members: usize) {
        self.shard.spread(members);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}
