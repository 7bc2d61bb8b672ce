//! A call before its handler has it.

use std::ops::Range;

use bmi_core::{AnyThread, Time};

use super::streams::Open;
use crate::Incoming;
use crate::paths::Direction;
use crate::rpc::Trace;

/// A call that has arrived.
pub(super) struct Arrival {
    pub(super) call: Incoming<AnyThread>,
    pub(super) deadline: Time,
    pub(super) max_reply: u64,
    /// The place of the program's bytes in the request.
    pub(super) request: Range<usize>,
    pub(super) trace: Option<Trace>,
    /// It moves parts.
    pub(super) stream: Option<Open>,
}

/// Returns the length of the data that comes with a call. Memory for the data of the reply is none.
pub(super) fn data_len(call: &Incoming<AnyThread>) -> u64 {
    if call.direction() == Some(Direction::Write) { call.len() } else { 0 }
}
