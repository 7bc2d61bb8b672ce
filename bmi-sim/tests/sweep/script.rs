//! The exchanges of the two nodes, drawn from the seed.

use std::time::Duration;

use bmi_core::Lists;
use bmi_core::comm::Path;
use bmi_sim::Rng;

/// Lengths around every limit between two paths.
const LENS: [usize; 12] = [0, 1, 100, 250, 1000, 1025, 5000, 8193, 20_000, 66_000, 100_000, 300_000];

/// One exchange. The initiator's request names it by its number; both sides know the rest.
#[derive(Clone, Debug)]
pub(crate) enum Script {
    /// A call with data, by the policy's path or a forced one. The server works in units.
    Call {
        out: bool,
        lens: Vec<usize>,
        forced: Option<Path>,
        lists: Lists,
        registered: bool,
        unit: usize,
        answer: usize,
    },
    /// The initiator exposes a list. The other side moves the bytes from `at` on into, or out of, a
    /// list of another shape.
    Bulk { push: bool, exposed: Vec<usize>, at: usize, pieces: usize, lists: Lists },
    /// A message to the initiator, whose receive is cancelled after a while and posted again.
    CancelledReceive { len: usize, late: Duration, cancel: Duration },
    /// A message of the initiator that is cancelled after a while, and another one in its place.
    CancelledSend { len: usize, late: Duration, cancel: Duration },
    /// A pull of the initiator that is cancelled after a while.
    CancelledPull { len: usize, cancel: Duration },
    /// A call that its caller gives up after a while, or else the other side. Another call follows.
    AbandonedCall { answer: usize, late: Duration, cancel: Option<Duration> },
    /// A message that is longer than its receive.
    TooLong { len: usize },
    /// Unexpected messages with data, dropped by the other side some time after they arrived.
    Unexpected { lens: Vec<usize>, kept: Duration },
}

/// The lengths of a stream's message and of its receive, and the waits before each.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) len: usize,
    pub(crate) room: usize,
    pub(crate) send_gap: Duration,
    pub(crate) recv_gap: Duration,
    pub(crate) pieces: usize,
}

fn len(rng: &mut Rng) -> usize {
    LENS[rng.below(LENS.len() as u64) as usize] + rng.below(20) as usize
}

fn within(rng: &mut Rng, micros: u64) -> Duration {
    Duration::from_nanos(rng.below(micros * 1000))
}

fn lists(rng: &mut Rng) -> Lists {
    [Lists::Auto, Lists::Auto, Lists::Chain, Lists::Pack][rng.below(4) as usize]
}

/// Returns lengths that add up to `total`, at most `most` of them.
pub(crate) fn split(rng: &mut Rng, total: usize, most: usize) -> Vec<usize> {
    let mut rest = total;
    let mut lens: Vec<usize> = (1..1 + rng.below(most as u64))
        .map(|_| {
            let len = rng.below(rest as u64 + 1) as usize;
            rest -= len;
            len
        })
        .collect();
    lens.push(rest);
    lens
}

impl Script {
    /// Draws a script. Without RDMA read there are no pulls.
    pub(crate) fn draw(rng: &mut Rng, reads: bool) -> Script {
        let total = len(rng);
        match rng.below(10) {
            0..4 => Script::Call {
                out: rng.below(2) == 0,
                lens: split(rng, total, 4),
                forced: [
                    None,
                    None,
                    Some(Path::Inline),
                    Some(Path::FastRdma),
                    Some(Path::ServerBased),
                    Some(Path::ClientBased),
                ][rng.below(6) as usize],
                lists: lists(rng),
                registered: rng.below(3) == 0,
                unit: [1000, 16 << 10, 1 << 20][rng.below(3) as usize],
                answer: [0, 30, 150][rng.below(3) as usize],
            },
            4..6 => Script::Bulk {
                push: rng.below(2) == 0 || !reads,
                exposed: split(rng, total, 3),
                at: rng.below(total as u64 + 1) as usize,
                pieces: [1, 3, 40][rng.below(3) as usize],
                lists: lists(rng),
            },
            6 => {
                let (late, cancel) = (within(rng, 200), within(rng, 200));
                match rng.below(3) {
                    0 => Script::CancelledReceive { len: total, late, cancel },
                    turn if turn == 1 || !reads => Script::CancelledSend { len: total, late, cancel },
                    _ => Script::CancelledPull { len: total, cancel },
                }
            }
            7 if rng.below(2) == 0 => Script::TooLong { len: total + 2 },
            7 => Script::AbandonedCall {
                answer: [0, 30, 150][rng.below(3) as usize],
                late: within(rng, 200),
                cancel: (rng.below(3) > 0).then(|| within(rng, 200)),
            },
            _ => Script::Unexpected {
                lens: (0..1 + rng.below(4)).map(|_| rng.below(250) as usize).collect(),
                kept: within(rng, 300),
            },
        }
    }
}

impl Step {
    pub(crate) fn draw(rng: &mut Rng) -> Step {
        let len = len(rng);
        let mut gap = || if rng.below(2) == 0 { Duration::ZERO } else { within(rng, 40) };
        let (send_gap, recv_gap) = (gap(), gap());
        let room = len + [0, 1, 700][rng.below(3) as usize];
        Step { len, room, send_gap, recv_gap, pieces: 1 + rng.below(3) as usize }
    }
}
