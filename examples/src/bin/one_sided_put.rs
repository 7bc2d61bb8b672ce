//! One-sided put: one side exposes memory, the other writes into it, and no program on the first
//! side touches a byte.
//!
//! Shows bulk transfer: `expose`, the small descriptor that goes along with a message, `push`,
//! lists of different shapes on the two sides, and how the owner of the memory learns that the
//! bytes are there.
//!
//! ```text
//!   owner                                    writer
//!   expose(pieces, WRITE)
//!   ── unexpected: descriptor ─────────────▶ next_unexpected
//!                                            push(descriptor, own list)
//!   ◀════════ RDMA writes into the pieces ══
//!   ◀─────────────────────────── "done" ──── send            (ordered behind the writes)
//!   drop(exposure): nobody can write any more
//! ```
//!
//! ```text
//! cargo run -p examples --bin one_sided_put
//! ```

use std::time::Duration;

use bmi_core::driver::{MonotonicClock, busy};
use bmi_core::{
    Access, Addr, AsyncEndpoint, BulkDescriptor, Clock, Config, Endpoint, Error, ErrorKind, MemList, Memory,
    RemoteSlice, Tag,
};
use bmi_tcp::{TcpConfig, TcpTransport};
use futures_util::future::try_join;

const OFFER: Tag = 1;
const DONE: Tag = 2;
const PATIENCE: Duration = Duration::from_secs(10);
/// What is put: more than fits in one message, so that it is clear who moves it.
const LEN: usize = 1 << 20;

fn open(name: &str) -> Result<AsyncEndpoint<TcpTransport>, Error> {
    let clock = MonotonicClock::new();
    let endpoint = Endpoint::new(TcpTransport::new(TcpConfig::default())?, Config::named(name), clock.now())?;
    Ok(AsyncEndpoint::new(endpoint, clock))
}

/// Exposes two pieces of one buffer, with a gap between them, and waits until they are full.
async fn owner(endpoint: &AsyncEndpoint<TcpTransport>, writer: &Addr) -> Result<Memory, Error> {
    let peer = endpoint.connect(writer, endpoint.within(PATIENCE)).await?;
    let buffer = Memory::zeroed(2 * LEN)?;
    let pieces: MemList = [buffer.slice(0, LEN / 4), buffer.slice(LEN, LEN * 3 / 4)].into_iter().collect();
    // Only this peer, only these bytes, only writes, only until the exposure is dropped.
    let exposure = endpoint.expose(peer, pieces, Access::WRITE)?;
    // A descriptor is 24 bytes a piece. Anything with serde can carry it; by hand it is this.
    let offer: Vec<u8> = exposure.descriptor().pieces().iter().flat_map(RemoteSlice::to_wire).collect();
    let done = endpoint.recv(peer, DONE, vec![0; 1], endpoint.within(PATIENCE));
    endpoint.send_unexpected(peer, OFFER, offer, endpoint.within(PATIENCE)).await?;
    // "Done" comes behind the writes, so when it is here the bytes are.
    done.await?;
    drop(exposure);
    Ok(buffer)
}

/// Takes the offer and writes its own bytes there, from one contiguous buffer: the shapes need not
/// agree, only the lengths.
async fn writer(endpoint: &AsyncEndpoint<TcpTransport>) -> Result<(), Error> {
    // A message that nobody posted a receive for: how a request arrives at a server.
    let offer = endpoint.next_unexpected().await;
    let bad = || Error::new(ErrorKind::Protocol, "the offer is not a list of remote slices");
    let pieces: Result<Vec<RemoteSlice>, Error> = offer
        .bytes()
        .chunks(RemoteSlice::WIRE_LEN)
        .map(|wire| wire.try_into().map(RemoteSlice::from_wire).map_err(|_| bad()))
        .collect();
    // What a peer sends is a claim; a false one is refused by the peer's own adapter when it is
    // used.
    let target = BulkDescriptor::try_from(pieces?)?;
    let bytes = Memory::from((0..LEN).map(|at| at as u8).collect::<Vec<u8>>());
    endpoint.push(offer.peer(), &target, 0, &bytes, endpoint.within(PATIENCE)).await?;
    endpoint.send(offer.peer(), DONE, vec![1], endpoint.within(PATIENCE)).await.map(drop)
}

fn main() -> Result<(), Error> {
    let (owning, writing) = (open("owner")?, open("writer")?);
    let addr = writing.listen(&Addr::tcp("127.0.0.1", 0))?;
    // One thread can drive several endpoints; here both sides live on it.
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
