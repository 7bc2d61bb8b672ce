//! Calls, by each of the four paths.

use bmi::paths::Direction;
use bmi::threading::Threading;
use bmi::{Body, Error, Incoming, MemList, Memory, Options};

use super::Link;
use crate::case::{Case, Test};
use crate::measured::{Measured, Stopwatch};
use crate::work::produce::{memory, produce};

/// The request of a call: about as long as one of a file system.
const REQUEST: [u8; 32] = [7; 32];
/// The server's staging buffers.
const UNIT: usize = 256 << 10;

impl<S: Threading> Link<S> {
    pub(super) async fn calls(&self) -> Result<Measured, Error> {
        let memory = memory(self.case.station.over, self.case.len())?;
        let forced = self.case.path();
        self.await_signal().await?;
        let mut measured = Measured::of_each();
        let watch = Stopwatch::start();
        let mut last = watch.begin;
        for _ in 0..self.count {
            let data: MemList = (&memory).into();
            let body = match self.case.test {
                Test::CallWrite => {
                    produce(self.case.station.over, &memory.all());
                    Body::Out(data)
                }
                _ => Body::In(data),
            };
            let reply = self.peer.call(&REQUEST, body, Options::default().path(forced))?.reply().await?;
            last = measured.lap(last);
            let path = reply.choice.map(|choice| choice.path);
            if forced.is_some() && path != forced {
                measured.missed += 1;
            }
        }
        let measured = measured.ended(watch, self.count);
        self.signal().await?;
        Ok(measured)
    }
}

/// The server's data.
pub(super) struct Store {
    case: Case,
    staged: Memory,
}

impl Store {
    pub(super) fn new(case: &Case) -> Result<Store, Error> {
        Ok(Store { case: *case, staged: memory(case.station.over, case.len())? })
    }

    /// Takes or gives the data of a call. Nothing is stored.
    pub(super) async fn answer(&self, call: Incoming) -> Result<(), Error> {
        let options = Options::default();
        let len = usize::try_from(call.len()).unwrap_or(usize::MAX).min(self.staged.len());
        let units = (0..len).step_by(UNIT).map(|at| (at as u64, self.staged.slice(at, UNIT.min(len - at))));
        match call.direction() {
            // A store takes the data from the place where it is.
            Some(Direction::Write) if call.data().is_some() => {}
            Some(Direction::Write) => {
                for (at, unit) in units {
                    call.fetch(at, unit, options).await?;
                }
            }
            Some(Direction::Read) if call.replies_with_data() => {
                produce(self.case.station.over, &self.staged.slice(0, len));
                return call.reply(b"done", Some(self.staged.slice(0, len).into()), options).await;
            }
            Some(Direction::Read) => {
                for (at, unit) in units {
                    produce(self.case.station.over, &unit);
                    call.store(at, unit, options).await?;
                }
            }
            None => {}
        }
        call.reply(b"done", None, options).await
    }
}
