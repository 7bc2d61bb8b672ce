//! The line that tells how far a run is.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A line on the terminal, if the standard error is one.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn new() -> Progress {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{bar:20} {wide_msg}") {
            bar.set_style(style);
        }
        Progress(bar)
    }

    /// Shows a step of the preparation.
    pub(crate) fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// Shows a round.
    pub(crate) fn show(&self, round: u32, what: &str, done: usize, of: usize, left: Duration) {
        self.0.set_length(of as u64);
        self.0.set_position(done as u64);
        let text = format!("round {}, {what}; {done} of {of} rows done, at most {} s left", round + 1, left.as_secs());
        self.0.set_message(text);
    }

    /// Removes the line.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}
