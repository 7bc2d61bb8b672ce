//! The poll loop, sleeping and waking (`progress`), and which rings a poll looks at
//! (`poll_schedule`).

mod poll_schedule;
mod progress;

pub(crate) use poll_schedule::PollSchedule;
