//! `servers`: shows which transport is used for each server, and why.
//!
//! ```text
//! tcp://127.0.0.1:7000 (manager): over shm: on this host (shm:///srv/pvfs/sockets/manager)
//! tcp://127.0.0.1:7001 (iod 0): over tcp: nothing better works
//!     not shm:///srv/pvfs/sockets/iod-0: another server is there
//! ```

use crate::Client;
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
