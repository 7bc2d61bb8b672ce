//! The processing of work requests, and how a connection ends.

use bmi_core::Error;
use bmi_core::transport::{Event as Report, WorkCompletion, WorkKind, WorkStatus, WriteTarget};

use super::memory;
use super::state::{Bytes, Conn, RecvWork, State, is_message};
use crate::engine::{ConnRef, Event, Flow, Nak, Packet, Sending};
use crate::error::SimError;
use crate::faults::link::Strike;
use crate::model::Core;
use crate::model::network::link_key;
use crate::model::overheard::Verb;

impl Core {
    /// Returns the nodes that a connection's packets go from and to.
    pub(crate) fn route(&self, at: ConnRef, peer: ConnRef) -> (u32, u32) {
        (self.adapters[at.adapter as usize].node, self.adapters[peer.adapter as usize].node)
    }

    /// Sends a packet for a connection, in its order.
    pub(crate) fn send_packet(&mut self, at: ConnRef, peer: ConnRef, sending: Sending) {
        let replies = matches!(sending.packet, Packet::ReadReply { .. });
        self.transmit(self.route(at, peer), Flow { from: at, replies }, sending);
    }

    fn send_answer(&mut self, at: ConnRef, peer: ConnRef, packet: Packet) {
        let route = self.route(at, peer);
        let Some(mut order) = self.conn(at).map(|conn| conn.order) else { return };
        self.answer(route, &mut order, packet);
        if let Some(conn) = self.conn_mut(at) {
            conn.order = order;
        }
    }

    /// Sends the send or write that was put at the end of the queue.
    pub(crate) fn launch_send(&mut self, at: ConnRef, ready: u64) {
        let Some(conn) = self.conn(at) else { return };
        let (Some(peer), Some(last)) = (conn.peer, conn.sends.back()) else { return };
        let number = conn.sends_base + conn.sends.len() as u64 - 1;
        let profile = &self.config.profile;
        let tail = match last.target {
            None => profile.receive_ns + profile.receive_scatter_ns,
            Some(target) if target.immediate.is_some() => profile.receive_ns,
            Some(_) => 0,
        };
        let packet = Packet::Message { to: peer, number };
        let segments = last.bytes.segments.len() as u64;
        let sending = Sending { packet, class: last.class, len: last.len, segments, ready, extra: 0, tail };
        self.send_packet(at, peer, sending);
    }

    /// Sends the requests of waiting reads, up to the limit of outstanding reads.
    pub(crate) fn launch_reads(&mut self, at: ConnRef, ready: u64) {
        let limit = self.capabilities.max_outstanding_reads.max(1);
        loop {
            let Some(conn) = self.conn_mut(at) else { return };
            let Some(peer) = conn.peer else { return };
            if conn.reads_issued >= limit || conn.reads_issued == conn.reads.len() {
                return;
            }
            let number = conn.reads_base + conn.reads_issued as u64;
            let class = conn.reads[conn.reads_issued].class;
            conn.reads_issued += 1;
            let packet = Packet::ReadRequest { to: peer, number };
            self.send_packet(at, peer, Sending { packet, class, len: 0, segments: 0, ready, extra: 0, tail: 0 });
        }
    }

    /// Applies the plan of faults to a request that is at its target. Returns why the request is
    /// refused, and the error for the target's connection.
    fn struck(&mut self, from: ConnRef, to: ConnRef, takes_receive: bool) -> Option<(Nak, SimError)> {
        if self.links.is_empty() {
            return None;
        }
        let (a, b) = self.route(from, to);
        let trouble = &mut self.links.get_mut(&link_key(a, b))?.trouble;
        match trouble.strike(takes_receive) {
            Some(Strike::Corrupt) => return Some((Nak::Damaged, SimError::Damaged)),
            Some(Strike::NotReady) => return Some((Nak::NotReady, SimError::Struck)),
            None => {}
        }
        let loses_answer = takes_receive && trouble.loses_answer(a < b);
        if takes_receive && self.conn(to).is_some_and(|conn| conn.deaf) {
            return Some((Nak::Damaged, SimError::Damaged));
        }
        if loses_answer && let Some(conn) = self.conn_mut(from) {
            conn.deaf = true;
        }
        None
    }

    /// Handles a send or write that is at the target's adapter, `to`.
    pub(crate) fn handle_message(&mut self, to: ConnRef, number: u64) {
        let Some(conn) = self.conn(to) else { return };
        let closing = conn.state == State::Closing;
        let Some(from) = conn.peer else { return };
        let Some(sender) = self.conn_mut(from) else { return };
        let Some(work) = sender.send_mut(number) else { return };
        let (target, len) = (work.target, work.len);
        let bytes = std::mem::take(&mut work.bytes);
        sender.arrived = number + 1;
        self.overhear_work(from, to, target, &bytes);
        let takes_receive = target.is_none_or(|target| target.immediate.is_some());
        let struck = if closing { None } else { self.struck(from, to, takes_receive) };
        let outcome = match (struck, target) {
            (Some(refusal), _) => Err(refusal),
            // The receives of a closing connection have been flushed, and its program no longer
            // handles messages.
            (None, None) if closing => Ok(()),
            (None, None) => self.receive(to, &bytes, len),
            (None, Some(target)) => self.accept_write(to, &bytes, len, target, closing),
        };
        if let Some(work) = self.conn_mut(from).and_then(|conn| conn.send_mut(number)) {
            work.bytes = bytes;
        }
        match outcome {
            Ok(()) => self.send_answer(to, from, Packet::Ack { to: from, number }),
            Err((why, error)) => {
                self.send_answer(to, from, Packet::Nak { to: from, number, why });
                self.end(to, error);
            }
        }
    }

    /// Lets those who listen hear a send or write that has arrived.
    fn overhear_work(&mut self, from: ConnRef, to: ConnRef, target: Option<WriteTarget>, bytes: &Bytes) {
        if self.tap.is_some() {
            let mut all = bytes.captured.clone();
            bytes.segments.iter().for_each(|segment| all.extend(segment.to_slice().to_vec()));
            let node = self.adapters[to.adapter as usize].node;
            self.overhear(from, node, target.map_or(Verb::Send, Verb::Write), &all);
        }
    }

    /// Puts a send into the first receive.
    fn receive(&mut self, to: ConnRef, bytes: &Bytes, len: u64) -> Result<(), (Nak, SimError)> {
        let conn = self.conn_mut(to).expect("the caller has found it");
        let Some(receive) = conn.receives.pop_front() else { return Err((Nak::NotReady, SimError::NoReceive)) };
        if len > receive.len {
            let error = SimError::MessageTooLong(len, receive.len);
            self.complete_receive(to, receive, WorkStatus::TooLong, 0, None);
            return Err((Nak::TooLong, error));
        }
        memory::copy(&bytes.captured, &bytes.segments, &receive.segments, 0);
        self.complete_receive(to, receive, WorkStatus::Ok, len, None);
        Ok(())
    }

    /// Checks a write, puts its bytes in place, and reports its immediate data.
    fn accept_write(
        &mut self,
        to: ConnRef,
        bytes: &Bytes,
        len: u64,
        target: WriteTarget,
        closing: bool,
    ) -> Result<(), (Nak, SimError)> {
        let conn = self.conn_mut(to).expect("the caller has found it");
        let (segment, at) = conn
            .exposures
            .check(target.remote, len, true)
            .map_err(|why| (Nak::WriteAccess, SimError::PeerViolation(why)))?;
        if target.immediate.is_some() && conn.receives.is_empty() && !closing {
            return Err((Nak::NotReady, SimError::NoReceive));
        }
        memory::copy(&bytes.captured, &bytes.segments, std::slice::from_ref(segment), at);
        if let Some(immediate) = target.immediate
            && let Some(receive) = conn.receives.pop_front()
        {
            self.complete_receive(to, receive, WorkStatus::Ok, 0, Some(immediate));
        }
        Ok(())
    }

    fn complete_receive(
        &mut self,
        at: ConnRef,
        receive: RecvWork,
        status: WorkStatus,
        len: u64,
        immediate: Option<u32>,
    ) {
        let (conn, work, kind) = (at.id(), receive.work, WorkKind::Recv);
        let report = Report::Work(WorkCompletion { conn, work, kind, status, len, immediate });
        if self.config.inline_receive_bytes > 0 && is_message(&report) {
            self.adapters[at.adapter as usize].at_hand.push_back(receive);
        } else {
            self.pool.keep_segments(receive.segments);
        }
        self.report(at.adapter, report);
    }

    /// Handles a read request at the owner's adapter: checks it, copies, and replies.
    pub(crate) fn handle_read_request(&mut self, to: ConnRef, number: u64) {
        let Some(from) = self.conn(to).and_then(|conn| conn.peer) else { return };
        let Some(reader) = self.conn(from) else { return };
        if number.checked_sub(reader.reads_base).is_none_or(|index| index as usize >= reader.reads.len()) {
            return;
        }
        if let Some((why, error)) = self.struck(from, to, false) {
            let why = if why == Nak::Damaged { Nak::DamagedRead } else { why };
            self.send_answer(to, from, Packet::Nak { to: from, number, why });
            return self.end(to, error);
        }
        let (Some(owner), Some(reader)) = (self.conn(to), self.conn(from)) else { return };
        let Some(work) = reader.reads.get((number - reader.reads_base) as usize) else { return };
        match owner.exposures.check(work.remote, work.len, false) {
            Ok((segment, at)) => {
                // The reader may not look at its memory before the completion, so the bytes may be
                // copied early.
                memory::copy_out_of(segment, at, work.len as usize, &work.segments);
                let (len, class, remote) = (work.len, work.class, work.remote);
                if self.tap.is_some() {
                    let bytes = segment.slice(at, len as usize).to_slice().to_vec();
                    self.overhear(from, self.route(to, from).0, Verb::Read(remote), &bytes);
                }
                let ready = self.queue.now + self.config.profile.read_response_ns;
                let packet = Packet::ReadReply { to: from, number };
                self.send_packet(to, from, Sending { packet, class, len, segments: 1, ready, extra: 0, tail: 0 });
            }
            Err(why) => {
                self.send_answer(to, from, Packet::Nak { to: from, number, why: Nak::ReadAccess });
                self.end(to, SimError::PeerViolation(why));
            }
        }
    }

    /// Handles the reply to a read, whose bytes have arrived.
    pub(crate) fn handle_read_reply(&mut self, to: ConnRef, number: u64) {
        let Some(conn) = self.conn_mut(to) else { return };
        if number != conn.reads_base || conn.reads.is_empty() {
            return; // flushed meanwhile
        }
        let Some(read) = conn.reads.pop_front() else { return };
        conn.reads_base += 1;
        conn.reads_issued -= 1;
        if read.signalled {
            let (status, kind, conn) = (WorkStatus::Ok, WorkKind::Read, to.id());
            let completion = WorkCompletion { conn, work: read.work, kind, status, len: read.len, immediate: None };
            self.report(to.adapter, Report::Work(completion));
        } else {
            conn.send_places -= 1;
            self.nudge(to.adapter);
        }
        self.pool.keep_segments(read.segments);
        self.launch_reads(to, self.queue.now);
    }

    /// Completes the oldest send or write, which the peer's adapter has carried out.
    pub(crate) fn handle_ack(&mut self, to: ConnRef, number: u64) {
        let Some(conn) = self.conn_mut(to) else { return };
        debug_assert_eq!(number, conn.sends_base, "acknowledgements keep their order");
        let Some(done) = conn.sends.pop_front() else { return };
        conn.sends_base += 1;
        let drained = conn.state == State::Closing && conn.sends.is_empty();
        if done.signalled {
            let (conn, status) = (to.id(), WorkStatus::Ok);
            let completion =
                WorkCompletion { conn, work: done.work, kind: done.kind(), status, len: done.len, immediate: None };
            self.report(to.adapter, Report::Work(completion));
        } else {
            conn.send_places -= 1;
            // A full queue has a place again, so there is something to poll for.
            self.nudge(to.adapter);
        }
        self.pool.keep(done.bytes);
        if drained {
            self.close(to, SimError::ClosedHere);
        }
    }

    /// Ends a connection because the peer's adapter refused a request.
    pub(crate) fn handle_nak(&mut self, to: ConnRef, number: u64, why: Nak) {
        let (status, error) = match why {
            Nak::WriteAccess | Nak::ReadAccess => (WorkStatus::RemoteAccess, SimError::AccessRefused),
            Nak::NotReady => (WorkStatus::ReceiverNotReady, SimError::PeerNotReady),
            Nak::TooLong => (WorkStatus::TooLong, SimError::PeerReceiveShort),
            Nak::Damaged | Nak::DamagedRead => (WorkStatus::Failed, SimError::PeerFoundDamage),
        };
        let Some(conn) = self.conn(to) else { return };
        // A disconnect that was requested here ends as requested.
        let error = if conn.state == State::Closing { SimError::ClosedHere } else { error };
        self.end_with(to, Some((matches!(why, Nak::ReadAccess | Nak::DamagedRead), number, status)), error);
    }

    /// Tells the peer, then ends the connection.
    pub(crate) fn close(&mut self, at: ConnRef, error: SimError) {
        if let Some(peer) = self.conn(at).and_then(|conn| conn.peer) {
            self.send_packet(at, peer, Sending::control(Packet::Close { to: peer }, 0));
        }
        self.end(at, error);
    }

    /// Ends a connection: flushes all outstanding requests, then reports `Disconnected`.
    pub(crate) fn end(&mut self, at: ConnRef, error: SimError) {
        self.end_with(at, None, error);
    }

    fn end_with(&mut self, at: ConnRef, refused: Option<(bool, u64, WorkStatus)>, error: SimError) {
        let Some(mut conn) = self.remove_conn(at) else { return };
        tracing::debug!(node = self.adapters[at.adapter as usize].node, peer = %conn.peer_name, %error, "connection ended");
        self.note_end(at, &conn, refused, &error);
        self.leave_partly_written(&conn);
        let status_of = |is_read: bool, number: u64| match refused {
            Some((read, refused, status)) if read == is_read && refused == number => status,
            _ => WorkStatus::Flushed,
        };
        let ended = |work, kind, status, len| {
            Report::Work(WorkCompletion { conn: at.id(), work, kind, status, len, immediate: None })
        };
        // The request at fault comes first.
        let read_at_fault = matches!(refused, Some((true, ..)));
        for of_reads in [read_at_fault, !read_at_fault] {
            if of_reads {
                for (number, read) in (conn.reads_base..).zip(conn.reads.drain(..)) {
                    self.report(at.adapter, ended(read.work, WorkKind::Read, status_of(true, number), read.len));
                    self.pool.keep_segments(read.segments);
                }
            } else {
                for (number, send) in (conn.sends_base..).zip(conn.sends.drain(..)) {
                    self.report(at.adapter, ended(send.work, send.kind(), status_of(false, number), send.len));
                    self.pool.keep(send.bytes);
                }
            }
        }
        self.flush_receives(at, &mut conn);
        let reason = Error::from(error).with_peer(&conn.peer_name);
        self.report(at.adapter, Report::Disconnected { conn: at.id(), reason });
    }

    /// Puts some bytes of an unfinished write in place, from the front, because its connection ends
    /// while the write is on its way.
    fn leave_partly_written(&mut self, conn: &Conn) {
        let Some(at) = conn.arrived.checked_sub(conn.sends_base) else { return };
        let Some(write) = usize::try_from(at).ok().and_then(|at| conn.sends.get(at)) else { return };
        let (Some(target), Some(peer)) = (write.target, conn.peer) else { return };
        let there = self.torn.below(write.len.max(1));
        let Some(peer) = self.conn(peer) else { return };
        if let Ok((segment, at)) = peer.exposures.check(target.remote, write.len, true) {
            let part = segment.slice(at, there as usize);
            memory::copy(&write.bytes.captured, &write.bytes.segments, std::slice::from_ref(&part), 0);
        }
    }

    pub(crate) fn flush_receives(&mut self, at: ConnRef, conn: &mut Conn) {
        for receive in conn.receives.drain(..) {
            self.complete_receive(at, receive, WorkStatus::Flushed, 0, None);
        }
    }

    /// Starts a disconnect from this side: flushes reads and receives, and keeps delivering posted
    /// sends and writes until `deadline`.
    pub(crate) fn begin_close(&mut self, at: ConnRef, deadline: u64) {
        let now = self.queue.now;
        let Some(conn) = self.conn_mut(at) else { return };
        if conn.state != State::Closing {
            let handing_over = conn.state == State::Open && !conn.sends.is_empty();
            let (reads, receives) = (std::mem::take(&mut conn.reads), std::mem::take(&mut conn.receives));
            conn.reads_base += reads.len() as u64;
            conn.reads_issued = 0;
            conn.state = State::Closing;
            self.set_deadline(at, u64::MAX);
            for read in reads {
                let (conn, kind, status) = (at.id(), WorkKind::Read, WorkStatus::Flushed);
                let completion = WorkCompletion { conn, work: read.work, kind, status, len: read.len, immediate: None };
                self.report(at.adapter, Report::Work(completion));
                self.pool.keep_segments(read.segments);
            }
            for receive in receives {
                self.complete_receive(at, receive, WorkStatus::Flushed, 0, None);
            }
            if !handing_over || deadline <= now {
                return self.close(at, SimError::ClosedHere);
            }
        }
        let Some(conn) = self.conn_mut(at) else { return };
        if deadline < conn.deadline {
            self.set_deadline(at, deadline);
            self.queue.schedule(deadline, Event::CloseDeadline { conn: at });
        }
    }

    /// Ends a connection because the peer has ended it.
    pub(crate) fn handle_close(&mut self, to: ConnRef) {
        let Some(conn) = self.conn(to) else { return };
        let error = if conn.state == State::Closing { SimError::ClosedHere } else { SimError::ClosedByPeer };
        self.end(to, error);
    }
}
