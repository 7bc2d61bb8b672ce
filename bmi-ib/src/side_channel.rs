//! The TCP connection beside a queue pair. It carries messages in both directions and reports that
//! the peer is gone. With a certificate it is behind TLS: who has not passed that learns no number
//! of a queue pair and no key, and can connect none.

use std::io::{self, Read, Write};
use std::net::IpAddr;

use bmi_core::PeerIdentity;
use bmi_core::transport::MAX_PRIVATE_DATA;
use bmi_tls::{Breach, Channel};
use mio::net::TcpStream;

use crate::error::{Bye, Fault, Violation};
use crate::greeting::{MESSAGE, Message};

/// Most bytes that may wait for the peer to read them. Answers to a peer that asks but does not
/// read must not pile up.
const MAX_UNSENT: usize = 16 << 10;

/// A message and its private data.
pub(crate) type Received = (Message, Box<[u8]>);

pub(crate) struct SideChannel {
    pub(crate) stream: TcpStream,
    /// TLS, from the first byte on.
    channel: Option<Box<Channel>>,
    buffer: [u8; MESSAGE + MAX_PRIVATE_DATA],
    filled: usize,
    /// What the socket has not taken, or the channel has not sealed.
    unsent: Vec<u8>,
}

impl SideChannel {
    pub(crate) fn new(stream: TcpStream) -> Box<SideChannel> {
        let buffer = [0; MESSAGE + MAX_PRIVATE_DATA];
        Box::new(SideChannel { stream, channel: None, buffer, filled: 0, unsent: Vec::new() })
    }

    /// Puts TLS between this side and the socket, which no byte has passed.
    pub(crate) fn secure(&mut self, channel: Channel) {
        self.channel = Some(Box::new(channel));
    }

    /// Returns this side's address.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.stream.local_addr().ok().map(|addr| addr.ip().to_canonical())
    }

    /// Returns who the peer is, once there is a session.
    pub(crate) fn identity(&mut self) -> PeerIdentity {
        let session = self.channel.as_mut().and_then(|channel| channel.session());
        session.map_or(PeerIdentity::Nobody, |session| session.identity().clone())
    }

    /// Sends a message, now or as soon as there is room. A failure shows when reading.
    pub(crate) fn send(&mut self, message: Message, private: &[u8]) -> Result<(), Fault> {
        if self.unsent.len() > MAX_UNSENT {
            return Err(Violation::Order.into());
        }
        self.unsent.extend_from_slice(&message.encode(private.len()));
        self.unsent.extend_from_slice(private);
        self.push();
        Ok(())
    }

    /// Tells a peer in the clear that it is not served. A channel has its own words.
    pub(crate) fn refuse(&mut self) {
        if self.channel.is_none() {
            // Bytes that are left unread would have the system drop the answer.
            let _ = self.stream.read(&mut [0; 4096]);
            let _ = self.send(Message::Reject, &[]);
        }
    }

    /// Writes the bytes that wait.
    pub(crate) fn push(&mut self) {
        if let Err(error) = self.try_push()
            && error.kind() != io::ErrorKind::WouldBlock
        {
            tracing::debug!(%error, "the side channel takes no more");
            self.unsent.clear();
        }
    }

    fn try_push(&mut self) -> io::Result<()> {
        let Some(channel) = &mut self.channel else {
            while !self.unsent.is_empty() {
                let n = again(|| self.stream.write(&self.unsent))?;
                self.unsent.drain(..n);
            }
            return Ok(());
        };
        loop {
            while !channel.unsent().is_empty() {
                let n = again(|| self.stream.write(channel.unsent()))?;
                channel.sent(n).map_err(io::Error::other)?;
            }
            let Some(session) = channel.session().filter(|_| !self.unsent.is_empty()) else { return Ok(()) };
            let len = session.room().min(self.unsent.len());
            session.seal(len, |to| to.copy_from_slice(&self.unsent[..len])).map_err(io::Error::other)?;
            self.unsent.drain(..len);
        }
    }

    /// Returns the next message with its private data, or `None` if there is none for now.
    pub(crate) fn receive(&mut self) -> Result<Option<Received>, Fault> {
        loop {
            match Message::decode(&self.buffer[..self.filled]) {
                Ok(Some((message, private))) => {
                    let len = MESSAGE + private;
                    if self.filled >= len {
                        let private = self.buffer[MESSAGE..len].into();
                        self.buffer.copy_within(len..self.filled, 0);
                        self.filled -= len;
                        return Ok(Some((message, private)));
                    }
                }
                Ok(None) => {}
                Err(Violation::Magic) => return Err(bmi_tls::unknown_magic(&self.buffer[..self.filled])),
                Err(violation) => return Err(violation.into()),
            }
            match self.read() {
                Ok(0) => return Err(Fault::Eof),
                Ok(n) => self.filled += n,
                Err(Trouble::Socket(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(Trouble::Socket(error)) => return Err(Fault::Socket(error)),
                Err(Trouble::Breach(breach)) => return Err(breach.into()),
            }
        }
    }

    /// Reads into the buffer, through the channel if there is one.
    fn read(&mut self) -> Result<usize, Trouble> {
        let Some(channel) = &mut self.channel else {
            return Ok(again(|| self.stream.read(&mut self.buffer[self.filled..]))?);
        };
        let shook = channel.is_shaking_hands();
        while channel.is_shaking_hands() {
            let advanced = match again(|| self.stream.read(channel.space()))? {
                0 => return Ok(0),
                n => channel.advance(n),
            };
            if advanced == Err(Breach::Clear) {
                // In the clear, as the peer. If it fails, the peer sees the end.
                let _ = self.stream.write(&Message::Bye(Bye::Secure, false).encode(0));
            }
            // What does not fit now leaves with the next push. A failure shows when reading.
            while !channel.unsent().is_empty() {
                let Ok(n) = again(|| self.stream.write(channel.unsent())) else { break };
                channel.sent(n)?;
            }
            advanced?;
        }
        if shook {
            self.push(); // what waited for the handshake
        }
        let room = &mut self.buffer[self.filled..];
        let Some(channel) = &mut self.channel else { return Ok(0) };
        let Some(session) = channel.session() else { return Ok(0) };
        loop {
            let payload = session.payload()?;
            if !payload.is_empty() {
                let len = payload.len().min(room.len());
                room[..len].copy_from_slice(&payload[..len]);
                session.consume(len);
                self.push();
                return Ok(len);
            }
            match again(|| self.stream.read(session.space()))? {
                0 => return Ok(0),
                n => session.filled(n),
            }
        }
    }
}

/// Why nothing can be read.
enum Trouble {
    Socket(io::Error),
    Breach(Breach),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Trouble {
        Trouble::Socket(error)
    }
}

impl From<Breach> for Trouble {
    fn from(breach: Breach) -> Trouble {
        Trouble::Breach(breach)
    }
}

/// Calls until no signal interrupts.
fn again(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
