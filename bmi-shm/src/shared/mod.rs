//! The memory that one side writes and the other reads: the ring with the wake-up rule, checked by
//! loom (`ring`), and the layout of all of it (`area`).

mod area;
pub(crate) mod ring;

pub(crate) use area::{Advice, Area, Geometry, MAX_CLAIMS, Place, RingSpace};
