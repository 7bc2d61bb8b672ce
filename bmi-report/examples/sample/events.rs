//! A recording of eight calls, as Chrome's trace events.

use serde_json::{Value, json};

/// Returns the events of a client and a server.
pub(super) fn timeline() -> Value {
    let mut events = vec![
        json!({"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "client alpha"}}),
        json!({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "server beta"}}),
    ];
    for pid in 0..2 {
        for (tid, name) in [(0, "core 0"), (1, "adapter transmit"), (2, "adapter receive")] {
            events.push(json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}));
        }
    }
    for call in 0..8 {
        let at = 24.0 * f64::from(call);
        let bytes = 4096 << (call % 4);
        let wire = 1.0 + f64::from(bytes) / 12_000.0;
        let mut span = |pid: u32, tid: u32, name: &str, from: f64, long: f64| {
            let args = json!({"bytes": bytes, "call": call});
            events
                .push(json!({"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": from, "dur": long, "args": args}));
        };
        span(0, 0, "post", at, 1.1);
        span(0, 1, "request", at + 1.1, wire);
        span(1, 2, "request", at + 2.3, wire);
        span(1, 0, "match", at + 2.4 + wire, 0.9);
        span(1, 0, "handle", at + 3.4 + wire, 4.0);
        span(1, 1, "reply", at + 7.5 + wire, 1.2);
        span(0, 2, "reply", at + 8.8 + wire, 1.2);
        span(0, 0, "complete", at + 10.1 + wire, 0.8);
        let mut arrow = |id: u32, from: (u32, u32, f64), to: (u32, u32, f64)| {
            for (ph, (pid, tid, ts)) in [("s", from), ("f", to)] {
                let name = "message";
                events.push(json!({"ph": ph, "cat": "flow", "id": id, "name": name, "pid": pid, "tid": tid, "ts": ts}));
            }
        };
        arrow(2 * call, (0, 1, at + 1.2), (1, 2, at + 2.4));
        arrow(2 * call + 1, (1, 1, at + 7.6 + wire), (0, 2, at + 8.9 + wire));
    }
    json!({"traceEvents": events, "displayTimeUnit": "ns"})
}
