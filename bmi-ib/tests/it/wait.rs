//! Sleeping on the event fd. Needs an RDMA device; `cargo xtask rxe` has one. On Soft-RoCE a
//! loopback send completes inside the call that posts it. So a test that waits must post from
//! another thread.

use std::sync::mpsc::channel;
use std::task::Waker;

use crate::support::Pair;
use bmi_core::transport::{Armed, Event, Payload, WorkId, WorkKind, WorkOptions};
use bmi_core::{Memory, Transport};
use rustix::event::{PollFd, PollFlags, Timespec};

/// Sleeps until the descriptor is readable. Returns false after the time that a failing test waits.
fn sleep(transport: &impl Transport) -> bool {
    let fd = transport.event_fd().unwrap();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&limit)).unwrap() > 0
}

/// Returns how often this thread has slept: its voluntary context switches.
fn sleeps() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_sleeper_is_woken_by_each_message_of_another_thread() {
    const MESSAGES: u64 = 200;
    let Pair { mut a, mut b, near, far, .. } = Pair::new();
    let landing = Memory::zeroed(8).unwrap();
    let region = b.transport.register(&landing).unwrap();
    let (next, turns) = channel::<()>();
    let sender = std::thread::Builder::new().spawn(move || {
        for number in 0..MESSAGES {
            turns.recv().unwrap();
            let head = number.to_le_bytes();
            while a.transport.post_send(near, WorkId(number), &head, Payload::EMPTY, WorkOptions::UNSIGNALLED).is_err()
            {
                a.poll();
            }
            a.poll();
        }
        a
    });
    let before = sleeps();
    for number in 0..MESSAGES {
        b.transport.post_recv(far, WorkId(number), &[region.segment(0, 8)]).unwrap();
        next.send(()).unwrap();
        let event = loop {
            if let Some(event) = b.events.pop_front() {
                break event;
            }
            if !b.poll() && b.transport.arm(Waker::noop()) == Armed::Waiting {
                assert!(sleep(&b.transport), "message {number} woke nobody");
            }
        };
        let Event::Work(done) = event else { panic!("{event:?}") };
        assert_eq!((done.work, done.kind, done.len), (WorkId(number), WorkKind::Recv, 8));
        assert_eq!(landing.to_vec(), number.to_le_bytes());
    }
    let _sender = sender.unwrap().join().unwrap();
    assert!(sleeps() > before, "it never slept");
}

/// With nothing to do the adapter sleeps until it is woken by hand: no timer, no stale event.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn an_idle_adapter_sleeps() {
    let Pair { mut a, mut b, .. } = Pair::new();
    for _ in 0..10 {
        // Events left over from setting up may take some polls.
        loop {
            a.poll();
            if !b.poll() && b.transport.arm(Waker::noop()) == Armed::Waiting {
                break;
            }
        }
        let fd = b.transport.event_fd().unwrap();
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        let readable = rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
        assert_eq!(readable, 0, "armed, idle, and readable all the same");
        b.transport.waker().wake();
        assert!(sleep(&b.transport), "the waker wakes");
    }
    assert!(b.events.is_empty(), "{:?}", b.events);
}
