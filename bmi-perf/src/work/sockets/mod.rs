//! The baseline of a network: the least work with which two programs can use TCP sockets. Calls do
//! not block. If there is nothing to read, a side tries again, or waits in `epoll_wait`.
//!
//! Each connection uses as many buffers in turn as the library does, so that both touch the same
//! amount of memory. Each message is written by a call of its own. A stream of small messages is
//! read as it comes, many with one call. A thread with several connections reads those that `epoll`
//! names.
//!
//! | module | what is there |
//! |---|---|
//! | `line` | a connection whose calls do not block |
//! | `turns` | the loop that runs several of them |
//! | `spin` | how long a hybrid side polls before it sleeps |
//! | `part` | what happens on a connection in a round |

mod line;
mod part;
mod spin;
mod turns;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use bmi::Error;
use rustix::event::{PollFd, PollFlags, poll};

use self::line::Line;
use self::part::Part;
pub(super) use self::part::READ;
pub(super) use self::turns::LOOK;
use crate::case::Case;
use crate::measured::{Measured, now};
use crate::stop::Stop;

/// How long a connection may take to be made.
const PATIENCE: Duration = Duration::from_secs(10);

/// The connections of a thread.
pub(crate) struct Sockets {
    lines: Vec<Line>,
}

/// Listens for connections on one address of this host.
pub(crate) fn listen(ip: IpAddr) -> Result<(TcpListener, u16), Error> {
    let listener = TcpListener::bind(SocketAddr::new(ip, 0))?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    Ok((listener, port))
}

/// Connects `connections` times to a server's thread.
pub(crate) fn connect(to: SocketAddr, connections: u32) -> Result<Vec<TcpStream>, Error> {
    (0..connections).map(|_| Ok(TcpStream::connect_timeout(&to, PATIENCE)?)).collect()
}

/// Waits for the connections of a client's thread.
pub(crate) fn accept(listener: &TcpListener, connections: u32, stop: &Stop) -> Result<Vec<TcpStream>, Error> {
    let mut streams = Vec::new();
    let end = now() + 2 * PATIENCE;
    while streams.len() < connections as usize {
        if now() >= end || stop.is_set() {
            return Err(Error::new(bmi::ErrorKind::TimedOut, "the client did not connect"));
        }
        match listener.accept() {
            Ok((stream, _)) => streams.push(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&LOOK)).map_err(std::io::Error::from)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(streams)
}

impl Sockets {
    pub(crate) fn new(streams: Vec<TcpStream>) -> Result<Sockets, Error> {
        let lines: std::io::Result<Vec<Line>> = streams.into_iter().map(Line::new).collect();
        Ok(Sockets { lines: lines? })
    }

    /// Runs the client's part: `count` messages on each connection.
    pub(crate) fn measure(&self, case: &Case, count: u64, stop: &Stop) -> Result<Measured, Error> {
        let parts = self.lines.iter().map(|line| Part { line, case, count }.measure());
        let measured = turns::run(&self.lines, parts, case.waiting, stop)?;
        Ok(measured.into_iter().fold(Measured::default(), Measured::beside))
    }

    /// Runs the server's part.
    pub(crate) fn serve(&self, case: &Case, count: u64, stop: &Stop) -> Result<(), Error> {
        let parts = self.lines.iter().map(|line| Part { line, case, count }.serve());
        turns::run(&self.lines, parts, case.waiting, stop).map(drop)
    }
}
