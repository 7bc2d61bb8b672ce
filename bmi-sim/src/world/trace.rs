//! The handle to a timeline.

use std::io::{self, Write};

use crate::config::TraceOptions;
use crate::model::{Sim, Timeline};

/// A handle to the timeline of a world.
#[derive(Clone)]
pub struct Trace {
    pub(crate) sim: Sim,
}

impl Trace {
    /// Returns the number of spans recorded so far, and the number left out because there was no
    /// room.
    pub fn spans(&self) -> (usize, u64) {
        let core = self.sim.0.core.borrow();
        core.timeline.as_ref().map_or((0, 0), |timeline| timeline.spans())
    }

    /// Writes everything recorded so far as one JSON document; see the module's layout.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_chrome(&self, out: impl Write) -> io::Result<()> {
        let (names, timeline) = {
            let core = self.sim.0.core.borrow();
            let Some(timeline) = &core.timeline else { return Ok(()) };
            let names: Vec<String> = core.nodes.iter().map(|node| node.name.clone()).collect();
            (names, timeline.clone())
        };
        timeline.write_chrome(&names, out)
    }
}

impl Sim {
    /// Records a timeline from now on, if none is recorded yet. Returns a handle to it.
    pub fn trace(&self, options: TraceOptions) -> Trace {
        self.0.with(|core| {
            core.timeline.get_or_insert_with(|| Box::new(Timeline::new(options)));
        });
        Trace { sim: self.clone() }
    }
}
