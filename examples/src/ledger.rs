//! A ledger that must book every deposit once, however often connections fail.
//!
//! A client that loses its connection does not know whether its deposit was booked. It connects
//! again and sends the deposit again, under the same number. The ledger remembers the last number
//! of each client. A [`Ledger`] that is `careless` has a planted bug: it does not compare the
//! number. An ordinary test does not find this bug. The test below is a sweep over seeds and
//! faults. It finds the bug within some seeds, and prints the faults that are needed and
//! the messages around them (here without some lines):
//!
//! ```text
//! check "ledger" fails at seed 16
//! panic: assertion `left == right` failed: 41 deposits booked, 40 made
//! its 2 faults shrink to 1, in 13 runs:
//!         388 µs  the completion queue of n2 overruns
//! messages of n2 around the faults (*) and before the failure (!), in µs, - for not arrived:
//!        sent    arrived
//!           …  19 lines left out
//!     289.616    354.826  n2 → n0  connect     49 B
//!     365.836    366.946  n0 → n2  accept      49 B
//!     366.946    372.859  n2 → n0  send        56 B  FastSlots, 4 of 73728 bytes
//!     371.749    373.066  n2 → n0  send        48 B  Unexpected, tag 2
//!     387.726          -  n0 → n2  send        56 B  FastSlots, 4 of 73728 bytes
//! *   388.000             the completion queue of n2 overruns
//!     388.000             n2 × n0  connection ends: the completion queue overran
//!     392.969          -  n0 → n2  send        32 B  Eager, tag 2
//!     513.600    578.810  n2 → n0  connect     49 B
//!     578.810    579.920  n0 → n2  accept      49 B
//!     579.920    585.833  n2 → n0  send        56 B  FastSlots, 4 of 73728 bytes
//!     584.723    586.040  n2 → n0  send        48 B  Unexpected, tag 2
//!           …  207 lines left out
//!    2802.244   2803.559  n0 → n2  send        32 B  Eager, tag 19
//!    2803.774   2804.880  n2 → n0  disconnect   0 B
//! !  2829.374             the failure
//! replay: BMI_SEED=16 BMI_PLAN='{"events":[{"at_us":388,"overrun":{"node":"n2"}}]}' \
//!     cargo test -p examples ledger::tests::… -- --nocapture
//! ```
//!
//! The deposit with tag 2 arrived at 373.066 µs. Its connection ended before the answer arrived, so
//! the client sent it again at 584.723 µs, and it was booked twice.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bmi::{Addr, Endpoint, Error, Memory, Peer};

/// The deadline of each operation.
const PATIENCE: Duration = Duration::from_millis(20);

/// Deposits that were booked.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The number of booked deposits.
    pub booked: u64,
    /// The last number that was booked, by client.
    last: BTreeMap<u64, u64>,
    /// The planted bug: a deposit that arrives twice is booked twice.
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

/// Books deposits, and never ends. A deposit is an unexpected message: client and number, eight
/// bytes each. The answer is empty.
pub async fn keep(endpoint: Endpoint, ledger: Rc<RefCell<Ledger>>) {
    loop {
        let deposit = endpoint.next_unexpected().await;
        let Some((client, number)) = deposit.bytes().split_first_chunk::<8>() else { continue };
        let Ok(number) = number.try_into() else { continue };
        ledger.borrow_mut().book(u64::from_le_bytes(*client), u64::from_le_bytes(number));
        // A client that does not get the answer asks again.
        let _ = deposit.peer().send(deposit.tag(), Vec::new(), endpoint.within(PATIENCE)).await;
    }
}

/// Deposits once: sends the deposit until there is an answer.
pub async fn deposit(endpoint: &Endpoint, ledger: &Addr, client: u64, number: u64) {
    let mut peer = None;
    while let Err(error) = attempt(endpoint, ledger, &mut peer, client, number).await {
        // Close the connection, so that nothing of this attempt can arrive during the next one.
        if let Some(peer) = peer.take() {
            let _ = peer.disconnect(endpoint.within(PATIENCE)).await;
        }
        let _ = error;
        endpoint.sleep(Duration::from_micros(100)).await;
    }
    if let Some(peer) = peer {
        let _ = peer.disconnect(endpoint.within(PATIENCE)).await;
    }
}

async fn attempt(
    endpoint: &Endpoint,
    ledger: &Addr,
    peer: &mut Option<Peer>,
    client: u64,
    number: u64,
) -> Result<(), Error> {
    let peer = peer.insert(endpoint.connect(ledger, endpoint.within(PATIENCE)).await?);
    let answer = peer.recv(number, Memory::from(Vec::new()), endpoint.within(PATIENCE));
    let bytes = [client.to_le_bytes(), number.to_le_bytes()].concat();
    peer.send_unexpected(number, bytes, endpoint.within(PATIENCE)).await?;
    answer.await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use bmi::Config;
    use bmi_sim::check::{self, Failure, Report};
    use bmi_sim::faults::{Kind, Swarm};

    use super::*;

    /// All faults but crashes: the ledger is kept in memory, and the clients are the test.
    fn all() -> Swarm {
        Swarm::all().without(Kind::Crash)
    }

    // The whole test, with all of these faults or with one kind.
    fn sweep(careless: bool, only: Option<Kind>) -> Result<Report, Box<Failure>> {
        check::sweep("ledger").nodes(3).seeds(0..100).faults(only.map_or_else(all, |kind| Swarm::of(&[kind]))).try_run(
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
        let report = sweep(false, None).unwrap_or_else(|failure| panic!("{failure}"));
        // There are fewer seeds if BMI_SEED or BMI_SEEDS is set.
        assert!(report.seeds < 100 || report.faults > 500, "{report}");
    }

    #[test]
    fn the_planted_bug_is_found_and_shrunk_to_one_fault_or_two() {
        let failure = sweep(true, None).unwrap_err();
        assert!(failure.shrunk.events.len() <= 2, "{failure}");
        // A fault that takes effect between the two deposits.
        let failure = sweep(true, Some(Kind::Overrun)).unwrap_err();
        println!("{failure}");
        assert!(failure.shrunk.events.len() <= 2, "{failure}");
        // The report shows the deposit that was booked and the one that was sent again.
        let fault = failure.messages.iter().position(|line| line.starts_with('*')).expect("the fault has a line");
        let (before, after) = failure.messages.split_at(fault);
        for part in [before, after] {
            assert!(part.iter().any(|line| line.contains("n2 → n0  send        48 B  Unexpected, tag 2")), "{failure}");
        }
        assert!(failure.command().contains("BMI_PLAN='{\"events\":[{\"at_us\":"), "{failure}");
    }
}
