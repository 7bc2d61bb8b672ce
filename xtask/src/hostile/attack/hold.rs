//! Attacks that hold connections: half-open ones, idle ones, and ones that send a byte each second.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::{is_over, shm, sleep, tcp};
use crate::hostile::spec::{Done, Kind, Over, Recording, Spec, TcpStream as Recorded};

/// How often each connection is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The looks between two bytes of a slow sender: a second.
const SLOW: u64 = 20;

/// Holds connections until the process shall end. Opens those again that a server closes.
///
/// Prints an empty line when each has been opened once.
pub(super) fn hold(spec: &Spec, recordings: &[Recording], connections: usize) -> Result<Done, String> {
    let mut done = Done::default();
    let mut held: Vec<Option<Held>> = (0..connections).map(|_| None).collect();
    let mut round = 0;
    while !is_over() {
        for (number, place) in held.iter_mut().enumerate() {
            if is_over() {
                break;
            }
            if place.as_mut().is_some_and(|one| one.is_open(round, &mut done)) {
                continue;
            }
            let target = number % spec.targets.len();
            *place = Held::open(spec, &spec.targets[target].addr, &recordings[target], number).ok();
            match place {
                Some(_) => done.streams += 1,
                None => done.refused += 1,
            }
        }
        if round == 0 {
            writeln!(io::stdout()).map_err(|error| error.to_string())?;
        }
        round += 1;
        sleep(LOOK_AGAIN);
    }
    Ok(done)
}

/// A connection that is held.
enum Held {
    /// With the bytes that are still to be sent, one after the other.
    Tcp {
        socket: TcpStream,
        slow: Vec<u8>,
        at: usize,
    },
    Shm {
        link: shm::Link,
        is_slow: bool,
    },
}

impl Held {
    fn open(spec: &Spec, addr: &str, recording: &Recording, number: usize) -> io::Result<Held> {
        match spec.over {
            Over::Tcp => {
                let mut socket = tcp::dial(addr)?;
                let stream = recording.tcp.first().ok_or(io::ErrorKind::NotFound)?;
                let slow = begin(spec.kind, &mut socket, stream, number)?;
                socket.set_nonblocking(true)?;
                Ok(Held::Tcp { socket, slow, at: 0 })
            }
            Over::Shm => {
                let stream = recording.shm.first().ok_or(io::ErrorKind::NotFound)?;
                let mut link = shm::Link::dial(addr)?;
                if spec.kind != Kind::HalfOpen {
                    link.establish(stream)?;
                }
                Ok(Held::Shm { link, is_slow: spec.kind == Kind::Slow })
            }
        }
    }

    /// Sends what is due. Returns false if the server has closed the connection.
    fn is_open(&mut self, round: u64, done: &mut Done) -> bool {
        match self {
            Held::Tcp { socket, slow, at } => {
                if round.is_multiple_of(SLOW) && *at < slow.len() {
                    if socket.write(&slow[*at..=*at]).is_ok() {
                        done.bytes += 1;
                    }
                    *at += 1;
                }
                !matches!(socket.read(&mut [0; 4096]), Ok(0))
            }
            Held::Shm { link, is_slow } => {
                if *is_slow && round.is_multiple_of(SLOW) && link.trickle().is_ok() {
                    done.bytes += 1;
                }
                link.is_open()
            }
        }
    }
}

/// Begins a connection over TCP. Returns the bytes that it sends slowly.
fn begin(kind: Kind, socket: &mut TcpStream, stream: &Recorded, number: usize) -> io::Result<Vec<u8>> {
    match kind {
        Kind::HalfOpen => Ok(Vec::new()),
        Kind::Slow if number.is_multiple_of(2) => Ok(stream.turns[0].sent.clone()),
        Kind::Slow => {
            tcp::establish(socket, stream)?;
            Ok(stream.turns.iter().skip(1).flat_map(|turn| turn.sent.clone()).collect())
        }
        _ => tcp::establish(socket, stream).map(|_| Vec::new()),
    }
}
