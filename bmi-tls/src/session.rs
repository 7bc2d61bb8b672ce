//! The channel once there are keys: sealing and opening, changes of keys, tickets for the next
//! time.

use bmi_core::{PeerIdentity, mutated};
use rustls::client::ClientConnectionData;
use rustls::kernel::KernelConnection;
use rustls::server::ServerConnectionData;
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error, ExtractedSecrets, HandshakeType};

use crate::Breach;
use crate::record::{ALERT, DATA, HANDSHAKE, Key, OVERHEAD, Opener, Sealer};

/// Room that is kept for records of the channel's own: a change of keys and the end.
const KEPT: usize = 2 * (OVERHEAD + 8);
/// Most records in a row that bring no payload. Peers of this library send three at most, at the
/// beginning.
const MOST_EMPTY: u32 = 16;
/// Changes of its keys that a peer may make beyond one in [`RECORDS_OF_CHANGE`] records. A change
/// costs as much as some records.
const MOST_CHANGES: u64 = 16;
const RECORDS_OF_CHANGE: u64 = 32;

/// Makes the next keys.
pub(crate) enum Keys {
    Client(KernelConnection<ClientConnectionData>),
    Server(KernelConnection<ServerConnectionData>),
}

impl Keys {
    fn next_to_send(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Keys::Client(keys) => keys.update_tx_secret(),
            Keys::Server(keys) => keys.update_tx_secret(),
        }
    }

    fn next_to_receive(&mut self) -> Result<(u64, ConnectionTrafficSecrets), Error> {
        match self {
            Keys::Client(keys) => keys.update_rx_secret(),
            Keys::Server(keys) => keys.update_rx_secret(),
        }
    }
}

/// A channel with keys. Payload goes in by [`Session::seal`] and leaves as [`Session::unsent`];
/// what the socket brings goes to [`Session::space`] and comes out as [`Session::payload`].
pub struct Session {
    identity: PeerIdentity,
    sealer: Sealer,
    opener: Opener,
    keys: Keys,
    /// Number of records that a key seals.
    records_of_key: u64,
    /// The peer has asked for a change of keys.
    owes_change: bool,
    /// Records in a row that brought no payload.
    empty: u32,
    /// Changes of the peer's keys.
    changes: u64,
    /// Records that brought payload.
    opened: u64,
    /// Why nothing more is opened.
    over: Option<Breach>,
    closed: bool,
}

/// What a handshake hands over.
pub(crate) struct Start<'a> {
    pub(crate) identity: PeerIdentity,
    pub(crate) secrets: ExtractedSecrets,
    pub(crate) keys: Keys,
    pub(crate) records_of_key: u64,
    /// Bytes that were not sent.
    pub(crate) unsent: &'a [u8],
    /// Payload that was opened, and bytes that were not.
    pub(crate) payload: &'a [u8],
    pub(crate) sealed: &'a [u8],
}

impl Session {
    pub(crate) fn new(start: Start<'_>) -> Result<Session, Breach> {
        let Start { identity, secrets, keys, records_of_key, .. } = start;
        let (mut sealer, mut opener) = (Sealer::new(Key::new(secrets.tx)?), Opener::new(Key::new(secrets.rx)?));
        sealer.begin_with(start.unsent);
        opener.begin_with(start.payload, start.sealed);
        Ok(Session {
            identity,
            sealer,
            opener,
            keys,
            records_of_key,
            owes_change: false,
            empty: 0,
            changes: 0,
            opened: 0,
            over: None,
            closed: false,
        })
    }

    /// Returns who the peer is.
    pub fn identity(&self) -> &PeerIdentity {
        &self.identity
    }

    // ---- sending --------------------------------------------------------------------------------

    /// Returns how many bytes of payload can be sealed now: at most a record. 0 until the socket
    /// has taken what is sealed.
    #[inline]
    pub fn room(&self) -> usize {
        self.sealer.room(KEPT)
    }

    /// Seals `len` bytes, which `fill` writes. At most [`Session::room`], and not 0.
    ///
    /// # Errors
    /// `Internal` if there is no next key.
    #[inline]
    pub fn seal(&mut self, len: usize, fill: impl FnOnce(&mut [u8])) -> Result<(), Breach> {
        debug_assert!((1..=self.room()).contains(&len));
        if self.sealer.key.used() >= self.records_of_key {
            self.change_keys()?;
        }
        self.sealer.seal(DATA, len, fill);
        Ok(())
    }

    /// Returns the sealed bytes that the socket has not taken.
    #[inline]
    pub fn unsent(&self) -> &[u8] {
        self.sealer.unsent()
    }

    /// Notes that the socket has taken `n` of them.
    ///
    /// # Errors
    /// As [`Session::seal`].
    #[inline]
    pub fn sent(&mut self, n: usize) -> Result<(), Breach> {
        self.sealer.sent(n);
        if self.owes_change { self.answer_change() } else { Ok(()) }
    }

    /// Seals the notice that nothing more will come, once.
    pub fn close(&mut self) {
        if self.sealer.room(0) >= 2 && !std::mem::replace(&mut self.closed, true) {
            const WARNING: u8 = 1;
            self.sealer.seal(ALERT, 2, |to| to.copy_from_slice(&[WARNING, AlertDescription::CloseNotify.into()]));
        }
    }

    /// Seals a record that brings nothing, as no peer of this library does.
    #[cfg(test)]
    pub(crate) fn seal_empty(&mut self) {
        self.sealer.seal(DATA, 0, |_| {});
    }

    /// Tells the peer that the next record has another key, and changes to it.
    fn change_keys(&mut self) -> Result<(), Breach> {
        const ASKS_FOR_NONE: u8 = 0;
        let message = [HandshakeType::KeyUpdate.into(), 0, 0, 1, ASKS_FOR_NONE];
        self.sealer.seal(HANDSHAKE, message.len(), |to| to.copy_from_slice(&message));
        self.sealer.key = Key::new(self.keys.next_to_send()?)?;
        Ok(())
    }

    #[cold]
    fn answer_change(&mut self) -> Result<(), Breach> {
        if self.sealer.room(KEPT) > 0 {
            self.owes_change = false;
            self.change_keys()?;
        }
        Ok(())
    }

    // ---- receiving ------------------------------------------------------------------------------

    /// Returns where the next bytes of the socket go. [`Session::payload`] has returned none
    /// before.
    #[inline]
    pub fn space(&mut self) -> &mut [u8] {
        self.opener.space()
    }

    /// Notes that the socket has brought `n` bytes there.
    #[inline]
    pub fn filled(&mut self, n: usize) {
        self.opener.filled(n);
    }

    /// Returns payload that has arrived, of one record, until it is consumed. None if more bytes of
    /// the socket are needed. Messages of the channel's own are carried out on the way; they may
    /// leave something [unsent](Session::unsent).
    ///
    /// # Errors
    /// Why the channel is over: the same from then on.
    #[inline]
    pub fn payload(&mut self) -> Result<&[u8], Breach> {
        while self.opener.payload().is_empty() {
            match self.open() {
                Ok(true) => {}
                Ok(false) => break,
                Err(breach) => {
                    self.over = Some(breach.clone());
                    return Err(breach);
                }
            }
        }
        Ok(self.opener.payload())
    }

    /// Opens the next record, if it is there.
    #[inline]
    fn open(&mut self) -> Result<bool, Breach> {
        if let Some(breach) = &self.over {
            return Err(breach.clone());
        }
        let Some(kind) = self.opener.open()? else { return Ok(false) };
        if kind == DATA && !self.opener.payload().is_empty() {
            self.empty = 0;
            self.opened += 1;
        } else {
            self.handle(kind)?;
        }
        Ok(true)
    }

    /// Consumes the first `n` bytes of the payload.
    #[inline]
    pub fn consume(&mut self, n: usize) {
        self.opener.consume(n);
    }

    /// Handles a record that brings no payload.
    #[cold]
    fn handle(&mut self, kind: u8) -> Result<(), Breach> {
        self.empty += 1;
        if self.empty > MOST_EMPTY && !mutated("tls/records-that-bring-nothing-are-free") {
            return Err(Breach::Violation("it sent many records that bring nothing"));
        }
        let payload = self.opener.payload().to_vec();
        self.opener.consume(payload.len());
        match (kind, &payload[..]) {
            (DATA, []) => Ok(()),
            (ALERT, [_, alert]) => Err(Breach::alert(AlertDescription::from(*alert))),
            (HANDSHAKE, messages) => self.handle_messages(messages),
            _ => Err(Breach::Violation("it sent a record of another type")),
        }
    }

    fn handle_messages(&mut self, mut messages: &[u8]) -> Result<(), Breach> {
        const CUT: Breach = Breach::Violation("it sent a part of a message of TLS");
        while let [kind, a, b, c, rest @ ..] = messages {
            let len = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let (body, rest) = rest.split_at_checked(len).ok_or(CUT)?;
            match (HandshakeType::from(*kind), body, &mut self.keys) {
                (HandshakeType::NewSessionTicket, body, Keys::Client(keys)) => keys.handle_new_session_ticket(body)?,
                // What follows has another key, so nothing may follow in this record.
                (HandshakeType::KeyUpdate, [asks @ (0 | 1)], keys) if rest.is_empty() => {
                    self.changes += 1;
                    if self.changes > MOST_CHANGES + self.opened / RECORDS_OF_CHANGE {
                        return Err(Breach::Violation("it changed its keys too often"));
                    }
                    self.opener.key = Key::new(keys.next_to_receive()?)?;
                    self.owes_change |= *asks == 1;
                }
                _ => return Err(Breach::Violation("it sent a message of TLS that is not allowed at this point")),
            }
            messages = rest;
        }
        if !messages.is_empty() {
            return Err(CUT);
        }
        if self.owes_change { self.answer_change() } else { Ok(()) }
    }

    /// Gives back the pages of empty buffers. Returns true if nothing is arriving.
    pub fn release(&mut self) -> bool {
        self.sealer.release();
        self.opener.release()
    }
}
