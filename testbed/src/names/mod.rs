//! The models of files that many commands change: what can be read under a name.
//!
//! [`Worlds`] is exact, for names that one worker alone uses. [`History`] is for a name that
//! several use at a time. Both say which [`Content`] is possible, or whether the name can be
//! absent.

mod content;
mod history;
mod worlds;

pub use content::{Content, describe, state_name};
pub use history::History;
pub use worlds::{Change, Contradiction, Worlds};
