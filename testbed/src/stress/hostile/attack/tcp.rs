//! Streams over sockets.
//!
//! **Source.** The bytes are those of `bmi-tcp/src/frame.rs` and `bmi-core/src/wire/header.rs`,
//! written here once more: an attacker does not use the library.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use bmi_report::stats::Random;

use super::{ANSWER_LIMIT, TURN_LIMIT, random_bytes};
use crate::hostile::spec::{Kind, Part, Stream};

/// Bytes of a preamble without its private data.
const PREAMBLE: usize = 16;
/// Longest random tail in bytes.
const MOST_GARBAGE: usize = 4096;

/// Sends one stream. Returns its length and its socket. The error is that nobody accepted it.
pub(super) fn send(kind: Kind, addr: &str, stream: &Stream, random: &mut Random) -> io::Result<(u64, OwnedFd)> {
    let mut socket = Socket { socket: dial(addr)?, sent: 0 };
    // A server may close the connection at any byte. That is the end of the stream, not an error.
    let _ = match kind {
        Kind::Garbage => socket.garbage(stream, random),
        Kind::Lengths => socket.lengths(stream, random),
        _ => socket.replay(&stream.parts),
    };
    if kind == Kind::Cut && random.below(2) == 0 {
        // The socket ends with a reset instead of an end.
        let _ = rustix::net::sockopt::set_socket_linger(&socket.socket, Some(Duration::ZERO));
    }
    Ok((socket.sent, socket.socket.into()))
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
pub(super) fn establish(socket: &mut TcpStream, stream: &Stream) -> io::Result<()> {
    socket.write_all(&stream.parts[0].sent)?;
    await_answer(socket, stream.parts[0].answered, ANSWER_LIMIT)
}

/// Waits until the server has sent so many bytes, but not longer than `limit` for the next ones.
fn await_answer(socket: &mut TcpStream, mut awaited: usize, limit: Duration) -> io::Result<()> {
    let mut answer = [0; 4096];
    socket.set_read_timeout(Some(limit))?;
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
    Ok(())
}

/// A connection, and the number of bytes that it has sent.
struct Socket {
    socket: TcpStream,
    sent: u64,
}

impl Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.socket.write_all(bytes)?;
        self.sent += bytes.len() as u64;
        Ok(())
    }

    /// Sends turns. Waits after each until the server has sent as many bytes as it had sent then,
    /// but not for long, except for the acceptance: a frame before it is an error of its own, and
    /// not what is to be tested.
    fn replay(&mut self, turns: &[Part]) -> io::Result<()> {
        for (number, turn) in turns.iter().enumerate() {
            self.write(&turn.sent)?;
            await_answer(&mut self.socket, turn.answered, if number == 0 { ANSWER_LIMIT } else { TURN_LIMIT })?;
        }
        Ok(())
    }

    /// Sends random bytes: at once, behind the first bytes of a preamble, or as frames.
    fn garbage(&mut self, stream: &Stream, random: &mut Random) -> io::Result<()> {
        match random.below(3) {
            0 => {}
            1 => {
                let preamble = &stream.parts[0].sent;
                self.write(&preamble[..random.below(preamble.len())])?;
            }
            _ => {
                self.replay(&stream.parts[..1])?;
                if random.below(2) == 0 {
                    // A frame with a message of random bytes for the endpoint.
                    self.write(&in_frame(&random_bytes(200, random)))?;
                }
            }
        }
        self.write(&random_bytes(MOST_GARBAGE, random))
    }

    /// Sends a preamble, a frame or a message with a huge length.
    fn lengths(&mut self, stream: &Stream, random: &mut Random) -> io::Result<()> {
        const PIECE: u32 = 256 << 10;
        let huge = [u64::MAX, 1 << 63, 1 << 40, u64::from(PIECE) + 1, (4 << 30) + 1][random.below(5)];
        if random.below(6) == 0 {
            let mut preamble = stream.parts[0].sent.clone();
            preamble[12..14].copy_from_slice(&[[255, 255], [1, 1], [0, 255]][random.below(3)]);
            preamble.truncate(PREAMBLE);
            self.write(&preamble)?;
        } else {
            self.replay(&stream.parts[..1])?;
            let pieces = [huge.to_le_bytes(), [0; 8], huge.to_le_bytes()].concat();
            self.write(&match random.below(9) {
                0 => frame(1, PIECE, huge),
                1 => frame(1, u32::MAX, huge),
                2 => long_frame(2, PIECE, huge, random.number(), 0),
                3 => long_frame(4, 0, huge, random.number(), huge),
                4 => frame(3, PIECE, 0),
                5 => frame(5, PIECE, huge & 0xffff_ffff),
                6 => message(1 + random.below(2) as u8, huge, 0, b"short"),
                7 => message(3, huge, 1, &pieces),
                _ => message(12, huge, random.number(), &pieces),
            })?;
        }
        // As if the payload came.
        self.write(&random_bytes(MOST_GARBAGE, random))
    }
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

/// Returns a message in a frame.
fn in_frame(message: &[u8]) -> Vec<u8> {
    [frame(1, message.len() as u32, message.len() as u64), message.to_vec()].concat()
}

/// Returns a message of the endpoint whose header has this length, in a frame.
fn message(kind: u8, len: u64, op: u64, payload: &[u8]) -> Vec<u8> {
    let header = [7, len, op].map(u64::to_le_bytes).concat();
    in_frame(&[&[kind, 0, 0, 0, 0, 0, 0, 0], &header[..], payload].concat())
}
