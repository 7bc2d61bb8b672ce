//! The argument of a test: its world.

use std::ops::Deref;
use std::time::Duration;

use bmi_core::Time;

use crate::faults::Plan;
use crate::model::{Node, Sim};
use crate::rng::Rng;
use crate::world::Sleep;

/// The world of one run, with its nodes. It dereferences to [`Sim`].
#[derive(Clone)]
pub struct Case {
    sim: Sim,
    /// The seed of the run.
    pub seed: u64,
    /// The nodes, in the order in which the sweep names them.
    pub nodes: Vec<Node>,
    calm_at: Time,
}

impl Deref for Case {
    type Target = Sim;

    fn deref(&self) -> &Sim {
        &self.sim
    }
}

impl Case {
    pub(super) fn new(sim: &Sim, seed: u64, names: &[String], plan: &Plan) -> Case {
        let nodes = names.iter().map(|name| sim.node(name)).collect();
        let calm_at = Time::ZERO + Duration::from_micros(plan.end_us() + 2);
        Case { sim: sim.clone(), seed, nodes, calm_at }
    }

    /// Returns random numbers for the test itself. Different values of `stream` give independent
    /// numbers.
    pub fn rng(&self, stream: u64) -> Rng {
        Rng::new(self.seed.rotate_left(32) ^ stream)
    }

    /// Returns the time at which all faults are over.
    pub fn calm_at(&self) -> Time {
        self.calm_at
    }

    /// Waits until all faults are over. From then on everything must succeed.
    pub fn calm(&self) -> Sleep {
        self.sim.sleep_until(self.calm_at)
    }
}
