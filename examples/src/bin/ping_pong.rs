//! Ping-pong: two endpoints, a message there and back, how long it took.
//!
//! Shows the least that a program needs: an endpoint over a transport, a connection, expected
//! messages with tags, a driver. The two sides run on a thread each and talk over TCP on the
//! loopback, as two processes on two machines would.
//!
//! ```text
//! cargo run -p examples --bin ping_pong
//! ```

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bmi_core::driver::{MonotonicClock, busy};
use bmi_core::{Addr, AsyncEndpoint, Clock, Config, Endpoint, Error, ErrorKind, Memory, Options, PeerEvent, Tag};
use bmi_tcp::{TcpConfig, TcpTransport};

/// Both sides agree on the tags: a receive gets the next message of its peer with its own tag,
/// whatever else comes in between.
const PING: Tag = 1;
const PONG: Tag = 2;
const ROUNDS: u32 = 2000;
/// Nothing waits for ever: every operation below has a deadline.
const PATIENCE: Duration = Duration::from_secs(10);

/// An endpoint is a transport (here TCP) with the protocol over it; the `async` face is what
/// programs mostly use.
fn open(name: &str) -> Result<AsyncEndpoint<TcpTransport>, Error> {
    let clock = MonotonicClock::new();
    let transport = TcpTransport::new(TcpConfig::default())?;
    let endpoint = Endpoint::new(transport, Config::named(name), clock.now())?;
    Ok(AsyncEndpoint::new(endpoint, clock))
}

/// Waits for a peer, then sends back whatever it sends.
async fn echo(endpoint: &AsyncEndpoint<TcpTransport>) -> Result<(), Error> {
    // Who comes and who goes is told as events; the first must be our peer.
    let peer = match endpoint.next_event().await {
        PeerEvent::Connected { peer, .. } => peer,
        PeerEvent::Lost { reason, .. } => return Err(reason),
    };
    // Memory that an adapter may touch is owned and counted. A handle is passed to an operation; no
    // borrow can end too early.
    let buffer = Memory::zeroed(64)?;
    for _ in 0..ROUNDS {
        let received = endpoint.recv(peer, PING, &buffer, endpoint.within(PATIENCE)).await?;
        // A receive may be longer than its message: the completion says how long that was.
        endpoint.send(peer, PONG, buffer.slice(0, received.len as usize), endpoint.within(PATIENCE)).await?;
    }
    // Ends the connection after what was sent has left.
    endpoint.disconnect(peer, endpoint.within(PATIENCE)).await
}

/// Connects, then measures how long messages take there and back.
#[expect(clippy::disallowed_methods, reason = "measures real time")]
async fn ping(endpoint: &AsyncEndpoint<TcpTransport>, addr: &Addr) -> Result<Vec<Duration>, Error> {
    let peer = endpoint.connect(addr, endpoint.within(PATIENCE)).await?;
    let message = Memory::from(b"how long does this take?".to_vec());
    let answer = Memory::zeroed(64)?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        // Operations are posted when the method is called, not when the future is polled: the
        // receive is there before the message that provokes its answer leaves.
        let pong = endpoint.recv(peer, PONG, &answer, endpoint.within(PATIENCE));
        endpoint.send(peer, PING, &message, Options::default()).await?;
        let received = pong.await?;
        times.push(begin.elapsed());
        if answer.slice(0, received.len as usize).to_vec() != message.to_vec() {
            return Err(Error::new(ErrorKind::Protocol, "the echo is not what was sent"));
        }
    }
    Ok(times)
}

fn main() -> Result<(), Error> {
    let (tell, told) = mpsc::channel();
    let echoing = thread::Builder::new().name("echo".into()).spawn(move || -> Result<(), Error> {
        let endpoint = open("echo")?;
        // Port 0 asks for any that is free; `listen` says which it was.
        let addr = endpoint.listen(&Addr::tcp("127.0.0.1", 0))?;
        let _ = tell.send(addr);
        // A driver makes the endpoint go while a future runs: this one polls without pause.
        // `driver::event` sleeps instead.
        busy::block_on(std::slice::from_ref(&endpoint), echo(&endpoint))
    })?;
    let addr = told.recv().map_err(|_| Error::new(ErrorKind::Io, "the echoing side did not come up"));
    let result = addr.and_then(|addr| {
        let endpoint = open("ping")?;
        let mut times = busy::block_on(std::slice::from_ref(&endpoint), ping(&endpoint, &addr))?;
        times.sort();
        let one_way = |rank: usize| times[rank] / 2;
        println!("{ROUNDS} rounds with {addr}");
        println!(
            "one way: median {:?}, 99 of 100 within {:?}",
            one_way(times.len() / 2),
            one_way(times.len() * 99 / 100)
        );
        Ok(())
    });
    // The other side's error, if it has one, is the nearer cause.
    match echoing.join() {
        Ok(echoed) => echoed.and(result),
        Err(_) => Err(Error::new(ErrorKind::Io, "the echoing side panicked")),
    }
}
