//! Latency at a fixed rate: messages are due at fixed times, whether or not the answers to earlier
//! ones have come.
//!
//! **Why.** A client that waits for each answer before it sends the next message sends less when
//! the server is slow, and so does not see what others would have to wait (coordinated omission).
//! Here the time of a message begins when it is *due*. If it leaves late because too many are in
//! flight, that is part of its latency.
//!
//! The client keeps the time by polling, whatever the waiting: a timer of the kernel would be late
//! by more than what is measured. The server waits as it is told.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use bmi::threading::Threading;
use bmi::{Error, Operation};

use super::Link;
use super::ring::{Ring, Window};
use crate::measured::{Measured, Schedule, Stopwatch};

impl<S: Threading> Link<S> {
    pub(super) async fn paced_pings(&self) -> Result<Measured, Error> {
        let (out, back) = (Ring::new(&self.case)?, Ring::new(&self.case)?);
        let most = self.case.buffers();
        let (mut answers, mut sends) = (VecDeque::with_capacity(most), Window::new(&self.case));
        self.await_signal().await?;
        let mut measured = Measured::of_each();
        let rate = f64::from(self.case.rate) / f64::from(self.case.station.connections);
        let (watch, mut next) = (Stopwatch::start(), 0);
        let schedule = Schedule::new(watch.begin, rate);
        let mut answered = 0;
        while answered < self.count {
            while let Some(answer) = answers.front_mut()
                && let Some(ended) = now_or_not(answer).await
            {
                ended?;
                answers.pop_front();
                measured.record(schedule.since_due(answered));
                answered += 1;
            }
            if next < self.count && answers.len() < most && schedule.is_due(next) {
                answers.push_back(self.recv(back.turn(next)));
                sends.room().await?;
                sends.add(self.send(out.turn(next)));
                next += 1;
                continue;
            }
            // Let the driver poll.
            let mut has_polled = false;
            poll_fn(|context| {
                if std::mem::replace(&mut has_polled, true) {
                    return Poll::Ready(());
                }
                context.waker().wake_by_ref();
                Poll::Pending
            })
            .await;
        }
        sends.drain().await?;
        Ok(measured.ended(watch, self.count))
    }

    pub(super) async fn paced_pongs(&self) -> Result<(), Error> {
        let (out, back) = (Ring::new(&self.case)?, Ring::new(&self.case)?);
        let most = self.case.buffers() as u64;
        let mut posted: VecDeque<_> = (0..self.count.min(most)).map(|number| self.recv(out.turn(number))).collect();
        self.signal().await?;
        let mut sends = Window::new(&self.case);
        for number in 0..self.count {
            if let Some(next) = posted.pop_front() {
                next.await?;
            }
            if number + most < self.count {
                posted.push_back(self.recv(out.turn(number)));
            }
            sends.room().await?;
            sends.add(self.send(back.turn(number)));
        }
        sends.drain().await
    }
}

/// Returns what an operation ended with, if it has ended.
async fn now_or_not<S: Threading>(operation: &mut Operation<S>) -> Option<Result<(), Error>> {
    poll_fn(|context| {
        Poll::Ready(match Pin::new(&mut *operation).poll(context) {
            Poll::Ready(ended) => Some(ended.map(drop)),
            Poll::Pending => None,
        })
    })
    .await
}
