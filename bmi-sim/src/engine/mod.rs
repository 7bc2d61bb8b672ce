//! Time and order: events with what they carry, and tasks. Ways in: [`EventQueue`], which has the
//! clock and the digest, and [`Executor`].

mod events;
mod executor;
mod packet;

pub(crate) use events::{Event, EventQueue, Refusal};
pub(crate) use executor::{Executor, ROOT, ReadyQueue, TaskKey, TaskWaker};
pub(crate) use packet::{ConnRef, Flow, Nak, Packet, Sending, Side, Unit};
