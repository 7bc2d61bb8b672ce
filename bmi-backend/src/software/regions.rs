//! The registered regions of a transport. The processor needs none, so they are only counted.

use std::sync::Arc;

use bmi_core::mem::{LocalKey, RegionOwner, ReleaseQueue};
use bmi_core::transport::{PostError, check_writable};
use bmi_core::{Error, Memory, MemoryRegion, Segment};

use crate::Limit;

/// The registered regions of a transport.
pub struct Regions {
    queue: Arc<ReleaseQueue>,
    owner: Arc<dyn RegionOwner>,
    released: Vec<LocalKey>,
    live: usize,
    limit: Limit,
    next: u64,
}

impl Regions {
    /// Returns an empty set. `limit` bounds the number of regions.
    pub fn new(limit: Limit) -> Regions {
        let queue = Arc::new(ReleaseQueue::default());
        Regions { owner: queue.clone(), queue, released: Vec::new(), live: 0, limit, next: 1 }
    }

    /// Returns true if all `segments` were registered here.
    #[inline]
    pub fn own(&self, segments: &[Segment]) -> bool {
        segments.iter().all(|segment| segment.region().is_owned_by(&self.owner))
    }

    /// Checks that all `segments` were registered here.
    ///
    /// # Errors
    /// `Invalid` if one belongs to another transport.
    #[inline]
    pub fn check(&self, segments: &[Segment]) -> Result<(), PostError> {
        if self.own(segments) { Ok(()) } else { Err(PostError::Invalid("a segment belongs to another transport")) }
    }

    /// Checks that all `segments` were registered here and may be written.
    ///
    /// # Errors
    /// `Invalid` otherwise.
    #[inline]
    pub fn check_targets(&self, segments: &[Segment]) -> Result<(), PostError> {
        let fits = |segment: &Segment| segment.region().is_owned_by(&self.owner) && !segment.is_read_only();
        if segments.iter().all(fits) {
            return Ok(());
        }
        check_writable(segments)?;
        self.check(segments)
    }

    /// Registers `memory`, after deregistering the released regions (C13).
    ///
    /// # Errors
    /// `Exhausted` at the limit.
    pub fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.collect();
        self.limit.admit(self.live).map_err(|error| error.during("register"))?;
        self.live += 1;
        self.next += 1;
        Ok(MemoryRegion::new(memory.clone(), LocalKey(self.next), self.owner.clone()))
    }

    /// Returns true if [`Regions::collect`] has something to do.
    #[inline]
    pub fn has_released(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Deregisters the released regions.
    #[inline]
    pub fn collect(&mut self) {
        if self.queue.is_empty() {
            return;
        }
        self.queue.drain(&mut self.released);
        self.live -= self.released.len();
        self.released.clear();
    }
}
