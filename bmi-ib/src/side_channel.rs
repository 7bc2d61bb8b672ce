//! The TCP connection beside a queue pair. It carries messages in both directions and reports that
//! the peer is gone.

use std::io::{self, Read, Write};
use std::net::IpAddr;

use bmi_core::transport::MAX_PRIVATE_DATA;
use mio::net::TcpStream;

use crate::error::{Fault, Violation};
use crate::greeting::{MESSAGE, Message};

/// Most bytes that may wait for the peer to read them. Answers to a peer that asks but does not
/// read must not pile up.
const MAX_UNSENT: usize = 16 << 10;

/// A message and its private data.
pub(crate) type Received = (Message, Box<[u8]>);

pub(crate) struct SideChannel {
    pub(crate) stream: TcpStream,
    buffer: [u8; MESSAGE + MAX_PRIVATE_DATA],
    filled: usize,
    unsent: Vec<u8>,
}

impl SideChannel {
    pub(crate) fn new(stream: TcpStream) -> Box<SideChannel> {
        Box::new(SideChannel { stream, buffer: [0; MESSAGE + MAX_PRIVATE_DATA], filled: 0, unsent: Vec::new() })
    }

    /// Returns this side's address.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.stream.local_addr().ok().map(|addr| addr.ip().to_canonical())
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

    /// Writes the bytes that wait.
    pub(crate) fn push(&mut self) {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(n) => drop(self.unsent.drain(..n)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::debug!(%error, "the side channel takes no more");
                    return self.unsent.clear();
                }
            }
        }
    }

    /// Returns the next message with its private data, or `None` if there is none for now.
    pub(crate) fn receive(&mut self) -> Result<Option<Received>, Fault> {
        loop {
            if let Some((message, private)) = Message::decode(&self.buffer[..self.filled])? {
                let len = MESSAGE + private;
                if self.filled >= len {
                    let private = self.buffer[MESSAGE..len].into();
                    self.buffer.copy_within(len..self.filled, 0);
                    self.filled -= len;
                    return Ok(Some((message, private)));
                }
            }
            match self.stream.read(&mut self.buffer[self.filled..]) {
                Ok(0) => return Err(Fault::Eof),
                Ok(n) => self.filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(Fault::Socket(error)),
            }
        }
    }
}
