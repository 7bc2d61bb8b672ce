//! Memory that a peer may reach: exposing and revoking it.

use bmi_backend::connection_ended;
use bmi_backend::software::slot_of;
use bmi_core::transport::ConnId;
use bmi_core::{Access, Error, RemoteKey, RemoteSlice, Segment};

use super::connection::Connection;
use crate::ShmTransport;
use crate::error::Fault;
use crate::shared::Area;

/// Looks at the peer's claims before a revocation ends the connection. They take longer than
/// copying a unit.
const CLAIM_LOOKS: usize = 2_000;

impl ShmTransport {
    pub(crate) fn expose(&mut self, conn: ConnId, segment: &Segment, access: Access) -> Result<RemoteSlice, Error> {
        self.regions.check_exposure(segment, access)?;
        let takes = |connection: &&mut Connection| connection.phase.takes_receives();
        let Some(connection) = self.slots.find_mut(conn).filter(takes) else {
            return Err(connection_ended());
        };
        let slice = connection.exposures.add(&mut self.keys, segment, access)?;
        let key = slice.key.0;
        if self.retired.may_lend(segment.region().memory()) {
            connection.advertise(key, segment, access, self.config.share_pages);
        }
        Ok(slice)
    }

    pub(crate) fn revoke(&mut self, conn: ConnId, RemoteKey(key): RemoteKey) {
        let Some(connection) = self.slots.find_mut(conn) else { return };
        if !connection.exposures.contains(key) {
            return;
        }
        if let Some(own) = &connection.own {
            own.withdraw(slot_of(key));
        }
        let under_way = connection.inbound.writes_with(key)
            || connection.queues.as_ref().is_some_and(|queues| queues.replies_with(key))
            || connection.link.as_ref().is_some_and(|link| stays_claimed(&link.peer, key));
        if under_way {
            self.end(conn.slot, conn, Fault::Revoked); // retires the memory if it is claimed
        } else {
            connection.exposures.remove(key);
        }
    }
}

/// Returns whether the peer claims this key for longer than a copy takes.
fn stays_claimed(peer: &Area, key: u64) -> bool {
    let mut looks = CLAIM_LOOKS;
    while peer.is_claimed(key) {
        looks -= 1;
        if looks == 0 {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}
