//! A connection's turn to send, and to receive from several streams.
//!
//! **Why a part at a time.** A transfer one at a time is as fast as the streams together only if
//! each carries a share of it. So the streams have turns of one part.

use std::io;

use bmi_backend::Fault;
use bmi_core::transport::Event;

use crate::TcpTransport;
use crate::lifecycle::{Connection, Phase};
use crate::line::Taken;
use crate::receive::Shows;
use crate::streams::Receiver;
use crate::vectored_io;

/// Bytes that one connection may send before the others have their turn.
const SEND_BUDGET: usize = 2 << 20;
/// Turns of each stream in that time.
const TURNS: usize = 4;

pub(crate) struct Sent {
    pub(crate) moved: bool,
    /// There is more output that was not tried.
    pub(crate) more: bool,
}

/// Sends what a handshake has to say.
#[cold]
fn push(connection: &mut Connection) -> io::Result<Sent> {
    if let Some(line) = connection.line.as_mut().filter(|_| !connection.blocked) {
        connection.blocked = !line.push()?;
    }
    Ok(Sent { moved: false, more: false })
}

#[inline]
fn send_some(connection: &mut Connection, pieces: &mut Vec<vectored_io::Piece>, mut budget: usize) -> io::Result<Sent> {
    let mut sent = Sent { moved: false, more: false };
    let (Some(line), Some(queues)) = (&mut connection.line, &mut connection.queues) else {
        return push(connection);
    };
    if line.has_unsent() && !connection.blocked {
        connection.blocked = !line.push()?;
        sent.moved = !connection.blocked;
    }
    if line.is_shaking_hands() {
        return Ok(sent);
    }
    if !connection.blocked
        && matches!(connection.phase, Phase::Established)
        && let Some(staged) = queues.only_staged()
    {
        let asked = staged[0].len() + staged[1].len();
        let staged = if staged[1].len() == 0 { &staged[..1] } else { &staged[..] };
        // SAFETY: the wire's own bytes are not touched during the call.
        if let Ok(Taken { bytes, full }) = unsafe { line.send(staged, asked) } {
            sent.moved |= bytes > 0;
            connection.blocked = full;
            if bytes == asked {
                queues.complete_staged();
                return Ok(sent);
            }
            queues.commit(false);
            queues.wire.advance(bytes);
        }
        // An error comes again.
    }
    while !connection.blocked {
        if budget == 0 {
            sent.more = true;
            break;
        }
        match &mut connection.phase {
            Phase::Established => queues.commit(false),
            Phase::Ending(ending) => {
                if ending.graceful {
                    queues.commit(true);
                }
                if (!ending.graceful || !queues.has_uncommitted_requests())
                    && let Some(last) = ending.last.take()
                {
                    queues.wire.commit_header(&last);
                }
            }
            Phase::Greeting { .. } => {}
            Phase::Dialing { .. } | Phase::HalfOpen { .. } | Phase::Requested => return Ok(sent),
        }
        if queues.wire.backlog() == 0 {
            break;
        }
        queues.wire.gather(pieces);
        let asked: usize = pieces.iter().map(vectored_io::Piece::len).sum();
        // SAFETY: the wire's own bytes are not touched during the call. The queues hold the memory
        // that the wire refers to (their invariant 1).
        let Taken { bytes, full } = unsafe { line.send(pieces, asked) }?;
        if bytes > 0 {
            queues.wire.advance(bytes);
            queues.adapt(asked, bytes);
            sent.moved = true;
            budget = budget.saturating_sub(bytes);
        }
        connection.blocked = full; // the kernel says when there is room again
    }
    Ok(sent)
}

/// Sends a connection's output, until the kernel takes no more or the budget is used up.
#[inline]
pub(crate) fn send_all(connection: &mut Connection, pieces: &mut Vec<vectored_io::Piece>) -> io::Result<Sent> {
    if connection.streams.is_none() {
        return send_some(connection, pieces, SEND_BUDGET);
    }
    let mut all = Sent { moved: false, more: true };
    for _ in 0..TURNS {
        // One system call, since it uses up the budget.
        let first = send_some(connection, pieces, 1)?;
        let requests_only = match &connection.phase {
            Phase::Established => Some(false),
            Phase::Ending(ending) if ending.graceful => Some(true),
            _ => None,
        };
        let further = match (requests_only, &mut connection.streams, &mut connection.queues) {
            (Some(requests_only), Some(streams), Some(queues)) => streams.send(queues, pieces, requests_only)?,
            _ => false,
        };
        all.moved |= first.moved || further;
        if !first.moved && !further {
            all.more = false;
            break;
        }
    }
    Ok(all)
}

impl TcpTransport {
    #[inline(never)]
    fn receive_first(&mut self, slot: u32, events: &mut Vec<Event>, limit: usize, shows: &mut Shows<'_>) -> bool {
        self.receive_frames(slot, events, limit, shows)
    }

    /// Receives from all streams of a connection: from the first one first, since it announces what
    /// comes on the others.
    #[inline(never)]
    pub(crate) fn receive_streams(
        &mut self,
        slot: u32,
        events: &mut Vec<Event>,
        limit: usize,
        shows: &mut Shows<'_>,
    ) -> bool {
        let mut moved = self.receive_first(slot, events, limit, shows);
        self.continue_joins(slot);
        let before = events.len();
        let Some(connection) = self.slots.at_mut(slot) else { return moved };
        let (Phase::Established, Some(streams), Some(queues)) =
            (&connection.phase, &mut connection.streams, &mut connection.queues)
        else {
            return moved;
        };
        let exposures = &connection.exposures;
        let mut receiver = Receiver { queues, exposures, pieces: &mut self.pieces, events, limit };
        let id = connection.id;
        match streams.receive(&mut receiver) {
            Ok(received) => {
                moved |= received.bytes > 0 || events.len() > before;
                // What has come may be what another stream waits for.
                let held = connection.inbound.is_held() || streams.any_held();
                if received.more || moved && held {
                    self.ready.add(slot);
                }
                if queues.has_uncommitted() {
                    self.dirty.add(slot);
                }
                moved
            }
            Err(Fault::Violation(violation)) => {
                self.cut(slot, violation);
                true
            }
            Err(fault) => {
                // The peer may have said on the first stream why it ends the connection.
                self.receive_first(slot, events, limit, shows);
                self.end(slot, id, fault);
                true
            }
        }
    }
}
