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
            Err(why) if named.contains(&over) && is_library => {
                return Err(Trouble::new(format!("{over} cannot be measured between these hosts: {why}")));
            }
            Err(why) if named.contains(&over) || (named.is_empty() && is_library) => {
                notes.push(format!("{over} is left out: {why}"))
            }
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
        return Err(Trouble::new(format!("no transport can be opened on both hosts: {}", notes.join("; "))));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_baseline_that_is_not_there_is_left_out_also_if_it_was_named() {
        let can = |over| match over {
            Over::Uring | Over::Ib => Err("forbidden".to_owned()),
            _ => Ok(Abilities::ALL),
        };
        let overs = Over::ALL.into_iter().map(|over| (over, can(over))).collect();
        let chosen = |named: &[Over]| {
            let wanted = Wanted { overs: named.to_vec(), ..crate::selection::tests::wanted() };
            chosen(&wanted, true, &overs).map(|(wanted, notes)| (wanted.overs, notes))
        };
        let (list, notes) = chosen(&[Over::Tcp, Over::Uring]).unwrap();
        assert_eq!(
            (&list[..], &notes[..]),
            (&[Over::Tcp, Over::Sockets][..], &["uring is left out: forbidden".to_owned()][..])
        );
        assert!(chosen(&[Over::Uring]).unwrap_err().0.contains("uring is left out: forbidden"));
        assert!(chosen(&[Over::Tcp, Over::Ib]).unwrap_err().0.contains("ib cannot be measured"));
    }
}
