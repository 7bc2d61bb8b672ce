//! Names to socket addresses, never on the caller's thread (C1).
//!
//! **Protocol** IP addresses and `localhost` are answered at once. Anything else goes to a helper thread, started with the first such name;
//! it leaves the answer in a mailbox and wakes the transport. Names are looked up one after another: a slow one delays the next, whose
//! connect then ends by its own deadline. The thread ends when its transport is gone and the look-up at hand is over.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;

use bmi_core::transport::ConnId;
use bmi_core::{Addr, Error, ErrorKind, Returns};

/// What became of a look-up.
pub(crate) struct Answer {
    pub(crate) conn: ConnId,
    pub(crate) result: io::Result<Vec<SocketAddr>>,
}

/// Socket addresses of a host that needs no look-up.
pub(crate) fn literal(addr: &Addr) -> Option<Vec<SocketAddr>> {
    let ips = match addr.host() {
        "localhost" => vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)],
        host => vec![host.parse().ok()?],
    };
    Some(ips.into_iter().map(|ip| SocketAddr::new(ip, addr.port())).collect())
}

struct Question {
    conn: ConnId,
    host: String,
    port: u16,
}

/// The helper thread's other end.
pub(crate) struct Resolver {
    answers: Arc<Returns<Answer>>,
    questions: Option<Sender<Question>>,
    waker: Arc<mio::Waker>,
}

impl Resolver {
    pub(crate) fn new(waker: Arc<mio::Waker>) -> Resolver {
        Resolver { answers: Arc::default(), questions: None, waker }
    }

    /// Starts to look `addr` up for `conn`.
    pub(crate) fn ask(&mut self, conn: ConnId, addr: &Addr) -> Result<(), Error> {
        if self.questions.is_none() {
            let (sender, questions) = channel();
            let (answers, waker) = (Arc::downgrade(&self.answers), Arc::downgrade(&self.waker));
            thread::Builder::new()
                .name("bmi-ib-resolve".to_owned())
                .spawn(move || serve(&questions, &answers, &waker))
                .map_err(|error| Error::new(ErrorKind::Exhausted, "no thread to look names up").caused_by(error))?;
            self.questions = Some(sender);
        }
        let question = Question { conn, host: addr.host().to_owned(), port: addr.port() };
        let sent = self.questions.as_ref().is_some_and(|questions| questions.send(question).is_ok());
        if sent { Ok(()) } else { Err(Error::new(ErrorKind::Io, "the thread that looks names up is gone")) }
    }

    /// Moves the answers that have come to the end of `into`.
    pub(crate) fn answers(&self, into: &mut Vec<Answer>) {
        self.answers.drain(into);
    }

    /// Whether an answer waits.
    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }
}

fn serve(questions: &Receiver<Question>, answers: &Weak<Returns<Answer>>, waker: &Weak<mio::Waker>) {
    while let Ok(Question { conn, host, port }) = questions.recv() {
        let result = (host.as_str(), port).to_socket_addrs().map(Iterator::collect);
        let (Some(answers), Some(waker)) = (answers.upgrade(), waker.upgrade()) else { return };
        answers.push(Answer { conn, result });
        if let Err(error) = waker.wake() {
            tracing::warn!(%error, "cannot wake the transport; it sees the answer at its next poll");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_need_no_lookup() {
        let text = |addr: Addr| literal(&addr).map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(text(Addr::tcp("10.1.2.3", 4)), Some(vec!["10.1.2.3:4".to_owned()]));
        assert_eq!(text(Addr::tcp("::1", 4)), Some(vec!["[::1]:4".to_owned()]));
        assert_eq!(text(Addr::tcp("localhost", 4)), Some(vec!["127.0.0.1:4".to_owned(), "[::1]:4".to_owned()]));
        assert_eq!(text(Addr::tcp("iod-3.example", 4)), None);
    }
}
