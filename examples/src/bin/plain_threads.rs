//! Threads of a program without an executor share one handle: each blocks in its own operations.
//!
//! Shows [`bmi::Handle::block_on`], and that memory goes from thread to thread without a copy. A
//! reader thread receives blocks, and checks them on other threads.
//!
//! ```text
//! cargo run -p examples --bin plain_threads
//! ```
#![expect(clippy::disallowed_methods, reason = "a program of threads")]

use std::thread;
use std::time::Duration;

use bmi::config::HandleConfig;
use bmi::{Addr, Config, Error, ErrorKind, Handle, Memory, OpenOptions, PeerEvent, Scheme, SharedPeer, Tag};

/// The deadline of each operation.
const PATIENCE: Duration = Duration::from_secs(10);
const BLOCKS: Tag = 16;
const BLOCK: usize = 256 << 10;

fn open(name: &str) -> Result<Handle, Error> {
    bmi::handle(Scheme::Tcp, &OpenOptions::default(), Config::named(name), 1, HandleConfig::default())
}

/// Sends every fourth block. Four threads do that at a time, over one connection.
fn send_blocks(handle: &Handle, peer: &SharedPeer, first: Tag) -> Result<(), Error> {
    for tag in (first..BLOCKS).step_by(4) {
        let block = Memory::from(vec![tag as u8; BLOCK]);
        handle.block_on(peer.send(tag, &block, handle.within(PATIENCE)))?;
    }
    Ok(())
}

/// Receives every block, and has each checked by a thread of its own.
fn receive_blocks(handle: &Handle) -> Result<usize, Error> {
    let peer = match handle.block_on(handle.next_event())? {
        PeerEvent::Connected { peer, .. } => peer,
        PeerEvent::Lost { reason, .. } => return Err(reason),
    };
    let mut checks = Vec::new();
    for tag in 0..BLOCKS {
        let mut block = Memory::zeroed(BLOCK)?;
        handle.block_on(peer.recv(tag, &block, handle.within(PATIENCE)))?;
        // The operation has ended, so this is the only handle to the memory. It may go anywhere.
        checks.push(thread::spawn(move || {
            block.get_mut().is_some_and(|bytes| bytes.iter().all(|byte| u64::from(*byte) == tag))
        }));
    }
    handle.block_on(peer.disconnect(handle.within(PATIENCE)))?;
    Ok(checks.into_iter().filter_map(|check| check.join().ok()).filter(|good| *good).count())
}

fn main() -> Result<(), Error> {
    let (sender, receiver) = (open("sender")?, open("receiver")?);
    let addr = receiver.listen(&Addr::tcp("127.0.0.1", 0))?;
    let receiving = thread::spawn(move || receive_blocks(&receiver));
    let peer = sender.block_on(sender.connect(&addr, sender.within(PATIENCE)))?;
    thread::scope(|scope| {
        let (sender, peer) = (&sender, &peer);
        let threads: Vec<_> = (0..4).map(|first| scope.spawn(move || send_blocks(sender, peer, first))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a sending thread"))
    })?;
    let good = receiving.join().expect("the receiving thread")?;
    println!("{good} of {BLOCKS} blocks of {} KiB arrived whole", BLOCK >> 10);
    if good as Tag == BLOCKS { Ok(()) } else { Err(Error::new(ErrorKind::Io, "a block was damaged")) }
    // The handle is dropped here: its thread ends when the connection has.
}
