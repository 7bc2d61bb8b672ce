//! Tests of [`Handle`](bmi_core::Handle): threads that share endpoints of a real backend, with the
//! drivers that [`Handle::start`](bmi_core::Handle::start) starts. In the simulator see
//! `bmi-sim/tests/it/endpoints/handle.rs`.
//!
//! They run threads and wait for real time, so they are not part of the suite that the simulator
//! runs. Waiting has a bound, and reaching it fails.

mod bed;
mod drops;
mod panics;
mod sharing;

pub use self::bed::{Adapter, Backend};
pub use self::drops::{
    a_closed_handle_refuses, a_dropped_call_leaves_the_connection, dropped_futures_leave_nothing,
    the_last_handle_ends_everything_in_order,
};
pub use self::panics::{a_panic_harms_no_other, an_owner_of_memory_that_panics_harms_no_other};
pub use self::sharing::{
    a_wait_may_have_a_limit, endpoints_share_an_address, messages_of_many_threads_arrive_in_order,
    operations_are_bounded, threads_share_a_handle,
};

/// Expands to one `#[test]` for each test of handles. The argument is a [`Backend`] of this module.
/// An attribute may follow, which each test gets.
#[macro_export]
macro_rules! handle_suite {
    ($backend:expr) => { $crate::handle_suite! { $backend, #[cfg(all())] } };
    ($backend:expr, #[$attribute:meta]) => { $crate::handle_suite! { @each ($backend, $attribute)
        threads_share_a_handle, endpoints_share_an_address, dropped_futures_leave_nothing,
        the_last_handle_ends_everything_in_order, a_closed_handle_refuses, a_panic_harms_no_other,
        operations_are_bounded, messages_of_many_threads_arrive_in_order, a_dropped_call_leaves_the_connection,
        an_owner_of_memory_that_panics_harms_no_other, a_wait_may_have_a_limit,
    } };
    (@each ($backend:expr, $attribute:meta) $($name:ident),* $(,)?) => { $(
        #[test]
        #[$attribute]
        fn $name() {
            $crate::handle::$name(&$backend);
        }
    )* };
}
