//! Which request comes first: at the network and the disk (`turns`), of prepared changes of size
//! (`truncates`), of accesses that exclude each other (`locks`).

pub(super) mod locks;
pub(super) mod truncates;
pub(super) mod turns;
