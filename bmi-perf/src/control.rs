//! The control connection: what both sides tell each other besides the measurements.
//!
//! **Why TCP of its own.** It works before any transport does, and tells why one does not.
//!
//! **Protocol.** Each message is a line of JSON, at most [`LONGEST`] bytes.
//!
//! ```text
//!   client                                         server
//!   Hello: magic, version, who ─────────────────▶
//!                         ◀──────────────── Welcome: what it is, what it can open
//!                                           or Refused: another version, another run
//!   Open: a station ────────────────────────────▶  opens endpoints, listens
//!                         ◀──────────────── Opened: an address for each thread, or Failed
//!   connects                                       accepts
//!                         ◀──────────────── Joined, or Failed
//!   Round: a case, a number of messages ────────▶  runs its part
//!   runs its part
//!                         ◀──────────────── Done: what it cost, or Failed
//!   ... the end of the connection ends the run
//! ```
//!
//! **Invariants**
//! 1. A line that is too long, or no message, ends the run with a line that says so. Nothing is
//!    allocated for it beyond [`LONGEST`].
//! 2. A server answers each message with one message. So both know when the other is ready.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use bmi_report::Host;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::case::{Job, Over, Settings, Station};
use crate::usage::Usage;
use crate::work::adapter::Abilities;

/// The port of a server that was not told another.
pub(crate) const PORT: u16 = 7470;
/// The version of this protocol. Both sides must have the same.
pub(crate) const VERSION: u32 = 3;
/// What the first message begins with.
const MAGIC: &str = "bmi-perf";
/// Length of the longest message in bytes: addresses of 256 threads, or a timeline.
const LONGEST: u64 = 64 << 20;
/// Length of the longest first message, from someone who may be anybody.
const LONGEST_HELLO: u64 = 4096;
/// How long a connection may take to be made, and a first message to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// A message of the client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// The first message.
    Hello { magic: String, version: u32, who: String },
    /// Open endpoints and listen.
    Open { station: Station, settings: Settings },
    /// Run a part of a case.
    Round(Job),
}

/// A message of the server.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The answer to the first message.
    Welcome {
        host: Host,
        /// The identity of the host; sides with the same may share memory.
        host_id: Option<String>,
        /// What it can open, or why not.
        overs: BTreeMap<Over, Result<Abilities, String>>,
        /// Why it counts no system calls.
        no_calls: Option<String>,
    },
    /// It does not serve this client.
    Refused { why: String },
    /// Where each thread listens.
    Opened { addrs: Vec<String> },
    /// All connections of a station are there.
    Joined,
    /// Its part is done.
    Done {
        usage: Usage,
        /// What was recorded, as `Timeline::encode` writes it.
        timeline: Option<Vec<u8>>,
    },
    /// Its part failed.
    Failed { why: String },
}

/// Why a run cannot begin or go on.
#[derive(Debug)]
pub(crate) struct Trouble(pub(crate) String);

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Trouble {
    pub(crate) fn new(text: impl Into<String>) -> Trouble {
        Trouble(text.into())
    }
}

/// Reads messages, one on a line.
#[derive(Debug)]
pub(crate) struct Lines {
    from: BufReader<TcpStream>,
    most: u64,
}

impl Lines {
    /// Returns the next message, or `None` at the end of the connection.
    pub(crate) fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, Trouble> {
        let mut line = Vec::new();
        let read = (&mut self.from).take(self.most).read_until(b'\n', &mut line);
        match read {
            Ok(0) => return Ok(None),
            Ok(_) if line.last() == Some(&b'\n') => {}
            Ok(len) if len as u64 == self.most => {
                return Err(Trouble::new(format!("a message of more than {} bytes", self.most)));
            }
            Ok(_) => return Ok(None), // the end, in the middle of a message
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(Trouble::new(format!("no message within {} s", PATIENCE.as_secs())));
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(Trouble::new(error.to_string())),
        }
        serde_json::from_slice(&line).map(Some).map_err(|_| Trouble::new("not a message of bmi-perf"))
    }

    /// Waits for the next messages as long as it takes. They may be long.
    pub(crate) fn trust(&mut self) -> Result<(), Trouble> {
        self.most = LONGEST;
        self.from.get_ref().set_read_timeout(None).map_err(|error| Trouble::new(error.to_string()))
    }
}

/// Returns the two directions of a connection. Until [`Lines::trust`] messages must come soon, and
/// be short.
pub(crate) fn split(stream: TcpStream) -> Result<(Lines, TcpStream), Trouble> {
    let set_up = || {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.try_clone()
    };
    let other = set_up().map_err(|error| Trouble::new(error.to_string()))?;
    Ok((Lines { from: BufReader::new(other), most: LONGEST_HELLO }, stream))
}

/// Sends a message.
pub(crate) fn tell(to: &mut TcpStream, message: &impl Serialize) -> Result<(), Trouble> {
    let mut line = serde_json::to_vec(message).map_err(|error| Trouble::new(error.to_string()))?;
    line.push(b'\n');
    to.write_all(&line).map_err(|error| Trouble::new(format!("the other side is gone: {error}")))
}

/// Returns the first message of a client.
pub(crate) fn hello(who: &str) -> Ask {
    Ask::Hello { magic: MAGIC.to_owned(), version: VERSION, who: who.to_owned() }
}

/// Checks the first message of a client. Returns who it is.
pub(crate) fn check_hello(first: &Ask) -> Result<String, Trouble> {
    match first {
        Ask::Hello { magic, version: VERSION, who } if magic == MAGIC => Ok(who.chars().take(100).collect()),
        Ask::Hello { magic, version, .. } if magic == MAGIC => {
            let text = format!(
                "this server speaks version {VERSION} of the protocol and the client version {version}: \
                 use the same build of bmi-perf on both hosts"
            );
            Err(Trouble::new(text))
        }
        _ => Err(Trouble::new("not a client of bmi-perf")),
    }
}

/// Connects to a server. The text of an error says what to do.
pub(crate) fn connect(host: &str) -> Result<TcpStream, Trouble> {
    let at = with_port(host);
    let addrs: Vec<SocketAddr> = match at.to_socket_addrs() {
        Ok(addrs) => addrs.collect(),
        Err(error) => return Err(Trouble::new(format!("`{host}` is no host that can be found: {error}"))),
    };
    let mut last = Trouble::new(format!("`{host}` has no address"));
    for addr in addrs {
        match TcpStream::connect_timeout(&addr, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                last = Trouble::new(format!(
                    "nothing listens at {addr}: start `bmi-perf serve {}` on that host",
                    if addr.ip().is_loopback() { "127.0.0.1".to_owned() } else { addr.ip().to_string() }
                ));
            }
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                last = Trouble::new(format!(
                    "no answer from {addr} within {} s: the host is down, or a firewall drops what is sent to that \
                     port",
                    PATIENCE.as_secs()
                ));
            }
            Err(error) => last = Trouble::new(format!("cannot reach {addr}: {error}")),
        }
    }
    Err(last)
}

/// Returns `host:port`, with the usual port if there is none.
pub(crate) fn with_port(host: &str) -> String {
    let bare_v6 = host.parse::<std::net::Ipv6Addr>().is_ok();
    match (bare_v6, host.rsplit_once(':')) {
        (true, _) => format!("[{host}]:{PORT}"),
        (false, Some((_, port))) if port.parse::<u16>().is_ok() => host.to_owned(),
        _ => format!("{host}:{PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (a, listener.accept().unwrap().0)
    }

    #[test]
    fn messages_arrive_and_the_end_is_seen() {
        let (a, b) = pair();
        let ((_, mut to), (mut from, _keep)) = (split(a).unwrap(), split(b).unwrap());
        tell(&mut to, &hello("me")).unwrap();
        let first = from.next::<Ask>().unwrap().unwrap();
        assert_eq!(check_hello(&first).unwrap(), "me");
        to.write_all(b"{\"Round\"").unwrap();
        to.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(from.next::<Ask>().unwrap().is_none());
    }

    #[test]
    fn strangers_and_other_versions_are_told_so() {
        let other = Ask::Hello { magic: MAGIC.into(), version: 9, who: String::new() };
        assert!(check_hello(&other).unwrap_err().0.contains("version 9"));
        let (a, b) = pair();
        let ((_, mut to), (mut from, _keep)) = (split(a).unwrap(), split(b).unwrap());
        to.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        assert_eq!(from.next::<Ask>().unwrap_err().0, "not a message of bmi-perf");
        to.write_all(&vec![b'x'; LONGEST_HELLO as usize + 1]).unwrap();
        assert!(from.next::<Ask>().unwrap_err().0.contains("more than"));
    }

    #[test]
    fn a_host_may_have_a_port() {
        assert_eq!(with_port("a.example"), "a.example:7470");
        assert_eq!(with_port("a.example:9"), "a.example:9");
        assert_eq!(with_port("::1"), "[::1]:7470");
        assert_eq!(with_port("[::1]:9"), "[::1]:9");
        assert!(connect("no host at all").unwrap_err().0.contains("no host that can be found"));
    }
}
