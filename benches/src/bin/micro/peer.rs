//! The other process. It is this program again, and reads from its standard input what to serve
//! next.
//!
//! **Protocol.** Each message is a line of JSON. The peer sends [`Hello`]. For each [`Phase`] that
//! it reads, it serves its part and answers with an [`Outcome`]. It ends at the end of its input.
//! Between phases each side sleeps in a read of a pipe, so that the side that is not measured takes
//! no processor time.

use bmi::Scheme;
use std::io::{BufRead, BufReader, Error, Lines, Result, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use benches::limit::Limit;
use benches::{cpu, net};
use bmi_core::driver::busy;
use bmi_core::{Addr, AsyncEndpoint, Options, PeerEvent, PeerId};
use bmi_perf::system_calls::Counter;

use crate::bmi_side::Ours;
use crate::phase::{Hello, Outcome, Phase, Who};
use crate::socket_side::Plain;

/// The hidden argument that makes this program the peer.
pub(crate) const ARGUMENT: &str = "--serve-as-peer";

/// Runs the peer to its end.
pub(crate) fn serve() -> Result<()> {
    let plain_listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let endpoint = net::endpoint(Scheme::Tcp, "micro-peer").map_err(Error::other)?;
    let addr = endpoint.listen(&Addr::tcp("127.0.0.1", 0)).map_err(Error::other)?;
    tell(&Hello { plain_port: plain_listener.local_addr()?.port(), ours: addr.to_string() })?;

    let connecting = Limit::new("waiting for the measuring side", Phase::LIMIT, || {})?;
    let mut plain = Plain::new(plain_listener.accept()?.0)?;
    let peer = busy::block_on(std::slice::from_ref(&endpoint), accept(&endpoint))?;
    let ours = Ours::new(endpoint, peer);
    drop(connecting);

    for line in std::io::stdin().lines() {
        let phase: Phase = serde_json::from_str(&line?)?;
        let _limit = Limit::new(format!("the peer's part of {}", phase.describe()), Phase::LIMIT, || {})?;
        let meter = Meter::begin(&phase);
        match phase.who {
            Who::Plain => plain.serve(&phase)?,
            Who::Ours => ours.serve(&phase).map_err(Error::other)?,
        }
        tell(&meter.end())?;
    }
    Ok(())
}

/// Measures what this process uses for a phase.
struct Meter {
    cpu: Duration,
    switches: u64,
    /// The process is this thread. Other threads of it sleep, and end it at a time limit.
    counter: Option<Counter>,
}

impl Meter {
    fn begin(phase: &Phase) -> Meter {
        let (cpu, switches) = (cpu::of_process(), cpu::switches());
        Meter { cpu, switches, counter: phase.counting.then(|| Counter::open().ok()).flatten() }
    }

    fn end(self) -> Outcome {
        // First, because the next lines are system calls, too.
        let calls = self.counter.and_then(|counter| counter.read().ok());
        let cpu = (cpu::of_process() - self.cpu).as_secs_f64();
        let switches = cpu::switches().saturating_sub(self.switches);
        Outcome { cpu, switches, calls, ..Outcome::default() }
    }
}

async fn accept(endpoint: &AsyncEndpoint) -> Result<PeerId> {
    match endpoint.next_event().await {
        PeerEvent::Connected { peer, .. } => Ok(peer),
        PeerEvent::Lost { reason, .. } => Err(Error::other(reason)),
    }
}

fn tell(what: &impl serde::Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, what)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// The measuring side's handle of the peer: the process, and a connection of each kind. Dropping it
/// ends the process.
pub(crate) struct Peer {
    process: Arc<Mutex<Child>>,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    plain: Plain,
    ours: Ours,
}

impl Peer {
    /// Starts the process and connects to it in both ways.
    pub(crate) fn start() -> Result<Peer> {
        let mut process = Command::new(std::env::current_exe()?)
            .arg(ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let gone = || Error::other("the peer process has no pipes");
        let orders = process.stdin.take().ok_or_else(gone)?;
        let mut answers = BufReader::new(process.stdout.take().ok_or_else(gone)?).lines();
        let process = Arc::new(Mutex::new(process));
        let _limit = limit("connecting to the peer process", &process)?;
        let hello: Hello = next_answer(&mut answers)?;
        let plain = Plain::new(TcpStream::connect((Ipv4Addr::LOCALHOST, hello.plain_port))?)?;
        let endpoint = net::endpoint(Scheme::Tcp, "micro").map_err(Error::other)?;
        let addr: Addr = hello.ours.parse().map_err(Error::other)?;
        let connected = endpoint.connect(&addr, Options::default());
        let peer = busy::block_on(std::slice::from_ref(&endpoint), connected).map_err(Error::other)?;
        Ok(Peer { process, orders: Some(orders), answers, plain, ours: Ours::new(endpoint, peer) })
    }

    /// Runs one phase on both sides. The outcome has the processor time, the context switches and
    /// the system calls of both processes.
    pub(crate) fn run(&mut self, phase: &Phase) -> Result<Outcome> {
        let _limit = limit(&phase.describe(), &self.process)?;
        if let Some(orders) = &mut self.orders {
            let mut line = serde_json::to_vec(phase)?;
            line.push(b'\n');
            orders.write_all(&line)?;
        }
        let meter = Meter::begin(phase);
        let outcome = match phase.who {
            Who::Plain => self.plain.measure(phase)?,
            Who::Ours => self.ours.measure(phase).map_err(Error::other)?,
        };
        let own = meter.end();
        let answer: Outcome = next_answer(&mut self.answers)?;
        let calls = own.calls.zip(answer.calls).map(|(own, answer)| own + answer);
        Ok(Outcome { cpu: own.cpu + answer.cpu, switches: own.switches + answer.switches, calls, ..outcome })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input asks the peer to end. Kill it in any case.
        self.orders = None;
        end(&self.process);
    }
}

fn end(process: &Mutex<Child>) {
    let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
    let _ = process.kill();
    let _ = process.wait();
}

fn limit(what: &str, process: &Arc<Mutex<Child>>) -> Result<Limit> {
    let process = Arc::clone(process);
    Limit::new(what, Phase::LIMIT, move || end(&process))
}

fn next_answer<A: serde::de::DeserializeOwned>(answers: &mut Lines<BufReader<ChildStdout>>) -> Result<A> {
    let line = answers.next().ok_or_else(|| Error::other("the peer process has ended; see its message above"))??;
    Ok(serde_json::from_str(&line)?)
}
