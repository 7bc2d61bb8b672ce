//! A connection: its phase, its side channel and its queues.

use std::net::{IpAddr, SocketAddr};

use bmi_backend::Place;
use bmi_core::transport::ConnId;
use bmi_core::{Addr, PeerIdentity, Time};

use crate::error::{Fault, to_bye};
use crate::greeting::{Message, Port};
use crate::queue_pair::QueuePair;
use crate::side_channel::SideChannel;

/// The phase of a connection (see the folder).
pub(crate) enum Phase {
    Dialing { candidates: Vec<SocketAddr>, private: Box<[u8]>, deadline: Time },
    Greeting { deadline: Time },
    HalfOpen { deadline: Time, origin: IpAddr },
    Requested { peer: Port },
    Routing { next: Next, deadline: Time, ended: Option<Fault> },
    Accepted { deadline: Time },
    Established,
    Closing { deadline: Time },
    Draining { fault: Fault, deadline: Time },
}

/// What follows when the queue pair is connected. It has the private data.
pub(crate) enum Next {
    /// The connecting side says READY and reports that the connection is established.
    Ready(Box<[u8]>),
    /// The accepting side says ACCEPT.
    Accept(Box<[u8]>),
}

/// A connection.
pub(crate) struct Connection {
    pub(crate) id: ConnId,
    pub(crate) peer: Addr,
    pub(crate) phase: Phase,
    pub(crate) side: Option<Box<SideChannel>>,
    pub(crate) queues: Option<Box<QueuePair>>,
    pub(super) first_packet: u32,
    pub(super) _place: Place,
}

impl Connection {
    /// Returns the connection's time limit, if it has one.
    pub(crate) fn deadline(&self) -> Option<Time> {
        match &self.phase {
            Phase::Dialing { deadline, .. }
            | Phase::Greeting { deadline }
            | Phase::HalfOpen { deadline, .. }
            | Phase::Accepted { deadline }
            | Phase::Closing { deadline }
            | Phase::Routing { deadline, ended: None, .. }
            | Phase::Draining { deadline, .. } => Some(*deadline),
            Phase::Routing { .. } | Phase::Requested { .. } | Phase::Established => None,
        }
    }

    /// Returns who the peer is, as far as the side channel has proved it.
    pub(super) fn identity(&mut self) -> PeerIdentity {
        self.side.as_mut().map_or(PeerIdentity::Nobody, |side| side.identity())
    }

    pub(crate) fn say(&mut self, message: Message, private: &[u8]) -> Result<(), Fault> {
        self.side.as_mut().map_or(Ok(()), |side| side.send(message, private))
    }

    /// Tells the peer why this side ends the connection, if the side channel still takes it.
    pub(super) fn say_bye(&mut self, fault: &Fault) {
        let (bye, own) = to_bye(fault);
        let _ = self.say(Message::Bye(bye, own), &[]);
    }
}
