//! Sleeping and being woken.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use bmi_core::transport::{Armed, Event, Payload, WorkKind, WorkOptions, WriteTarget};
use bmi_core::{Access, Transport};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::backend::Backend;
use crate::data::memory;
use crate::rig::{A, B, Rig};

/// Counts how often it was woken.
#[derive(Default)]
pub(super) struct Alarm(AtomicU32);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A thread that sleeps on an adapter: on its descriptor, or on the waker if there is none.
pub(super) struct Sleeper(Arc<Alarm>);

impl Sleeper {
    pub(super) fn new() -> Sleeper {
        Sleeper(Arc::new(Alarm::default()))
    }

    /// Returns the waker with which the adapter is armed.
    pub(super) fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.0))
    }

    pub(super) fn is_woken(&self, transport: &impl Transport) -> bool {
        match transport.event_fd() {
            Some(fd) => {
                let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                rustix::event::poll(&mut fds, Some(&now)).expect("poll an event fd") > 0
            }
            None => self.0.0.load(Ordering::SeqCst) > 0,
        }
    }

    /// Polls a side until it is idle, armed, and not woken. From then on the side is paused.
    pub(super) fn asleep(rig: &mut Rig<'_>, side: usize, what: &str) -> Sleeper {
        rig.wait(what, |rig| {
            let sleeper = Sleeper::new();
            let armed = rig.adapter(side).arm(&sleeper.waker());
            let quiet = armed == Armed::Waiting && !sleeper.is_woken(rig.adapter(side));
            rig.pause(side, quiet);
            quiet.then_some(sleeper)
        })
    }
}

/// The descriptor exists exactly if the capabilities say so.
pub fn event_fd_as_announced(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let announced = backend.expected_capabilities().event_fd;
    assert_eq!(rig.adapter(A).event_fd().is_some(), announced);
}

/// A sleeper is woken by a message, by a connection request, and by a peer's end, each time after
/// it went to sleep again (C11).
pub fn arrivals_wake(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let region = rig.register(B, &memory(8));
    rig.recv(B, link.far, 1, &[region.segment(0, 8)]).expect("receive");
    let woken = |rig: &mut Rig<'_>, sleeper: Sleeper, what: &str| {
        rig.wait(what, |rig| sleeper.is_woken(rig.adapter(B)).then_some(()));
        rig.pause(B, false);
    };

    let sleeper = Sleeper::asleep(&mut rig, B, "idle before a message");
    rig.send(A, link.near, 1, b"wake up", Payload::EMPTY, WorkOptions::SIGNALLED).expect("send");
    woken(&mut rig, sleeper, "woken by a message");
    rig.done(B, link.far, 1, WorkKind::Recv, "the message");

    let addr = rig.listen(B);
    let sleeper = Sleeper::asleep(&mut rig, B, "idle before a connection request");
    let deadline = rig.far_off();
    rig.adapter(A).connect(&addr, b"", deadline).expect("connect");
    woken(&mut rig, sleeper, "woken by a connection request");
    let far = rig.request(B, "the request");
    rig.adapter(B).accept(far, b"").expect("accept");
    assert!(matches!(rig.next_of(B, far, "established"), Event::Established { .. }));

    let sleeper = Sleeper::asleep(&mut rig, B, "idle before the end");
    rig.drop_adapter(A);
    woken(&mut rig, sleeper, "woken by the peer's end");
    rig.end_of(B, link.far, "the end");
    rig.end_of(B, far, "the end");
}

/// A side that posts, polls once and then does something else has woken its peer (C11): the peer
/// gets the message although the side never polls again. It holds for a first message, for those
/// behind it, and for immediate data.
pub fn one_poll_behind_a_post_wakes(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let source = crate::data::filled(1, 4096);
    let from = rig.register(A, &source);
    let target = memory(4096);
    let (into, remote) = rig.expose(B, link.far, &target, Access::WRITE);
    let writes = backend.expected_capabilities().write_with_immediate;
    for number in 0..12 {
        let (what, len) = (format!("message {number}"), [1, 100, 4096][number as usize % 3]);
        rig.recv(B, link.far, number, &[into.segment(0, 4096)]).expect("receive");
        let sleeper = Sleeper::asleep(&mut rig, B, "idle before the only poll");
        let payload = [from.segment(0, len)];
        let kind = if number >= 6 && writes {
            let remote = remote.slice(0, len as u64).expect("within");
            let target = WriteTarget { remote, immediate: Some(7) };
            rig.write(A, link.near, number, &payload, target).expect("write");
            WorkKind::Write
        } else {
            rig.send(A, link.near, number, b"", Payload::Gather(&payload), WorkOptions::SIGNALLED).expect("send");
            WorkKind::Send
        };
        rig.poll_once(A);
        rig.pause(A, true);
        rig.wait(&format!("woken by {what}"), |rig| sleeper.is_woken(rig.adapter(B)).then_some(()));
        rig.pause(B, false);
        rig.done(B, link.far, number, WorkKind::Recv, &format!("{what} at the sleeper"));
        rig.pause(A, false);
        rig.done(A, link.near, number, kind, &what);
    }
}

/// Work that needs several polls wakes again after each. A transfer larger than one poll moves
/// arrives whole at a receiver that polls only when woken (C11).
pub fn a_sleeper_gets_a_large_message_whole(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    let len = 6 << 20;
    let (source, target) = (crate::data::filled(1, len), memory(len));
    let (from, to) = ([rig.register(A, &source).segment(0, len)], [rig.register(B, &target).segment(0, len)]);
    rig.recv(B, link.far, 1, &to).expect("receive");
    rig.send(A, link.near, 1, &[], Payload::Gather(&from), WorkOptions::SIGNALLED).expect("send");
    rig.pause(B, true);
    rig.wait("the receive at a sleeping receiver", |rig| {
        let sleeper = Sleeper::new();
        if rig.adapter(B).arm(&sleeper.waker()) == Armed::Waiting {
            // Sleep until woken, while the sender goes on.
            let due = rig.adapter(B).next_deadline();
            rig.wait("a wake-up", |rig| {
                (sleeper.is_woken(rig.adapter(B)) || due.is_some_and(|due| rig.now() >= due)).then_some(())
            });
        }
        rig.poll_once(B);
        (!rig.unread(B).is_empty()).then_some(())
    });
    rig.done(B, link.far, 1, WorkKind::Recv, "the large message");
    assert!(target.to_vec() == source.to_vec(), "the bytes differ");
}

/// `waker` wakes a sleeper, from another thread too.
pub fn waker_wakes(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    for _ in 0..3 {
        let sleeper = Sleeper::asleep(&mut rig, B, "idle");
        let waker = rig.adapter(B).waker();
        let thread = std::thread::Builder::new().name("waker".to_owned()).spawn(move || waker.wake());
        thread.expect("start a thread").join().expect("waking does not panic");
        rig.wait("woken by hand", |rig| sleeper.is_woken(rig.adapter(B)).then_some(()));
        rig.pause(B, false);
    }
}

/// When all work is done, an adapter is idle: `poll` has nothing to do, no deadline is pending,
/// `arm` returns `Waiting`, and the descriptor is not readable (C12, C14).
pub fn idle_is_idle(backend: &dyn Backend) {
    let mut rig = Rig::new(backend);
    let link = rig.link(A, B);
    for _ in 0..3 {
        rig.ping(A, B, link, "before idling");
        for side in [A, B] {
            Sleeper::asleep(&mut rig, side, "idle after a ping");
            rig.pause(side, false);
            rig.wait("a poll with nothing to do", |rig| (!rig.poll_once(side)).then_some(()));
            assert!(rig.unread(side).is_empty(), "{:?}", rig.unread(side));
            let deadline = rig.adapter(side).next_deadline();
            let far_away = rig.now() + Duration::from_millis(100);
            assert!(deadline.is_none_or(|at| at > far_away), "an idle adapter wants to be polled at {deadline:?}");
        }
    }
}
