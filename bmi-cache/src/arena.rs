//! The memory of the cache.

/// to be written
pub struct Arena;
/// to be written
pub struct ArenaSettings;
/// to be written
pub struct Frames;
/// to be written
pub struct Place;
/// to be written
pub struct Record;
/// to be written
pub struct Recovered;
