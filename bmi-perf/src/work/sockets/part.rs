//! What happens on a connection in a round, on either side.

use bmi::{Error, Memory};
use rustix::event::epoll::EventFlags;

use super::line::Line;
use crate::case::{Case, Over, Test};
use crate::measured::{Measured, Schedule, Stopwatch};
use crate::work::produce::{bytes, memory};

/// Length of the reads of a stream of small messages, in bytes.
pub(in crate::work) const READ: usize = 64 << 10;

/// A connection in a round.
pub(super) struct Part<'a> {
    pub(super) line: &'a Line,
    pub(super) case: &'a Case,
    pub(super) count: u64,
}

impl Part<'_> {
    /// The client's part.
    pub(super) async fn measure(self) -> Result<Measured, Error> {
        let mut ring = self.ring()?;
        let ring = bytes(&mut ring);
        self.await_signal().await?;
        match (self.case.test, self.case.test.exchange(self.case.len())) {
            (Test::LatencyAtRate, _) => self.paced_pings().await,
            (Test::BothWays, _) => self.both_streams(ring, true).await,
            (Test::ReadBandwidth, _) => self.stream(ring, false).await,
            (_, Some((out, back))) => self.pings(out, back).await,
            (_, None) => self.stream(ring, true).await,
        }
    }

    /// The server's part.
    pub(super) async fn serve(self) -> Result<(), Error> {
        let mut ring = self.ring()?;
        let ring = bytes(&mut ring);
        self.signal().await?;
        match (self.case.test, self.case.test.exchange(self.case.len())) {
            (Test::BothWays, _) => self.both_streams(ring, false).await.map(drop),
            (Test::ReadBandwidth, _) => self.send_stream(ring).await,
            (_, Some((out, back))) => self.pongs(out, back).await,
            (_, None) => {
                self.receive_stream(ring).await?;
                self.signal().await
            }
        }
    }

    async fn signal(&self) -> Result<(), Error> {
        self.line.write_all(&[1]).await
    }

    async fn await_signal(&self) -> Result<(), Error> {
        self.line.read_answer(&mut [0]).await
    }

    /// Returns the buffers. They are allocated, and their pages touched, before the time begins.
    fn ring(&self) -> Result<Memory, Error> {
        memory(Over::Sockets, (self.case.len() * self.case.buffers()).max(READ))
    }

    /// Returns where the buffer of a message begins.
    fn turn(&self, number: u64) -> usize {
        (number % self.case.buffers() as u64) as usize * self.case.len()
    }

    async fn pings(&self, out: usize, back: usize) -> Result<Measured, Error> {
        let (mut sent, mut answer) = (memory(Over::Sockets, out)?, memory(Over::Sockets, back)?);
        let (sent, answer) = (bytes(&mut sent), bytes(&mut answer));
        let mut measured = Measured::of_each();
        let watch = Stopwatch::start();
        let mut last = watch.begin;
        for _ in 0..self.count {
            self.line.write_all(sent).await?;
            self.line.read_answer(answer).await?;
            last = measured.lap(last);
        }
        Ok(measured.ended(watch, self.count))
    }

    async fn pongs(&self, out: usize, back: usize) -> Result<(), Error> {
        let (mut came, mut answer) = (memory(Over::Sockets, out)?, memory(Over::Sockets, back)?);
        let (came, answer) = (bytes(&mut came), bytes(&mut answer));
        for _ in 0..self.count {
            self.line.read_answer(came).await?;
            self.line.write_all(answer).await?;
        }
        Ok(())
    }

    /// Sends each message when it is due. It polls however the case waits: the next one may be due
    /// sooner than a sleep ends.
    async fn paced_pings(&self) -> Result<Measured, Error> {
        let (size, most) = (self.case.len(), self.case.buffers() as u64);
        let (message, mut came) = (vec![1; size], vec![1; READ.max(size)]);
        let mut measured = Measured::of_each();
        let rate = f64::from(self.case.rate) / f64::from(self.case.station.connections);
        let watch = Stopwatch::start();
        let schedule = Schedule::new(watch.begin, rate);
        let (mut next, mut answered, mut bytes) = (0, 0, 0);
        while answered < self.count {
            bytes += self.line.try_read(&mut came)?;
            while bytes >= size {
                bytes -= size;
                measured.record(schedule.since_due(answered));
                answered += 1;
            }
            if next < self.count && next - answered < most && schedule.is_due(next) {
                self.line.write_all(&message).await?;
                next += 1;
            } else {
                self.line.wait(EventFlags::empty()).await;
            }
        }
        Ok(measured.ended(watch, self.count))
    }

    /// Measures a stream to the server (`out`) or from it.
    async fn stream(&self, ring: &mut [u8], out: bool) -> Result<Measured, Error> {
        let watch = Stopwatch::start();
        if out {
            self.send_stream(ring).await?;
            self.await_signal().await?;
        } else {
            self.receive_stream(ring).await?;
        }
        Ok(Measured::in_all().ended(watch, self.count))
    }

    async fn send_stream(&self, ring: &[u8]) -> Result<(), Error> {
        for number in 0..self.count {
            self.line.write_all(&ring[self.turn(number)..][..self.case.len()]).await?;
        }
        Ok(())
    }

    async fn receive_stream(&self, ring: &mut [u8]) -> Result<(), Error> {
        if self.case.len() >= READ {
            for number in 0..self.count {
                let at = self.turn(number);
                self.line.read_exact(&mut ring[at..][..self.case.len()]).await?;
            }
            return Ok(());
        }
        let mut left = self.count * self.case.size;
        while left > 0 {
            let most = READ.min(usize::try_from(left).unwrap_or(READ));
            let len = self.line.try_read(&mut ring[..most])?;
            left -= len as u64;
            if len < most && left > 0 {
                self.line.wait(EventFlags::IN).await;
            }
        }
        Ok(())
    }

    /// Sends and receives a stream at the same time, then waits for the server's signal.
    async fn both_streams(&self, out: &[u8], is_client: bool) -> Result<Measured, Error> {
        let mut back = self.ring()?;
        let back = bytes(&mut back);
        let watch = Stopwatch::start();
        let all = self.count * self.case.size;
        let (mut to_send, mut to_come) = (all, all);
        while to_send > 0 || to_come > 0 {
            let mut moved = 0;
            if to_send > 0 {
                let at = ((all - to_send) % out.len() as u64) as usize;
                let most = self.case.len().min(out.len() - at).min(usize::try_from(to_send).unwrap_or(usize::MAX));
                let len = self.line.try_write(&out[at..][..most])?;
                (to_send, moved) = (to_send - len as u64, moved + len);
            }
            if to_come > 0 {
                let at = ((all - to_come) % back.len() as u64) as usize;
                let most = (back.len() - at).min(usize::try_from(to_come).unwrap_or(usize::MAX));
                let len = self.line.try_read(&mut back[at..][..most])?;
                (to_come, moved) = (to_come - len as u64, moved + len);
            }
            if moved == 0 {
                let out_too = if to_send > 0 { EventFlags::OUT } else { EventFlags::empty() };
                let in_too = if to_come > 0 { EventFlags::IN } else { EventFlags::empty() };
                self.line.wait(in_too | out_too).await;
            }
        }
        if is_client {
            self.await_signal().await?;
        } else {
            self.signal().await?;
        }
        Ok(Measured::in_all().ended(watch, 2 * self.count))
    }
}
