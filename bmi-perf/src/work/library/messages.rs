//! Messages: one at a time, or streams of them.

use bmi::Error;
use bmi::threading::Threading;

use super::Link;
use super::ring::{Ring, Window};
use crate::measured::{Measured, Stopwatch};

impl<S: Threading> Link<S> {
    pub(super) async fn ping(&self) -> Result<Measured, Error> {
        let (out, back) = (Ring::new(&self.case)?, Ring::new(&self.case)?);
        self.await_signal().await?;
        let mut measured = Measured::of_each();
        let watch = Stopwatch::start();
        let mut last = watch.begin;
        for _ in 0..self.count {
            let answer = self.recv(back.turn(0));
            let sent = self.send(out.turn(0));
            answer.await?;
            last = measured.lap(last);
            sent.await?;
        }
        Ok(measured.ended(watch, self.count))
    }

    pub(super) async fn pong(&self) -> Result<(), Error> {
        let (out, back) = (Ring::new(&self.case)?, Ring::new(&self.case)?);
        let mut next = self.recv(out.turn(0));
        self.signal().await?;
        for number in 1..=self.count {
            next.await?;
            // Post the next receive before the answer that makes the client send its message.
            let after = (number < self.count).then(|| self.recv(out.turn(0)));
            self.send(back.turn(0)).await?;
            match after {
                Some(after) => next = after,
                None => break,
            }
        }
        Ok(())
    }

    pub(super) async fn send_stream(&self) -> Result<Measured, Error> {
        let ring = Ring::new(&self.case)?;
        self.await_signal().await?;
        let done = self.await_signal();
        let watch = Stopwatch::start();
        self.send_all(&ring).await?;
        done.await?;
        Ok(Measured::in_all().ended(watch, self.count))
    }

    pub(super) async fn receive_stream(&self) -> Result<(), Error> {
        let ring = Ring::new(&self.case)?;
        let mut window = Window::new(&self.case);
        let first = self.post_first(&ring, &mut window);
        self.signal().await?;
        self.receive_rest(&ring, &mut window, first).await?;
        self.signal().await
    }

    /// Both streams at the same time. Each has as many bytes, so the sum is twice those of one.
    pub(super) async fn both_streams(&self) -> Result<Measured, Error> {
        let (out, back) = (Ring::new(&self.case)?, Ring::new(&self.case)?);
        let mut window = Window::new(&self.case);
        let first = self.post_first(&back, &mut window);
        let done = self.await_signal();
        self.signal().await?;
        done.await?;
        let done = self.await_signal();
        let watch = Stopwatch::start();
        let both = async { tokio::try_join!(self.send_all(&out), self.receive_rest(&back, &mut window, first)) };
        both.await?;
        done.await?;
        Ok(Measured::in_all().ended(watch, 2 * self.count))
    }

    pub(super) async fn both_streams_back(&self) -> Result<(), Error> {
        let (out, back) = (Ring::new(&self.case)?, Ring::new(&self.case)?);
        let mut window = Window::new(&self.case);
        let first = self.post_first(&out, &mut window);
        let ready = self.await_signal();
        self.signal().await?;
        ready.await?;
        tokio::try_join!(self.send_all(&back), self.receive_rest(&out, &mut window, first))?;
        self.signal().await
    }

    async fn send_all(&self, ring: &Ring) -> Result<(), Error> {
        let mut window = Window::new(&self.case);
        for number in 0..self.count {
            window.room().await?;
            window.add(self.send(ring.turn(number)));
        }
        window.drain().await
    }

    /// Posts the first receives. Returns their number.
    fn post_first(&self, ring: &Ring, window: &mut Window<S>) -> u64 {
        let first = self.count.min(self.case.buffers() as u64);
        (0..first).for_each(|number| window.add(self.recv(ring.turn(number))));
        first
    }

    async fn receive_rest(&self, ring: &Ring, window: &mut Window<S>, first: u64) -> Result<(), Error> {
        for number in first..self.count {
            window.room().await?;
            window.add(self.recv(ring.turn(number)));
        }
        window.drain().await
    }
}
