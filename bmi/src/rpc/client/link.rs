//! The connection to one address: up, down, or being made.
//!
//! | state | what a call does |
//! |---|---|
//! | none yet | connects; others wait for the result |
//! | up | uses it |
//! | down | connects when the pause is over, which doubles with each failure |

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bmi_core::runtime::{Instant, host, random};
use bmi_core::{SharedPeer, Time};

use super::Inner;
use super::buffers::Buffers;
use crate::rpc::GRACE;
use crate::rpc::metrics::LinkMetrics;
use crate::rpc::wire::{RequestHead, RequestKind};
use crate::{Addr, Body, Error, ErrorKind, Options};

/// Pause after the first attempt to connect that fails, and the longest one.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The time for connecting to one of several addresses.
const ATTEMPT: Duration = Duration::from_secs(1);

/// The state of the connection to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkState {
    /// No call has needed it yet.
    Idle,
    /// It is up.
    Connected,
    /// It is down. The text is the reason. A call connects again.
    Down(String),
}

pub(super) struct Link {
    pub(super) addr: Addr,
    /// What another server has sent is never in a reply of this one.
    pub(super) buffers: Buffers,
    state: Mutex<State>,
    /// Held while a connection is being made.
    connecting: tokio::sync::Mutex<()>,
    /// Number of replies so far.
    replies: AtomicU64,
    /// Length of the data that the last replies had, if it was more than is offered.
    expected: AtomicUsize,
    /// Number of the last stream.
    streams: AtomicU32,
    /// A call has timed out, and no reply has come since.
    suspect: AtomicBool,
    metrics: LinkMetrics,
}

enum State {
    Idle,
    Up(SharedPeer),
    Down { attempts: u32, next: Time, error: Error },
}

impl Link {
    pub(super) fn new(addr: Addr, offer: usize) -> Link {
        Link {
            addr,
            buffers: Buffers::new(offer),
            state: Mutex::new(State::Idle),
            connecting: tokio::sync::Mutex::default(),
            replies: AtomicU64::new(0),
            expected: AtomicUsize::new(0),
            streams: AtomicU32::new(0),
            suspect: AtomicBool::new(false),
            metrics: LinkMetrics::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> LinkState {
        match &*self.lock() {
            State::Idle => LinkState::Idle,
            State::Up(peer) if peer.limits().is_some() => LinkState::Connected,
            State::Up(_) => LinkState::Down("the connection was lost".to_owned()),
            State::Down { error, .. } => LinkState::Down(error.to_string()),
        }
    }

    /// Returns when the next attempt to connect may be made.
    pub(super) fn next_attempt(&self) -> Time {
        match &*self.lock() {
            State::Down { next, .. } => *next,
            _ => Time::ZERO,
        }
    }

    /// Returns true if no attempt will succeed while both programs are as they are.
    pub(super) fn is_given_up(&self) -> bool {
        matches!(&*self.lock(), State::Down { error, .. } if is_lasting(error))
    }

    /// Returns the connection, and makes one if the pause is over.
    ///
    /// # Errors
    /// The reason of the last failure.
    pub(super) async fn peer(&self, client: &Inner, deadline: Time) -> Result<SharedPeer, Error> {
        if let Some(peer) = self.connected()? {
            if !self.suspect.load(Ordering::Relaxed) || self.answers(&peer, deadline).await? {
                return Ok(peer);
            }
            let error = Error::new(ErrorKind::PeerLost, "the host does not answer");
            self.lost(&peer, &error);
            peer.cut(error);
        }
        let _connecting = self.connecting.lock().await;
        // Another call may have made it, or have failed to.
        if let Some(peer) = self.connected()? {
            return Ok(peer);
        }
        // With other addresses to try, one that swallows what it is sent does not take all the
        // time.
        let attempt = if client.links.len() > 1 { deadline.min(Instant::now().time() + ATTEMPT) } else { deadline };
        let connected = async {
            let addr = host().map_or_else(|| Ok(self.addr.clone()), |host| host.locate(&self.addr))?;
            client.handle(&self.addr)?.connect(&addr, Options::by(attempt)).await
        };
        match connected.await {
            Ok(peer) => {
                self.suspect.store(false, Ordering::Relaxed);
                *self.lock() = State::Up(peer.clone());
                self.metrics.connected();
                Ok(peer)
            }
            Err(error) => {
                self.failed(&error);
                self.metrics.failed();
                Err(error)
            }
        }
    }

    /// Returns the connection if it is up, and nothing speaks against it.
    pub(super) fn up(&self) -> Option<SharedPeer> {
        match &*self.lock() {
            State::Up(peer) if !self.suspect.load(Ordering::Relaxed) => Some(peer.clone()),
            _ => None,
        }
    }

    /// Returns the connection if it is up, and `None` if one may be made.
    ///
    /// # Errors
    /// The reason of the last failure, while the pause after it lasts.
    fn connected(&self) -> Result<Option<SharedPeer>, Error> {
        match &*self.lock() {
            State::Up(peer) => Ok(Some(peer.clone())),
            State::Down { next, error, .. } if *next > Instant::now().time() => Err(error.clone()),
            _ => Ok(None),
        }
    }

    /// Notes that an attempt to connect has failed.
    fn failed(&self, error: &Error) {
        let mut state = self.lock();
        let attempts = match *state {
            State::Down { attempts, .. } => attempts.saturating_add(1),
            _ => 0,
        };
        let pause = (FIRST_PAUSE * 2_u32.saturating_pow(attempts)).min(LONGEST_PAUSE);
        // Between half of it and all of it, so that clients do not come back together.
        let pause = pause / 2 + pause.mul_f64((random() % 1024) as f64 / 2048.0);
        *state = State::Down { attempts, next: Instant::now().time() + pause, error: error.clone() };
    }

    /// Notes that a connection was lost. The next call connects at once.
    pub(super) fn lost(&self, lost: &SharedPeer, error: &Error) {
        let mut state = self.lock();
        if matches!(&*state, State::Up(peer) if peer.id() == lost.id()) {
            *state = State::Down { attempts: 0, next: Time::ZERO, error: error.clone() };
            self.metrics.lost();
        }
    }

    /// Returns how much data the next reply will have, to judge by the last.
    pub(super) fn expected(&self) -> usize {
        self.expected.load(Ordering::Relaxed)
    }

    /// Notes how much data a reply has had.
    pub(super) fn expect(&self, data: usize) {
        let expected = self.expected();
        if data != expected && (data > self.buffers.usual() || expected > 0) {
            // One short reply among long ones does not change much, a row of them does.
            self.expected.store(data.max(expected - expected.div_ceil(4)), Ordering::Relaxed);
        }
    }

    /// Returns the number of a new stream.
    pub(super) fn next_stream(&self) -> u32 {
        self.streams.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1)
    }

    /// Returns a number that differs after each reply.
    pub(super) fn replies(&self) -> u64 {
        self.replies.load(Ordering::Relaxed)
    }

    pub(super) fn replied(&self) {
        self.replies.fetch_add(1, Ordering::Relaxed);
        if self.suspect.load(Ordering::Relaxed) {
            self.suspect.store(false, Ordering::Relaxed);
        }
    }

    /// Notes that a call has timed out that began after so many replies. If none has come since,
    /// the next call asks first whether the server is there.
    pub(super) fn timed_out(&self, replies: u64) {
        if self.replies() == replies {
            self.suspect.store(true, Ordering::Relaxed);
        }
    }

    /// Asks whether the server answers, whatever its handlers do. Returns false if it had the time
    /// and did not. Other calls may wait for replies on the same connection, so less than that is
    /// no reason to cut it.
    ///
    /// # Errors
    /// `TimedOut` if the deadline of the call passed first.
    async fn answers(&self, peer: &SharedPeer, deadline: Time) -> Result<bool, Error> {
        let long = peer.endpoint().now() + GRACE;
        let (short, deadline) = (deadline < long, deadline.min(long));
        let time_us = deadline.since(peer.endpoint().now()).as_micros() as u64;
        let ping = RequestHead { kind: RequestKind::Ping, time_us, trace: None }.encode();
        let asked = async { peer.call(&ping, Body::None, Options::by(deadline))?.reply().await };
        match asked.await {
            Err(error) if error.kind() == ErrorKind::TimedOut && short => Err(error),
            Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::PeerLost) => Ok(false),
            // Even if it has too much to do, it is there.
            _ => {
                self.replied();
                Ok(true)
            }
        }
    }
}

/// Returns true for errors that last until one of the programs is changed.
fn is_lasting(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Incompatible | ErrorKind::Unsupported | ErrorKind::Invalid | ErrorKind::Denied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_expected_follows_the_last_replies() {
        let link = Link::new(Addr::tcp("127.0.0.1", 1), 1000);
        [5, 1000].iter().for_each(|len| link.expect(*len));
        assert_eq!(link.expected(), 0, "the usual length is enough");
        link.expect(100_000);
        assert_eq!(link.expected(), 100_000);
        link.expect(5);
        assert_eq!(link.expected(), 75_000, "one short reply does not change much");
        (0..20).for_each(|_| link.expect(5));
        assert!(link.expected() <= 1000, "a row of them does: {}", link.expected());
        (0..20).for_each(|_| link.expect(0));
        assert_eq!(link.expected(), 0);
    }
}
