//! Messages, by each way that one can travel, and what bounds how many travel. Ways in: the
//! behaviours of each file.

pub mod credits;
pub mod expected;
pub mod fast;
pub mod offered_receive;
pub mod unexpected;
