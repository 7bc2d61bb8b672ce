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

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::job::{Job, Order, Part, Ready};

/// The version of the protocol.
pub(super) const VERSION: u32 = 1;
/// Length of the longest line before the other side is known, in bytes.
pub(super) const HELLO_LINE: u64 = 4 << 10;
/// Length of the longest line of the leader: a job.
pub(super) const LEADER_LINE: u64 = 64 << 10;
/// Length of the longest line of a follower: a histogram has at most some 50,000 values.
pub(super) const FOLLOWER_LINE: u64 = 4 << 20;

/// The first line of a follower.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Hello {
    /// [`VERSION`]. The name tells strangers.
    pub(super) pvfs_bench: u32,
    /// The version of the program.
    pub(super) program: String,
    /// The name of the host.
    pub(super) name: String,
}

impl Hello {
    pub(super) fn new(name: String) -> Hello {
        Hello { pvfs_bench: VERSION, program: env!("CARGO_PKG_VERSION").to_owned(), name }
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
        match line.pop() {
            None => Ok(None),
            Some(b'\n') => String::from_utf8(line).map(Some).map_err(io::Error::other),
            Some(_) if line.len() as u64 + 1 == most => {
                Err(io::Error::other(format!("a line of more than {most} bytes")))
            }
            Some(_) => Err(io::Error::other("the connection ended within a line")),
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
    fn a_hello_is_recognised_and_a_stranger_too() {
        let hello = Hello::new("a".into());
        let line = |hello: &Hello| serde_json::to_string(hello).unwrap();
        assert_eq!(Hello::parse(&line(&hello)), Ok(hello.clone()));
        let newer = Hello::parse(&line(&Hello { pvfs_bench: 2, ..hello.clone() })).unwrap_err();
        assert!(newer.contains("version 2") && newer.contains("version 1"), "{newer}");
        for stranger in ["GET / HTTP/1.1", "{}", "[1]", "{\"pvfs_bench\":1}", "{\"pvfs_bench\":\"1\"}"] {
            assert!(Hello::parse(stranger).unwrap_err().contains("no 'pvfs bench join'"), "{stranger}");
        }
        let named = Hello::parse(&line(&Hello { name: "\u{1b}[2J".into(), ..hello })).unwrap_err();
        assert!(named.contains("proper name"), "{named}");
    }
}
