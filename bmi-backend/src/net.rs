//! Host names and TCP sockets, without blocking the caller (C1).
//!
//! **Protocol** of reaching an address. IP addresses and `localhost` need no lookup ([`literal`]).
//! Any other name goes to a helper thread ([`Resolver`]). Names are looked up one after another. A
//! slow lookup delays the next, whose connect then ends by its own deadline. Then each address is
//! dialed in turn ([`dial`]). When its socket reports an event, [`dialed`] returns the result.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::task::Waker;

use bmi_core::transport::ConnId;
use bmi_core::{Addr, Error, ErrorKind};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::{Helpers, Outcome, listen_failed};

/// Number of connections that the system queues for a listener until they are accepted.
const BACKLOG: i32 = 1024;

/// Returns the socket addresses of a host that needs no lookup.
pub fn literal(addr: &Addr) -> Option<Vec<SocketAddr>> {
    let ips = match addr.host() {
        "localhost" => vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
        host => vec![host.parse().ok()?],
    };
    Some(ips.into_iter().map(|ip| SocketAddr::new(ip, addr.port())).collect())
}

/// Returns what counts as one origin of connections: an IPv4 address, or the first 64 bits of an
/// IPv6 address. A host may have all IPv6 addresses that begin alike.
pub fn origin(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
        ip => ip,
    }
}

/// Creates a non-blocking listener at `addr`, after `tune` has set socket options. Returns the
/// address with the port in use.
///
/// # Errors
/// `Invalid` for a name that would need a lookup, and in the cases of [`listen_failed`];
/// `Exhausted`, `Io`.
pub fn listen(addr: &Addr, tune: impl FnOnce(&Socket) -> io::Result<()>) -> Result<(TcpListener, Addr), Error> {
    let Some(&[at, ..]) = literal(addr).as_deref() else {
        let why = format!("{addr}: listen at an IP address or localhost, names are not looked up");
        return Err(Error::new(ErrorKind::Invalid, why));
    };
    let bind = || {
        let socket = stream(at)?;
        socket.set_reuse_address(true)?;
        tune(&socket)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        let port = listener.local_addr()?.port();
        Ok((listener, addr.with_port(port)))
    };
    bind().map_err(|error| listen_failed(addr, error))
}

/// Starts to connect to `to` without blocking, after `tune` has set socket options.
///
/// # Errors
/// Those that the system reports at once.
pub fn dial(to: SocketAddr, tune: impl FnOnce(&Socket) -> io::Result<()>) -> io::Result<TcpStream> {
    let socket = stream(to)?;
    tune(&socket)?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Dials the candidates in turn, until one can be dialed. Takes those that were tried out of
/// `candidates`.
///
/// # Errors
/// The error of the last one, or `None` if there was no candidate.
pub fn dial_first<S>(
    candidates: &mut Vec<SocketAddr>,
    mut dial: impl FnMut(SocketAddr) -> io::Result<S>,
) -> Result<S, Option<io::Error>> {
    let mut failed = None;
    while !candidates.is_empty() {
        match dial(candidates.remove(0)) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed)
}

/// Returns the result of a dialed socket that reported an event: connected, failed, or `None` if it
/// is still connecting.
pub fn dialed(stream: &impl AsFd) -> Option<io::Result<()>> {
    let socket = SockRef::from(stream);
    match (socket.take_error(), socket.peer_addr()) {
        (Ok(None), Ok(_)) => Some(Ok(())),
        (Ok(None), Err(error)) if error.kind() == io::ErrorKind::NotConnected => None,
        (Ok(Some(error)), _) | (Err(error), _) | (Ok(None), Err(error)) => Some(Err(error)),
    }
}

fn stream(at: SocketAddr) -> io::Result<Socket> {
    Socket::new(Domain::for_address(at), Type::STREAM.nonblocking(), Some(Protocol::TCP))
}

/// The addresses of a name, possibly none.
pub type Answer = Outcome<Vec<SocketAddr>>;

/// Looks up names on a thread of its own. The transport collects the answers in its poll.
pub struct Resolver(Helpers<Vec<SocketAddr>>);

impl Resolver {
    /// Creates a resolver without a thread. The thread will be named `thread` (the system shows 15
    /// bytes). It wakes the transport with `waker`.
    pub fn new(thread: &'static str, waker: Waker) -> Resolver {
        Resolver(Helpers::new(thread, 1, waker))
    }

    /// Starts to look up `addr` for `conn`.
    ///
    /// # Errors
    /// `Exhausted` if no thread can be started.
    pub fn ask(&mut self, conn: ConnId, addr: &Addr) -> Result<(), Error> {
        let (host, port) = (addr.host().to_owned(), addr.port());
        let asked = self.0.run(conn, move || Ok((host.as_str(), port).to_socket_addrs()?.collect()));
        asked.map_err(|error| Error::new(ErrorKind::Exhausted, "no thread to look names up").caused_by(error))
    }

    /// Returns the answers that have arrived. Allocates nothing if there are none.
    pub fn answers(&mut self) -> Vec<Answer> {
        self.0.outcomes()
    }

    /// Returns true if an answer is waiting.
    #[inline]
    pub fn has_answers(&self) -> bool {
        self.0.has_outcomes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_one_origin_whatever_its_addresses_end_in() {
        let origin = |text: &str| origin(text.parse().unwrap()).to_string();
        assert_eq!(origin("10.1.2.3"), "10.1.2.3");
        assert_eq!(origin("::ffff:10.1.2.3"), "10.1.2.3");
        assert_eq!(origin("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }

    #[test]
    fn literals_need_no_lookup() {
        let text = |addr: Addr| literal(&addr).map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(text(Addr::tcp("10.1.2.3", 4)), Some(vec!["10.1.2.3:4".to_owned()]));
        assert_eq!(text(Addr::tcp("::1", 4)), Some(vec!["[::1]:4".to_owned()]));
        assert_eq!(text(Addr::tcp("localhost", 4)), Some(vec!["127.0.0.1:4".to_owned(), "[::1]:4".to_owned()]));
        assert_eq!(text(Addr::tcp("iod-3.example", 4)), None);
    }

    #[test]
    fn candidates_are_dialed_in_turn_and_the_last_error_counts() {
        let ports = |ports: &[u16]| ports.iter().map(|port| SocketAddr::from(([127, 0, 0, 1], *port))).collect();
        let dial = |to: SocketAddr| match to.port() {
            port @ 1..=9 => Err(io::Error::from_raw_os_error(port.into())),
            port => Ok(port),
        };
        let mut candidates: Vec<SocketAddr> = ports(&[1, 2, 10, 3, 4]);
        assert_eq!(dial_first(&mut candidates, dial).ok(), Some(10));
        assert_eq!(candidates, ports(&[3, 4]), "the rest is for the case that 10 refuses later");
        let error = dial_first(&mut candidates, dial).unwrap_err();
        assert_eq!(error.and_then(|error| error.raw_os_error()), Some(4));
        assert!(candidates.is_empty() && dial_first(&mut candidates, dial).is_err_and(|error| error.is_none()));
    }

    #[test]
    fn listening_dialing_and_being_refused() {
        let (listener, addr) = listen(&Addr::tcp("127.0.0.1", 0), |_| Ok(())).unwrap();
        let ends = |to: SocketAddr| {
            let stream = dial(to, |_| Ok(()))?;
            loop {
                if let Some(result) = dialed(&stream) {
                    return result;
                }
                std::thread::yield_now();
            }
        };
        let to = literal(&addr).unwrap()[0];
        ends(to).unwrap();
        drop(listener);
        assert_eq!(ends(to).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let error = listen(&Addr::tcp("iod-3.example", 0), |_| Ok(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("iod-3.example"), "{error}");
    }

    #[test]
    fn an_answer_arrives_for_its_connection() {
        let mut resolver = Resolver::new("test-resolve", Waker::noop().clone());
        let conn = ConnId { slot: 3, generation: 1 };
        // Not a valid name, so no server is asked.
        resolver.ask(conn, &Addr::tcp("::1%no-such-interface", 1)).unwrap();
        while !resolver.has_answers() {
            std::thread::yield_now();
        }
        let answers = resolver.answers();
        assert_eq!((answers.len(), answers[0].conn), (1, conn));
        assert!(answers[0].result.is_err() && !resolver.has_answers());
    }
}
