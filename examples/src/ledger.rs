//! A ledger that must book every deposit once, however often the wire fails; and the test that
//! finds out when it does not.
//!
//! A client that loses its connection does not know whether its deposit was booked. It connects
//! again and sends it again, under the same number; the ledger knows the numbers that it has
//! booked. A [`Ledger`] that is `careless` has a bug on purpose: it forgets to look. Nothing in an
//! ordinary test shows that. The test below, a sweep over seeds and faults, shows it within some
//! seeds, and prints what it takes:
//!
//! ```text
//! check "ledger" fails at seed 11
//! panic: assertion `left == right` failed: 42 deposits booked, 40 made
//! its 59 faults shrink to 1, in 22 runs:
//!         119 µs  the completion queue of n0 overruns
//! replay: BMI_SEED=11 BMI_PLAN='{"events":[{"at_us":119,"overrun":{"node":"n0"}}]}' \
//!     cargo test -p examples ledger::tests::… -- --nocapture
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Addr, AsyncEndpoint, Error, Memory, PeerId, Transport};

/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_millis(20);

/// Deposits that were booked.
#[derive(Debug, Default)]
pub struct Ledger {
    /// How many.
    pub booked: u64,
    /// By client, the last number that was booked.
    last: BTreeMap<u64, u64>,
    /// The planted bug: a deposit that comes again is booked again.
    pub careless: bool,
}

impl Ledger {
    fn book(&mut self, client: u64, number: u64) {
        let before = self.last.insert(client, number);
        if self.careless || before != Some(number) {
            self.booked += 1;
        }
    }
}

/// Books deposits for ever. A deposit is an unexpected message: client and number, eight bytes
/// each. The answer is empty.
pub async fn keep<T: Transport>(endpoint: AsyncEndpoint<T>, ledger: Rc<RefCell<Ledger>>) {
    loop {
        let deposit = endpoint.next_unexpected().await;
        let Some((client, number)) = deposit.bytes().split_first_chunk::<8>() else { continue };
        let Ok(number) = number.try_into() else { continue };
        ledger.borrow_mut().book(u64::from_le_bytes(*client), u64::from_le_bytes(number));
        // If the client is gone it will ask again.
        let _ = endpoint.send(deposit.peer(), deposit.tag(), Vec::new(), endpoint.within(PATIENCE)).await;
    }
}

/// Deposits once: sends, and sends again until there is an answer.
pub async fn deposit<T: Transport>(endpoint: &AsyncEndpoint<T>, ledger: &Addr, client: u64, number: u64) {
    let mut peer = None;
    while let Err(error) = attempt(endpoint, ledger, &mut peer, client, number).await {
        // Whatever came in between, a new connection has nothing of the old one about it.
        if let Some(peer) = peer.take() {
            let _ = endpoint.disconnect(peer, endpoint.within(PATIENCE)).await;
        }
        let _ = error;
        endpoint.sleep(Duration::from_micros(100)).await;
    }
    if let Some(peer) = peer {
        let _ = endpoint.disconnect(peer, endpoint.within(PATIENCE)).await;
    }
}

async fn attempt<T: Transport>(
    endpoint: &AsyncEndpoint<T>,
    ledger: &Addr,
    peer: &mut Option<PeerId>,
    client: u64,
    number: u64,
) -> Result<(), Error> {
    let connected = endpoint.connect(ledger, endpoint.within(PATIENCE)).await?;
    *peer = Some(connected);
    let answer = endpoint.recv(connected, number, Memory::from(Vec::new()), endpoint.within(PATIENCE));
    let bytes = [client.to_le_bytes(), number.to_le_bytes()].concat();
    endpoint.send_unexpected(connected, number, bytes, endpoint.within(PATIENCE)).await?;
    answer.await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use bmi_core::Config;
    use bmi_sim::check::{self, Failure, Report};
    use bmi_sim::faults::{Kind, Swarm};

    use super::*;

    // The whole test. The ledger is kept in memory, so its node is spared from power failures; the
    // clients are the test itself.
    fn sweep(careless: bool) -> Result<Report, Box<Failure>> {
        check::sweep("ledger").nodes(3).seeds(0..100).faults(Swarm::all().without(Kind::Crash)).try_run(
            |world| async move {
                let ledger = Rc::new(RefCell::new(Ledger { careless, ..Ledger::default() }));
                let server = world.nodes[0].endpoint(Config::default())?;
                let addr = server.listen(&world.nodes[0].addr(1))?;
                world.nodes[0].spawn(keep(server, ledger.clone()));
                let clients = world.nodes[1..].iter().zip(1..).map(|(node, client)| {
                    let (endpoint, addr) = (node.endpoint(Config::default()), addr.clone());
                    node.spawn(async move {
                        let endpoint = endpoint?;
                        for number in 0..20 {
                            deposit(&endpoint, &addr, client, number).await;
                        }
                        Ok::<_, Error>(())
                    })
                });
                for client in clients.collect::<Vec<_>>() {
                    client.await.expect("nobody kills it")?;
                }
                let booked = ledger.borrow().booked;
                assert_eq!(booked, 40, "{booked} deposits booked, 40 made");
                Ok::<_, Error>(())
            },
        )
    }

    #[test]
    fn every_deposit_is_booked_once_whatever_fails() {
        let report = sweep(false).unwrap_or_else(|failure| panic!("{failure}"));
        // Fewer seeds: somebody looks at one of them.
        assert!(report.seeds < 100 || report.faults > 500, "{report}");
    }

    #[test]
    fn the_planted_bug_is_found_and_shrunk_to_one_fault_or_two() {
        let failure = sweep(true).unwrap_err();
        println!("{failure}");
        assert!(failure.shrunk.events.len() <= 2, "{failure}");
        assert!(failure.command().contains("BMI_PLAN='{\"events\":[{\"at_us\":"), "{failure}");
    }
}
