//! Stalled clients: what they hold is taken back while others wait.
//!
//! **Why.** A request that moves data waits for its client, and holds a place among the requests in
//! progress, buffers, and work of the adapter. A client whose process is stopped (`SIGSTOP`, a
//! debugger, a machine that hangs) neither takes data nor sends it, and its connection stays open.
//! Shares bound what one client holds. But several stopped clients together can hold everything,
//! until the time limits of their requests pass.
//!
//! **Rule.** A client is *stalled* if a request of it is in progress, work of the request waits for
//! the client, and nothing has moved on its connection for [`Limits::stall_timeout`]. While another
//! client, one that is not stalled, waits for a buffer or for a place, the connections of all
//! stalled clients are cut. So stalled clients may keep what they hold while nobody waits for it.
//! When somebody waits, they hold nothing after `stall_timeout` and one check, however many they
//! are. Before, the shares bound what each of them holds ([`bmi::memory::zone`]).
//!
//! *Progress counts, not time.* A client that takes its data slowly is not stalled, however long
//! its request takes ([`Engine::awaited_peers`]). Over TCP every byte counts. Over other adapters
//! a transfer unit (`transfer_unit`) does.
//!
//! **Why the connection.** An adapter, here or at the client, may be in the middle of the memory.
//! On a stream the rest of a unit must follow its beginning. So only the end of the connection
//! releases the memory for certain. A deadline would end in the same way
//! ([`TimeoutConfig::fence_grace`]). A client that goes on later finds its connection closed. It
//! connects again and repeats what may be repeated, as after any loss.
//!
//! **Invariants**
//! 1. *Nothing is lost.* A cut ends every operation of the peer, as the loss of any connection does
//!    ([`Engine::cut`]). Each request's future then runs to its end and drops its buffers, its
//!    turn and its place. A buffer that an adapter may still touch is given up instead
//!    ([`bmi::memory::zone`]).
//! 2. *No deadlock.* The rule takes and waits for nothing. It only ends waits.
//! 3. *Only the client's own delay counts.* A request that waits for the disk, for a buffer or for
//!    the turn of another client does not make its client a stalled one. Nor do views that the
//!    client was lent ([`Engine::expose_standing`]). Checks count, not the clock: if the server
//!    itself was stopped, that is one check.
//!
//! **Source.** An addition; [PVFS-IB] has no rule for clients that stop. Tested by
//! `tests/sim/iod/stalled.rs` and `tests/sim/iod/disk_stall.rs`, and with processes by
//! `fs-client/tests/it/commands/accidents.rs`.
//!
//! [`Limits::stall_timeout`]: crate::service::Limits::stall_timeout
//! [`Engine::awaited_peers`]: bmi::polled::Engine::awaited_peers
//! [`Engine::expose_standing`]: bmi::polled::Engine::expose_standing
//! [`Engine::cut`]: bmi::polled::Engine::cut
//! [`TimeoutConfig::fence_grace`]: bmi::config::TimeoutConfig::fence_grace

use std::collections::{BTreeMap, BTreeSet};

use bmi::PeerId;

/// Number of checks without progress that make a client a stalled one. They are made while requests
/// are in progress, this many in each [`crate::service::Limits::stall_timeout`].
pub(super) const CHECKS: u32 = 4;

/// What was seen of the clients that the server waits for.
#[derive(Debug, Default)]
pub(super) struct StallWatch {
    seen: BTreeMap<PeerId, Seen>,
}

/// The progress of a client, and the number of checks that have found the same since.
#[derive(Clone, Copy, Debug)]
struct Seen {
    progress: u64,
    unchanged: u32,
}

impl StallWatch {
    /// Records the clients that the server waits for, each with its progress. Returns those that
    /// are stalled.
    pub(crate) fn check(&mut self, awaited: BTreeMap<PeerId, u64>) -> BTreeSet<PeerId> {
        let before = std::mem::take(&mut self.seen);
        let seen = |(peer, progress)| {
            let same = before.get(&peer).filter(|seen| seen.progress == progress);
            (peer, Seen { progress, unchanged: same.map_or(0, |seen| seen.unchanged + 1) })
        };
        self.seen = awaited.into_iter().map(seen).collect();
        let stalled = self.seen.iter().filter(|(_, seen)| seen.unchanged >= CHECKS);
        stalled.map(|(peer, _)| *peer).collect()
    }
}
