//! What hosts send each other: lines of JSON over TCP.
//!
//! **Protocol**
//!
//! ```text
//!   follower ──▶ Hello                     leader ──▶ Welcome, or Refused with the reason
//!                                          leader ──▶ Job
//!   follower ──▶ Ready, or Failed          leader ──▶ Do, for each phase; Stop ends it early
//!   follower ──▶ Done, or Failed           …
//!                                          the connection ends: the run is over
//! ```
//!
//! **Invariants**
//! 1. A line has a bounded length, which depends on who sends it. A longer line ends the
//!    connection.
//! 2. The hello has the version of the protocol. Both sides say which they have if they differ.
//! 3. The first line of either side has a deadline as a whole, so a side that sends a byte now and
//!    then is not waited for either.
//! 4. A host that is gone without a word is noticed: connections are probed ([`prepare`]).

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bmi::driver::MonotonicClock;
use bmi::{Clock, Time};
use rustix::net::sockopt;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::job::{Job, Order, Part, Ready};

/// The version of the protocol.
pub(super) const VERSION: u32 = 5;
/// Length of the longest line before the other side is known, in bytes.
pub(super) const HELLO_LINE: u64 = 4 << 10;
/// Length of the longest line of the leader: a job.
pub(super) const LEADER_LINE: u64 = 64 << 10;
/// Length of the longest line of a follower: a histogram has at most some 50,000 values.
pub(super) const FOLLOWER_LINE: u64 = 4 << 20;

/// How long a connection may be silent before it is probed, and the time between two probes.
const PROBE_AFTER: Duration = Duration::from_secs(15);
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// So many probes without an answer end the connection: 45 seconds after its last sign of life.
const PROBES: u32 = 6;
/// How long a side may take to make room for a line.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

/// The first line of a follower.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// [`VERSION`]. The name tells strangers.
    pub(super) pvfs_bench: u32,
    /// The version of the program.
    pub(super) program: String,
    /// The name of the host.
    pub(super) name: String,
    /// The secret of the run.
    #[serde(default)]
    pub(super) token: Option<String>,
}

impl Hello {
    pub(super) fn new(name: String, token: Option<String>) -> Hello {
        Hello { pvfs_bench: VERSION, program: env!("CARGO_PKG_VERSION").to_owned(), name, token }
    }

    /// Parses the first line.
    ///
    /// # Errors
    /// A line that says what is wrong with it.
    pub(super) fn parse(line: &str) -> Result<Hello, String> {
        let stranger = || "this is no 'pvfs bench join'".to_owned();
        let value: Value = serde_json::from_str(line).map_err(|_| stranger())?;
        let version = value.get("pvfs_bench").and_then(Value::as_u64).ok_or_else(stranger)?;
        if version != u64::from(VERSION) {
            return Err(format!("version {version} of the benchmark's protocol, and this host has version {VERSION}"));
        }
        let hello: Hello = serde_json::from_value(value).map_err(|_| stranger())?;
        if hello.name.is_empty() || hello.name.len() > 255 || hello.name.contains(char::is_control) {
            return Err("the host has no proper name".to_owned());
        }
        Ok(hello)
    }
}

/// What the leader says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FromLeader {
    /// The hello was right.
    Welcome,
    /// The reason why not.
    Refused(String),
    Job(Box<Job>),
    Do(Order),
    /// End the phase early.
    Stop,
}

/// What a follower says after its hello.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FromFollower {
    Ready(Ready),
    Done(Box<Part>),
    Failed(String),
}

/// Prepares a connection: lines are sent at once, and the end of the other host is noticed.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(WRITE_LIMIT))?;
    sockopt::set_tcp_keepidle(stream, PROBE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, PROBE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

/// Sends a message as one line.
pub(super) fn send(mut stream: &TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    stream.write_all(line.as_bytes())
}

/// Reads lines of a connection.
pub(super) struct Lines(BufReader<TcpStream>);

impl Lines {
    pub(super) fn new(stream: TcpStream) -> Lines {
        Lines(BufReader::new(stream))
    }

    /// Returns the next line, or `None` at the end of the connection.
    ///
    /// # Errors
    /// If the line has more than `most` bytes, or is cut off, or the connection fails.
    pub(super) fn next(&mut self, most: u64) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        (&mut self.0).take(most).read_until(b'\n', &mut line)?;
        whole(line, most)
    }

    /// Returns the next line, or `None` at the end of the connection, if it is there by the
    /// deadline.
    ///
    /// # Errors
    /// As [`Lines::next`], and [`ErrorKind::TimedOut`].
    pub(super) fn next_by(&mut self, deadline: Time, clock: MonotonicClock, most: u64) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        loop {
            let remaining = deadline.since(clock.now());
            if remaining.is_zero() {
                return Err(too_late());
            }
            self.0.get_ref().set_read_timeout(Some(remaining))?;
            let room = most.saturating_sub(line.len() as u64) as usize;
            let piece = match self.0.fill_buf() {
                Ok(piece) => &piece[..piece.len().min(room)],
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(too_late()),
                Err(error) => return Err(error),
            };
            let piece = piece.split_inclusive(|byte| *byte == b'\n').next().unwrap_or_default();
            let (taken, is_end) = (piece.len(), piece.is_empty() || piece.ends_with(b"\n"));
            line.extend_from_slice(piece);
            self.0.consume(taken);
            if is_end || line.len() as u64 >= most {
                self.0.get_ref().set_read_timeout(None)?;
                return whole(line, most);
            }
        }
    }

    /// Returns the next message, or `None` at the end of the connection.
    ///
    /// # Errors
    /// As [`Lines::next`], and if the line is no such message.
    pub(super) fn message<M: DeserializeOwned>(&mut self, most: u64) -> io::Result<Option<M>> {
        let Some(line) = self.next(most)? else { return Ok(None) };
        Ok(Some(serde_json::from_str(&line)?))
    }
}

/// Checks the bytes of a line, of which there are at most `most`.
fn whole(mut line: Vec<u8>, most: u64) -> io::Result<Option<String>> {
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => String::from_utf8(line).map(Some).map_err(io::Error::other),
        Some(_) if line.len() as u64 + 1 == most => Err(io::Error::other(format!("a line of more than {most} bytes"))),
        Some(_) => Err(io::Error::other("the connection ended within a line")),
    }
}

fn too_late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "it says nothing")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Returns the reader of a connection that gets `bytes` and then ends.
    fn lines(bytes: &[u8]) -> Lines {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        sender.write_all(bytes).unwrap();
        Lines::new(listener.accept().unwrap().0)
    }

    #[test]
    fn lines_are_bounded_and_whole() {
        let mut some = lines(b"one\ntwo\n");
        assert_eq!(some.next(4).unwrap().as_deref(), Some("one"));
        assert_eq!(some.next(4).unwrap().as_deref(), Some("two"));
        assert_eq!(some.next(4).unwrap(), None);
        assert!(lines(b"four\n").next(4).unwrap_err().to_string().contains("more than 4 bytes"));
        assert!(lines(b"cut").next(4).unwrap_err().to_string().contains("within a line"));
        assert!(lines(b"{}\n").message::<FromLeader>(9).is_err());
    }

    #[test]
    fn lines_with_a_deadline_are_the_same() {
        let clock = MonotonicClock::new();
        let by = |some: &mut Lines, most| some.next_by(clock.now() + Duration::from_secs(600), clock, most);
        let mut some = lines(b"one\ntwo\n");
        assert_eq!(by(&mut some, 4).unwrap().as_deref(), Some("one"));
        assert_eq!(some.next(4).unwrap().as_deref(), Some("two"));
        assert_eq!(by(&mut some, 4).unwrap(), None);
        assert!(by(&mut lines(b"four\n"), 4).unwrap_err().to_string().contains("more than 4 bytes"));
        assert!(by(&mut lines(b"cut"), 4).unwrap_err().to_string().contains("within a line"));
        let past = lines(b"one\n").next_by(clock.now(), clock, 4).unwrap_err();
        assert_eq!(past.kind(), ErrorKind::TimedOut);
    }

    /// A stranger that sends a byte whenever the time for one read is nearly over was waited for
    /// 4,096 times as long.
    #[test]
    fn a_deadline_is_that_of_the_whole_line() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut slow = Lines::new(listener.accept().unwrap().0);
        let clock = MonotonicClock::new();
        let deadline = clock.now() + Duration::from_millis(20);
        let body = move || (0..1 << 22).try_for_each(|_| sender.write_all(b"x"));
        let drip = std::thread::Builder::new().spawn(body).unwrap();
        assert_eq!(slow.next_by(deadline, clock, u64::MAX).unwrap_err().kind(), ErrorKind::TimedOut);
        drop(slow);
        assert!(drip.join().unwrap().is_err(), "it has sent until the connection ended");
    }

    #[test]
    fn a_hello_is_recognised_and_a_stranger_too() {
        let hello = Hello::new("a".into(), Some("secret".into()));
        let line = |hello: &Hello| serde_json::to_string(hello).unwrap();
        assert_eq!(Hello::parse(&line(&hello)), Ok(hello.clone()));
        let newer = Hello::parse(&line(&Hello { pvfs_bench: VERSION + 1, ..hello.clone() })).unwrap_err();
        let both = [VERSION + 1, VERSION].map(|version| format!("version {version}"));
        assert!(both.iter().all(|version| newer.contains(version)), "{newer}");
        for stranger in ["GET / HTTP/1.1", "{}", "[1]", "{\"pvfs_bench\":5}", "{\"pvfs_bench\":\"5\"}"] {
            assert!(Hello::parse(stranger).unwrap_err().contains("no 'pvfs bench join'"), "{stranger}");
        }
        let named = Hello::parse(&line(&Hello { name: "\u{1b}[2J".into(), ..hello })).unwrap_err();
        assert!(named.contains("proper name"), "{named}");
    }
}
