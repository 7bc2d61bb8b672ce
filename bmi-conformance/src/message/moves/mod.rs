//! Bulk transfers, and calls, which carry a request and its data. Ways in: the behaviours of each
//! file.

pub mod bulk;
pub mod calls;
pub mod immediate;
