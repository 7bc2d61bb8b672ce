//! `plan`: which path data of each size takes, and why.
//!
//! ```text
//! tcp://127.0.0.1:7001 (iod 0)
//! direction  registered       up to  path          why
//! write      yes              4 KiB  inline        a copy costs less than another message
//! ```

use bmi_core::Transport;
use bmi_core::comm::Rule;
use fs_client::Client;
use serde_json::{Value, json};

use super::Stop;
use super::output::Output;

pub(crate) async fn plan<T: Transport + 'static>(
    client: &Client<T>,
    calibrate: bool,
    output: &mut Output,
) -> Result<(), Stop> {
    let mut plans = Vec::new();
    for (server, plan) in client.plans(calibrate).await {
        match plan {
            Ok(plan) => {
                output.line(server.to_string());
                plan.to_string().lines().for_each(|line| output.line(line));
                let rules: Vec<Value> = plan.rules.iter().map(rule).collect();
                plans.push(json!({ "server": server.to_string(), "thresholds": plan.thresholds, "rules": rules }));
            }
            Err(error) => {
                plans.push(json!({ "server": server.to_string(), "error": error.to_string() }));
                output.failure(error);
            }
        }
    }
    output.field("plans", json!(plans));
    Ok(())
}

fn rule(rule: &Rule) -> Value {
    json!({
        "direction": rule.direction.as_str(), "registered": rule.registered, "from": rule.from, "to": rule.to,
        "path": rule.path.as_str(), "why": rule.why,
    })
}
