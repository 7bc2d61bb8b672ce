//! Requests of several clients that a server carries out as one.
//!
//! **Why.** In a collective operation each client has small pieces of the same ranges. If the
//! server puts those of all clients together before the disk sees them, the clients need not send
//! them to each other before.
//!
//! **Protocol.** All requests for a unit of an operation have the same [`Joined`]. The server takes
//! as many as that says into one buffer, and then writes the unit, or reads it before for all. It
//! does not wait for long for one that does not come: then it goes on with those that did, and a
//! later one goes alone. A server may also carry out each by itself.
//!
//! **Source.** [ECIO-IB §4.1]: the server redistributes data locally.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::error::{ErrorCode, FsError};
use crate::limits::{MAX_JOINED, MAX_OFFSET};
use crate::region::Region;

/// The others that a request is carried out with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Joined {
    group: u64,
    operation: u64,
    requests: u32,
    unit: Region,
}

impl Joined {
    /// Returns what joins a request with others: the group of the clients and a number of their
    /// operation, the number of requests for a unit, and the unit. That is a range of the datafile
    /// that contains all bytes of all these requests.
    ///
    /// # Errors
    /// `Invalid` for an empty unit, or no requests. `TooLarge` for a unit of more than
    /// [`MAX_JOINED`] bytes, or that ends beyond [`MAX_OFFSET`].
    pub fn new((group, operation): (u64, u64), requests: u32, unit: Region) -> Result<Joined, FsError> {
        if requests == 0 || unit.is_empty() {
            return Err(FsError::new(ErrorCode::Invalid, format!("{requests} requests for {unit}")));
        }
        if unit.len > MAX_JOINED || unit.end().is_none_or(|end| end > MAX_OFFSET) {
            let text = format!("{requests} requests for {unit}; a unit has at most {MAX_JOINED} bytes");
            return Err(FsError::new(ErrorCode::TooLarge, text));
        }
        Ok(Joined { group, operation, requests, unit })
    }

    /// Returns the group, and the operation in it.
    pub fn operation(&self) -> (u64, u64) {
        (self.group, self.operation)
    }

    /// Returns the number of requests.
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// Returns the range of the datafile.
    pub fn unit(&self) -> Region {
        self.unit
    }
}

impl<'de> Deserialize<'de> for Joined {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Joined, D::Error> {
        let (group, operation, requests, unit) = Deserialize::deserialize(deserializer)?;
        Joined::new((group, operation), requests, unit).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_bounded() {
        let new = |requests, offset, len| Joined::new((1, 2), requests, Region::new(offset, len));
        let code = |joined: Result<Joined, FsError>| joined.unwrap_err().code;
        assert_eq!(code(new(0, 0, 1)), ErrorCode::Invalid);
        assert_eq!(code(new(1, 0, 0)), ErrorCode::Invalid);
        assert_eq!(code(new(1, 0, MAX_JOINED + 1)), ErrorCode::TooLarge);
        assert_eq!(code(new(1, MAX_OFFSET, 1)), ErrorCode::TooLarge);
        assert_eq!(code(new(1, u64::MAX, 2)), ErrorCode::TooLarge);
        assert!(new(1, MAX_OFFSET - 1, 1).is_ok());
    }
}
