//! The ways to use an endpoint from a program. The code between the clock's readings is the same
//! for all, but for who runs it.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use benches::{cpu, net};
use bmi::driver::{MonotonicClock, busy, event};
use bmi::{
    Addr, AsyncEndpoint, Body, Caller, Config, Error, Handle, HandleConfig, Memory, OneThread, OpenOptions, Operation,
    Options, PeerId, SharedEndpoint, Threading,
};
use clap::ValueEnum;
use futures_util::future::{join_all, try_join_all};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

use crate::phase::{Mode, Phase, What};

/// The tag of the messages that are measured.
pub(crate) const DATA: u64 = 1;
/// The tag of the peer's signals: ready, done.
pub(crate) const ACK: u64 = 2;
/// The size of a message of the rate, in bytes.
pub(crate) const RATE_SIZE: usize = 64;
/// The number of messages of the rate that are under way.
pub(crate) const RATE_WINDOW: usize = 64;
/// The request of a call.
const REQUEST: &[u8] = b"sixteen bytes...";
/// Threads of the runtime, and threads of a program without one.
const THREADS: u64 = 4;
const WORKERS: usize = 2;

/// A way to use an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Way {
    Single,
    Thread,
    Tokio,
    Task,
    Bridge,
}

/// The result of a phase, for one exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub(crate) seconds: f64,
    /// Processor time of this process, user and system, in seconds.
    pub(crate) cpu: f64,
    /// Context switches of this process, voluntary and involuntary.
    pub(crate) switches: f64,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::Single => "single",
            Way::Thread => "thread",
            Way::Tokio => "tokio",
            Way::Task => "task",
            Way::Bridge => "bridge",
        })
    }
}

impl Way {
    pub(crate) const ALL: [Way; 5] = [Way::Single, Way::Thread, Way::Tokio, Way::Task, Way::Bridge];

    /// Returns whether the way is measured. The bridge is only for calls.
    pub(crate) fn measures(self, what: What) -> bool {
        self != Way::Bridge || matches!(what, What::Calls(_))
    }

    /// Connects to the peer at `addr`, and measures.
    ///
    /// # Errors
    /// The error of any operation.
    pub(crate) fn run(self, phase: &Phase, addr: &Addr) -> Result<Outcome, Error> {
        match self {
            Way::Single => single(phase, addr),
            Way::Thread => threads(phase, addr),
            Way::Tokio => tasks(phase, addr, false),
            Way::Task => tasks(phase, addr, true),
            Way::Bridge => bridge(phase, addr),
        }
    }
}

/// A connection to the peer.
struct Link<S: Threading> {
    caller: Caller<S>,
    peer: PeerId,
}

impl<S: Threading> Clone for Link<S> {
    fn clone(&self) -> Self {
        Link { caller: self.caller.clone(), peer: self.peer }
    }
}

impl<S: Threading> Link<S> {
    async fn new(endpoint: AsyncEndpoint<S>, addr: &Addr) -> Result<Link<S>, Error> {
        let peer = endpoint.connect(addr, endpoint.within(Duration::from_secs(10))).await?;
        Ok(Link { caller: Caller::new(endpoint), peer })
    }

    fn endpoint(&self) -> &AsyncEndpoint<S> {
        self.caller.endpoint()
    }

    fn recv(&self, tag: u64, into: &Memory) -> Operation<S> {
        self.endpoint().recv(self.peer, tag, into, Options::default())
    }

    fn send(&self, from: &Memory) -> Operation<S> {
        self.endpoint().send(self.peer, DATA, from, Options::default())
    }

    /// Waits for a signal of the peer.
    async fn signal(&self) -> Result<(), Error> {
        self.recv(ACK, &Memory::zeroed(1)?).await.map(drop)
    }

    async fn end(&self) -> Result<(), Error> {
        self.endpoint().disconnect(self.peer, Options::default()).await
    }

    async fn ping(&self, out: &Memory, back: &Memory) -> Result<(), Error> {
        let answer = self.recv(DATA, back);
        let sent = self.send(out);
        answer.await?;
        sent.await.map(drop)
    }

    async fn call(&self) -> Result<(), Error> {
        let call = self.caller.call(self.peer, REQUEST, Body::None, None, Options::default())?;
        call.reply().await.map(drop)
    }

    async fn calls(&self, count: u64) -> Result<(), Error> {
        for _ in 0..count {
            self.call().await?;
        }
        Ok(())
    }

    /// Sends a part of the stream.
    async fn stream(&self, count: u64, window: usize) -> Result<(), Error> {
        let message = Memory::zeroed(RATE_SIZE)?;
        let mut sending = VecDeque::with_capacity(window);
        for _ in 0..count {
            if sending.len() == window {
                let oldest: Operation<S> = sending.pop_front().expect("a full window");
                oldest.await?;
            }
            sending.push_back(self.send(&message));
        }
        for sent in sending {
            sent.await?;
        }
        Ok(())
    }
}

/// Counts and times a number of exchanges.
struct Meter {
    begin: Instant,
    cpu: Duration,
    switches: u64,
}

impl Meter {
    #[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
    fn start() -> Meter {
        Meter { switches: cpu::switches(), cpu: cpu::of_process(), begin: Instant::now() }
    }

    fn stop(self, count: u64) -> Outcome {
        let (took, cpu) = (self.begin.elapsed(), cpu::of_process() - self.cpu);
        // The switches of a thread that has ended meanwhile are not counted any more.
        let switches = cpu::switches().saturating_sub(self.switches);
        let each = |of: f64| of / count as f64;
        Outcome { seconds: each(took.as_secs_f64()), cpu: each(cpu.as_secs_f64()), switches: each(switches as f64) }
    }
}

// ---- on one thread ------------------------------------------------------------------------------

fn single(phase: &Phase, addr: &Addr) -> Result<Outcome, Error> {
    let endpoint = net::endpoint(addr.scheme(), "single")?;
    let count = phase.count;
    let work = async {
        let link = Link::<OneThread>::new(endpoint.clone(), addr).await?;
        let outcome = match phase.what {
            What::Latency(size) => {
                let (out, back) = (Memory::zeroed(size)?, Memory::zeroed(size)?);
                link.signal().await?;
                let meter = Meter::start();
                for _ in 0..count {
                    link.ping(&out, &back).await?;
                }
                meter.stop(count)
            }
            What::Calls(in_flight) => {
                let meter = Meter::start();
                try_join_all((0..in_flight).map(|_| link.calls(count / in_flight))).await?;
                meter.stop(count)
            }
            What::Rate(tasks) => {
                link.signal().await?;
                let meter = Meter::start();
                let part = |_| link.stream(count / tasks, RATE_WINDOW / tasks as usize);
                try_join_all((0..tasks).map(part)).await?;
                link.signal().await?;
                meter.stop(count)
            }
        };
        link.end().await?;
        Ok(outcome)
    };
    match phase.mode {
        Mode::Polling => busy::block_on(std::slice::from_ref(&endpoint), work),
        Mode::Sleeping => event::block_on(endpoint.clone(), work)?,
    }
}

// ---- threads of the program ---------------------------------------------------------------------

fn threads(phase: &Phase, addr: &Addr) -> Result<Outcome, Error> {
    let handle = open_handle(phase, addr)?;
    let count = phase.count;
    let endpoint = handle.endpoints().next().expect("one").clone();
    let link = handle.block_on(Link::new(endpoint, addr))?;
    let outcome = match phase.what {
        What::Latency(size) => {
            let (out, back) = (Memory::zeroed(size)?, Memory::zeroed(size)?);
            handle.block_on(link.signal())?;
            let meter = Meter::start();
            for _ in 0..count {
                handle.block_on(link.ping(&out, &back))?;
            }
            meter.stop(count)
        }
        What::Calls(1) => {
            let meter = Meter::start();
            for _ in 0..count {
                handle.block_on(link.call())?;
            }
            meter.stop(count)
        }
        What::Calls(in_flight) => on_threads(&handle, &link, count, move |link| async move {
            let each = in_flight / THREADS;
            try_join_all((0..each).map(|_| link.calls(count / in_flight))).await.map(drop)
        })?,
        What::Rate(tasks) => {
            handle.block_on(link.signal())?;
            let outcome = on_threads(&handle, &link, count, move |link| async move {
                link.stream(count / tasks, RATE_WINDOW / tasks as usize).await
            })?;
            handle.block_on(link.signal())?;
            outcome
        }
    };
    handle.block_on(link.end())?;
    Ok(outcome)
}

/// Runs `part` on several threads.
fn on_threads<F: Future<Output = Result<(), Error>>>(
    handle: &Handle,
    link: &Link<bmi::AnyThread>,
    count: u64,
    part: impl Fn(Link<bmi::AnyThread>) -> F + Sync,
) -> Result<Outcome, Error> {
    let meter = Meter::start();
    let ended: Vec<Result<(), Error>> = std::thread::scope(|scope| {
        let start = |_| {
            let (part, handle, link) = (&part, handle.clone(), link.clone());
            scope.spawn(move || handle.block_on(part(link)))
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread of the benchmark")).collect()
    });
    ended.into_iter().collect::<Result<(), Error>>()?;
    Ok(meter.stop(count))
}

fn open_handle(phase: &Phase, addr: &Addr) -> Result<Handle, Error> {
    let settings = HandleConfig::default().waiting(phase.mode.waiting());
    bmi::handle(addr.scheme(), &OpenOptions::default(), Config::named("handle"), 1, settings)
}

// ---- tasks of a runtime -------------------------------------------------------------------------

fn tasks(phase: &Phase, addr: &Addr, driven_by_task: bool) -> Result<Outcome, Error> {
    let runtime = runtime()?;
    // Keeps the driver.
    let mut handle = None;
    let endpoint = if driven_by_task {
        let options = OpenOptions::default();
        let clock = MonotonicClock::new();
        let endpoint: SharedEndpoint = bmi::shared_endpoint(addr.scheme(), &options, Config::named("task"), clock)?;
        runtime.spawn(event::drive_with(endpoint.clone(), phase.mode.waiting()));
        endpoint
    } else {
        let opened = handle.insert(open_handle(phase, addr)?);
        opened.endpoints().next().expect("one").clone()
    };
    let (phase, addr) = (*phase, addr.clone());
    runtime.block_on(async move {
        let work = tokio::spawn(async move {
            let link = Link::new(endpoint, &addr).await?;
            let outcome = in_tasks(&phase, &link).await?;
            link.end().await?;
            Ok(outcome)
        });
        work.await.expect("a task of the benchmark")
    })
}

async fn in_tasks(phase: &Phase, link: &Link<bmi::AnyThread>) -> Result<Outcome, Error> {
    let count = phase.count;
    match phase.what {
        What::Latency(size) => {
            let (out, back) = (Memory::zeroed(size)?, Memory::zeroed(size)?);
            link.signal().await?;
            let meter = Meter::start();
            for _ in 0..count {
                link.ping(&out, &back).await?;
            }
            Ok(meter.stop(count))
        }
        What::Calls(in_flight) => {
            let meter = Meter::start();
            spawned(in_flight, link, move |link| async move { link.calls(count / in_flight).await }).await?;
            Ok(meter.stop(count))
        }
        What::Rate(tasks) => {
            link.signal().await?;
            let meter = Meter::start();
            let window = RATE_WINDOW / tasks as usize;
            spawned(tasks, link, move |link| async move { link.stream(count / tasks, window).await }).await?;
            link.signal().await?;
            Ok(meter.stop(count))
        }
    }
}

/// Runs `part` in so many tasks.
async fn spawned<F: Future<Output = Result<(), Error>> + Send + 'static>(
    tasks: u64,
    link: &Link<bmi::AnyThread>,
    part: impl Fn(Link<bmi::AnyThread>) -> F,
) -> Result<(), Error> {
    let tasks: Vec<_> = (0..tasks).map(|_| tokio::spawn(part(link.clone()))).collect();
    join_all(tasks).await.into_iter().try_for_each(|ended| ended.expect("a task of the benchmark"))
}

fn runtime() -> Result<Runtime, Error> {
    Ok(tokio::runtime::Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?)
}

// ---- a bridge -----------------------------------------------------------------------------------

/// A thread owns the endpoint. It takes commands from a bounded channel, and answers each by a
/// channel of its own.
fn bridge(phase: &Phase, addr: &Addr) -> Result<Outcome, Error> {
    let What::Calls(in_flight) = phase.what else { unreachable!("only calls are measured") };
    let (commands, mut taken) = mpsc::channel::<oneshot::Sender<Result<(), Error>>>(256);
    let (scheme, mode, to) = (addr.scheme(), phase.mode, addr.clone());
    let owner = move || -> Result<(), Error> {
        let endpoint = net::endpoint(scheme, "bridge")?;
        let work = async {
            let link = Link::<OneThread>::new(endpoint.clone(), &to).await?;
            let mut calls = tokio::task::JoinSet::new();
            while let Some(answer) = taken.recv().await {
                let link = link.clone();
                calls.spawn_local(async move {
                    // The caller may have given up.
                    let _ = answer.send(link.call().await);
                });
                while calls.try_join_next().is_some() {}
            }
            calls.join_all().await;
            link.end().await
        };
        event::block_on_with(endpoint.clone(), mode.waiting(), work)?
    };
    let runtime = runtime()?;
    let owner = std::thread::Builder::new().name("bridge".into()).spawn(owner)?;
    let count = phase.count;
    let commands = Arc::new(commands);
    let outcome = runtime.block_on(async {
        let calls = |count: u64| {
            let commands = Arc::clone(&commands);
            async move {
                for _ in 0..count {
                    let (answer, answered) = oneshot::channel();
                    commands.send(answer).await.expect("the bridge");
                    answered.await.expect("the bridge")?;
                }
                Ok::<(), Error>(())
            }
        };
        // The first call waits for the connection.
        calls(1).await?;
        let meter = Meter::start();
        let tasks: Vec<_> = (0..in_flight).map(|_| tokio::spawn(calls(count / in_flight))).collect();
        join_all(tasks).await.into_iter().try_for_each(|ended| ended.expect("a task of the benchmark"))?;
        Ok::<_, Error>(meter.stop(count))
    })?;
    drop(commands);
    owner.join().expect("the thread of the bridge")?;
    Ok(outcome)
}
