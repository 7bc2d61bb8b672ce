//! The other process. It is this program again, and always uses the single-threaded interface.
//!
//! **Protocol.** Each message is a line of JSON. The peer tells its address. For each [`Phase`]
//! that it reads, it accepts one connection, serves it, and tells when that connection is gone.

use std::io::{BufRead, BufReader, Error, Lines, Result, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use benches::limit::Limit;
use benches::net;
use bmi::driver::{busy, event};
use bmi::{Addr, AsyncEndpoint, Memory, Options, PeerEvent, PeerId};
use tempfile::TempDir;

use crate::phase::{Mode, Phase, Via, What};
use crate::ways::{ACK, DATA, Outcome, RATE_SIZE, RATE_WINDOW, Way};

/// The hidden arguments that make this program the peer.
const ARGUMENT: &str = "--serve-as-peer";

/// Runs the peer to its end. The first line of its input is the address to listen at.
pub(crate) fn serve() -> Result<()> {
    let mut lines = std::io::stdin().lines();
    let addr: Addr = lines.next().ok_or_else(|| Error::other("no address"))??.parse().map_err(Error::other)?;
    let endpoint = net::endpoint(addr.scheme(), "handle-peer").map_err(Error::other)?;
    let addr = endpoint.listen(&addr).map_err(Error::other)?;
    tell(&addr.to_string())?;
    for line in lines {
        let phase: Phase = serde_json::from_str(&line?)?;
        let _limit = Limit::new(format!("the peer's part of {}", phase.what), Phase::LIMIT, || {})?;
        let part = serve_one(&endpoint, &phase);
        match phase.mode {
            Mode::Polling => busy::block_on(std::slice::from_ref(&endpoint), part),
            Mode::Sleeping => event::block_on(endpoint.clone(), part).and_then(|served| served),
        }
        .map_err(Error::other)?;
        tell("done")?;
    }
    Ok(())
}

async fn serve_one(endpoint: &AsyncEndpoint, phase: &Phase) -> std::result::Result<(), bmi::Error> {
    let peer = loop {
        if let PeerEvent::Connected { peer, .. } = endpoint.next_event().await {
            break peer;
        }
    };
    match phase.what {
        What::Latency(size) => echo(endpoint, peer, size, phase.count).await?,
        What::Rate(_) => receive(endpoint, peer, phase.count).await?,
        What::Calls(_) => {
            let serving = bmi::serve(endpoint, 128, async |call| call.reply(b"done", None, Options::default()).await);
            tokio::select! {
                never = serving => match never {},
                () = gone(endpoint) => return Ok(()),
            }
        }
    }
    gone(endpoint).await;
    Ok(())
}

async fn gone(endpoint: &AsyncEndpoint) {
    while !matches!(endpoint.next_event().await, PeerEvent::Lost { .. }) {}
}

async fn echo(endpoint: &AsyncEndpoint, peer: PeerId, size: usize, count: u64) -> std::result::Result<(), bmi::Error> {
    let (inward, outward) = (Memory::zeroed(size)?, Memory::zeroed(size)?);
    let mut next = endpoint.recv(peer, DATA, &inward, Options::default());
    endpoint.send(peer, ACK, vec![0], Options::default()).await?;
    for number in 1..=count {
        next.await?;
        // The next receive comes before the answer that makes the peer send its message.
        let after = (number < count).then(|| endpoint.recv(peer, DATA, &inward, Options::default()));
        endpoint.send(peer, DATA, &outward, Options::default()).await?;
        match after {
            Some(after) => next = after,
            None => break,
        }
    }
    Ok(())
}

async fn receive(endpoint: &AsyncEndpoint, peer: PeerId, count: u64) -> std::result::Result<(), bmi::Error> {
    let ring = Memory::zeroed(RATE_SIZE * RATE_WINDOW)?;
    let mut posted = std::collections::VecDeque::new();
    for number in 0..count {
        if posted.len() == RATE_WINDOW {
            let oldest: bmi::Operation = posted.pop_front().expect("a full window");
            oldest.await?;
        }
        let at = number as usize % RATE_WINDOW * RATE_SIZE;
        posted.push_back(endpoint.recv(peer, DATA, ring.slice(at, RATE_SIZE), Options::default()));
        if number == 0 {
            endpoint.send(peer, ACK, vec![0], Options::default()).await?;
        }
    }
    for receive in posted {
        receive.await?;
    }
    endpoint.send(peer, ACK, vec![0], Options::default()).await.map(drop)
}

fn tell(what: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{what}")?;
    out.flush()
}

/// The measuring side's handle of the peer. Dropping it ends the process.
pub(crate) struct Peer {
    process: Arc<Mutex<Child>>,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
    addr: Addr,
    _folder: TempDir,
}

impl Peer {
    /// Starts the process, which listens over `via`.
    pub(crate) fn start(via: Via) -> Result<Peer> {
        let folder = tempfile::tempdir()?;
        let addr = match via {
            Via::Tcp => "tcp://127.0.0.1:0".to_owned(),
            Via::Shm => format!("shm://{}", folder.path().join("names/peer").display()),
        };
        let mut process = Command::new(std::env::current_exe()?)
            .arg(ARGUMENT)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (mut orders, answers) = (process.stdin.take(), process.stdout.take());
        let orders_pipe = orders.as_mut().ok_or_else(|| Error::other("no pipe"))?;
        writeln!(orders_pipe, "{addr}")?;
        let mut answers = BufReader::new(answers.ok_or_else(|| Error::other("no pipe"))?).lines();
        let taken = answers.next().ok_or_else(|| Error::other("the peer ended"))??;
        let addr = taken.parse().map_err(Error::other)?;
        Ok(Peer { process: Arc::new(Mutex::new(process)), orders, answers, addr, _folder: folder })
    }

    /// Measures one way.
    pub(crate) fn run(&mut self, phase: &Phase, way: Way) -> Result<Outcome> {
        let process = Arc::clone(&self.process);
        let kill = move || {
            // It may have ended.
            let _ = process.lock().unwrap_or_else(PoisonError::into_inner).kill();
        };
        let _limit = Limit::new(format!("{} by {way}, {}", phase.what, phase.mode), Phase::LIMIT, kill)?;
        let orders = self.orders.as_mut().ok_or_else(|| Error::other("stopped"))?;
        serde_json::to_writer(&mut *orders, phase)?;
        orders.write_all(b"\n")?;
        orders.flush()?;
        let outcome = way.run(phase, &self.addr).map_err(Error::other)?;
        match self.answers.next() {
            Some(Ok(answer)) if answer == "done" => Ok(outcome),
            _ => Err(Error::other("the peer ended")),
        }
    }

    /// Ends the process in order.
    pub(crate) fn stop(mut self) -> Result<()> {
        drop(self.orders.take());
        self.process.lock().unwrap_or_else(PoisonError::into_inner).wait()?;
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        // It has ended if all went well.
        let _ = process.kill();
        let _ = process.wait();
    }
}
