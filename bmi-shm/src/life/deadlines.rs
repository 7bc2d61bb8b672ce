//! What is due: connections that take too long, and dials to try again.

use bmi_core::Time;

use super::connection::Phase;
use crate::ShmTransport;
use crate::error::Fault;

impl ShmTransport {
    /// Ends or retries the connections whose deadline has passed.
    pub(crate) fn expire(&mut self, now: Time) {
        if !self.deadlines.due(now) {
            return;
        }
        for slot in 0..self.slots.len() {
            let Some(connection) = self.slots.at_mut(slot) else { continue };
            if connection.deadline().is_none_or(|deadline| deadline > now) {
                continue;
            }
            let id = connection.id;
            match connection.phase {
                Phase::Dialing { deadline, .. } if deadline > now => self.dial(slot),
                Phase::HalfOpen { deadline, ref mut heard_at, .. } if deadline > now => {
                    *heard_at = None;
                    self.mark_ready(slot);
                }
                _ => self.end(slot, id, Fault::ConnectTimeout),
            }
        }
        self.listeners.expire(now);
        self.deadlines.expire(now);
    }
}
