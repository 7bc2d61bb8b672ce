//! One process of a workload: its client, its place among the others, and what measures it.

use std::pin::pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use bmi_core::transport::HostWork;
use bmi_core::{Addr, Transport};
use fs_client::Client;

use super::Failed;

/// What the ranks of one run share.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Ranks that stand at the barrier.
    arrived: usize,
    /// Barriers that all have passed.
    passed: u64,
    /// A rank has ended with an error, or was dropped: nobody has to wait for it.
    broken: bool,
    waiting: Vec<Waker>,
    addrs: Vec<Option<Addr>>,
}

impl Shared {
    pub(super) fn new(ranks: usize) -> Arc<Shared> {
        let state = State { addrs: vec![None; ranks], ..State::default() };
        Arc::new(Shared { state: Mutex::new(state) })
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets everybody go who waits, with an error.
    pub(super) fn give_up(&self) {
        let waiting = self.with(|state| {
            state.broken = true;
            std::mem::take(&mut state.waiting)
        });
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// What those say that waited for a rank that has ended.
pub(super) const ENDED: &str = "another process of the workload has ended";

/// How much processor time a process has used so far: at work, and polling for nothing.
pub(super) type Cpu = Rc<dyn Fn() -> (Duration, Duration)>;

/// A process of a workload.
pub struct Rank<T: Transport> {
    pub(super) number: usize,
    pub(super) count: usize,
    pub(super) client: Client<T>,
    pub(super) shared: Arc<Shared>,
    pub(super) cpu: Cpu,
    /// Where it may listen, for the other ranks.
    pub(super) listen: Addr,
}

/// What a phase of a workload took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// From the barrier to the end of this rank's work.
    pub time: Duration,
    /// Processor time at work.
    pub busy: Duration,
    /// Processor time polling for nothing.
    pub spinning: Duration,
}

impl Span {
    /// Processor time of this phase in percent of its time: one core's, polling included.
    pub fn utilisation(&self) -> f64 {
        100.0 * (self.busy + self.spinning).as_secs_f64() / self.time.as_secs_f64().max(1e-12)
    }
}

impl<'a> std::iter::Sum<&'a Span> for Span {
    fn sum<I: Iterator<Item = &'a Span>>(spans: I) -> Span {
        spans.fold(Span::default(), |sum, span| Span {
            time: sum.time + span.time,
            busy: sum.busy + span.busy,
            spinning: sum.spinning + span.spinning,
        })
    }
}

impl<T: Transport> Drop for Rank<T> {
    fn drop(&mut self) {
        // Whoever ends early ends the run. After the last barrier nobody waits.
        self.shared.give_up();
    }
}

impl<T: Transport + 'static> Rank<T> {
    /// Which one it is, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Its client.
    pub fn client(&self) -> &Client<T> {
        &self.client
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// If a rank has ended.
    pub async fn barrier(&self) -> Result<(), Failed> {
        let mut mine = None;
        std::future::poll_fn(|cx| {
            let woken = self.shared.with(|state| {
                let round = *mine.get_or_insert_with(|| {
                    state.arrived += 1;
                    state.passed
                });
                if state.passed == round && state.arrived == self.count {
                    state.arrived = 0;
                    state.passed += 1;
                    return Ok(std::mem::take(&mut state.waiting));
                }
                if state.passed > round {
                    return Ok(Vec::new());
                }
                if state.broken {
                    return Err(true);
                }
                state.waiting.push(cx.waker().clone());
                Err(false)
            });
            match woken {
                Ok(waiting) => {
                    waiting.into_iter().for_each(Waker::wake);
                    Poll::Ready(Ok(()))
                }
                Err(true) => Poll::Ready(Err(ENDED.into())),
                Err(false) => Poll::Pending,
            }
        })
        .await
    }

    /// Waits for what another rank will do, or for its end.
    ///
    /// # Errors
    /// If a rank has ended.
    pub(super) async fn await_others<R>(&self, what: impl Future<Output = R>) -> Result<R, Failed> {
        let mut what = pin!(what);
        std::future::poll_fn(|cx| {
            if let Poll::Ready(result) = what.as_mut().poll(cx) {
                return Poll::Ready(Ok(result));
            }
            let broken = self.shared.with(|state| {
                state.waiting.push(cx.waker().clone());
                state.broken
            });
            if broken { Poll::Ready(Err(ENDED.into())) } else { Poll::Pending }
        })
        .await
    }

    /// Runs `work` from a barrier on, and measures it.
    ///
    /// # Errors
    /// That of the work; if a rank has ended.
    pub async fn timed<E: Into<Failed>>(&self, work: impl Future<Output = Result<(), E>>) -> Result<Span, Failed> {
        self.barrier().await?;
        let (start, (busy, spinning)) = (self.client.endpoint().now(), (self.cpu)());
        work.await.map_err(Into::into)?;
        let (time, after) = (self.client.endpoint().now().since(start), (self.cpu)());
        Ok(Span { time, busy: after.0.saturating_sub(busy), spinning: after.1.saturating_sub(spinning) })
    }

    /// Says that the program itself has copied `bytes` bytes in `pieces` pieces. A simulated
    /// processor takes its time for it; a real one has.
    pub fn copied(&self, bytes: u64, pieces: u64) {
        self.client.endpoint().with(|endpoint| endpoint.transport_mut().charge(HostWork::Copy { bytes, pieces }));
    }

    /// Where it may listen, for the other ranks: a free port.
    pub(super) fn listen_addr(&self) -> &Addr {
        &self.listen
    }

    /// Tells the others its address, and learns theirs, in order.
    pub(super) async fn exchange(&self, own: Addr) -> Result<Vec<Addr>, Failed> {
        self.shared.with(|state| state.addrs[self.number] = Some(own));
        self.barrier().await?;
        let all = self.shared.with(|state| state.addrs.iter().cloned().collect::<Option<Vec<Addr>>>());
        all.ok_or_else(|| "a process of the workload has no address".into())
    }
}
