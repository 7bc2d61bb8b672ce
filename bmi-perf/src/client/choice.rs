//! What is measured over what, and what the report says of the paths.

use std::collections::BTreeMap;

use bmi::paths::{MessageRule, Rule};
use bmi_report::Plan;

use crate::case::Over;
use crate::control::Trouble;
use crate::selection::Wanted;
use crate::work::adapter::Abilities;

/// Returns what to measure over what, and why something is left out.
///
/// # Errors
/// If the user named a transport that cannot be had.
pub(super) fn chosen(
    of: &Wanted,
    baseline: bool,
    overs: &BTreeMap<Over, Result<Abilities, String>>,
) -> Result<(Wanted, Vec<String>), Trouble> {
    let unknown = Err("the server does not know it".to_owned());
    let can = |over: Over| overs.get(&over).cloned().unwrap_or_else(|| unknown.clone());
    let (mut list, mut notes) = (Vec::new(), Vec::new());
    let named = &of.overs;
    for over in Over::ALL {
        let is_library = over.is_library();
        match can(over) {
            Err(why) if named.contains(&over) => {
                return Err(Trouble::new(format!("{over} cannot be measured between these hosts: {why}")));
            }
            Err(why) if named.is_empty() && is_library => notes.push(format!("{over} is left out: {why}")),
            Err(_) => {}
            Ok(_) if named.contains(&over) || (named.is_empty() && is_library) => list.push(over),
            Ok(_) => {}
        }
    }
    if baseline {
        for baseline in list.clone().into_iter().map(Over::baseline) {
            if can(baseline).is_ok() && !list.contains(&baseline) {
                list.push(baseline);
            }
        }
    }
    if list.is_empty() {
        return Err(Trouble::new("no transport can be opened on both hosts"));
    }
    Ok((Wanted { overs: list, ..of.clone() }, notes))
}

/// Returns the plan of a transport for the report: of messages, and of the data of calls.
pub(super) fn plans(over: Over, data: &[Rule], messages: &[MessageRule]) -> Vec<Plan> {
    let over = || over.name().to_owned();
    let message = |rule: &MessageRule| Plan {
        over: over(),
        direction: rule.kind.to_owned(),
        size: rule.from,
        path: rule.path.to_owned(),
        why: rule.why.clone(),
    };
    let call = |rule: &Rule| Plan {
        over: over(),
        direction: format!("{}, {} memory", rule.direction, if rule.registered { "registered" } else { "other" }),
        size: rule.from,
        path: rule.path.to_string(),
        why: rule.why.clone(),
    };
    messages.iter().map(message).chain(data.iter().map(call)).collect()
}
