//! Inline receives (C16 of [`bmi_core::transport`]): messages that a poll can handle in the
//! adapter's own buffer.
//!
//! **Why.** The code that handles inline messages in the protocol above must be tested under every
//! fault. No profile has inline receives, so that the papers' measurements are predicted as before.
//! A world gets them by
//! [`SimConfig::inline_receive_bytes`](crate::SimConfig::inline_receive_bytes), and half of a
//! sweep's worlds do.
//!
//! **How.** It works as in an adapter that writes short messages into the completion. A message
//! takes its receive when it arrives, and its completion waits to be polled. The poll shows the
//! message to the receiver. If the receiver takes it, its receive is posted again, behind the
//! others.
//!
//! **Invariants**
//! 1. With inline receives, `at_hand` has one receive for each report that is a message, in the
//!    same order. Without them it is empty.
//! 2. A message is shown only if the poll has reported nothing of its connection before, and only
//!    while the connection is open. So a receive can always be posted again.
//! 3. A receive keeps its place in the queue (`recv_places`) while it is posted, at hand and posted
//!    again. Taking a message costs the processor a completion, and nothing for posting.
//! 4. Nothing is borrowed while a receiver is called.
//!
//! **Source.** "Scatter to CQE" of adapters by Mellanox. There a receive's place in the queue is
//! taken back, and the driver posts the receive again. That is not charged here, since drivers do
//! it in batches.
//!
//! Tested by the conformance suite (`tests/conformance.rs`, `inline`) and by all sweeps.

use bmi_core::transport::{ConnId, Event as Report, InlineMessage, InlineReceiver};

use super::SimTransport;
use crate::model::connection::{RecvWork, State};
use crate::model::processor::Work;
use crate::model::{Core, Sim};

fn conn_of(report: &Report) -> ConnId {
    match report {
        Report::Work(done) => done.conn,
        Report::ConnectRequest { conn, .. }
        | Report::Established { conn, .. }
        | Report::Rejected { conn, .. }
        | Report::Disconnected { conn, .. } => *conn,
    }
}

impl SimTransport {
    /// Works as `Core::drain_reports`, but shows messages to a receiver.
    pub(crate) fn drain_inline(
        &mut self,
        sim: &Sim,
        batch: usize,
        into: &mut Vec<Report>,
        receiver: &mut dyn InlineReceiver,
    ) -> bool {
        self.reported.clear();
        let (mut polled, mut completions) = (0, 0);
        while polled < batch {
            let Some((report, receive)) = sim.0.core.borrow_mut().next_report(self.id) else { break };
            polled += 1;
            let conn = conn_of(&report);
            if let Some(receive) = receive {
                if self.is_at_hand(sim, &report, &receive) && receiver.take(conn, InlineMessage::of(&mut self.shown)) {
                    completions += 1;
                    sim.0.core.borrow_mut().post_again(self.at(conn), receive);
                    continue;
                }
                sim.0.core.borrow_mut().pool.keep_segments(receive.segments);
            }
            if !self.reported.contains(&conn) {
                self.reported.push(conn);
            }
            completions += u64::from(sim.0.core.borrow_mut().adapters[self.id as usize].polled(&report));
            into.push(report);
        }
        let core = &mut *sim.0.core.borrow_mut();
        if polled == 0 {
            core.adapters[self.id as usize].free_slots();
            return false;
        }
        core.charge(self.node, Work::Polling, completions * core.config.profile.cpu_completion_ns);
        true
    }

    /// Returns whether a message may be shown. If so, `shown` has its bytes.
    fn is_at_hand(&mut self, sim: &Sim, report: &Report, receive: &RecvWork) -> bool {
        let Report::Work(done) = report else { return false };
        let open = |core: &Core| core.conn(self.at(done.conn)).is_some_and(|conn| conn.state == State::Open);
        if done.len > self.inline_receive_bytes || self.reported.contains(&done.conn) || !open(&sim.0.core.borrow()) {
            return false;
        }
        // The length was checked when the message arrived, so it fits.
        let mut left = done.len as usize;
        self.shown.clear();
        self.shown.resize(left, 0);
        for segment in &receive.segments {
            let (at, part) = (self.shown.len() - left, segment.len().min(left));
            segment.region().memory().slice(segment.offset(), part).copy_to(&mut self.shown[at..at + part]);
            left -= part;
        }
        true
    }
}
