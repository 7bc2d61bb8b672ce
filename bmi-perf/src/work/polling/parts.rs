//! What happens in a round, on either side.

use bmi::{Error, ErrorKind};

use super::{Part, Port, Side};
use crate::case::{Case, Test};
use crate::measured::{Measured, Stopwatch};
use crate::stop::Stop;

/// Receives that a side of a ping-pong has ahead. It posts the next one while its message is on the
/// way.
const AHEAD: u64 = 2;
/// Receives for the signals of a stream: at most three are in flight.
const SIGNALS: u64 = 4;
/// How many values the last byte of a write has, one after the other.
const VALUES: u64 = 250;
/// Looks at the last byte of a write, for each poll.
const LOOKS: u32 = 64;

/// Returns after how many messages of a stream the receiver says that it has posted more receives.
fn half(case: &Case) -> u64 {
    (u64::from(case.depth) / 2).max(1)
}

impl<P: Port> Part for Side<P> {
    fn measure(&mut self, case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
        self.take_places(case)?;
        self.post_first_of(case, count, true)?;
        self.signal(stop)?;
        self.receive(1, stop)?;
        let measured = match case.test {
            Test::Latency | Test::WriteImm => self.pings(case, count, stop),
            Test::WriteSeen => self.seen_writes(case, count, stop),
            Test::Bandwidth | Test::Rate => self.send_stream(case, count, stop),
            Test::WriteLatency | Test::ReadLatency => self.one_sided(case, count, stop, Measured::of_each()),
            Test::WriteBandwidth | Test::ReadBandwidth => self.one_sided(case, count, stop, Measured::in_all()),
            _ => Err(not_here()),
        }?;
        self.flush(stop)?;
        Ok(measured)
    }

    fn serve(&mut self, case: &Case, count: u64, stop: &Stop) -> Result<(), Error> {
        self.take_places(case)?;
        self.receive(1, stop)?;
        self.post_first_of(case, count, false)?;
        self.signal(stop)?;
        match case.test {
            Test::Latency | Test::WriteImm => self.pongs(case, count, stop)?,
            Test::WriteSeen => {
                for number in 0..count {
                    self.await_last_byte(case, number, stop)?;
                    self.write_last_byte(case, number, stop)?;
                }
                self.await_end(stop)?;
            }
            Test::Bandwidth | Test::Rate => self.receive_stream(case, count, stop)?,
            _ => self.await_end(stop)?,
        }
        self.flush(stop)
    }
}

impl<P: Port> Side<P> {
    /// Does what is left to do: no poll happens between rounds. The last post may leave only with
    /// the next poll, and so may the word to the peer that a long message was copied.
    fn flush(&mut self, stop: &Stop) -> Result<(), Error> {
        while self.poll(stop)? || !self.port.is_idle() {}
        Ok(())
    }

    /// Takes the places of the messages of a case. Those that are received are of the peer's, too.
    fn take_places(&mut self, case: &Case) -> Result<(), Error> {
        let (len, number) = (case.len(), case.buffers());
        if len * number > self.port.outgoing().len() {
            return Err(Error::new(ErrorKind::Invalid, "the station has no room for the case"));
        }
        self.going = (0..number).map(|place| self.port.place(true, place * len, len)).collect();
        self.coming = match case.test {
            Test::Latency | Test::Bandwidth | Test::Rate => {
                (0..number).map(|place| self.port.place(false, place * len, len)).collect()
            }
            _ => Vec::new(),
        };
        if case.test == Test::WriteSeen {
            self.port.incoming().copy_from(len - 1, &[0]);
        }
        Ok(())
    }

    /// Posts the first receives of a part. Together with those that follow, they are one more than
    /// the messages of the part.
    fn post_first_of(&mut self, case: &Case, count: u64, is_client: bool) -> Result<(), Error> {
        match case.test {
            Test::Latency | Test::WriteImm => self.post_first(count + 1, AHEAD),
            Test::Bandwidth | Test::Rate if is_client => {
                self.coming.clear();
                self.post_first(count.div_ceil(half(case)) + 1, SIGNALS)
            }
            Test::Bandwidth | Test::Rate => self.post_first(count + 1, u64::from(case.depth) + 1),
            _ => self.post_first(2, 2),
        }
    }

    fn pings(&mut self, case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
        let mut measured = Measured::of_each();
        let watch = Stopwatch::start();
        let mut last = watch.begin;
        for _ in 0..count {
            match case.test {
                Test::Latency => self.send(case, 0, false, stop)?,
                _ => {
                    P::produce(case, &self.going[0]);
                    self.write(case, 0, Some(1), false, stop)?;
                }
            }
            self.post_next()?;
            self.receive(1, stop)?;
            last = measured.lap(last);
        }
        Ok(measured.ended(watch, count))
    }

    fn pongs(&mut self, case: &Case, count: u64, stop: &Stop) -> Result<(), Error> {
        for number in 1..=count {
            self.receive(1, stop)?;
            let is_last = number == count;
            match case.test {
                Test::Latency => self.send(case, 0, is_last, stop)?,
                _ => self.signal(stop)?,
            }
            self.post_next()?;
        }
        // The next polls write a long answer, and the completion tells that it has left.
        if case.test == Test::Latency { self.await_ended(1, stop) } else { Ok(()) }
    }

    fn seen_writes(&mut self, case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
        let mut measured = Measured::of_each();
        let watch = Stopwatch::start();
        let mut last = watch.begin;
        for number in 0..count {
            self.write_last_byte(case, number, stop)?;
            self.await_last_byte(case, number, stop)?;
            last = measured.lap(last);
        }
        let measured = measured.ended(watch, count);
        self.end(stop)?;
        Ok(measured)
    }

    /// Writes a message whose last byte tells its number.
    fn write_last_byte(&mut self, case: &Case, number: u64, stop: &Stop) -> Result<(), Error> {
        P::produce(case, &self.going[0]);
        self.port.outgoing().copy_from(case.len() - 1, &[value(number)]);
        self.write(case, 0, None, false, stop)
    }

    fn await_last_byte(&mut self, case: &Case, number: u64, stop: &Stop) -> Result<(), Error> {
        let at = case.len() - 1;
        let (mut seen, mut looks) = ([0], 0u32);
        while seen[0] != value(number) {
            self.port.incoming().copy_to(at, &mut seen);
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                self.poll(stop)?;
            }
        }
        Ok(())
    }

    /// Sends as many messages as there are receives. The receiver says when there are more.
    fn send_stream(&mut self, case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
        let (mut credit, mut signals) = (u64::from(case.depth), count.div_ceil(half(case)));
        let watch = Stopwatch::start();
        for number in 0..count {
            while credit == 0 {
                self.receive(1, stop)?;
                self.post_next()?;
                (credit, signals) = (credit + half(case), signals - 1);
            }
            credit -= 1;
            self.send(case, (number % self.going.len() as u64) as usize, false, stop)?;
        }
        for _ in 0..signals {
            self.receive(1, stop)?;
            self.post_next()?;
        }
        Ok(Measured::in_all().ended(watch, count))
    }

    fn receive_stream(&mut self, case: &Case, count: u64, stop: &Stop) -> Result<(), Error> {
        let mut left = count;
        while left > 0 {
            let here = half(case).min(left);
            for _ in 0..here {
                self.receive(1, stop)?;
                self.post_next()?;
            }
            self.signal(stop)?;
            left -= here;
        }
        Ok(())
    }

    fn one_sided(&mut self, case: &Case, count: u64, stop: &Stop, measured: Measured) -> Result<Measured, Error> {
        let (mut measured, most) = (measured, self.going.len() as u64);
        let watch = Stopwatch::start();
        let mut last = watch.begin;
        for number in 0..count {
            let place = (number % most) as usize;
            if case.test.reads() {
                self.read(case, place, stop)?;
            } else {
                P::produce(case, &self.going[place]);
                self.write(case, place, None, true, stop)?;
            }
            // A place is used again when its transfer has ended.
            if number + 1 >= most {
                self.await_ended(1, stop)?;
            }
            if measured.histogram.is_some() {
                last = measured.lap(last);
            }
        }
        self.await_ended(count.min(most - 1), stop)?;
        if case.test != Test::WriteBandwidth {
            let measured = measured.ended(watch, count);
            self.end(stop)?;
            return Ok(measured);
        }
        // An answer to a signal that was sent after the writes shows that they are in place.
        self.end(stop)?;
        Ok(measured.ended(watch, count))
    }

    /// Ends a part in which the server only waits.
    fn end(&mut self, stop: &Stop) -> Result<(), Error> {
        self.signal(stop)?;
        self.receive(1, stop)
    }

    fn await_end(&mut self, stop: &Stop) -> Result<(), Error> {
        self.receive(1, stop)?;
        self.signal(stop)
    }
}

/// Returns the last byte of a write. It is never 0, and never that of the write before.
fn value(number: u64) -> u8 {
    (number % VALUES) as u8 + 1
}

fn not_here() -> Error {
    Error::new(ErrorKind::Unsupported, "this test needs another interface: leave out --interface backend,polled")
}
