//! Host names and TCP sockets, never on the caller's time (C1).
//!
//! **Protocol** of reaching an address. IP addresses and `localhost` are known at once
//! ([`literal`]). Anything else goes to a helper thread ([`Resolver`]), started with the first such
//! name; it leaves the answer in a mailbox and wakes the transport. Names are looked up one after
//! another: a slow one delays the next, whose connect then ends by its own deadline. The thread
//! ends when its transport is gone and the look-up at hand is over. Then each address is dialed in
//! turn ([`dial`]), and when its socket reports something, [`dialed`] says what became of it.

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

/// Connections that the system keeps for a listener until they are accepted.
const BACKLOG: i32 = 1024;

/// Socket addresses of a host that needs no look-up.
pub fn literal(addr: &Addr) -> Option<Vec<SocketAddr>> {
    let ips = match addr.host() {
        "localhost" => vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
        host => vec![host.parse().ok()?],
    };
    Some(ips.into_iter().map(|ip| SocketAddr::new(ip, addr.port())).collect())
}

/// Listens at `addr`, without blocking, after `tune` has set what must be set before; returns the
/// address with the port that was taken.
///
/// # Errors
/// `Invalid` for a name that would have to be looked up, and for what [`listen_failed`] calls so;
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

/// Starts to connect to `to`, without blocking, after `tune` has set what must be set before.
///
/// # Errors
/// What the system refuses at once.
pub fn dial(to: SocketAddr, tune: impl FnOnce(&Socket) -> io::Result<()>) -> io::Result<TcpStream> {
    let socket = stream(to)?;
    tune(&socket)?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// What became of a dialed socket that reported something: connected, failed, or `None` for neither
/// yet.
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

/// What became of a look-up.
#[derive(Debug)]
pub struct Answer {
    /// For which connection it was asked.
    pub conn: ConnId,
    /// The addresses, maybe none.
    pub result: io::Result<Vec<SocketAddr>>,
}

struct Question {
    conn: ConnId,
    host: String,
    port: u16,
}

/// What the helper thread shares with the transport.
struct Mailbox {
    answers: Returns<Answer>,
    waker: Waker,
}

/// Looks names up on a thread of its own. The transport's poll takes the answers.
pub struct Resolver {
    thread: &'static str,
    mailbox: Arc<Mailbox>,
    questions: Option<Sender<Question>>,
}

impl Resolver {
    /// No thread yet; it will be called `thread` (15 bytes are shown), and wakes the transport by
    /// `waker`.
    pub fn new(thread: &'static str, waker: Waker) -> Resolver {
        Resolver { thread, mailbox: Arc::new(Mailbox { answers: Returns::default(), waker }), questions: None }
    }

    /// Starts to look `addr` up for `conn`.
    ///
    /// # Errors
    /// `Exhausted` if there is no thread to be had, `Io` if it has ended.
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

    /// The answers that have come; nothing is allocated if none has.
    pub fn answers(&self) -> Vec<Answer> {
        let mut answers = Vec::new();
        self.mailbox.answers.drain(&mut answers);
        answers
    }

    /// Whether an answer waits.
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
    fn literals_need_no_lookup() {
        let text = |addr: Addr| literal(&addr).map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(text(Addr::tcp("10.1.2.3", 4)), Some(vec!["10.1.2.3:4".to_owned()]));
        assert_eq!(text(Addr::tcp("::1", 4)), Some(vec!["[::1]:4".to_owned()]));
        assert_eq!(text(Addr::tcp("localhost", 4)), Some(vec!["127.0.0.1:4".to_owned(), "[::1]:4".to_owned()]));
        assert_eq!(text(Addr::tcp("iod-3.example", 4)), None);
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
        // No name at all, so that no server is asked for it.
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
