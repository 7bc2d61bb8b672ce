//! Host names and TCP sockets, without blocking the caller (C1).
//!
//! **Protocol** of reaching an address. IP addresses and `localhost` need no lookup ([`literal`]).
//! Any other name goes to a helper thread ([`Resolver`]), which starts with the first such name.
//! The thread puts the answer in a mailbox and wakes the transport. Names are looked up one after
//! another. A slow lookup delays the next, whose connect then ends by its own deadline. The thread
//! ends when its transport is dropped and the current lookup has finished. Then each address is
//! dialed in turn ([`dial`]). When its socket reports an event, [`dialed`] returns the result.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::thread;

use bmi_core::transport::ConnId;
use bmi_core::{Addr, Error, ErrorKind, Returns};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::listen_failed;

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

/// The result of a lookup.
#[derive(Debug)]
pub struct Answer {
    /// The connection that asked for it.
    pub conn: ConnId,
    /// The addresses, possibly none.
    pub result: io::Result<Vec<SocketAddr>>,
}

struct Question {
    conn: ConnId,
    host: String,
    port: u16,
}

/// State shared by the helper thread and the transport.
struct Mailbox {
    answers: Returns<Answer>,
    waker: Waker,
}

/// Looks up names on a thread of its own. The transport collects the answers in its poll.
pub struct Resolver {
    thread: &'static str,
    mailbox: Arc<Mailbox>,
    questions: Option<Sender<Question>>,
}

impl Resolver {
    /// Creates a resolver without a thread. The thread will be named `thread` (the system shows 15
    /// bytes). It wakes the transport with `waker`.
    pub fn new(thread: &'static str, waker: Waker) -> Resolver {
        Resolver { thread, mailbox: Arc::new(Mailbox { answers: Returns::default(), waker }), questions: None }
    }

    /// Starts to look up `addr` for `conn`.
    ///
    /// # Errors
    /// `Exhausted` if no thread can be started, `Io` if the thread has ended.
    pub fn ask(&mut self, conn: ConnId, addr: &Addr) -> Result<(), Error> {
        if self.questions.is_none() {
            let (sender, questions) = channel();
            let mailbox = Arc::downgrade(&self.mailbox);
            thread::Builder::new()
                .name(self.thread.to_owned())
                .spawn(move || serve(&questions, &mailbox))
                .map_err(|error| Error::new(ErrorKind::Exhausted, "no thread to look names up").caused_by(error))?;
            self.questions = Some(sender);
        }
        let question = Question { conn, host: addr.host().to_owned(), port: addr.port() };
        let sent = self.questions.as_ref().is_some_and(|questions| questions.send(question).is_ok());
        if sent { Ok(()) } else { Err(Error::new(ErrorKind::Io, "the thread that looks names up is gone")) }
    }

    /// Returns the answers that have arrived.
    pub fn answers(&self) -> Vec<Answer> {
        let mut answers = Vec::new();
        self.mailbox.answers.drain(&mut answers);
        answers
    }

    /// Returns true if an answer is waiting.
    #[inline]
    pub fn has_answers(&self) -> bool {
        !self.mailbox.answers.is_empty()
    }
}

fn serve(questions: &Receiver<Question>, mailbox: &Weak<Mailbox>) {
    while let Ok(Question { conn, host, port }) = questions.recv() {
        let result = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        let Some(mailbox) = mailbox.upgrade() else { return };
        mailbox.answers.push(Answer { conn, result });
        mailbox.waker.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

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
                thread::yield_now();
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
    fn an_answer_wakes_the_transport() {
        struct Flag(AtomicBool);
        impl Wake for Flag {
            fn wake(self: Arc<Flag>) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let flag = Arc::new(Flag(AtomicBool::new(false)));
        let mut resolver = Resolver::new("test-resolve", Waker::from(flag.clone()));
        let conn = ConnId { slot: 3, generation: 1 };
        // Not a valid name, so no server is asked.
        resolver.ask(conn, &Addr::tcp("::1%no-such-interface", 1)).unwrap();
        while !flag.0.load(Ordering::SeqCst) {
            thread::yield_now();
        }
        assert!(resolver.has_answers());
        let answers = resolver.answers();
        assert_eq!((answers.len(), answers[0].conn), (1, conn));
        assert!(answers[0].result.is_err() && !resolver.has_answers());
    }
}
