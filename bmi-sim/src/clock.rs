//! Clocks for endpoints.

use std::rc::Rc;

use bmi_core::{Clock, Time};
use send_wrapper::SendWrapper;

use crate::world::Shared;

/// Reads virtual time: the world's, or a node's. A node's time is ahead of the world's while the
/// node's processor has work to do.
///
/// The clock is `Send` and `Sync`, so that it can be that of a [`Handle`](bmi_core::Handle). But it
/// belongs to the thread of its world: another thread that reads it panics.
#[derive(Clone)]
pub struct SimClock {
    shared: SendWrapper<Rc<Shared>>,
    node: Option<u32>,
}

impl SimClock {
    pub(crate) fn new(shared: Rc<Shared>, node: Option<u32>) -> SimClock {
        SimClock { shared: SendWrapper::new(shared), node }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        match self.node {
            Some(node) => self.shared.now_at(node),
            None => self.shared.now(),
        }
    }
}
