//! What arrives on the sockets: hellos, memory, wake-ups, refusals.

use std::io;

use bmi_core::transport::Event;

use super::connection::{Activity, Phase};
use super::handshake::map_area;
use super::packet::{Greeting, MAX_PACKET, Packet};
use crate::ShmTransport;
use crate::error::{BAD_PACKET, Fault, Violation, no_memory};
use crate::os::socket::{self, NotOne, Passed};
use crate::os::sys;

/// Most packets taken from one socket in one poll.
const PACKETS: usize = 64;

impl ShmTransport {
    /// Reads from the sockets that reported something.
    pub(crate) fn read_sockets(&mut self, events: &mut Vec<Event>) -> bool {
        let mut any = false;
        let mut turn = self.ready.turn();
        while let Some(slot) = self.ready.next(&mut turn) {
            let Some(connection) = self.slots.at_mut(slot) else { continue };
            if matches!(connection.phase, Phase::HalfOpen { heard_at: Some(_), .. }) {
                continue;
            }
            connection.activity = Activity::Busy; // pages may arrive that something waits for
            any |= self.read_packets(slot, events);
        }
        any
    }

    fn read_packets(&mut self, slot: u32, events: &mut Vec<Event>) -> bool {
        let mut bytes = [0; MAX_PACKET];
        for taken in 0..PACKETS {
            let Some(connection) = self.slots.at_mut(slot) else { return true };
            let id = connection.id;
            let Some(socket) = connection.socket.as_ref().filter(|_| connection.draining.is_none()) else {
                return taken > 0;
            };
            let result = match socket::receive(socket, &mut bytes) {
                Ok((0, _)) => Err(Fault::Eof),
                Ok((len, passed)) => bytes
                    .get(..len)
                    .ok_or(BAD_PACKET)
                    .and_then(Packet::decode)
                    .map_err(Fault::from)
                    .and_then(|packet| self.handle_packet(slot, packet, passed, events)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return taken > 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Err(Fault::Eof),
                Err(error) => Err(Fault::Socket(error)),
            };
            match result {
                Ok(()) => {}
                Err(Fault::Violation(violation)) => self.cut(slot, violation),
                Err(fault) => self.peer_ended(slot, id, fault),
            }
        }
        self.mark_ready(slot);
        true
    }

    fn handle_packet(
        &mut self,
        slot: u32,
        packet: Packet,
        passed: Passed,
        events: &mut Vec<Event>,
    ) -> Result<(), Fault> {
        let Some(connection) = self.slots.at_mut(slot) else { return Ok(()) };
        if !passed.is_empty() && !matches!(packet, Packet::Hello(..) | Packet::Pages { .. }) {
            return Err(Violation::Order.into());
        }
        match (&connection.phase, packet) {
            (Phase::HalfOpen { .. }, Packet::Hello(hello, private)) if hello.greeting == Greeting::Connect => {
                self.handle_connect(slot, hello, private, passed, events)
            }
            (Phase::Greeting { .. }, Packet::Hello(hello, private)) if hello.greeting == Greeting::Accept => {
                connection.theirs = Some((map_area(&hello, passed)?, hello));
                self.establish(slot);
                if let Some(connection) = self.slots.at_mut(slot) {
                    events.push(Event::Established { conn: connection.id, identity: connection.identity(), private });
                }
                Ok(())
            }
            (Phase::Greeting { .. }, Packet::Hello(hello, private)) if hello.greeting == Greeting::Reject => {
                if let Some(mut connection) = self.remove(slot) {
                    if let Some(queues) = &mut connection.queues {
                        queues.flush_all(None, |event| events.push(event));
                    }
                    events.push(Event::Rejected { conn: connection.id, private });
                }
                Ok(())
            }
            (Phase::Established | Phase::Closing { .. }, packet) => self.handle_late_packet(slot, packet, passed),
            _ => Err(Violation::Order.into()),
        }
    }

    fn handle_late_packet(&mut self, slot: u32, packet: Packet, passed: Passed) -> Result<(), Fault> {
        let Some(connection) = self.slots.at_mut(slot) else { return Ok(()) };
        let (id, Some(link)) = (connection.id, &mut connection.link) else { return Ok(()) };
        match packet {
            Packet::Wake => Ok(()),
            Packet::Pages { id: number, len } => {
                let why = match passed.only() {
                    Err(NotOne::Ours) => {
                        io::Error::new(io::ErrorKind::OutOfMemory, "no descriptor is left to take it by")
                    }
                    only => {
                        let mapping = sys::map_peer(&only?, len, true).map_err(Violation::Other)?;
                        let Err(why) = mapping.and_then(|mapping| link.mapped.insert(number, mapping)) else {
                            // If the socket is too full for this packet, the peer sends such
                            // messages through the ring.
                            connection.say(&Packet::Have { id: number });
                            return Ok(());
                        };
                        why
                    }
                };
                if connection.inbound.waits_for(number) {
                    return Err(no_memory(why)); // it was mapped before; there is no other way to this message
                }
                let peer = connection.peer.clone();
                if self.deadlines.admits_line("memory not mapped", peer.host(), self.now) {
                    tracing::warn!(%peer, error = %why, len, "memory cannot be mapped; going another way");
                }
                Ok(())
            }
            Packet::Have { id } => {
                link.passed.confirm(id);
                Ok(())
            }
            Packet::Proof { secret } if secret == self.cookie[1] => {
                link.trusted = true;
                Ok(())
            }
            Packet::Drop { id } => {
                link.mapped.drop_number(id);
                Ok(())
            }
            Packet::Ask { id } => {
                link.passed.owe(id); // the next poll passes it
                Ok(())
            }
            Packet::Refusal(refusal) => {
                self.peer_ended(slot, id, Fault::Refused(refusal));
                Ok(())
            }
            Packet::Hello(..) | Packet::Proof { .. } => Err(Violation::Order.into()),
        }
    }
}
