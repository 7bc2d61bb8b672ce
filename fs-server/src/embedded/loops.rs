//! The further event loops of a server, each on a thread of its own.
//!
//! **Why.** One event loop uses one processor. With several, the connections of a server are spread
//! over several processors, as far as that helps ([`Balance`]). The loops of an I/O server share
//! the store, the buffers and the turns ([`IodParts`]). Those of a manager share the metadata of
//! the last commit ([`ManagerLoop`]). A connection stays on its loop.
//!
//! **Protocol**
//!
//! ```text
//!   first loop     opens the transports, listens ──> opens the store (*) ─────────────────> serves
//!                        │ transports                       │ begin: parts        ^ serves
//!   further loop         └──> tells everybody to wait ──────┴──> leaves the waiting room ─> serves
//! ```
//!
//! (*) An I/O server registers with the manager. A manager over restored metadata asks all I/O
//! servers, which may report over any loop.
//!
//! The first loop says that the server serves when all loops do.
//!
//! **Invariants**
//! 1. All loops stop together. The first loop tells the others to stop when it begins to stop
//!    itself, and they end when it drops their ends of the channels, by a panic for instance.
//! 2. A loop that ends by itself ends the server: by an error, or by a panic. The server's error
//!    names the loop.
//! 3. No thread outlives [`Server::run`](super::Server::run), because they are scoped.

use std::sync::Arc;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use bmi::backend::AnyTransport;
use bmi::driver::{MonotonicClock, Waiting, event};
use bmi::polled::Engine;
use bmi::{Clock, Config, Endpoint};
use fs_proto::{ErrorCode, FsError};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};

use super::processors::Processors;
use super::waiting_room::wait_until;
use crate::iod::IodParts;
use crate::manager::{ManagerLoop, RollCall};
use crate::service::{Balance, Handler, Limits, Seat, Standing, serve_beside, serve_until};
use crate::store::AnyStore;

/// Most endpoints of a loop. They number the adapters of a server.
const ENDPOINTS: u32 = 256;

/// Settings of every loop.
#[derive(Clone)]
pub(super) struct LoopSettings {
    /// The name of the server.
    pub(super) server: String,
    pub(super) before: Before,
    pub(super) endpoint: Config,
    pub(super) limits: Limits,
    pub(super) waiting: Waiting,
    pub(super) clock: MonotonicClock,
    /// Which loops take part. `None` if all do, however little there is to do.
    pub(super) balance: Option<Arc<Balance>>,
}

/// What a loop does before the server serves.
#[derive(Clone)]
pub(super) enum Before {
    /// It tells everybody to wait, for this reason.
    Waiting(String),
    /// It takes the reports of I/O servers.
    RollCall(Arc<RollCall>, Standing),
}

/// What a loop serves.
#[derive(Clone)]
pub(super) struct Work {
    pub(super) parts: Parts,
    pub(super) standing: Standing,
}

/// A server's part of a loop.
#[derive(Clone)]
pub(super) enum Parts {
    Iod(IodParts<AnyStore>),
    Manager(ManagerLoop),
}

/// What the first loop holds of another one.
struct Running<'scope> {
    begin: Option<oneshot::Sender<Work>>,
    serves: Option<oneshot::Receiver<()>>,
    stop: Option<oneshot::Sender<()>>,
    thread: ScopedJoinHandle<'scope, Result<(), FsError>>,
}

/// The further loops of a server.
pub(super) struct Loops<'scope> {
    running: Vec<Running<'scope>>,
    /// Number of loops whose end was not heard of.
    left: usize,
    /// The numbers of the loops that have ended.
    ended: mpsc::UnboundedReceiver<u32>,
    /// Keeps `ended` open.
    _ends: mpsc::UnboundedSender<u32>,
    balance: Option<Arc<Balance>>,
}

/// Reports the end of a loop when it is dropped, also by a panic.
struct Ending(u32, mpsc::UnboundedSender<u32>);

impl Drop for Ending {
    fn drop(&mut self) {
        // The receiver is gone if the end was requested.
        let _ = self.1.send(self.0);
    }
}

impl<'scope> Loops<'scope> {
    /// Starts a loop for each set of transports. They tell everybody to wait.
    ///
    /// # Errors
    /// `Busy` if a thread cannot be started.
    pub(super) fn start(
        scope: &'scope Scope<'scope, '_>,
        settings: &LoopSettings,
        transports: Vec<Vec<AnyTransport>>,
    ) -> Result<Loops<'scope>, FsError> {
        let (ends, ended) = mpsc::unbounded_channel();
        let mut running = Vec::new();
        for (transports, number) in transports.into_iter().zip(1..) {
            let ((begin, begun), (serving, serves)) = (oneshot::channel(), oneshot::channel());
            let (stop, stopped) = oneshot::channel();
            let (settings, ending) = (settings.clone(), Ending(number, ends.clone()));
            let name = format!("{}-loop{number}", settings.server);
            let run = move || {
                let _ending = ending;
                run(number, &settings, transports, begun, serving, stopped)
            };
            let thread = Builder::new().name(name).spawn_scoped(scope, run);
            let failed = |error| FsError::new(ErrorCode::Busy, format!("a thread for event loop {number}: {error}"));
            let thread = thread.map_err(failed)?;
            running.push(Running { begin: Some(begin), serves: Some(serves), stop: Some(stop), thread });
        }
        Ok(Loops { left: running.len(), running, ended, _ends: ends, balance: settings.balance.clone() })
    }

    /// Returns the seat of the first loop. Called on its thread.
    pub(super) fn first_seat(&self) -> Option<Seat> {
        self.balance.clone().map(|balance| Seat::new(balance, 0, Processors))
    }

    /// Lets all loops serve. Returns when they do.
    ///
    /// # Errors
    /// A loop has ended. [`Loops::end`] has the reason.
    pub(super) async fn begin(&mut self, work: &Work) -> Result<(), FsError> {
        let serves = self.running.iter_mut().filter_map(|running| {
            // If this fails, the loop has ended, and so has the other channel.
            let _ = running.begin.take()?.send(work.clone());
            running.serves.take()
        });
        let serve = join_all(serves).await.into_iter().all(|serves| serves.is_ok());
        if serve { Ok(()) } else { Err(FsError::new(ErrorCode::Io, "an event loop has ended")) }
    }

    /// Waits until a loop has ended by itself.
    pub(super) async fn ended(&mut self) -> FsError {
        match self.ended.recv().await {
            Some(number) => {
                self.left -= 1;
                FsError::new(ErrorCode::Io, format!("event loop {number} has ended"))
            }
            // Not possible while this exists.
            None => std::future::pending().await,
        }
    }

    /// Waits until all loops have ended. They were told to stop.
    pub(super) async fn all_ended(&mut self) {
        while self.left > 0 {
            self.ended().await;
        }
    }

    /// Tells all loops to stop.
    pub(super) fn stop(&mut self) {
        for running in &mut self.running {
            // The loop may have ended already. One that does not serve yet stops when it cannot
            // begin.
            let _ = running.stop.take().map(|stop| stop.send(()));
            running.begin = None;
        }
    }

    /// Stops all loops, and waits for their ends.
    ///
    /// # Errors
    /// That of the first loop that has failed; `Io` if it has panicked.
    pub(super) fn end(&mut self) -> Result<(), FsError> {
        self.stop();
        let mut result = Ok(());
        for (running, number) in self.running.drain(..).zip(1..) {
            let ended = running
                .thread
                .join()
                .unwrap_or_else(|_| Err(FsError::new(ErrorCode::Io, format!("event loop {number} panicked"))));
            result = result.and(ended);
        }
        result
    }
}

/// The work of a thread: does what is to be done before the server serves, and then serves until it
/// is stopped.
fn run(
    number: u32,
    settings: &LoopSettings,
    transports: Vec<AnyTransport>,
    begun: oneshot::Receiver<Work>,
    serving: oneshot::Sender<()>,
    stopped: oneshot::Receiver<()>,
) -> Result<(), FsError> {
    let LoopSettings { ref before, ref endpoint, ref balance, limits, waiting, clock, .. } = *settings;
    let open = |transport| Ok(Endpoint::new(Engine::new(transport, endpoint.clone(), clock.now())?, clock));
    let endpoints = transports.into_iter().map(open).collect::<Result<Vec<_>, FsError>>()?;
    // Dropping the sender also stops the loop.
    let mut stop = std::pin::pin!(stopped.map(drop).fuse());
    let begun = async {
        match before {
            Before::Waiting(why) => wait_until(why, &endpoints, limits, begun, stop.as_mut()).await,
            Before::RollCall(roll_call, standing) => {
                serve_until(&endpoints, &**roll_call, standing, limits, begun, stop.as_mut()).await
            }
        }
    };
    let begun = event::block_on_all_with(&endpoints, waiting, begun)?;
    // Otherwise the first loop has stopped before it served.
    let Some(Ok(Work { parts, standing })) = begun else { return Ok(()) };
    let handler = |(endpoint, index): (&Endpoint, u32)| -> Box<dyn Handler> {
        match &parts {
            Parts::Iod(parts) => Box::new(parts.clone().at(endpoint.clone(), index)),
            Parts::Manager(manager) => Box::new(manager.clone()),
        }
    };
    let handlers: Vec<_> = endpoints.iter().zip(adapter(number, 0)..).map(handler).collect();
    drop(parts);
    let fronts: Vec<_> = endpoints.iter().cloned().zip(handlers.iter().map(|handler| &**handler)).collect();
    // Fails if the first loop has stopped meanwhile. Then this one is told so as well.
    let _ = serving.send(());
    let seat = balance.as_ref().map(|balance| Seat::new(balance.clone(), number as usize, Processors));
    let serve = serve_beside(&fronts, &standing, limits, seat.as_ref(), stop);
    Ok(event::block_on_all_with(&endpoints, waiting, serve)?)
}

/// Returns the number of an endpoint's adapter, which no other endpoint of the server has.
pub(super) fn adapter(number: u32, endpoint: u32) -> u32 {
    number * ENDPOINTS + endpoint
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    use bmi::backend::{Event, Transport, forward_transport};
    use bmi::{OpenOptions, Scheme, Time};

    use super::*;

    /// A transport with a bug.
    struct Panicking(AnyTransport);

    impl Transport for Panicking {
        fn poll(&mut self, _now: Time, _events: &mut Vec<Event>) -> bool {
            panic!("a test")
        }

        forward_transport!(self => self.0; except poll, poll_inline);
    }

    fn settings() -> LoopSettings {
        let (endpoint, clock) = (Config::named("test"), MonotonicClock::new());
        LoopSettings {
            server: "test".to_owned(),
            before: Before::Waiting("a test".to_owned()),
            endpoint,
            limits: Limits::default(),
            waiting: Waiting::Event,
            clock,
            balance: None,
        }
    }

    fn tcp() -> AnyTransport {
        bmi::backend::open(Scheme::Tcp, &OpenOptions::default()).unwrap()
    }

    fn wait<R>(future: impl Future<Output = R>) -> R {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn loops_that_never_began_end_when_they_are_told() {
        thread::scope(|scope| {
            let mut loops = Loops::start(scope, &settings(), vec![vec![tcp()], vec![tcp()]]).unwrap();
            assert!(loops.ended().now_or_never().is_none());
            assert_eq!(loops.end(), Ok(()));
            assert_eq!(loops.end(), Ok(()), "there are none any more");
        });
    }

    #[test]
    fn loops_end_with_a_panic_of_the_first_one() {
        let first = || {
            thread::scope(|scope| {
                let _loops = Loops::start(scope, &settings(), vec![vec![tcp()], vec![tcp()]]).unwrap();
                panic!("a test");
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(first)).is_err(), "it would hang if they did not end");
    }

    #[test]
    fn a_panic_of_a_loop_is_noticed_and_named() {
        thread::scope(|scope| {
            let broken: AnyTransport = Box::new(Panicking(tcp()));
            let mut loops = Loops::start(scope, &settings(), vec![vec![tcp()], vec![broken]]).unwrap();
            assert_eq!(wait(loops.ended()).detail, "event loop 2 has ended");
            let error = loops.end().unwrap_err();
            assert_eq!((error.code, error.detail.as_str()), (ErrorCode::Io, "event loop 2 panicked"));
        });
    }

    #[test]
    fn an_error_of_a_loop_is_noticed_and_kept() {
        let mut settings = settings();
        settings.endpoint.limits.max_peers = 0;
        thread::scope(|scope| {
            let mut loops = Loops::start(scope, &settings, vec![vec![tcp()]]).unwrap();
            assert_eq!(wait(loops.ended()).detail, "event loop 1 has ended");
            let error = loops.end().unwrap_err();
            assert!(error.code == ErrorCode::Invalid && error.detail.contains("max_peers"), "{error}");
        });
    }

    #[test]
    fn a_loop_has_its_part_of_the_requests() {
        let all = Limits { requests: 256, per_peer: 32, ..Limits::default() };
        let of = |loops| (all.divided(loops).requests, all.divided(loops).per_peer);
        assert_eq!([1, 3, 8, 64, 1000].map(of), [(256, 32), (86, 32), (32, 32), (4, 4), (1, 1)]);
    }

    #[test]
    fn adapters_have_different_numbers() {
        let mut all: Vec<_> =
            (0..64).flat_map(|number| (0..8).map(move |endpoint| adapter(number, endpoint))).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 64 * 8);
    }
}
