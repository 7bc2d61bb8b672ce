//! The handshake: what comes before keys are there.

use bmi_core::PeerIdentity;
use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, InsufficientSizeError, UnbufferedStatus};
use rustls::{CommonState, Error};

use crate::Breach;
use crate::certificate::{Certificate, now};
use crate::session::{Keys, Session, Start};

/// Bytes of the buffer for what arrives, at first and at most. Chains of certificates are shorter.
const SPACE: (usize, usize) = (4 << 10, 32 << 10);
/// The first byte of a handshake (RFC 8446, 5.1).
const FIRST: u8 = 22;

pub(crate) enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// A handshake that is under way.
pub(crate) struct Handshake {
    side: Side,
    /// What has arrived and is not used.
    input: Vec<u8>,
    filled: usize,
    begun: bool,
    output: Vec<u8>,
    /// Payload that came right behind the handshake.
    payload: Vec<u8>,
    records_of_key: u64,
}

/// What is to be done next.
enum Step {
    Go,
    Wait,
    Done,
}

impl Handshake {
    pub(crate) fn new(side: Side, records_of_key: u64) -> Handshake {
        let (input, output, payload) = (Vec::new(), Vec::new(), Vec::new());
        Handshake { side, input, filled: 0, begun: false, output, payload, records_of_key }
    }

    pub(crate) fn space(&mut self) -> &mut [u8] {
        if self.input.len() - self.filled < SPACE.0 / 2 {
            self.input.resize((2 * self.input.len()).clamp(SPACE.0, SPACE.1), 0);
        }
        &mut self.input[self.filled..]
    }

    pub(crate) fn filled(&mut self, n: usize) {
        self.filled += n;
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        &self.output
    }

    pub(crate) fn sent(&mut self, n: usize) {
        self.output.drain(..n);
    }

    /// Goes on with what has arrived. Returns true if the handshake is done. If it fails, what is
    /// [unsent](Handshake::unsent) tells the peer.
    pub(crate) fn advance(&mut self) -> Result<bool, Breach> {
        if !self.begun && self.filled > 0 {
            if self.input[0] != FIRST {
                return Err(Breach::Clear);
            }
            self.begun = true;
        }
        loop {
            match self.step() {
                Ok(Step::Go) => {}
                Ok(Step::Done) => return Ok(true),
                Ok(Step::Wait) if self.filled >= SPACE.1 => {
                    return Err(Breach::Violation("it sent a handshake that is too long"));
                }
                Ok(Step::Wait) => return Ok(false),
                Err(error) => {
                    // Takes the words to the peer that the failure has left. Another step would go
                    // on with what has arrived, which a failed handshake must not.
                    let _ = self.step();
                    return Err(error.into());
                }
            }
        }
    }

    fn step(&mut self) -> Result<Step, Error> {
        let input = &mut self.input[..self.filled];
        let (discard, step) = match &mut self.side {
            Side::Client(side) => {
                let UnbufferedStatus { discard, state } = side.process_tls_records(input);
                (discard, take(state, &mut self.output, &mut self.payload))
            }
            Side::Server(side) => {
                let UnbufferedStatus { discard, state } = side.process_tls_records(input);
                (discard, take(state, &mut self.output, &mut self.payload))
            }
        };
        self.input.copy_within(discard..self.filled, 0);
        self.filled -= discard;
        step
    }

    /// Returns the channel with its keys, once the handshake is done.
    pub(crate) fn into_session(self) -> Result<Session, Breach> {
        let common: &CommonState = match &self.side {
            Side::Client(side) => side,
            Side::Server(side) => side,
        };
        let identity = identity(common)?;
        let (secrets, keys) = match self.side {
            Side::Client(side) => {
                let (secrets, keys) = side.dangerous_into_kernel_connection()?;
                (secrets, Keys::Client(keys))
            }
            Side::Server(side) => {
                let (secrets, keys) = side.dangerous_into_kernel_connection()?;
                (secrets, Keys::Server(keys))
            }
        };
        Session::new(Start {
            identity,
            secrets,
            keys,
            records_of_key: self.records_of_key,
            unsent: &self.output,
            payload: &self.payload,
            sealed: &self.input[..self.filled],
        })
    }
}

/// Returns who the peer is. A channel that goes on with the secrets of an earlier one has its
/// certificate, which is not verified again and may have expired since.
fn identity(common: &CommonState) -> Result<PeerIdentity, Breach> {
    let shown = common.peer_certificates().and_then(<[_]>::first);
    let shown = shown.ok_or_else(|| Breach::Untrusted("it shows no certificate".into()))?;
    let Certificate { identity, until } = Certificate::parse(shown)?;
    if until < now() {
        return Err(Breach::Untrusted("its certificate has expired, by the clock of this host".into()));
    }
    Ok(identity)
}

/// Does what a state asks for.
fn take<Data>(
    state: Result<ConnectionState<'_, '_, Data>, Error>,
    output: &mut Vec<u8>,
    payload: &mut Vec<u8>,
) -> Result<Step, Error> {
    match state? {
        ConnectionState::EncodeTlsData(mut data) => encode(&mut data, output)?,
        ConnectionState::TransmitTlsData(data) => data.done(), // `output` is sent, or nothing is
        ConnectionState::ReadTraffic(mut traffic) => {
            while let Some(record) = traffic.next_record() {
                payload.extend_from_slice(record?.payload);
            }
        }
        ConnectionState::BlockedHandshake => return Ok(Step::Wait),
        ConnectionState::WriteTraffic(_) => return Ok(Step::Done),
        ConnectionState::PeerClosed | ConnectionState::Closed => {
            return Err(Error::AlertReceived(rustls::AlertDescription::CloseNotify));
        }
        state => return Err(Error::General(format!("a handshake has no state {state:?}"))),
    }
    Ok(Step::Go)
}

fn encode<Data>(data: &mut EncodeTlsData<'_, Data>, output: &mut Vec<u8>) -> Result<(), Error> {
    let at = output.len();
    let mut room = 4 << 10;
    loop {
        output.resize(at + room, 0);
        match data.encode(&mut output[at..]) {
            Ok(len) => {
                output.truncate(at + len);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => room = required_size,
            Err(error) => return Err(Error::General(error.to_string())),
        }
    }
}
