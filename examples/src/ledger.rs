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
//! check "ledger" fails at seed 11
//! panic: assertion `left == right` failed: 42 deposits booked, 40 made
//! its 59 faults shrink to 1, in 22 runs:
//!         119 µs  the completion queue of n0 overruns
//! messages around the faults (*) and before the failure (!), in µs, - for not arrived:
//!        sent    arrived
//!      23.200     88.410  n1 → n0  connect     49 B
//!      88.410     89.520  n0 → n1  accept      49 B
//!      89.520     95.433  n1 → n0  send        56 B  FastSlots, 4 of 73728 bytes
//!      94.323     95.640  n1 → n0  send        48 B  Unexpected, tag 0
//!     104.870          -  n0 → n1  send        56 B  FastSlots, 4 of 73728 bytes
//! *   119.000             the completion queue of n0 overruns
//!     119.000             n0 × n1  connection ends: the completion queue overran; 1 send flushed
//!   10119.000             n1 × n0  connection ends: the peer no longer answers
//!   10244.600  10309.810  n1 → n0  connect     49 B
//!   10309.810  10310.920  n0 → n1  accept      49 B
//!   10310.920  10316.833  n1 → n0  send        56 B  FastSlots, 4 of 73728 bytes
//!   10315.723  10317.040  n1 → n0  send        48 B  Unexpected, tag 0
//!           …  256 lines left out
//!   12832.960  12834.275  n0 → n2  send        32 B  Eager, tag 19
//!   12834.510  12835.616  n2 → n0  disconnect   0 B
//! ! 12860.110             the failure
//! replay: BMI_SEED=11 BMI_PLAN='{"events":[{"at_us":119,"overrun":{"node":"n0"}}]}' \
//!     cargo test -p examples ledger::tests::… -- --nocapture
//! ```
//!
//! The deposit with tag 0 arrived at 95.640 µs. Its connection ended before the answer was sent, so
//! the client sent it again at 10315.723 µs, and it was booked twice.

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

    // The whole test. It has no crashes: the ledger is kept in memory, and the clients are the
    // test.
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
        // There are fewer seeds if BMI_SEED or BMI_SEEDS is set.
        assert!(report.seeds < 100 || report.faults > 500, "{report}");
    }

    #[test]
    fn the_planted_bug_is_found_and_shrunk_to_one_fault_or_two() {
        let failure = sweep(true).unwrap_err();
        println!("{failure}");
        assert!(failure.shrunk.events.len() <= 2, "{failure}");
        // The report shows the deposit that was booked and the one that was sent again.
        let fault = failure.messages.iter().position(|line| line.starts_with('*')).expect("the fault has a line");
        let (before, after) = failure.messages.split_at(fault);
        for part in [before, after] {
            assert!(part.iter().any(|line| line.contains("n1 → n0  send        48 B  Unexpected, tag 0")), "{failure}");
        }
        assert!(failure.command().contains("BMI_PLAN='{\"events\":[{\"at_us\":"), "{failure}");
    }
}
