//! openraft's tasks, time and random numbers, on [`bmi::runtime`]: on tokio, or in a world.
//!
//! openraft's channels are tokio's in any case. They need no runtime.

use std::future::Future;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};
use std::time::Duration;

use bmi::{Error, ErrorKind, Task};
use openraft::{AsyncRuntime, OptionalSend, TokioRuntime};
use rand::RngCore;

/// The runtime that a program of [`bmi`] runs in.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct BmiRuntime;

impl AsyncRuntime for BmiRuntime {
    type JoinError = Error;
    type JoinHandle<T: OptionalSend + 'static> = Task<T>;
    type Sleep = Sleep;
    type Instant = Instant;
    type TimeoutError = Error;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = Random;
    type OneshotSender<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotSender<T>;
    type OneshotReceiver<T: OptionalSend> = <TokioRuntime as AsyncRuntime>::OneshotReceiver<T>;
    type OneshotReceiverError = <TokioRuntime as AsyncRuntime>::OneshotReceiverError;

    fn spawn<T>(future: T) -> Task<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        bmi::spawn(future)
    }

    fn sleep(duration: Duration) -> Sleep {
        Sleep(Mutex::new(Box::pin(bmi::sleep(duration))))
    }

    fn sleep_until(deadline: Instant) -> Sleep {
        Self::sleep(deadline - <Instant as openraft::Instant>::now())
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Self::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Instant, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Self::sleep_until(deadline) }
    }

    /// openraft aborts no task.
    fn is_panic(ended: &Error) -> bool {
        ended.kind() == ErrorKind::Abandoned
    }

    fn thread_rng() -> Random {
        Random
    }

    fn oneshot<T: OptionalSend>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>) {
        TokioRuntime::oneshot()
    }
}

/// A wait. The mutex is never locked: it makes the wait `Sync`, as openraft wants it.
pub struct Sleep(Mutex<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        sleep.as_mut().poll(cx)
    }
}

/// A future, and the time that it has.
pub struct Timeout<F> {
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut self.sleep).poll(cx).map(|()| Err(Error::new(ErrorKind::TimedOut, "it took too long")))
    }
}

/// [`bmi::Instant`] as the time since the clock's origin, with the arithmetic that openraft needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(Duration);

impl openraft::Instant for Instant {
    fn now() -> Instant {
        Instant(Duration::from_nanos(bmi::Instant::now().time().as_nanos()))
    }
}

impl Add<Duration> for Instant {
    type Output = Instant;

    fn add(self, later: Duration) -> Instant {
        Instant(self.0.saturating_add(later))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, later: Duration) {
        *self = *self + later;
    }
}

impl Sub<Duration> for Instant {
    type Output = Instant;

    /// The clock's origin, if that is later: a world begins at it.
    fn sub(self, earlier: Duration) -> Instant {
        Instant(self.0.saturating_sub(earlier))
    }
}

impl SubAssign<Duration> for Instant {
    fn sub_assign(&mut self, earlier: Duration) {
        *self = *self - earlier;
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Random numbers, which follow from the seed in a world.
pub struct Random;

impl RngCore for Random {
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    fn next_u64(&mut self) -> u64 {
        bmi::runtime::random()
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&self.next_u64().to_le_bytes()[..part.len()]);
        }
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), rand::Error> {
        self.fill_bytes(bytes);
        Ok(())
    }
}
