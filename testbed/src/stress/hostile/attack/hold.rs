//! Attacks that hold connections: half-open ones, idle ones, and ones that send a byte each second.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use testbed::process::sleep;

use super::{is_over, shm, tcp};
use crate::hostile::spec::{Done, Kind, Over, Spec, Stream};

/// How often each connection is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The looks between two bytes of a slow sender: a second.
const SLOW: u64 = 20;

/// Holds connections until the process shall end. Opens those again that a server closes.
///
/// Prints an empty line when each has been opened once.
pub(super) fn hold(spec: &Spec, recordings: &[Vec<Stream>], connections: usize) -> Done {
    let mut done = Done::default();
    let mut held: Vec<Option<Held>> = (0..connections).map(|_| None).collect();
    for round in 0.. {
        for (number, place) in held.iter_mut().enumerate() {
            if is_over() {
                return done;
            }
            if place.as_mut().is_some_and(|one| one.is_open(round, &mut done)) {
                continue;
            }
            let target = number % spec.targets.len();
            let opened = Held::open(spec, &spec.targets[target].addr, &recordings[target][0], number);
            let (streams, refused) = if opened.is_ok() { (1, 0) } else { (0, 1) };
            done += Done { streams, bytes: 0, refused };
            *place = opened.ok();
        }
        if round == 0 {
            println!();
        }
        sleep(LOOK_AGAIN);
    }
    done
}

/// A connection that is held.
enum Held {
    /// With the bytes that are still to be sent, one after the other.
    Tcp(TcpStream, std::vec::IntoIter<u8>),
    Shm {
        link: shm::Link,
        is_slow: bool,
    },
}

impl Held {
    fn open(spec: &Spec, addr: &str, stream: &Stream, number: usize) -> io::Result<Held> {
        match spec.over {
            Over::Tcp => {
                let mut socket = tcp::dial(addr)?;
                let slow = begin(spec.kind, &mut socket, stream, number)?;
                socket.set_nonblocking(true)?;
                Ok(Held::Tcp(socket, slow.into_iter()))
            }
            Over::Shm => {
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
        let is_due = round.is_multiple_of(SLOW);
        match self {
            Held::Tcp(socket, slow) => {
                if let Some(byte) = is_due.then(|| slow.next()).flatten() {
                    done.bytes += u64::from(socket.write(&[byte]).is_ok());
                }
                !matches!(socket.read(&mut [0; 4096]), Ok(0))
            }
            Held::Shm { link, is_slow } => {
                if *is_slow && is_due {
                    done.bytes += u64::from(link.trickle().is_ok());
                }
                link.is_open()
            }
        }
    }
}

/// Begins a connection over TCP. Returns the bytes that it sends slowly.
fn begin(kind: Kind, socket: &mut TcpStream, stream: &Stream, number: usize) -> io::Result<Vec<u8>> {
    match kind {
        Kind::HalfOpen => return Ok(Vec::new()),
        Kind::Slow if number.is_multiple_of(2) => return Ok(stream.parts[0].sent.clone()),
        _ => tcp::establish(socket, stream)?,
    };
    let rest = stream.parts.iter().skip(1).filter(|_| kind == Kind::Slow);
    Ok(rest.flat_map(|part| part.sent.clone()).collect())
}
