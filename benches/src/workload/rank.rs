//! A process of a workload: its client, its number, its meter, and its group.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use bmi::Addr;
use bmi::group::{Group, GroupOptions, Groups};
use fs_client::Client;

use super::Failed;

/// The state that the ranks of a run share.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The number of ranks that wait at the barrier.
    arrived: usize,
    /// The number of barriers that all ranks have passed.
    passed: u64,
    /// True if a rank has ended with an error, or was dropped. Then no rank waits any more.
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

    /// Ends the waiting of all ranks, with an error.
    pub(super) fn give_up(&self) {
        let waiting = self.with(|state| {
            state.broken = true;
            std::mem::take(&mut state.waiting)
        });
        waiting.into_iter().for_each(Waker::wake);
    }
}

/// The error of ranks that waited for a rank that has ended.
pub(super) const ENDED: &str = "another process of the workload has ended";

/// Returns how much processor time a process has used up to now: at work, and in polls that found
/// nothing.
pub(super) type Cpu = Rc<dyn Fn() -> (Duration, Duration)>;

/// Returns how much processor time all I/O servers have used up to now.
pub(super) type ServersCpu = Rc<dyn Fn() -> Duration>;

/// A process of a workload.
pub struct Rank {
    pub(super) number: usize,
    pub(super) count: usize,
    pub(super) client: Client,
    pub(super) shared: Arc<Shared>,
    pub(super) cpu: Cpu,
    pub(super) servers: ServersCpu,
    /// The address at which it may listen for the other ranks.
    pub(super) listen: Addr,
    pub(super) group: OnceCell<Group>,
}

/// The duration of a phase of a workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The time from the barrier to the end of this rank's work.
    pub time: Duration,
    /// The processor time at work.
    pub busy: Duration,
    /// The processor time of polls that found nothing.
    pub spinning: Duration,
}

impl Span {
    /// Returns the processor time of this phase in percent of its time. It is the utilisation of
    /// one core, with polling.
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

impl Drop for Rank {
    fn drop(&mut self) {
        // A rank that ends early ends the run. After the last barrier no rank waits.
        self.shared.give_up();
    }
}

impl Rank {
    /// Returns the number of this rank, counted from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns the number of ranks.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the client of this rank.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Waits until all ranks have called this.
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

    /// Runs `work` after a barrier, and measures it.
    ///
    /// # Errors
    /// The error of the work, or an error if a rank has ended.
    pub async fn timed<E: Into<Failed>>(&self, work: impl Future<Output = Result<(), E>>) -> Result<Span, Failed> {
        self.barrier().await?;
        let (start, (busy, spinning)) = (self.client.endpoint().now(), (self.cpu)());
        work.await.map_err(Into::into)?;
        let (time, after) = (self.client.endpoint().now().since(start), (self.cpu)());
        Ok(Span { time, busy: after.0.saturating_sub(busy), spinning: after.1.saturating_sub(spinning) })
    }

    /// Returns the processor time that all I/O servers have used at work. Over a real transport it
    /// is that of all threads of this program that are no ranks.
    pub fn servers_cpu(&self) -> Duration {
        (self.servers)()
    }

    /// Returns the group of all ranks. The first call makes it, so all ranks make that together.
    ///
    /// # Errors
    /// If a rank has ended, or is not reached.
    pub async fn group(&self) -> Result<&Group, Failed> {
        if let Some(group) = self.group.get() {
            return Ok(group);
        }
        let groups = Groups::new(self.client.endpoint());
        let addrs = self.exchange(groups.listen(&self.listen)?).await?;
        let (number, count) = (u32::try_from(self.number)?, u32::try_from(self.count)?);
        let group = groups.meet(&addrs[0], number, count, GroupOptions::default()).await?;
        Ok(self.group.get_or_init(|| group))
    }

    /// Sends its address to the other ranks, and returns the addresses of all, in order.
    pub(super) async fn exchange(&self, own: Addr) -> Result<Vec<Addr>, Failed> {
        self.shared.with(|state| state.addrs[self.number] = Some(own));
        self.barrier().await?;
        let all = self.shared.with(|state| state.addrs.iter().cloned().collect::<Option<Vec<Addr>>>());
        all.ok_or_else(|| "a process of the workload has no address".into())
    }
}
