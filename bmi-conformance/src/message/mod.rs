//! The message level: the promises of [`bmi_core::Endpoint`] and [`bmi_core::Engine`], over
//! the backend's adapters.
//!
//! A behaviour is an `async` function of the [`Net`] that the suite makes for it.

pub mod bulk;
pub mod calls;
pub mod cancel;
pub mod credits;
pub mod deadlines;
pub mod expected;
pub mod fast;
pub mod hostile;
pub mod immediate;
pub mod late;
pub mod memory;
pub mod offered_receive;
pub mod peers;
pub mod polling;
pub mod property;
pub mod recycled;
pub mod rough;
pub mod unexpected;

use std::time::Duration;

use bmi_core::Config;

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
