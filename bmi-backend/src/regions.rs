//! The registered regions of a transport.

use std::sync::Arc;

use bmi_core::mem::{LocalKey, RegionOwner, ReleaseQueue};
use bmi_core::transport::{self, PostError, check_writable};
use bmi_core::{Access, Error, ErrorKind, Memory, MemoryRegion, Segment};
use slab::Slab;

use crate::Limit;

/// The registered regions of a transport, by number: the [`LocalKey`] of a region. They do not hold
/// the memory (C13).
///
/// **Protocol.** A dropped region is released by the next [`Regions::collect`]. Call it in each
/// poll and before [`Regions::register`]. Its number is used again after that.
pub struct Regions {
    queue: Arc<ReleaseQueue>,
    owner: Arc<dyn RegionOwner>,
    released: Vec<LocalKey>,
    known: Slab<()>,
    limit: Limit,
}

impl Regions {
    /// Returns an empty set. `limit` bounds the number of regions.
    pub fn new(limit: Limit) -> Regions {
        let queue = Arc::new(ReleaseQueue::default());
        Regions { owner: queue.clone(), queue, released: Vec::new(), known: Slab::new(), limit }
    }

    /// Checks that all `segments` were registered here.
    ///
    /// # Errors
    /// `Invalid` if one belongs to another transport.
    #[inline]
    pub fn check(&self, segments: &[Segment]) -> Result<(), PostError> {
        if segments.iter().all(|segment| segment.region().is_owned_by(&self.owner)) {
            Ok(())
        } else {
            Err(PostError::Invalid("a segment belongs to another transport"))
        }
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

    /// Checks that `segment` was registered here and may be exposed.
    ///
    /// # Errors
    /// `Invalid` otherwise.
    pub fn check_exposure(&self, segment: &Segment, access: Access) -> Result<(), Error> {
        transport::check_exposure(segment, access)?;
        let foreign = |_| Error::new(ErrorKind::Invalid, "a segment of another transport").during("expose");
        self.check(std::slice::from_ref(segment)).map_err(foreign)
    }

    /// Registers `memory`.
    ///
    /// # Errors
    /// `Exhausted` at the limit.
    pub fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.limit.admit(self.known.len()).map_err(|error| error.during("register"))?;
        let number = self.known.insert(());
        Ok(MemoryRegion::new(memory.clone(), LocalKey(number as u64), self.owner.clone()))
    }

    /// Returns true if [`Regions::collect`] has something to do.
    #[inline]
    pub fn has_released(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Releases the regions that were dropped. Calls `forget` with the number of each.
    #[inline]
    pub fn collect(&mut self, forget: impl FnMut(usize)) {
        if self.has_released() {
            self.collect_released(forget);
        }
    }

    #[cold]
    fn collect_released(&mut self, mut forget: impl FnMut(usize)) {
        self.queue.drain(&mut self.released);
        for key in self.released.drain(..) {
            let number = key.0 as usize;
            if self.known.try_remove(number).is_some() {
                forget(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_and_released_regions_come_back() {
        let limit = Limit { max: 2, what: "regions", setting: None };
        let mut regions = Regions::new(limit);
        let memory = Memory::zeroed(1).unwrap();
        let region = regions.register(&memory).unwrap();
        let _second = regions.register(&memory).unwrap();
        assert_eq!(regions.register(&memory).unwrap_err().kind(), ErrorKind::Exhausted);
        let list = [region.segment(0, 1)];
        assert!(Regions::new(limit).check(&list).is_err());
        let error = Regions::new(limit).check_exposure(&list[0], Access::READ).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(regions.check(&list).is_ok() && regions.check_exposure(&list[0], Access::READ).is_ok());
        let number = region.local_key().0 as usize;
        drop((region, list));
        assert!(regions.has_released());
        let mut forgotten = Vec::new();
        regions.collect(|number| forgotten.push(number));
        assert_eq!(forgotten, [number]);
        regions.register(&memory).unwrap();
    }
}
