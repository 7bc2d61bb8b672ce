//! The urgency of work.

/// The urgency of a work request. Backends map it to a service level, a traffic class or a queue,
/// or ignore it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceClass {
    /// Flow control and small messages, ahead of everything.
    Control,
    /// Requests and replies.
    #[default]
    Message,
    /// Bulk data.
    Bulk,
}
