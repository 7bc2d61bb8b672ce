//! The poll loop (`progress`), sleeping and waking (`sleep`), and which rings a poll looks at
//! (`poll_schedule`).

mod poll_schedule;
mod progress;
mod sleep;

pub(crate) use poll_schedule::PollSchedule;
