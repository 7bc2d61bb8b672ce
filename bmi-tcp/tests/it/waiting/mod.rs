//! How a driver sleeps and is woken.

mod bed;
mod no_event_fd;
