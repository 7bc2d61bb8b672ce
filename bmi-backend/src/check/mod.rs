//! What is refused of this side: work requests beyond the capabilities, calls and limits, errors of
//! the system. What is refused of a peer is in `software`.

mod errors;
mod work_limits;

pub use errors::{Limit, check_private, check_scheme, connection_ended, listen_failed, lost, request_gone, unreached};
pub use work_limits::{WorkLimits, total_len};
