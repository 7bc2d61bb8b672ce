//! Clocks for endpoints.

use std::rc::Rc;

use bmi_core::{Clock, Time};

use crate::world::Shared;

/// Reads virtual time: the world's, or a node's. A node's time is ahead of the world's while the
/// node's processor has work to do.
#[derive(Clone)]
pub struct SimClock {
    pub(crate) shared: Rc<Shared>,
    pub(crate) node: Option<u32>,
}

impl Clock for SimClock {
    fn now(&self) -> Time {
        match self.node {
            Some(node) => self.shared.now_at(node),
            None => self.shared.now(),
        }
    }
}
