//! The message level: the promises of [`bmi_core::Endpoint`] and [`bmi_core::Engine`], over
//! the backend's adapters.
//!
//! A behaviour is an `async` function of the [`Net`] that the suite makes for it. Its name has the
//! level and the file, and not the room.
//!
//! | room | behaviours |
//! |---|---|
//! | `adverse` | peers that break the protocol; drawn programs and faults |
//! | `ends` | how operations and peers end, and what is back by then |
//! | `moves` | bulk transfers and calls |
//! | `ways` | messages, by each way that one can travel |

mod adverse;
mod ends;
mod moves;
mod ways;

use std::time::Duration;

use bmi_core::Config;

pub use self::adverse::{hostile, property, recycled, rough};
pub use self::ends::{cancel, deadlines, identity, late, memory, peers, polling};
pub use self::moves::{bulk, calls, immediate};
pub use self::ways::{credits, expected, fast, offered_receive, unexpected};
use crate::net::Net;

/// Returns whether the net's adapters can read their peers' memory. Otherwise pulls are refused,
/// and these tests use pushes instead.
pub(crate) fn reads(net: &Net<'_>) -> bool {
    net.backend().expected_capabilities().rdma_read
}

/// How long memory is left to a peer that may access it although the operation has ended.
pub(crate) const LEFT: Duration = Duration::from_millis(50);

/// Returns limits that a few messages reach: 4 credits, an eager limit of 1 KiB, transfers in units
/// of 4 KiB.
pub fn tight() -> Config {
    let eager_limit = 1024;
    Config::default()
        .dropped_call(LEFT)
        .eager_limit(eager_limit)
        .credit_messages(4)
        .credit_bytes(4 * (eager_limit as u32 + 64))
        .transfer_unit(4096)
        .in_flight_bytes(8192)
        .fast_slots(0)
        .fence_grace(std::time::Duration::from_millis(200))
}
