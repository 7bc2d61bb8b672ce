//! A message in each direction between two `async` endpoints, of one thread or of any thread
//! (`bmi::threading::Threading`). The difference of the two is the price of the lock.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use bmi::polled::Engine;
use bmi::threading::Threading;
use bmi::{Clock, Endpoint, Error, Memory, Options, Peer, Time};

use super::pair::{Pair, Side};

const TAG: u64 = 2;

/// A time that does not change.
pub(crate) struct Stopped(Time);

impl Clock for Stopped {
    fn now(&self) -> Time {
        self.0
    }
}

/// One endpoint, with the memory of its messages.
struct End<S: Threading> {
    peer: Peer<S>,
    out: Memory,
    into: Memory,
}

/// Two connected endpoints.
pub(crate) struct Tasks<S: Threading> {
    ends: [End<S>; 2],
    len: usize,
}

impl<S: Threading> Tasks<S> {
    /// Takes over the endpoints of `pair`. `wrap` gives them their interface.
    ///
    /// # Errors
    /// If they are not connected, or a message fails.
    pub(crate) fn new(pair: Pair, wrap: fn(Engine, Stopped) -> Endpoint<S>) -> Result<Tasks<S>, Error> {
        let len = pair.len();
        let end = |side: Side| -> Result<End<S>, Error> {
            let id = side.peer()?;
            let endpoint = wrap(side.endpoint, Stopped(side.now));
            Ok(End { peer: endpoint.peer(id), out: side.out, into: side.into })
        };
        let [near, far] = pair.into_sides();
        let mut tasks = Tasks { ends: [end(near)?, end(far)?], len };
        for _ in 0..1000 {
            tasks.play()?;
        }
        Ok(tasks)
    }

    /// Sends a message in each direction.
    ///
    /// # Errors
    /// If one fails.
    pub(crate) fn play(&mut self) -> Result<(), Error> {
        let [near, far] = &self.ends;
        self.message(near, far)?;
        self.message(far, near)
    }

    /// Polls both sides in turns, until the message has been sent and received.
    fn message(&self, from: &End<S>, to: &End<S>) -> Result<(), Error> {
        let (mut sent, mut received) = (false, false);
        let mut recv = pin!(to.peer.recv(TAG, to.into.slice(0, self.len), Options::default()));
        let mut send = pin!(from.peer.send(TAG, from.out.slice(0, self.len), Options::default()));
        let mut context = Context::from_waker(Waker::noop());
        while !(sent && received) {
            if !sent && let Poll::Ready(result) = send.as_mut().poll(&mut context) {
                (_, sent) = (result?, true);
            }
            if !received && let Poll::Ready(result) = recv.as_mut().poll(&mut context) {
                (_, received) = (result?, true);
            }
            from.peer.endpoint().progress();
            to.peer.endpoint().progress();
        }
        Ok(())
    }
}
