//! Which unit gives its place to another one.

/// How long the units of a file are kept after their use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The policy of the cache.
    #[default]
    Default,
}
