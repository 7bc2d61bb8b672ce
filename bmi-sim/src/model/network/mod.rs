//! The network: adapters that are busy while bytes pass, links with latency, and packets that stay
//! in order.
//!
//! **Adapters.** Each node has one adapter, which all transports of the node share. It is two
//! resources, one for sending and one for receiving. Each is busy for a price per message and a
//! price per byte. A message is cut into units, and after each unit the adapter chooses again, at
//! both ends. It takes the lowest service class that is ready first (control, messages, bulk).
//! Within a class it takes one unit from each queue pair in turn. So a small message waits for one
//! unit of another connection's bulk data, and two bulk transfers share the bandwidth.
//!
//! Within a connection nothing overtakes: its class is that of the message at its front. The
//! replies to a peer's reads have a queue of their own, because reads are not ordered with anything
//! (C3).
//!
//! **Latency.** A unit's first byte reaches the other adapter one link latency after it left. Its
//! last byte is there when the receiving side has had time for all bytes. So an idle path costs the
//! bytes once (cut-through), and two senders to one receiver share its bandwidth. Acknowledgements
//! take the link's latency and no adapter time.
//!
//! **Events.** A unit that finds its sending side idle books it and is in flight at once. Its one
//! event is at the time at which its last byte would arrive if the receiving side had been idle
//! since the first byte. If that side was busy, the unit waits for its turn. So a short message
//! between idle adapters is one event, and its acknowledgement is another.
//!
//! **Bus and switch.** The host's bus is booked together with the adapter: one for both directions
//! ([`Profile::bus_half_duplex`](crate::Profile::bus_half_duplex)) or one for each. A copy that a
//! processor makes meanwhile takes longer, since both need the host's memory
//! ([`Profile::memory_ps_per_byte`](crate::Profile::memory_ps_per_byte)). The switch has a port for
//! each adapter. The bytes that wait there are computed from the units that were sent to it. A unit
//! that would find the port full waits at its sender, where units of other connections pass it.
//! Alternatively it is lost and sent again later
//! ([`Profile::switch_port_drops`](crate::Profile::switch_port_drops)).
//!
//! **Software.** With an adapter in software ([`Profile::software`](crate::Profile::software)),
//! threads of the node's kernel process each unit: before it leaves, and after it has arrived. A
//! message of a program that is bound to a core ([`crate::Node::shards`]) is processed by that core
//! as a whole before its first unit leaves, because the program's call does it.
//!
//! **Invariants**
//! 1. Packets from one connection arrive in the order in which they were sent, whatever the jitter.
//!    So do its answers.
//! 2. A packet for a connection that is gone is dropped. Its sender has been told that the
//!    connection ended, or is being told. Packets that a connection had not sent when it ended are
//!    dropped too, except for its `Close`.
//! 3. While a link is down, packets wait at its far end, in order. After the detection time its
//!    connections end.
//!
//! Tested by `tests/it/simulator/classes.rs`, `tests/it/simulator/model.rs`,
//! `tests/it/profiles/table2.rs`.

mod port;
mod receive;
mod send;

pub(crate) use port::{InOrder, LinkState, Port, link_key};
