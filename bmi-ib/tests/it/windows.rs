//! Shows why the backend exposes memory by registrations and not by memory windows. Needs an RDMA
//! device.

use std::sync::Arc;
use std::time::Duration;

use bmi_core::Clock;
use bmi_core::driver::MonotonicClock;
use bmi_ib::verbs::{
    Chain, Channel, CompletionQueue, Context, Domain, Opcode, Outcome, Path, QueuePair, QueuePairLimits, Region,
    Rights, SendWork, Sge, Window, WorkEnd,
};

struct Side {
    queue_pair: QueuePair,
    queue: Arc<CompletionQueue>,
    domain: Arc<Domain>,
}

impl Side {
    fn new(context: &Arc<Context>) -> Side {
        let channel = Channel::new(context).unwrap();
        let queue = CompletionQueue::new(&channel, 64).unwrap();
        let domain = Domain::new(context).unwrap();
        let limits = QueuePairLimits { sends: 16, receives: 16, segments: 1, inline: 0 };
        let queue_pair = QueuePair::new(&domain, &queue, limits).unwrap();
        queue_pair.init(1).unwrap();
        Side { queue_pair, queue, domain }
    }

    /// Executes one request. Returns how it ended.
    fn outcome(&self, opcode: Opcode<'_>, segments: &[Sge], what: &str) -> Outcome {
        let mut chain = Chain::new(1, 1);
        chain.push(&SendWork { id: 1, opcode, segments, signalled: true, inline: false });
        // SAFETY: the test's buffers outlive the loop below, in which the request ends.
        unsafe { self.queue_pair.post_send(&mut chain) }.unwrap();
        let mut ends = [WorkEnd::empty()];
        let clock = MonotonicClock::new();
        let give_up = clock.now() + Duration::from_secs(20);
        while self.queue.poll(&mut ends).unwrap() == 0 {
            assert!(clock.now() < give_up, "{what} does not end");
            std::thread::yield_now();
        }
        ends[0].outcome()
    }
}

fn pair(context: &Arc<Context>) -> (Side, Side) {
    let (a, b) = (Side::new(context), Side::new(context));
    let port = context.port(1).unwrap();
    let gid = context.gids(1).unwrap().into_iter().find(|gid| gid.roce_v2 && gid.ip().is_ipv4()).unwrap();
    for (from, to) in [(&a, &b), (&b, &a)] {
        let path = Path {
            port: 1,
            mtu: port.mtu,
            peer: to.queue_pair.number(),
            peer_psn: 0,
            psn: 0,
            lid: port.lid,
            global: Some((gid.raw, gid.index)),
            service_level: 0,
            traffic_class: 0,
            reads_answered: 1,
            reads_begun: 1,
            timeout: 14,
            retries: 3,
            not_ready_retries: 3,
        };
        from.queue_pair.connect(&path).unwrap();
    }
    (a, b)
}

/// A window covers the first half of a region. Soft-RoCE lets the peer read in the second half too,
/// because it checks the bounds of the region. If this test fails, windows have become safe there,
/// and `memory.rs` may use them. An access that a window refuses is not tried: the kernel then
/// counts the window's references wrongly (`check_rkey` in its `rxe_resp.c` puts it twice).
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn soft_roce_does_not_check_the_bounds_of_a_window() {
    let context = Context::open(None).unwrap();
    assert!(context.limits().unwrap().windows, "Soft-RoCE says that it has windows of type 2");
    let mut buffer = vec![7u8; 8192];
    let (base, len) = (buffer.as_mut_ptr(), buffer.len());
    for (offset, expected) in [(0u64, Outcome::Ok), (4096, Outcome::Ok)] {
        let (a, b) = pair(&context);
        let rights = Rights { local_write: true, windows: true, ..Rights::default() };
        // SAFETY: the buffers outlive the regions.
        let region = unsafe { Region::new(&b.domain, base, len, base as u64, rights) }.unwrap();
        let mut landing = vec![0u8; 1000];
        let rights = Rights { local_write: true, ..Rights::default() };
        let to = landing.as_mut_ptr();
        // SAFETY: as above.
        let own = unsafe { Region::new(&a.domain, to, 1000, to as u64, rights) }.unwrap();
        let window = Window::new(&b.domain).unwrap();
        let key = window.next_key();
        let bound = b.outcome(Opcode::Bind(&window, &region, base as u64, 4096, key), &[], "binding");
        assert_eq!(bound, Outcome::Ok, "binding");
        let read = Opcode::Read(base as u64 + offset, key);
        let outcome = a.outcome(read, &[Sge::new(to as u64, 1000, own.local_key())], "reading");
        assert_eq!(outcome, expected, "a read of 1000 bytes at {offset} of a window of 4096 over a region of 8192");
        // The window is dropped first. While it is bound it holds its queue pair and its region,
        // and the kernel waits without end when an object that is held is destroyed.
        drop(window);
        drop((a.queue_pair, b.queue_pair));
    }
}
