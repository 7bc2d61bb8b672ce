//! What a link between two nodes does to packets while a plan says so.
//!
//! **Model of a lossy wire.** A packet is lost, or arrives damaged and is dropped, with a
//! probability. Its sender hears nothing and sends it again after [`RETRY_US`], doubled each time;
//! after [`RETRIES`] the adapter gives the connection up. As a connection keeps its order, what is
//! behind the packet waits for it (go back n).
//!
//! **Source.** Timeout and retry count of an InfiniBand queue pair (IBTA volume 1, 9.7.6.1): local
//! ACK timeout doubling is the practice of current adapters; seven retries is the largest count.

use crate::rng::Rng;

/// First time-out for a packet that was lost, in µs.
pub(crate) const RETRY_US: u64 = 65;
/// How often a packet is sent again.
pub(crate) const RETRIES: u32 = 7;

/// Trouble on a link. What overlaps adds up: a fault of a plan ends no other.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    late: Vec<Late>,
    lossy: Vec<Lossy>,
    /// It is down until then; 0 if no plan has taken it down.
    pub(crate) down_until: u64,
    /// Messages that are going to be hit.
    corrupt: u32,
    not_ready: u32,
    /// Messages whose answers are going to be hit: from the first node to the second, and back.
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

/// What hits a message that has arrived.
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

    /// Whether what answers the message that has just arrived is going to be hit.
    pub(crate) fn loses_answer(&mut self, forward: bool) -> bool {
        let left = &mut self.unanswered[usize::from(!forward)];
        let loses = *left > 0;
        *left -= u32::from(loses);
        loses
    }

    /// How much later than it would a packet arrives; and whether it never does.
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
        // The last one may still arrive.
        let never = self.loses();
        (late + again, never)
    }

    /// Whether one attempt fails. All draw, so that each draws as often as it would without the
    /// others.
    fn loses(&mut self) -> bool {
        self.lossy.iter_mut().fold(false, |lost, lossy| (lossy.rng.below(100) < lossy.percent) | lost)
    }

    /// What hits the request that has just arrived; only one that takes a receive can find none.
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

    /// Nothing hits anything any more.
    pub(crate) fn end(&mut self) {
        *self = Trouble::default();
    }
}
