//! Which memory is registered, so that an operation finds the registration that the program, or another operation, holds already.
//!
//! A region lives as long as somebody holds it: the program through [`super::Endpoint::register`], or operations under way. A whole
//! [`Memory`] is registered at a time, so a list whose pieces lie in one allocation needs one registration (group registration, paper 000, section 5).

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

use crate::error::Error;
use crate::mem::{Memory, MemoryId, MemoryRegion, WeakRegion};
use crate::transport::Transport;

/// Finds and makes registrations.
#[derive(Default)]
pub(super) struct Registry {
    regions: HashMap<MemoryId, WeakRegion, BuildHasherDefault<DefaultHasher>>,
    /// Sweep when this many are known.
    sweep_at: usize,
}

impl Registry {
    /// The registration of `memory`, if there is one: the paper's `check_if_registered`.
    pub(super) fn check_if_registered(&self, memory: &Memory) -> Option<MemoryRegion> {
        self.regions.get(&memory.id())?.upgrade()
    }

    /// The registration of `memory`, made if there is none.
    ///
    /// # Errors
    /// Those of [`Transport::register`].
    pub(super) fn register<T: Transport>(&mut self, transport: &mut T, memory: &Memory) -> Result<MemoryRegion, Error> {
        if let Some(region) = self.check_if_registered(memory) {
            return Ok(region);
        }
        let region = transport.register(memory)?;
        if self.regions.len() >= self.sweep_at {
            self.regions.retain(|_, region| !region.is_gone());
            self.sweep_at = (2 * self.regions.len()).max(256);
        }
        self.regions.insert(memory.id(), region.downgrade());
        Ok(region)
    }
}
