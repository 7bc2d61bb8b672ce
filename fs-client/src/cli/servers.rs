//! Commands about servers: `ping`; `servers`, which shows the transport used for each, and why.
//!
//! ```text
//! tcp://127.0.0.1:7000 (manager): over shm: on this host (shm:///srv/pvfs/sockets/manager)
//! tcp://127.0.0.1:7001 (iod 0): over tcp: nothing better works
//!     not shm:///srv/pvfs/sockets/iod-0: another server is there
//! ```

use crate::{Client, Latency};
use serde_json::{Value, json};

use super::output::Output;
use crate::program::Stop;

pub(crate) async fn servers(client: &Client, output: &mut Output) -> Result<(), Stop> {
    output.servers("servers", client.routes().await, |output, server, mut route| {
        let passed_over = std::mem::take(&mut route.passed_over);
        output.line(route.to_string());
        let not = |(addr, why): &(bmi::Addr, String)| json!({ "address": addr.to_string(), "reason": why });
        let others: Vec<Value> = passed_over.iter().map(not).collect();
        for (addr, why) in &passed_over {
            output.line(format!("    not {addr}: {why}"));
        }
        json!({
            "server": server, "over": route.addr.scheme().as_str(), "address": route.addr.to_string(),
            "reason": route.reason, "passed_over": others,
        })
    });
    Ok(())
}

pub(crate) async fn ping(client: &Client, count: u32, output: &mut Output) -> Result<(), Stop> {
    output.servers("servers", client.latencies(count).await, |output, server, Latency { least, sum }| {
        let (least, mean) = (least.as_secs_f64() * 1e6, sum.as_secs_f64() * 1e6 / f64::from(count));
        output.line(format!("{server}: best {least:.1} µs, mean {mean:.1} µs of {count}"));
        json!({ "server": server, "best_us": least, "mean_us": mean, "count": count })
    });
    Ok(())
}
