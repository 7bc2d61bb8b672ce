//! The effect of a plan on the packets of a link between two nodes.
//!
//! **Model of a lossy wire.** With some probability a packet is lost, or arrives damaged and is
//! dropped. Its sender gets no acknowledgement and sends it again after [`RETRY_US`], doubled each
//! time. After [`RETRIES`] the adapter gives up the connection. A connection keeps its order, so
//! later packets wait for the lost one (go back n).
//!
//! **Source.** Timeout and retry count of an InfiniBand queue pair (IBTA volume 1, 9.7.6.1): local
//! ACK timeout doubling is the practice of current adapters; seven retries is the largest count.

use crate::rng::Rng;

/// First time-out for a lost packet, in µs.
pub(crate) const RETRY_US: u64 = 65;
/// How many times a packet is sent again.
pub(crate) const RETRIES: u32 = 7;

/// The faults of a link. Overlapping faults add up: no fault of a plan ends another.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    late: Vec<Late>,
    lossy: Vec<Lossy>,
    /// The link is down until then; 0 if no plan has taken it down.
    pub(crate) down_until: u64,
    /// Number of messages still to be hit.
    corrupt: u32,
    not_ready: u32,
    /// Number of messages whose answers are still to be hit: from the first node to the second, and
    /// back.
    unanswered: [u32; 2],
}

#[derive(Debug)]
struct Late {
    until: u64,
    by_ns: u64,
    rng: Rng,
}

#[derive(Debug)]
struct Lossy {
    until: u64,
    percent: u64,
    rng: Rng,
}

/// The fault that hits a message that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strike {
    Corrupt,
    NotReady,
}

impl Trouble {
    pub(crate) fn delay(&mut self, until: u64, by_ns: u64, salt: u32) {
        self.late.push(Late { until, by_ns, rng: Rng::new(salt.into()) });
    }

    pub(crate) fn lose(&mut self, until: u64, percent: u8, salt: u32) {
        self.lossy.push(Lossy { until, percent: percent.min(100).into(), rng: Rng::new(salt.into()) });
    }

    pub(crate) fn corrupt_next(&mut self) {
        self.corrupt += 1;
    }

    pub(crate) fn miss_next(&mut self) {
        self.not_ready += 1;
    }

    pub(crate) fn answer_is_lost(&mut self, forward: bool) {
        self.unanswered[usize::from(!forward)] += 1;
    }

    /// Returns whether the answer to the message that has just arrived is to be hit.
    pub(crate) fn loses_answer(&mut self, forward: bool) -> bool {
        let left = &mut self.unanswered[usize::from(!forward)];
        let loses = *left > 0;
        *left -= u32::from(loses);
        loses
    }

    /// Returns the delay of a packet, and whether it never arrives.
    pub(crate) fn lateness(&mut self, now: u64) -> (u64, bool) {
        self.late.retain(|late| now < late.until);
        self.lossy.retain(|lossy| now < lossy.until);
        let late = self.late.iter_mut().map(|late| late.rng.below(late.by_ns + 1)).fold(0, u64::saturating_add);
        let (mut again, mut timeout) = (0, RETRY_US * 1000);
        for _ in 0..RETRIES {
            if !self.loses() {
                return (late + again, false);
            }
            again += timeout;
            timeout *= 2;
        }
        // The last attempt may still arrive.
        let never = self.loses();
        (late + again, never)
    }

    /// Returns whether one attempt fails. All faults draw, so that each draws as often as it would
    /// without the others.
    fn loses(&mut self) -> bool {
        self.lossy.iter_mut().fold(false, |lost, lossy| (lossy.rng.below(100) < lossy.percent) | lost)
    }

    /// Returns the fault that hits the request that has just arrived. Only a request that takes a
    /// receive can find none posted.
    pub(crate) fn strike(&mut self, takes_receive: bool) -> Option<Strike> {
        if self.corrupt > 0 {
            self.corrupt -= 1;
            return Some(Strike::Corrupt);
        }
        if self.not_ready > 0 && takes_receive {
            self.not_ready -= 1;
            return Some(Strike::NotReady);
        }
        None
    }

    /// Ends all faults of this link.
    pub(crate) fn end(&mut self) {
        *self = Trouble::default();
    }
}
