//! A protocol of twenty lines: a dispenser hands out tickets, which are numbers from 1 on. No two
//! takers get the same number.
//!
//! The same code runs over TCP, over verbs and in the simulator. Its tests use the simulator. They
//! cut connections in the middle of a request: a ticket may be
//! lost, but it must never be handed out twice.

use std::time::Duration;

use bmi::{Endpoint, Error, ErrorKind, Memory, Peer, Tag};

/// The deadline of each operation.
const PATIENCE: Duration = Duration::from_millis(100);

/// Runs the dispenser: answers each request with the next number, and never ends.
pub async fn dispense(endpoint: &Endpoint) {
    let mut next = 0u64;
    loop {
        // A request is an unexpected message. The taker waits for the reply with the same tag.
        let request = endpoint.next_unexpected().await;
        next += 1;
        let ticket = next.to_le_bytes().to_vec();
        // If the taker is gone, its ticket is lost. If it were handed out again, two could have it.
        let _ = request.peer().send(request.tag(), ticket, endpoint.within(PATIENCE)).await;
    }
}

/// Takes a ticket. `tag` must not be in use for anything else with this peer.
///
/// # Errors
/// `PeerLost` or `TimedOut`. The ticket is then lost, if one was drawn.
pub async fn take(dispenser: &Peer, tag: Tag) -> Result<u64, Error> {
    let buffer = Memory::zeroed(8)?;
    // Post the receive before the request, because the reply may come at once.
    let reply = dispenser.recv(tag, &buffer, dispenser.within(PATIENCE));
    dispenser.send_unexpected(tag, Vec::new(), dispenser.within(PATIENCE)).await?;
    let len = reply.await?.len;
    let ticket = buffer.to_vec().try_into().ok().filter(|_| len == 8);
    ticket.map(u64::from_le_bytes).ok_or_else(|| Error::new(ErrorKind::Protocol, "a ticket has eight bytes"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bmi::{Config, Options};
    use bmi_sim::World;

    use super::*;

    /// Three takers draw twenty tickets each. With `cut`, their connections are cut again and
    /// again, at times that depend on the seed. Returns the tickets and the run's digest.
    fn run(seed: u64, cut: bool) -> (Vec<u64>, u64) {
        // A world has virtual time and one thread, and everything in it depends on the seed. Its
        // nodes have a processor and an adapter.
        let world = World::new(seed);
        let dispenser = world.node("dispenser");
        let server = dispenser.endpoint(Config::named("dispenser")).unwrap();
        let addr = server.listen(&dispenser.addr(1)).unwrap();
        dispenser.spawn(async move { dispense(&server).await });

        let takers = (0..3).map(|number| {
            let node = world.node(&format!("taker{number}"));
            let (endpoint, addr) = (node.endpoint(Config::named("taker")).unwrap(), addr.clone());
            if cut {
                let (taker, dispenser) = (node.clone(), dispenser.clone());
                node.spawn(async move {
                    for _ in 0..10 {
                        taker.sleep(Duration::from_micros(60 + 7 * seed + number)).await;
                        taker.sim().cut(&taker, &dispenser);
                    }
                });
            }
            node.spawn(async move {
                let (mut tickets, mut peer) = (Vec::new(), None);
                while tickets.len() < 20 {
                    let Some(dispenser) = peer else {
                        // This can fail too. Then the loop tries again.
                        peer = endpoint.connect(&addr, Options::default()).await.ok();
                        continue;
                    };
                    let ticket = take(&dispenser, 7).await;
                    peer = ticket.is_ok().then_some(dispenser);
                    tickets.extend(ticket);
                }
                tickets
            })
        });
        let takers: Vec<_> = takers.collect();
        let tickets = world.block_on(async {
            let mut all = Vec::new();
            for taker in takers {
                all.extend(taker.await.unwrap());
            }
            all
        });
        (tickets, world.digest())
    }

    #[test]
    fn undisturbed_every_number_is_handed_out_once() {
        let (mut tickets, _) = run(1, false);
        tickets.sort_unstable();
        assert_eq!(tickets, (1..=60).collect::<Vec<u64>>());
    }

    #[test]
    fn no_ticket_is_handed_out_twice_though_connections_break() {
        let mut lost = 0;
        for seed in 0..20 {
            let (tickets, _) = run(seed, true);
            let distinct: BTreeSet<u64> = tickets.iter().copied().collect();
            assert_eq!(distinct.len(), 60, "seed {seed}");
            lost += distinct.last().unwrap_or(&0) - 60;
        }
        assert!(lost > 0, "the cuts hit nothing, so the test proves nothing");
    }

    #[test]
    fn the_same_seed_gives_the_same_run() {
        assert_eq!(run(3, true), run(3, true));
        assert_ne!(run(3, true).1, run(3, false).1);
    }
}
