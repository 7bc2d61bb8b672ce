//! What a software adapter refuses of its peer, how it tells the peer, and what the peer makes of
//! it.
//!
//! **Protocol**
//!
//! ```text
//!   a request of the peer ──check──> BadRequest ──refusal()──> Refusal ══ the wire ══> Refusal ──> Blame
//!                                     ends the connection here                    statuses of the peer's work
//! ```
//!
//! **Invariants**
//! 1. A refusal that arrives is one of those that can be sent; anything else is invalid.
//! 2. At most one request ends with the reason as its status. All others are flushed (C4).
//!
//! **Tests.** Here; `bmi-tcp/tests/it/remote_access.rs`, `bmi-shm/src/hostile`.

use std::fmt;

use bmi_core::transport::{WorkKind, WorkStatus};

/// A request of the peer that the adapter does not carry out. It ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRequest {
    /// The peer has more reads outstanding than [`MAX_READS`](super::MAX_READS).
    TooManyReads,
    /// The request names memory that the peer may not reach: key, bounds or rights (C7). The number
    /// is that of the read; 0 for a write.
    Access(WorkKind, u32),
    /// The request consumes a receive, and none is posted.
    NotReady(WorkKind),
    /// The message is longer than the receive.
    TooLong,
}

impl BadRequest {
    /// Returns the refusal that the peer is sent.
    pub fn refusal(self) -> Refusal {
        match self {
            BadRequest::Access(work, id) => Refusal { status: WorkStatus::RemoteAccess, work: Some(work), id },
            BadRequest::NotReady(work) => Refusal { status: WorkStatus::ReceiverNotReady, work: Some(work), id: 0 },
            BadRequest::TooLong => Refusal { status: WorkStatus::TooLong, work: Some(WorkKind::Send), id: 0 },
            BadRequest::TooManyReads => Refusal::BREACH,
        }
    }
}

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadRequest::TooManyReads => f.write_str("it has more reads outstanding than the limit"),
            BadRequest::Access(work, _) => write!(f, "its {work:?} names memory that it may not reach"),
            BadRequest::NotReady(_) => f.write_str("it sent a message and no receive was posted"),
            BadRequest::TooLong => f.write_str("it sent a message that is longer than the receive"),
        }
    }
}

impl std::error::Error for BadRequest {}

/// The reason that a side sends to a peer when it cuts the connection: the request that caused it,
/// and the request's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status with which the request completes.
    pub status: WorkStatus,
    /// The kind of the refused request, if there was one.
    pub work: Option<WorkKind>,
    /// The number of the refused read; 0 otherwise.
    pub id: u32,
}

impl Refusal {
    /// The refusal of a peer that broke the protocol other than by a request.
    pub const BREACH: Refusal = Refusal { status: WorkStatus::Failed, work: None, id: 0 };

    /// Returns the request's status as a byte for the wire, never 0.
    pub fn status_to_wire(self) -> u8 {
        match self.status {
            WorkStatus::RemoteAccess => 1,
            WorkStatus::ReceiverNotReady => 2,
            WorkStatus::TooLong => 3,
            _ => 4,
        }
    }

    /// Returns the request's kind as a byte for the wire.
    pub fn work_to_wire(self) -> u8 {
        match self.work {
            Some(WorkKind::Send) => 1,
            Some(WorkKind::Write) => 2,
            Some(WorkKind::Read) => 3,
            _ => 0,
        }
    }

    /// Decodes the two bytes and the number of the read. Returns `None` if they are invalid.
    pub fn from_wire(status: u8, work: u8, id: u32) -> Option<Refusal> {
        let status = match status {
            1 => WorkStatus::RemoteAccess,
            2 => WorkStatus::ReceiverNotReady,
            3 => WorkStatus::TooLong,
            4 => WorkStatus::Failed,
            _ => return None,
        };
        let work = match work {
            0 => None,
            1 => Some(WorkKind::Send),
            2 => Some(WorkKind::Write),
            3 => Some(WorkKind::Read),
            _ => return None,
        };
        Some(Refusal { status, work, id })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.status {
            WorkStatus::RemoteAccess => "remote access refused (key, bounds, rights)",
            WorkStatus::ReceiverNotReady => "it had no receive posted",
            WorkStatus::TooLong => "a message was longer than its receive",
            _ => "it takes what this side sent for a breach of the protocol",
        })
    }
}

/// The statuses of the work that ends with a connection. If the peer has refused a request, that
/// request gets the reason as its status, as far as this side can identify it. All other work is
/// flushed (C4).
#[derive(Debug)]
pub struct Blame {
    refusal: Option<Refusal>,
}

impl Blame {
    /// Returns the statuses for an end with this refusal of the peer, or without one.
    pub fn new(refusal: Option<Refusal>) -> Blame {
        Blame { refusal }
    }

    /// Returns the status of a send or a write. Ask for the oldest one first: a refusal does not
    /// tell which one it is for, and the first of its kind gets the reason.
    pub fn status(&mut self, kind: WorkKind) -> WorkStatus {
        let refusal = self.refusal.take_if(|refusal| refusal.work == Some(kind));
        refusal.map_or(WorkStatus::Flushed, |refusal| refusal.status)
    }

    /// Returns the status of the read with this number.
    pub fn status_of_read(&self, id: u32) -> WorkStatus {
        let refusal = self.refusal.filter(|refusal| refusal.work == Some(WorkKind::Read) && refusal.id == id);
        refusal.map_or(WorkStatus::Flushed, |refusal| refusal.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_survive_the_wire_and_nothing_else_is_one() {
        let known = (0..=u8::MAX).flat_map(|status| (0..=u8::MAX).map(move |work| (status, work)));
        let known: Vec<_> = known.filter_map(|(status, work)| Refusal::from_wire(status, work, 7)).collect();
        assert_eq!(known.len(), 4 * 4);
        for refusal in known {
            let again = Refusal::from_wire(refusal.status_to_wire(), refusal.work_to_wire(), refusal.id);
            assert_eq!(again, Some(refusal));
        }
    }

    #[test]
    fn one_request_gets_the_reason_and_all_others_are_flushed() {
        use WorkKind::{Read, Send, Write};
        let mut blame = Blame::new(Some(BadRequest::NotReady(Write).refusal()));
        let statuses = [Send, Write, Write, Send].map(|kind| blame.status(kind));
        let reason = WorkStatus::ReceiverNotReady;
        assert_eq!(statuses, [WorkStatus::Flushed, reason, WorkStatus::Flushed, WorkStatus::Flushed]);
        let blame = Blame::new(Some(BadRequest::Access(Read, 7).refusal()));
        assert_eq!([6, 7, 8].map(|id| blame.status_of_read(id) == WorkStatus::RemoteAccess), [false, true, false]);
        for refusal in [None, Some(BadRequest::TooManyReads.refusal()), Some(Refusal::BREACH)] {
            let mut blame = Blame::new(refusal);
            assert_eq!([blame.status(Send), blame.status(Write), blame.status_of_read(0)], [WorkStatus::Flushed; 3]);
        }
    }
}
