//! Two endpoints, each of which a driver runs on a thread of its own, as two programs would.
//!
//! The two take turns, because each sleeps until the other has sent. So the counts are those of a
//! lockstep, or nearly so: valgrind runs one thread at a time.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use bmi::driver::{Waiting, event, thread as own};
use bmi::{Addr, Endpoint, Error, ErrorKind, Memory, Options, Peer, PeerEvent, Scheme};

use super::callgrind::WINDOWS;
use super::line::{Line, Mode, Play};
use super::window;
use crate::net::endpoint;

const TAG: u64 = 3;
/// Messages that are exchanged before anything is counted. After so many, a driver that may poll
/// has come to poll.
const WARM_UP: usize = 300;
/// Tests need not wait.
const SECOND: Duration = Duration::from_millis(if cfg!(test) { 5 } else { 1000 });

/// Plays `count` operations in each window.
///
/// # Errors
/// If a side fails.
pub(crate) fn play(line: Line, count: usize) -> Result<(), Error> {
    let (tell, addr) = channel();
    let far = thread::Builder::new().spawn(move || {
        let endpoint = endpoint(Scheme::Tcp, "far")?;
        run(line, endpoint.clone(), answer(endpoint, line.len, tell))?
    })?;
    let gone = |_| Error::new(ErrorKind::PeerLost, "the far side does not listen");
    let (addr, endpoint) = (addr.recv().map_err(gone)?, endpoint(Scheme::Tcp, "near")?);
    run(line, endpoint.clone(), ask(endpoint, addr, line, count))??;
    far.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Io, "the far side panicked")))
}

/// Runs a side. Where nothing may be polled, each wait is a sleep, as in the plain line beside it.
fn run<F: Future>(line: Line, endpoint: Endpoint, side: F) -> Result<F::Output, Error> {
    let waiting = if line.play == Play::Ping { Waiting::Event } else { Waiting::Adaptive };
    match line.mode {
        Mode::Tokio => event::block_on_with(endpoint, waiting, side),
        _ => own::block_on(&endpoint, waiting, side),
    }
}

/// Answers each message with one of the same length, until the peer leaves.
async fn answer(endpoint: Endpoint, len: usize, tell: Sender<Addr>) -> Result<(), Error> {
    let addr = endpoint.listen(&Addr::tcp("127.0.0.1", 0))?;
    // If the other side has failed, nobody waits for it.
    let _ = tell.send(addr);
    let PeerEvent::Connected { peer, .. } = endpoint.next_event().await else {
        return Err(Error::new(ErrorKind::PeerLost, "not connected"));
    };
    let (out, into) = (Memory::shareable(len.max(1))?, Memory::shareable(len.max(1))?);
    let mut next = peer.recv(TAG, into.slice(0, len), Options::default());
    while next.await.is_ok() {
        next = peer.recv(TAG, into.slice(0, len), Options::default());
        peer.send(TAG, out.slice(0, len), Options::default()).await?;
    }
    Ok(())
}

/// Plays the line against a side that answers.
async fn ask(endpoint: Endpoint, addr: Addr, line: Line, count: usize) -> Result<(), Error> {
    let peer = endpoint.connect(&addr, Options::default()).await?;
    let (out, into) = (Memory::shareable(line.len.max(1))?, Memory::shareable(line.len.max(1))?);
    for _ in 0..WARM_UP {
        ping(&peer, &out, &into, line.len).await?;
    }
    for _ in 0..WINDOWS {
        let _counted = window::begin();
        for _ in 0..count {
            if line.play != Play::Ping {
                endpoint.sleep(SECOND).await;
            }
            if line.play != Play::IdleSecond {
                ping(&peer, &out, &into, line.len).await?;
            }
        }
    }
    peer.disconnect(Options::default()).await
}

async fn ping(peer: &Peer, out: &Memory, into: &Memory, len: usize) -> Result<(), Error> {
    let answer = peer.recv(TAG, into.slice(0, len), Options::default());
    peer.send(TAG, out.slice(0, len), Options::default()).await?;
    answer.await?;
    Ok(())
}
