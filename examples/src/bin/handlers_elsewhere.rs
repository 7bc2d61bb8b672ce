//! A server whose handlers run on other threads than its transport.
//!
//! Shows a server of two endpoints behind one address, each with a thread that drives it, and a
//! pool of worker threads that handle calls. Work that takes long, here sorting, keeps no transport
//! from its connections. The number of calls that are handled at a time is the number of workers:
//! what is not taken stays in its slot, and its sender waits.
//!
//! ```text
//! cargo run -p examples --bin handlers_elsewhere
//! ```
#![expect(clippy::disallowed_methods, reason = "a program of threads")]

use std::thread;
use std::time::Duration;

use bmi::config::HandleConfig;
use bmi::threading::AnyThread;
use bmi::{Addr, Body, Config, Error, ErrorKind, Handle, Incoming, Memory, OpenOptions, Scheme};

/// The deadline of each operation.
const PATIENCE: Duration = Duration::from_secs(10);
const ENDPOINTS: usize = 2;
const WORKERS: usize = 3;
const LEN: usize = 200_000;

fn open(name: &str, endpoints: usize) -> Result<Handle, Error> {
    bmi::handle(Scheme::Tcp, &OpenOptions::default(), Config::named(name), endpoints, HandleConfig::default())
}

/// Takes the data of a call, and replies with its greatest byte and the number of different ones.
async fn sort(call: Incoming<AnyThread>) -> Result<(), Error> {
    if call.len() > LEN as u64 {
        // Dropping the call tells the client that there is no reply.
        return Err(Error::new(ErrorKind::TooLarge, "more data than this server sorts"));
    }
    let data = Memory::zeroed(call.len() as usize)?;
    call.fetch(0, &data, call.within(PATIENCE)).await?;
    let mut bytes = data.into_vec();
    bytes.sort_unstable();
    bytes.dedup();
    let reply = [bytes.last().copied().unwrap_or(0), bytes.len() as u8];
    let options = call.within(PATIENCE);
    call.reply(&reply, None, options).await
}

/// Handles calls until the handle is closed. Returns their number.
fn work(server: &Handle) -> usize {
    let mut handled = 0;
    while let Ok(call) = server.block_on(server.next_call()) {
        match server.block_on(sort(call)) {
            Ok(()) => handled += 1,
            Err(error) => eprintln!("a call was not answered: {error}"),
        }
    }
    handled
}

fn main() -> Result<(), Error> {
    let server = open("server", ENDPOINTS)?;
    let addr = server.listen(&Addr::tcp("127.0.0.1", 0))?;
    let workers: Vec<_> = (0..WORKERS)
        .map(|_| {
            let server = server.clone();
            thread::spawn(move || work(&server))
        })
        .collect();

    let clients: Vec<_> = (1..=4u8)
        .map(|number| {
            let addr = addr.clone();
            thread::spawn(move || -> Result<(), Error> {
                let client = open("client", 1)?;
                let peer = client.block_on(client.connect(&addr, client.within(PATIENCE)))?;
                for _ in 0..5 {
                    let data = Memory::from((0..LEN).map(|at| (at % usize::from(number)) as u8).collect::<Vec<_>>());
                    let call = peer.call(b"sort", Body::Out(data.into()), client.within(PATIENCE))?;
                    assert_eq!(client.block_on(call.reply())?.bytes, [number - 1, number].as_slice());
                }
                Ok(())
            })
        })
        .collect();
    for client in clients {
        client.join().expect("a client")?;
    }
    server.block_on(server.close());
    let handled: Vec<usize> = workers.into_iter().map(|worker| worker.join().expect("a worker")).collect();
    println!("{} calls, handled by {WORKERS} workers: {handled:?}", handled.iter().sum::<usize>());
    assert_eq!(handled.iter().sum::<usize>(), 4 * 5);
    Ok(())
}
