//! Writes into the memory of a peer. The peer's program does not touch the bytes.
//!
//! Shows bulk transfer: `expose`, the descriptor that is sent in a message, `push`, and lists of
//! different shapes on the two sides. The owner of the memory learns from a message that the bytes
//! are there.
//!
//! ```text
//!   owner                                    writer
//!   expose(pieces, WRITE)
//!   ── unexpected: descriptor ─────────────▶ next_unexpected
//!                                            push(descriptor, own list)
//!   ◀════════ RDMA writes into the pieces ══
//!   ◀─────────────────────────── "done" ──── send            (ordered behind the writes)
//!   drop(exposure): the writer has no access any more
//! ```
//!
//! ```text
//! cargo run -p examples --bin one_sided_put
//! ```

use std::time::Duration;

use bmi::bulk::{Access, BulkDescriptor};
use bmi::driver::{MonotonicClock, busy};
use bmi::{Addr, Config, Endpoint, Error, ErrorKind, MemList, Memory, OpenOptions, Scheme, Tag};
use futures_util::future::try_join;

const OFFER: Tag = 1;
const DONE: Tag = 2;
/// The deadline of each operation.
const PATIENCE: Duration = Duration::from_secs(10);
/// Number of bytes that are put.
const LEN: usize = 1 << 20;
/// Largest number of pieces in a descriptor that is accepted.
const MAX_PIECES: usize = 16;

fn open(name: &str) -> Result<Endpoint, Error> {
    bmi::endpoint(Scheme::Tcp, &OpenOptions::default(), Config::named(name), MonotonicClock::new())
}

/// Exposes two pieces of one buffer, with a gap between them, and waits until they are written.
async fn owner(endpoint: &Endpoint, writer: &Addr) -> Result<Memory, Error> {
    let peer = endpoint.connect(writer, endpoint.within(PATIENCE)).await?;
    let buffer = Memory::zeroed(2 * LEN)?;
    let pieces: MemList = [buffer.slice(0, LEN / 4), buffer.slice(LEN, LEN * 3 / 4)].into_iter().collect();
    // Only this peer may access these bytes. It may only write, until the exposure is dropped.
    let exposure = peer.expose(pieces, Access::WRITE)?;
    let offer = exposure.descriptor().encode(Vec::new());
    let done = peer.recv(DONE, vec![0; 1], endpoint.within(PATIENCE));
    peer.send_unexpected(OFFER, offer, endpoint.within(PATIENCE)).await?;
    // "Done" arrives after the writes, so the bytes are there.
    done.await?;
    drop(exposure);
    Ok(buffer)
}

/// Receives the offer and writes there from one contiguous buffer. The lengths must agree, not the
/// shapes.
async fn writer(endpoint: &Endpoint) -> Result<(), Error> {
    // An unexpected message needs no posted receive. Requests arrive at a server in this way.
    let offer = endpoint.next_unexpected().await;
    // A descriptor that describes memory which was not exposed is refused by the peer's adapter.
    let target = BulkDescriptor::decode(offer.bytes(), MAX_PIECES)?;
    let bytes = Memory::from((0..LEN).map(|at| at as u8).collect::<Vec<u8>>());
    offer.peer().push(&target, 0, &bytes, endpoint.within(PATIENCE)).await?;
    offer.peer().send(DONE, vec![1], endpoint.within(PATIENCE)).await.map(drop)
}

fn main() -> Result<(), Error> {
    let (owning, writing) = (open("owner")?, open("writer")?);
    let addr = writing.listen(&Addr::tcp("127.0.0.1", 0))?;
    // One thread can drive several endpoints.
    let both = try_join(owner(&owning, &addr), writer(&writing));
    let (buffer, ()) = busy::block_on(&[owning.clone(), writing.clone()], both)?;

    let bytes = buffer.to_vec();
    let put = bytes[..LEN / 4].iter().chain(&bytes[LEN..LEN + LEN * 3 / 4]);
    let right = put.enumerate().all(|(at, byte)| *byte == at as u8);
    let gap_untouched = bytes[LEN / 4..LEN].iter().all(|byte| *byte == 0);
    if !right || !gap_untouched {
        return Err(Error::new(ErrorKind::Protocol, "the bytes are not where they should be"));
    }
    println!("{LEN} bytes put into two pieces, the gap between them untouched");
    println!("pushes counted by the writer: {}", writing.counters().pushes);
    Ok(())
}
