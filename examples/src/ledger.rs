//! A ledger that must book every deposit once, however often connections fail.
//!
//! A client whose call has failed does not know whether its deposit was booked, and makes the call
//! again, under the same number. The ledger remembers the last number. One that is `careless` has a
//! planted bug: it does not compare the number. An ordinary test does not find this bug. The test
//! below runs the ledger in a hundred worlds, each with faults of its own, and finds it.
//! `docs/simulating.md` shows what it prints.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bmi::{Call, Client, Error, ErrorKind, Server};

/// Deposits that were booked. It outlives a crash of its node, as a disk would.
#[derive(Clone, Default)]
pub struct Ledger(Arc<Mutex<Book>>);

#[derive(Default)]
struct Book {
    booked: u64,
    /// The last number that was booked.
    last: u64,
}

impl Ledger {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of booked deposits.
    pub fn booked(&self) -> u64 {
        self.book().booked
    }

    async fn handle(self, call: Call, careless: bool) -> Result<(), Error> {
        let Ok(number) = call.request().try_into().map(u64::from_le_bytes) else {
            return Err(Error::new(ErrorKind::Invalid, "a deposit is a number of eight bytes"));
        };
        {
            let mut book = self.book();
            if careless || number != book.last {
                (book.last, book.booked) = (number, book.booked + 1);
            }
        }
        call.reply(b"booked").await
    }
}

/// Books deposits.
///
/// # Errors
/// Those of a server.
pub async fn keep(ledger: Ledger, careless: bool) -> Result<(), Error> {
    let server = Server::bind("tcp://0.0.0.0:7001").await?;
    server.serve(move |call| ledger.clone().handle(call, careless)).await
}

/// Deposits once.
///
/// # Errors
/// Those of a call.
pub async fn deposit(client: &Client, number: u64) -> Result<(), Error> {
    client.call(number.to_le_bytes()).idempotent().await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use bmi_sim::check::{self, Case};
    use bmi_sim::faults::{Kind, Swarm};

    use super::*;

    async fn deposits(world: Case, careless: bool) -> Result<(), Error> {
        let ledger = Ledger::default();
        let kept = ledger.clone();
        world.boot("bank", move || keep(kept.clone(), careless));
        let client = Client::new("tcp://bank:7001");
        for number in 1..=20 {
            deposit(&client, number).await?;
            world.note(format!("acknowledged {number}"));
        }
        assert_eq!(ledger.booked(), 20, "deposits booked, of 20 made");
        Ok(())
    }

    #[test]
    fn every_deposit_is_booked_once_whatever_fails() {
        let report = bmi_sim::test(|world| deposits(world, false));
        // There are fewer seeds if BMI_SEED or BMI_SEEDS is set.
        assert!(report.seeds < 100 || report.faults > 500, "{report}");
    }

    #[test]
    #[should_panic(expected = "deposits booked, of 20 made")]
    fn the_planted_bug_is_found() {
        bmi_sim::test(|world| deposits(world, true));
    }

    /// One kind of fault, and what a failure has.
    #[test]
    fn the_planted_bug_shrinks_to_one_fault_or_two() {
        let sweep = check::sweep("ledger").named(&["bank", "test"]).faults(Swarm::of(&[Kind::Overrun, Kind::Cut]));
        let failure = sweep.try_run(|world: Case| async move {
            let tester = world.node("test");
            tester.run(deposits(world, true)).await
        });
        let failure = failure.expect_err("the bug");
        println!("{failure}");
        assert!(failure.shrunk.events.len() <= 2, "{failure}");
        assert!(failure.messages.iter().any(|line| line.starts_with("> ")), "a note of the test: {failure}");
        assert!(failure.command().contains("BMI_PLAN='{\"events\":[{\"at_us\":"), "{failure}");
    }
}
