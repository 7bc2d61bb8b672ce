//! What the leader of a run is told.

use std::net::TcpStream;

use super::job::{Part, Ready};
use super::wire::Lines;

/// Something that the leader is told.
pub(crate) enum Event {
    /// The user wants the run to end.
    Interrupted,
    Joined(Newcomer),
    Ready(usize, Result<Ready, String>),
    Done(usize, Result<Part, String>),
    Lost(usize, String),
}

/// A follower that has said hello.
pub(crate) struct Newcomer {
    pub(super) name: String,
    pub(super) stream: TcpStream,
    pub(super) lines: Lines,
}
