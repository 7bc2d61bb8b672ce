//! Measures how long a message takes there and back between two endpoints.
//!
//! Shows the parts that every program needs: an endpoint, a connection, expected messages with
//! tags, and a driver. Each side runs on a thread of its own. They use TCP on the loopback, in the
//! same way as two processes on two machines.
//!
//! ```text
//! cargo run -p examples --bin ping_pong
//! ```

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bmi::driver::{MonotonicClock, busy};
use bmi::{Addr, Config, Endpoint, Error, ErrorKind, Memory, OpenOptions, Options, PeerEvent, Scheme, Tag};

/// Both sides use the same tags. A receive matches the next message of its peer with its tag.
const PING: Tag = 1;
const PONG: Tag = 2;
const ROUNDS: u32 = 2000;
/// The deadline of each operation.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens an endpoint: a transport (here TCP) with the message protocol over it.
fn open(name: &str) -> Result<Endpoint, Error> {
    bmi::endpoint(Scheme::Tcp, &OpenOptions::default(), Config::named(name), MonotonicClock::new())
}

/// Waits for a peer, then sends back each message that it sends.
async fn echo(endpoint: &Endpoint) -> Result<(), Error> {
    // Peers that connect or are lost are reported as events. The first event must be our peer.
    let peer = match endpoint.next_event().await {
        PeerEvent::Connected { peer, .. } => peer,
        PeerEvent::Lost { reason, .. } => return Err(reason),
    };
    // An adapter may access memory until the operation ends. So operations take a counted handle,
    // and never a borrow.
    let buffer = Memory::zeroed(64)?;
    for _ in 0..ROUNDS {
        let received = peer.recv(PING, &buffer, endpoint.within(PATIENCE)).await?;
        // A receive may be longer than its message. The completion has the message's length.
        peer.send(PONG, buffer.slice(0, received.len as usize), endpoint.within(PATIENCE)).await?;
    }
    // Close the connection once all messages have been sent.
    peer.disconnect(endpoint.within(PATIENCE)).await
}

/// Connects, then measures the time of each round.
#[expect(clippy::disallowed_methods, reason = "measures real time")]
async fn ping(endpoint: &Endpoint, addr: &Addr) -> Result<Vec<Duration>, Error> {
    let peer = endpoint.connect(addr, endpoint.within(PATIENCE)).await?;
    let message = Memory::from(b"how long does this take?".to_vec());
    let answer = Memory::zeroed(64)?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        // An operation is posted when the method is called, not when the future is polled. So the
        // receive is posted before the message is sent.
        let pong = peer.recv(PONG, &answer, endpoint.within(PATIENCE));
        peer.send(PING, &message, Options::default()).await?;
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
        // Port 0 means any free port. `listen` returns the address with the chosen port.
        let addr = endpoint.listen(&Addr::tcp("127.0.0.1", 0))?;
        let _ = tell.send(addr);
        // A driver polls the endpoint while the future runs. This one polls without a pause;
        // `driver::event` sleeps while there is nothing to do.
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
    // If the other side has failed too, its error is probably the cause.
    match echoing.join() {
        Ok(echoed) => echoed.and(result),
        Err(_) => Err(Error::new(ErrorKind::Io, "the echoing side panicked")),
    }
}
