//! Traces: which calls of several programs belong together.

use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::str::FromStr;

use bmi_core::SharedPeer;
use bmi_core::runtime::{host, random};
use tracing::dispatcher::get_default;
use tracing::field::{Empty, display};
use tracing::subscriber::NoSubscriber;
use tracing::{Instrument, Span};

use crate::{Addr, Error, ErrorKind};

thread_local! {
    static CURRENT: Cell<Option<Trace>> = const { Cell::new(None) };
}

/// A trace, and a span in it. It travels with each call: a handler runs in the trace of its call,
/// and the calls that it makes belong to the same trace.
///
/// A call that belongs to none begins one if `tracing` is on for the target `bmi::calls` at debug
/// level; not in a world, where a log must not change what happens. Otherwise nothing is made or
/// sent. Its text is that of a `traceparent`, by which the trace goes on from, or to, programs with
/// other libraries.
///
/// **Source.** W3C Recommendation, Trace Context, 2021, section 3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The id of the trace: all its spans have it.
    pub id: u128,
    /// The id of the span.
    pub span: u64,
    /// Bit 0: whoever began the trace records it.
    pub flags: u8,
}

impl Trace {
    /// Begins a trace, with random ids.
    pub fn new() -> Trace {
        let id = u128::from(random()) << 64 | u128::from(random()) | 1;
        Trace { id, span: random() | 1, flags: 1 }
    }

    /// Returns the trace that this is called in.
    pub fn current() -> Option<Trace> {
        CURRENT.get()
    }

    /// Returns a new span of the same trace.
    #[must_use]
    pub fn child(self) -> Trace {
        Trace { span: random() | 1, ..self }
    }

    /// Runs a future in this trace. Handlers are run like this. A task that a handler starts is
    /// not, unless it says so.
    pub async fn scope<F: Future>(self, future: F) -> F::Output {
        scope(Some(self), future).await
    }
}

/// Runs a handler in the trace of its call, and in a span if those are on.
pub(super) async fn of_handler<F: Future>(from: Option<Trace>, peer: &SharedPeer, handling: F) -> F::Output {
    let span = tracing::debug_span!(target: "bmi::calls", "handle", peer = Empty, trace = Empty, parent = Empty);
    let trace = from.map(Trace::child).or_else(|| begins(&span).then(Trace::new));
    let peer = (!span.is_disabled()).then(|| peer.addr()).flatten();
    describe(&span, trace, from, peer);
    scope(trace, handling).instrument(span).await
}

/// Returns the span of a call if those are on, and the trace that the call belongs to: that of the
/// task which makes it, or a new one.
pub(super) fn of_call() -> (Span, Option<Trace>) {
    let span = tracing::debug_span!(target: "bmi::calls", "call", peer = Empty, trace = Empty, parent = Empty);
    let from = Trace::current();
    let trace = from.map(Trace::child).or_else(|| begins(&span).then(Trace::new));
    describe(&span, trace, from, None);
    (span, trace)
}

/// Returns true if a call without a trace begins one.
fn begins(span: &Span) -> bool {
    // Another thread may have a subscriber of its own. Then a span is made here too.
    let is_heard = || get_default(|subscriber| !subscriber.is::<NoSubscriber>());
    !span.is_disabled() && host().is_none() && is_heard()
}

fn describe(span: &Span, trace: Option<Trace>, parent: Option<Trace>, peer: Option<Addr>) {
    if span.is_disabled() {
        return;
    }
    peer.inspect(|peer| _ = span.record("peer", display(peer)));
    trace.inspect(|trace| _ = span.record("trace", display(trace)));
    parent.inspect(|parent| _ = span.record("parent", display(format_args!("{:016x}", parent.span))));
}

/// Runs a future in a trace, or in none.
async fn scope<F: Future>(trace: Option<Trace>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _outer = Outer(CURRENT.replace(trace));
        future.as_mut().poll(cx)
    })
    .await
}

/// The trace around this one. It is the current one again when this is dropped, even by a panic.
struct Outer(Option<Trace>);

impl Drop for Outer {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

impl Default for Trace {
    fn default() -> Trace {
        Trace::new()
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.id, self.span, self.flags)
    }
}

impl FromStr for Trace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Trace, Error> {
        let invalid = || Error::new(ErrorKind::Invalid, format!("{text:?} is no traceparent"));
        let hex = |text: &str, len| text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let parts: Vec<&str> = text.splitn(5, '-').collect();
        let (version, id, span, flags) = match parts[..] {
            [version, id, span, flags] => (version, id, span, flags),
            // A later version may have more behind.
            [version, id, span, flags, _] if version != "00" => (version, id, span, flags),
            _ => return Err(invalid()),
        };
        if version == "ff"
            || ![(version, 2), (id, 32), (span, 16), (flags, 2)].iter().all(|(text, len)| hex(text, *len))
        {
            return Err(invalid());
        }
        let id = u128::from_str_radix(id, 16).map_err(|_| invalid())?;
        let span = u64::from_str_radix(span, 16).map_err(|_| invalid())?;
        let flags = u8::from_str_radix(flags, 16).map_err(|_| invalid())?;
        if id == 0 || span == 0 {
            return Err(invalid());
        }
        Ok(Trace { id, span, flags })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_trace_is_a_traceparent() {
        // The example of the recommendation.
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let trace: Trace = text.parse().expect("a trace");
        assert_eq!((trace.span, trace.flags, trace.to_string().as_str()), (0x00f0_67aa_0ba9_02b7, 1, text));
        for (from, to) in
            [("00-", "ff-"), ("-01", "-01-x"), ("4bf9", "4Bf9"), ("4bf9", "+bf9"), ("00f0", "0f0"), ("-01", "")]
        {
            let text = text.replacen(from, to, 1);
            assert_eq!(text.parse::<Trace>().expect_err(&text).kind(), ErrorKind::Invalid);
        }
        let none = format!("00-{:032x}-{:016x}-00", 0, 7);
        assert!(none.parse::<Trace>().is_err());
        assert_eq!(
            "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more".parse::<Trace>().expect("later"),
            trace
        );
    }

    #[test]
    fn a_new_trace_differs_and_a_span_stays_in_it() {
        let (a, b) = (Trace::new(), Trace::new());
        assert!(a.id != b.id && a.child().id == a.id && a.child().span != a.span);
        assert_eq!(a.to_string().parse::<Trace>().expect("its own text"), a);
    }
}
