//! `plan`: shows which transport is used for each I/O server, which path data of each size takes,
//! and why.
//!
//! ```text
//! tcp://127.0.0.1:7001 (iod 0): over shm: on this host (shm:///srv/pvfs/sockets/iod-0)
//! direction  registered       up to  path          why
//! write      yes              4 KiB  inline        a copy costs less than another message
//! ```

use crate::Client;
use bmi::paths::Rule;
use serde_json::{Value, json};

use super::output::Output;
use crate::program::Stop;

pub(crate) async fn plan(client: &Client, calibrate: bool, output: &mut Output) -> Result<(), Stop> {
    let plans = client.plans(calibrate).await;
    // The servers are connected by now, so this only returns the routes. The manager is first and
    // has no data.
    let routes = client.routes().await.into_iter().skip(1).map(|(_, route)| route);
    let both =
        plans.into_iter().zip(routes).map(|((server, plan), route)| (server, plan.and_then(|p| Ok((p, route?)))));
    output.servers("plans", both, |output, server, (plan, route)| {
        output.line(route.to_string());
        plan.to_string().lines().for_each(|line| output.line(line));
        let rules: Vec<Value> = plan.rules.iter().map(rule).collect();
        json!({
            "server": server, "over": route.addr.scheme().as_str(), "address": route.addr.to_string(),
            "reason": route.reason, "thresholds": plan.thresholds, "rules": rules,
        })
    });
    Ok(())
}

fn rule(rule: &Rule) -> Value {
    json!({
        "direction": rule.direction.as_str(), "registered": rule.registered, "from": rule.from, "to": rule.to,
        "path": rule.path.as_str(), "why": rule.why,
    })
}
