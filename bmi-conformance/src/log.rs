//! The log lines that a piece of code writes, for tests that count or read them.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// A log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its level.
    pub level: Level,
    /// The message, then each field as ` name=value`.
    pub text: String,
}

/// Runs `code`. Returns its result, and the lines that this thread has written meanwhile, of every
/// level.
pub fn capture<R>(code: impl FnOnce() -> R) -> (R, Vec<Line>) {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let result = tracing::subscriber::with_default(Capture { lines: lines.clone(), spans: AtomicU64::new(1) }, code);
    let lines = std::mem::take(&mut *lines.lock().unwrap_or_else(PoisonError::into_inner));
    (result, lines)
}

struct Capture {
    lines: Arc<Mutex<Vec<Line>>>,
    spans: AtomicU64,
}

impl Subscriber for Capture {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let line = Line { level: *event.metadata().level(), text: text.message + &text.fields };
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
