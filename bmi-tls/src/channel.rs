//! One side of a connection, from the first byte on.

use std::fmt::Display;

use bmi_backend::{Fault, Violation};
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;

use crate::handshake::{Handshake, Side};
use crate::{Breach, Security, Session};

#[expect(clippy::large_enum_variant, reason = "its owners box it, and the session is the usual case")]
enum State {
    Handshake(Handshake),
    Session(Session),
    /// It has failed. What tells the peer why is to be sent.
    Over(Vec<u8>),
}

/// One side of a connection. It has no socket: its owner moves the bytes.
///
/// ```text
///   socket ──> space(), filled() ──> advance() ──> a session
///   socket <── unsent(), sent()  <──
/// ```
pub struct Channel(State);

impl Channel {
    /// Returns the side that connects, to a host whose certificate has to have the name or address
    /// `host`.
    ///
    /// # Errors
    /// `Internal` if the handshake cannot begin, for example because `host` is no name.
    pub fn client(security: &Security, host: &str) -> Result<Channel, Breach> {
        let material = security.material();
        let name = Security::server_name(host)?;
        let side = UnbufferedClientConnection::new(material.client.clone(), name)?;
        let mut handshake = Handshake::new(Side::Client(Box::new(side)), security.records_of_key());
        handshake.advance()?;
        Ok(Channel(State::Handshake(handshake)))
    }

    /// Returns the side that listens.
    ///
    /// # Errors
    /// `Internal` if the handshake cannot begin.
    pub fn server(security: &Security) -> Result<Channel, Breach> {
        let side = UnbufferedServerConnection::new(security.material().server.clone())?;
        Ok(Channel(State::Handshake(Handshake::new(Side::Server(Box::new(side)), security.records_of_key()))))
    }

    /// Returns the session, once the handshake is done.
    #[inline]
    pub fn session(&mut self) -> Option<&mut Session> {
        match &mut self.0 {
            State::Session(session) => Some(session),
            State::Handshake(_) | State::Over(_) => None,
        }
    }

    /// Returns true while the handshake is under way.
    pub fn is_shaking_hands(&self) -> bool {
        matches!(self.0, State::Handshake(_))
    }

    /// Returns where bytes of the handshake go.
    ///
    /// # Panics
    /// If the handshake is over.
    pub fn space(&mut self) -> &mut [u8] {
        let State::Handshake(handshake) = &mut self.0 else { panic!("a handshake is under way") };
        handshake.space()
    }

    /// Goes on with a handshake after `n` bytes have arrived in [`Channel::space`]. Returns true if
    /// there is a session now. A step may take as long as a signature.
    ///
    /// # Errors
    /// Why there will be no session. What is [unsent](Channel::unsent) then tells the peer.
    pub fn advance(&mut self, n: usize) -> Result<bool, Breach> {
        let State::Handshake(handshake) = &mut self.0 else { return Ok(true) };
        handshake.filled(n);
        let done = handshake.advance();
        if let Ok(false) = done {
            return Ok(false);
        }
        let State::Handshake(handshake) = std::mem::replace(&mut self.0, State::Over(Vec::new())) else {
            return Ok(true);
        };
        match done {
            Ok(_) => {
                let unsent = handshake.unsent().to_vec();
                let session = handshake.into_session().inspect_err(|_| self.0 = State::Over(unsent))?;
                self.0 = State::Session(session);
                Ok(true)
            }
            Err(breach) => {
                self.0 = State::Over(handshake.unsent().to_vec());
                Err(breach)
            }
        }
    }

    /// Returns the bytes that the socket has not taken.
    #[inline]
    pub fn unsent(&self) -> &[u8] {
        match &self.0 {
            State::Session(session) => session.unsent(),
            State::Handshake(handshake) => handshake.unsent(),
            State::Over(bytes) => bytes,
        }
    }

    /// Notes that the socket has taken `n` of them.
    ///
    /// # Errors
    /// As [`Session::seal`].
    #[inline]
    pub fn sent(&mut self, n: usize) -> Result<(), Breach> {
        match &mut self.0 {
            State::Session(session) => return session.sent(n),
            State::Handshake(handshake) => handshake.sent(n),
            State::Over(bytes) => drop(bytes.drain(..n)),
        }
        Ok(())
    }

    /// Gives back the pages of empty buffers. Returns true if nothing is arriving.
    pub fn release(&mut self) -> bool {
        self.session().is_none_or(Session::release)
    }
}

/// Returns the fault of bytes in the clear: those of a peer that does TLS are told apart from those
/// of one that speaks something else.
pub fn unknown_magic<R: Display>(bytes: &[u8]) -> Fault<R> {
    const HELLO: [u8; 2] = [22, 3];
    match bytes.starts_with(&HELLO) {
        true => Fault::Denied("it speaks TLS, and this side has no certificate".into()),
        false => Violation::Magic.into(),
    }
}
