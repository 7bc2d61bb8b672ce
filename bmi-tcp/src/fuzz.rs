//! Bodies of the fuzz targets of this crate: what arrives at a socket.
//!
//! The programs in `fuzz/` call them with the fuzzer's bytes, the tests below with the committed
//! corpora (`fuzz/corpus`). A body panics if a decoder breaks one of its rules.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use bmi_backend::Regions;
use bmi_backend::software::{self, Exposures, Keys};
use bmi_core::transport::{ConnId, MAX_PRIVATE_DATA, WorkId, WorkOptions};
use bmi_core::{Access, Memory, RemoteKey, RemoteSlice, Segment};

use crate::TcpConfig;
use crate::frame::{Frame, HEADER, LONG_HEADER, PIECE, PREAMBLE, Preamble};
use crate::line::Source;
use crate::queue_pair::QueuePair;
use crate::receive::{Context, Inbound};

/// A preamble and a frame.
///
/// Each has one encoding. A prefix of it is neither refused nor taken for a whole one. No length
/// exceeds what the format allows.
pub fn frame(bytes: &[u8]) {
    if let Ok(Some(preamble)) = Preamble::decode(bytes) {
        assert!(preamble.private_len <= MAX_PRIVATE_DATA);
        assert_eq!(Preamble::encode(preamble.greeting, preamble.further, preamble.private_len)[..], bytes[..PREAMBLE]);
        (0..PREAMBLE).for_each(|len| assert_eq!(Preamble::decode(&bytes[..len]), Ok(None)));
    }
    if let Ok(Some((frame, len))) = Frame::decode(bytes) {
        assert!(len == HEADER || len == LONG_HEADER);
        let (wire, again) = frame.encode();
        assert_eq!(wire[..again], bytes[..len]);
        (0..len).for_each(|len| assert_eq!(Frame::decode(&bytes[..len]), Ok(None)));
        if let Frame::Data { here } | Frame::Reply { here, .. } | Frame::Part { here, .. } = frame {
            assert!(u64::from(here) <= PIECE);
        }
    }
}

/// Bytes of each memory that a peer can reach.
const ROOM: usize = 600;
/// In place of the keys of the two exposures: nobody can guess the real ones.
const KEYS: [[u8; 8]; 2] = [*b"KEY-READ", *b"KEY-WRIT"];

/// Two exposed memories: one that the peer may read, one that it may write.
struct Exposed {
    regions: Regions,
    exposures: Exposures,
    keys: [u64; 2],
    memories: [Memory; 2],
}

impl Exposed {
    fn new() -> Exposed {
        let (mut regions, mut keys) = (Regions::new(software::REGIONS), Keys::new(software::EXPOSURES));
        let memories = [(); 2].map(|()| Memory::zeroed(ROOM).expect("memory"));
        let mut exposures = Exposures::default();
        let mut expose = |memory: &Memory, access| {
            let segment = regions.register(memory).expect("register").segment(0, ROOM);
            exposures.add(&mut keys, &segment, access).expect("expose").key.0
        };
        let keys = [expose(&memories[0], Access::READ), expose(&memories[1], Access::WRITE)];
        Exposed { regions, exposures, keys, memories }
    }

    /// Puts the real keys in place of those that the fuzzer knows.
    fn with_keys(&self, stream: &[u8]) -> Vec<u8> {
        let mut stream = stream.to_vec();
        for (known, key) in KEYS.iter().zip(self.keys) {
            let mut from = 0;
            while let Some(at) = stream[from..].windows(8).position(|window| window == known) {
                stream[from + at..from + at + 8].copy_from_slice(&key.to_le_bytes());
                from += at + 8;
            }
        }
        stream
    }
}

/// What can be observed of a connection: completions, memories, the reason for its end.
type Observed = (Vec<String>, Vec<Vec<u8>>, Option<String>);

/// Passes pieces of a stream to the receiving half of a connection, with receives and reads posted.
fn receive<'a>(
    config: &TcpConfig,
    exposed: &mut Exposed,
    (spread, further): (bool, bool),
    stream: impl Iterator<Item = &'a [u8]>,
) -> Observed {
    let (mut far, near) = UnixStream::pair().expect("two sockets");
    let mut memories = exposed.memories.to_vec();
    memories.iter().for_each(|memory| memory.copy_from(0, &[0; ROOM]));
    let mut memory = |len: usize| -> Segment {
        let memory = Memory::zeroed(len).expect("memory");
        memories.push(memory.clone());
        exposed.regions.register(&memory).expect("register").segment(0, len)
    };
    let mut queues = QueuePair::new(ConnId { slot: 0, generation: 0 }, config);
    if spread {
        queues.spread_over_streams();
    }
    if further {
        // Two long writes were announced on the first stream.
        for _ in 0..2 {
            let target = memory(ROOM);
            queues.open_write(target, 0).expect("it has several streams");
        }
    }
    for work in 0..4 {
        let (short, long) = (memory(3), memory(ROOM));
        queues.post_recv(WorkId(work), &[short, long.slice(0, 0), long]).expect("post a receive");
    }
    for work in 4..6 {
        let (target, remote) = (memory(ROOM), RemoteSlice { key: RemoteKey(9), addr: 0, len: ROOM as u64 });
        queues.post_read(WorkId(work), &[target], remote, WorkOptions::SIGNALLED).expect("post a read");
    }
    queues.commit(false);
    let (mut inbound, mut pieces, mut events, mut end) =
        (Inbound::new(if further { LONG_HEADER } else { 4 << 10 }), Vec::new(), Vec::new(), None);
    for bytes in stream {
        far.write_all(bytes).expect("room in the socket");
        while end.is_none() {
            let mut context = Context {
                source: Source { socket: near.as_fd(), channel: None },
                further,
                budget: usize::MAX,
                hangup: false,
                queues: &mut queues,
                exposures: &exposed.exposures,
                pieces: &mut pieces,
                events: &mut events,
                limit: usize::MAX,
                shows: None,
            };
            match inbound.receive(&mut context) {
                Ok(received) if received.bytes > 0 || received.more => {}
                Ok(_) => break,
                Err(fault) => end = Some(format!("{fault:?}")),
            }
        }
    }
    let events = events.iter().map(|event| format!("{event:?}")).collect();
    (events, memories.iter().map(Memory::to_vec).collect(), end)
}

/// A stream of frames behind the handshake. Of the first byte, five bits are a number of cuts. As
/// many bytes follow, each a distance from one cut to the next. Bit 6 makes it the first of several
/// streams, bit 7 a further one.
///
/// The stream in pieces has the same effect as in one piece: the same completions, the same bytes
/// in memory, the same end. Only exposed memory and memory that was posted is written.
pub fn stream(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let (spread, further) = (kind & 0xc0 != 0, kind & 0x80 != 0);
    let (cuts, stream) = rest.split_at(rest.len().min(usize::from(kind & 31)));
    let config = TcpConfig::scarce();
    let mut exposed = Exposed::new();
    let stream = exposed.with_keys(stream);
    let whole = receive(&config, &mut exposed, (spread, further), std::iter::once(&stream[..]));
    let (mut pieces, mut rest) = (Vec::new(), &stream[..]);
    for cut in cuts {
        let (piece, behind) = rest.split_at(rest.len().min(usize::from(*cut)));
        pieces.push(piece);
        rest = behind;
    }
    pieces.push(rest);
    let in_pieces = receive(&config, &mut exposed, (spread, further), pieces.into_iter());
    let (completions, memories, _) = &whole;
    assert!(completions.len() <= 6, "more completions than work");
    assert!(memories[0].iter().all(|byte| *byte == 0), "memory that may only be read was written");
    assert!(whole == in_pieces, "the stream in pieces has another effect: {whole:?}, in pieces {in_pieces:?}");
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn corpora_are_replayed() {
        replay("tcp_frame", super::frame);
        replay("tcp_stream", super::stream);
    }
}
