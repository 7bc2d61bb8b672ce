//! The world's clock, for endpoints.

use std::rc::Rc;

use bmi_core::{Clock, Time};

use crate::world::Shared;

/// Reads virtual time.
#[derive(Clone)]
pub struct SimClock(pub(crate) Rc<Shared>);

impl Clock for SimClock {
    fn now(&self) -> Time {
        self.0.now()
    }
}
