//! Streams over sockets.
//!
//! **Source.** The bytes are those of `bmi-tcp/src/frame.rs` and `bmi-core/src/proto/header.rs`,
//! written here once more: an attacker does not use the library.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bmi_report::stats::Random;

use super::mutation::mutate;
use super::{ANSWER_LIMIT, Open, TURN_LIMIT, is_cut, pick};
use crate::hostile::spec::{Kind, TcpStream as Recorded, Turn};

/// Bytes of a preamble without its private data.
const PREAMBLE: usize = 16;
/// Longest random tail in bytes.
const MOST_GARBAGE: usize = 4096;

/// Sends one stream. Returns its length and its socket. The error is that nobody accepted it.
pub(super) fn send(kind: Kind, addr: &str, recorded: &[Recorded], random: &mut Random) -> io::Result<(u64, Open)> {
    let mut socket = dial(addr)?;
    let stream = pick(recorded, random)?;
    let mut sent = Sent::default();
    // A server may close the connection at any byte. That is the end of the stream, not an error.
    let _ = match kind {
        Kind::Garbage => garbage(&mut socket, stream, random, &mut sent),
        Kind::Lengths => lengths(&mut socket, stream, random, &mut sent),
        Kind::Cut => cut(&mut socket, stream, random, &mut sent),
        Kind::Mutate => {
            let changed = changed(stream, random);
            replay(&mut socket, &changed, TURN_LIMIT, &mut sent)
        }
        _ => replay(&mut socket, &stream.turns, TURN_LIMIT, &mut sent),
    };
    if is_cut(kind) && random.below(2) == 0 {
        // The socket ends with a reset instead of an end.
        let _ = rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
    }
    Ok((sent.0, Open::Tcp { _socket: socket }))
}

/// The number of bytes that were sent.
#[derive(Default)]
struct Sent(u64);

impl Sent {
    fn write(&mut self, socket: &mut TcpStream, bytes: &[u8]) -> io::Result<()> {
        socket.write_all(bytes)?;
        self.0 += bytes.len() as u64;
        Ok(())
    }
}

/// Connects to `host:port`.
pub(super) fn dial(addr: &str) -> io::Result<TcpStream> {
    let addr: SocketAddr = addr.parse().map_err(io::Error::other)?;
    let socket = TcpStream::connect_timeout(&addr, ANSWER_LIMIT)?;
    socket.set_nodelay(true)?;
    socket.set_write_timeout(Some(ANSWER_LIMIT))?;
    Ok(socket)
}

/// Sends the preamble of a real client and waits until it is accepted.
pub(super) fn establish(socket: &mut TcpStream, stream: &Recorded) -> io::Result<u64> {
    let mut sent = Sent::default();
    replay(socket, &stream.turns[..stream.turns.len().min(1)], ANSWER_LIMIT, &mut sent)?;
    Ok(sent.0)
}

/// Sends turns. Waits after each until the server has sent as many bytes as it had sent then, but
/// after all except the first not longer than `limit`.
fn replay(socket: &mut TcpStream, turns: &[Turn], limit: Duration, sent: &mut Sent) -> io::Result<()> {
    let mut answer = vec![0; 64 << 10];
    for (number, turn) in turns.iter().enumerate() {
        // A frame before the acceptance is an error of its own, and not what is to be tested.
        socket.set_read_timeout(Some(if number == 0 { ANSWER_LIMIT } else { limit }))?;
        sent.write(socket, &turn.sent)?;
        let mut awaited = turn.answered;
        while awaited > 0 {
            let room = awaited.min(answer.len());
            match socket.read(&mut answer[..room]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => awaited -= read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Returns the turns of a stream with one to four of them changed.
fn changed(stream: &Recorded, random: &mut Random) -> Vec<Turn> {
    let mut turns = stream.turns.clone();
    for _ in 0..1 + random.below(3) {
        let at = random.below(turns.len());
        match random.below(8) {
            0 => turns.insert(at, turns[at].clone()),
            1 if turns.len() > 1 => drop(turns.remove(at)),
            _ => mutate(&mut turns[at].sent, random),
        }
    }
    turns
}

/// Sends a stream up to a random byte.
fn cut(socket: &mut TcpStream, stream: &Recorded, random: &mut Random, sent: &mut Sent) -> io::Result<()> {
    let mut turns = stream.turns.clone();
    turns.truncate(1 + random.below(turns.len()));
    if let Some(last) = turns.last_mut() {
        last.sent.truncate(random.below(last.sent.len().max(1)));
        last.answered = 0;
    }
    replay(socket, &turns, TURN_LIMIT, sent)
}

fn random_bytes(most: usize, random: &mut Random) -> Vec<u8> {
    (0..1 + random.below(most)).map(|_| random.number() as u8).collect()
}

/// Sends random bytes: at once, behind the first bytes of a preamble, or as frames.
fn garbage(socket: &mut TcpStream, stream: &Recorded, random: &mut Random, sent: &mut Sent) -> io::Result<()> {
    match random.below(3) {
        0 => {}
        1 => {
            let preamble = &stream.turns[0].sent;
            sent.write(socket, &preamble[..random.below(preamble.len())])?;
        }
        _ => {
            sent.0 += establish(socket, stream)?;
            if random.below(2) == 0 {
                // A frame with a message of random bytes for the endpoint.
                let message = random_bytes(200, random);
                sent.write(socket, &frame(1, message.len() as u32, message.len() as u64))?;
                sent.write(socket, &message)?;
            }
        }
    }
    let tail = random_bytes(MOST_GARBAGE, random);
    sent.write(socket, &tail)
}

/// Returns a short header of a frame.
fn frame(kind: u8, here: u32, value: u64) -> Vec<u8> {
    [&[kind, 0, 0, 0][..], &here.to_le_bytes(), &value.to_le_bytes()].concat()
}

/// Returns a header of WRITE or READ.
fn long_frame(kind: u8, here: u32, len: u64, key: u64, addr: u64) -> Vec<u8> {
    let words = [key, addr, 1].map(u64::to_le_bytes).concat();
    [frame(kind, here, len), words].concat()
}

/// Returns a message of the endpoint whose header has this length, in a frame.
fn message(kind: u8, len: u64, op: u64, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 0, 0, 0];
    [7, len, op].iter().for_each(|word: &u64| message.extend(word.to_le_bytes()));
    message.extend(payload);
    [frame(1, message.len() as u32, message.len() as u64), message].concat()
}

/// Sends a preamble, a frame or a message with a huge length.
fn lengths(socket: &mut TcpStream, stream: &Recorded, random: &mut Random, sent: &mut Sent) -> io::Result<()> {
    const PIECE: u32 = 256 << 10;
    let huge = [u64::MAX, 1 << 63, 1 << 40, u64::from(PIECE) + 1, (4 << 30) + 1][random.below(5)];
    if random.below(6) == 0 {
        let mut preamble = stream.turns[0].sent.clone();
        preamble[12..14].copy_from_slice(&[[255, 255], [1, 1], [0, 255]][random.below(3)]);
        preamble.truncate(PREAMBLE);
        sent.write(socket, &preamble)?;
        return sent.write(socket, &random_bytes(MOST_GARBAGE, random));
    }
    sent.0 += establish(socket, stream)?;
    let pieces = [huge.to_le_bytes(), [0; 8], huge.to_le_bytes()].concat();
    let bytes = match random.below(9) {
        0 => frame(1, PIECE, huge),
        1 => frame(1, u32::MAX, huge),
        2 => long_frame(2, PIECE, huge, random.number(), 0),
        3 => long_frame(4, 0, huge, random.number(), huge),
        4 => frame(3, PIECE, 0),
        5 => frame(5, PIECE, huge & 0xffff_ffff),
        6 => message(1 + random.below(2) as u8, huge, 0, b"short"),
        7 => message(3, huge, 1, &pieces),
        _ => message(12, huge, random.number(), &pieces),
    };
    sent.write(socket, &bytes)?;
    // As if the payload came.
    sent.write(socket, &random_bytes(MOST_GARBAGE, random))
}
