//! Lists of ranges of bytes.

use std::ops::Deref;

use bmi::bulk::extents;
use bmi::hooks::step;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{ErrorCode, FsError};
use crate::limits::{MAX_OFFSET, MAX_REGIONS};
use crate::region::Region;

/// A checked list of regions, in the order in which their bytes are in memory. It has at most
/// [`MAX_REGIONS`] regions. No region reaches beyond [`MAX_OFFSET`], and their total length does
/// not exceed it. Regions may overlap and may be empty.
///
/// On the wire they are ranges as encoded by [`bmi::bulk::extents`]. A range takes a few bytes, and
/// a whole regular list also takes only a few bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    list: Vec<Region>,
    total: u64,
}

impl Regions {
    /// Returns the total number of bytes of all regions.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the regions as a vector.
    pub fn into_vec(self) -> Vec<Region> {
        self.list
    }
}

impl Deref for Regions {
    type Target = [Region];

    fn deref(&self) -> &[Region] {
        &self.list
    }
}

impl TryFrom<Vec<Region>> for Regions {
    type Error = FsError;

    /// # Errors
    /// `TooLarge` for too many regions, for a region that ends beyond [`MAX_OFFSET`], or if the
    /// total length exceeds [`MAX_OFFSET`].
    fn try_from(list: Vec<Region>) -> Result<Regions, FsError> {
        let too_large = |what: String| FsError::new(ErrorCode::TooLarge, what);
        if list.len() > MAX_REGIONS {
            return Err(too_large(format!("{} regions; at most {MAX_REGIONS} are allowed", list.len())));
        }
        let mut total = 0u64;
        for region in &list {
            step();
            region.end().ok_or_else(|| too_large(format!("{} bytes at {}", region.len, region.offset)))?;
            total = total
                .checked_add(region.len)
                .filter(|total| *total <= MAX_OFFSET)
                .ok_or_else(|| too_large("the regions together".to_owned()))?;
        }
        Ok(Regions { list, total })
    }
}

impl TryFrom<Region> for Regions {
    type Error = FsError;

    /// # Errors
    /// `TooLarge` if the region ends beyond [`MAX_OFFSET`].
    fn try_from(region: Region) -> Result<Regions, FsError> {
        Regions::try_from(vec![region])
    }
}

impl Serialize for Regions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ranges = self.list.iter().map(|region| (region.offset, region.len));
        serializer.serialize_bytes(&extents::encode(Vec::new(), ranges))
    }
}

impl<'de> Deserialize<'de> for Regions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Regions, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        let mut list = Vec::new();
        extents::decode(bytes, MAX_REGIONS, |(offset, len)| list.push(Region { offset, len }))
            .map_err(D::Error::custom)?;
        Regions::try_from(list).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_is_refused() {
        assert!(Regions::try_from(Region::new(u64::MAX, 1)).is_err());
        assert!(Regions::try_from(Region::new(MAX_OFFSET, 1)).is_err());
        assert!(Regions::try_from(Region::new(MAX_OFFSET - 1, 1)).is_ok());
        assert!(Regions::try_from(vec![Region::new(0, MAX_OFFSET), Region::new(0, 1)]).is_err());
        assert!(Regions::try_from(vec![Region::new(0, 1); MAX_REGIONS + 1]).is_err());
    }
}
