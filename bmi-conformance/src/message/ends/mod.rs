//! How operations, connections and peers end, and what is back by then. Ways in: the behaviours of
//! each file.

pub mod cancel;
pub mod deadlines;
pub mod identity;
pub mod late;
pub mod memory;
pub mod peers;
pub mod polling;
