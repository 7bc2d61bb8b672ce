//! Has the messages of a run recorded, and asks for the lines to show of them.

use super::Why;
use crate::world::World;

/// Records the messages of a world from now on.
pub(super) fn record(world: &World) {
    world.0.with(|core| core.messages = Some(Box::default()));
}

/// Returns the lines of the report for a run that has ended, and none if the run was not recorded.
pub(super) fn report(world: &World, why: Option<&Why>) -> Vec<String> {
    let Some(mut messages) = world.0.with(|core| core.messages.take()) else { return Vec::new() };
    let core = world.0.core.borrow();
    let names: Vec<&str> = core.nodes.iter().map(|node| node.name.as_str()).collect();
    let text = match why {
        Some(Why::Error(text) | Why::Leaked(text)) => text,
        _ => "",
    };
    let mut failing: Vec<u32> = (0..).zip(&names).filter(|(_, name)| has_word(text, name)).map(|(id, _)| id).collect();
    failing.extend(world.0.executor.panicked_on().map(|node| node as u32));
    if messages.is_empty() {
        return Vec::new();
    }
    if why.is_some() {
        messages.fail(core.queue.now);
    }
    messages.lines(&names, &failing)
}

/// Returns true if `word` is in `text`, and no letter or digit is next to it.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(char::is_alphanumeric) && !after.starts_with(char::is_alphanumeric)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bmi_core::{Config, Error, Memory};

    use super::*;
    use crate::check::Case;
    use crate::faults::{Plan, Swarm};
    use crate::model::messages::LINES;

    const NAMES: [&str; 3] = ["n0", "n1", "client"];

    #[test]
    fn the_node_of_a_task_that_panics_is_known() {
        let world = World::new(1);
        let nodes = NAMES.map(|name| world.node(name));
        nodes[0].spawn(std::future::pending::<()>());
        assert_eq!(world.0.executor.panicked_on(), None);
        nodes[2].spawn(async { panic!("on purpose") });
        let run = crate::check::panic_hook::catch(|| world.run());
        assert!(run.is_err_and(|text| text.starts_with("on purpose")));
        assert_eq!(world.0.executor.panicked_on(), Some(2));
    }

    #[test]
    fn names_are_whole_words() {
        assert!(has_word("  n1: parked: 1", "n1") && has_word("at sim://n1:7", "n1"));
        assert!(!has_word("n10 and an1", "n1") && !has_word("", "n1"));
    }

    /// Recording must change nothing, whatever faults there are.
    #[test]
    fn a_recorded_run_is_the_same_run() {
        let sweep = crate::check::sweep("recorded").nodes(3).ignoring_leaks();
        let test = |world: Case| async move {
            let server = world.nodes[0].endpoint(Config::default())?;
            let addr = server.listen(&world.nodes[0].addr(1))?;
            world.nodes[0].spawn(async move {
                loop {
                    let request = server.next_unexpected().await;
                    let patience = server.within(Duration::from_millis(1));
                    let _ = request.peer().send(1, Memory::from(vec![1; 50_000]), patience).await;
                }
            });
            let client = world.nodes[1].endpoint(Config::default())?;
            while world.now() < world.calm_at() {
                let patience = client.within(Duration::from_millis(5));
                let Ok(peer) = client.connect(&addr, patience).await else { continue };
                let reply = peer.recv(1, Memory::zeroed(50_000)?, peer.within(Duration::from_millis(5)));
                let _ = peer.send_unexpected(1, vec![1], peer.within(Duration::from_millis(5))).await;
                // Some seeds fail, others pass.
                if let Err(error) = reply.await
                    && world.seed.is_multiple_of(2)
                {
                    return Err(error);
                }
                let _ = peer.disconnect(peer.within(Duration::from_millis(5))).await;
            }
            Ok::<_, Error>(())
        };
        let (mut passed, mut shown) = (0, 0);
        for seed in 0..30 {
            let plan = Plan::draw(seed, &Swarm::all(), &sweep.nodes);
            let [plain, recorded] = [false, true].map(|records| sweep.once(seed, &plan, records, &test));
            assert_eq!(
                (plain.digest, plain.events, &plain.result),
                (recorded.digest, recorded.events, &recorded.result)
            );
            assert!(plain.messages.is_empty() && recorded.messages.len() <= LINES + 2);
            passed += u32::from(plain.result.is_ok());
            shown += u32::from(recorded.messages.len() > 10);
        }
        assert!((1..30).contains(&passed) && shown > 20, "{passed} passed, {shown} had messages");
    }
}
