//! Short paths: copies of a part of the general path for the usual case, because measurement
//! justified them. This file has their switch.
//!
//! | short path | duplicates |
//! |---|---|
//! | `send_inline` of [`crate::engine::message::send`] | `decide`, `send_by` and [`crate::engine::message::eager`] |
//! | `start_recv` of [`crate::engine::message::receive`] | `start_long_recv` |
//! | [`crate::engine::message::inline_receive`] | [`crate::engine::poll::events`] and [`crate::engine::message::eager`] |
//! | [`crate::engine::bulk::immediate`] | [`crate::engine::bulk::transfer`] |
//!
//! **Invariant.** A program cannot tell which path was taken, except by time, by the counters of
//! paths, and by whether a transfer completes when it is posted.
//!
//! **Tests.** `bmi-sim/tests/it/endpoints/short_paths` runs random scripts with the short paths and
//! without them, and compares what a program sees.

use crate::engine::Engine;

/// The limits of the short paths. They take the place of settings that a short path has to compare
/// with anyway, so the switch costs nothing per message.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct ShortPaths {
    /// Largest length of an inline send, with its header, in bytes.
    pub(in crate::engine) inline: usize,
    /// A list has fewer pieces than this. An empty list has none, so 0 admits no list.
    pub(in crate::engine) pieces: usize,
    /// The value of `pieces` while a timeline is recorded; 0 otherwise.
    set_aside: usize,
    /// The adapter may show messages while it polls.
    pub(in crate::engine) receives: bool,
    /// Number of inline sends and of short receives, which leave no other trace. Only debug builds
    /// count them.
    pub(in crate::engine) taken: (u64, u64),
}

impl ShortPaths {
    /// Admits what the settings `max_inline` and `max_pieces` admit.
    pub(in crate::engine) fn new(max_inline: usize, max_pieces: usize) -> ShortPaths {
        let pieces = max_pieces.saturating_add(1);
        ShortPaths { inline: max_inline, pieces, set_aside: 0, receives: true, taken: (0, 0) }
    }

    /// Closes the short paths of posts while a timeline is recorded, because they record nothing,
    /// or opens them again.
    pub(in crate::engine) fn set_aside(&mut self, aside: bool) {
        if aside != self.are_set_aside() {
            std::mem::swap(&mut self.pieces, &mut self.set_aside);
        }
    }

    /// Returns true if a timeline is recorded, and these paths would be open otherwise.
    #[inline(always)]
    pub(in crate::engine) fn are_set_aside(&self) -> bool {
        self.set_aside > 0
    }

    #[inline(always)]
    pub(in crate::engine) fn took_send(&mut self) {
        self.taken.0 += u64::from(cfg!(debug_assertions));
    }

    #[inline(always)]
    pub(in crate::engine) fn took_receive(&mut self) {
        self.taken.1 += u64::from(cfg!(debug_assertions));
    }
}

impl Engine {
    /// Closes the short paths, so that everything takes the general path from now on. For tests
    /// that compare both.
    #[doc(hidden)]
    pub fn use_general_paths_only(&mut self) {
        self.adapter.short_paths = ShortPaths::default();
    }

    /// Returns the number of inline sends and of short receives, for tests. Always 0 in builds
    /// without debug assertions.
    #[doc(hidden)]
    pub fn short_paths_taken(&self) -> (u64, u64) {
        self.adapter.short_paths.taken
    }
}
