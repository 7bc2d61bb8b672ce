//! What a server on a real machine takes from its host: the time of day and random numbers.

use std::fs::File;
use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

use fs_proto::{ErrorCode, FsError};

/// Returns the system's time, in nanoseconds since 1970.
#[expect(
    clippy::disallowed_methods,
    reason = "attributes show the time of day; servers on a real machine take it from there"
)]
pub(crate) fn wall_clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Returns a random number that no other start of a server has.
pub(crate) fn random_number() -> Result<u128, FsError> {
    random_bytes().map(u128::from_le_bytes)
}

/// Returns random bytes.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], FsError> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| FsError::new(ErrorCode::Io, format!("/dev/urandom: {error}")))?;
    Ok(bytes)
}
