//! Two adapters in this process, driven by the test.

use std::collections::VecDeque;
use std::time::Duration;

use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{ConnId, Event, WorkCompletion};
use bmi_core::{Addr, Clock, Error, Time, Transport};
use bmi_ib::{IbConfig, IbTransport};

/// How long a failing test waits.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// An adapter and the events that it has reported.
pub(crate) struct Side {
    pub(crate) transport: IbTransport,
    pub(crate) events: VecDeque<Event>,
    scratch: Vec<Event>,
    clock: MonotonicClock,
}

impl Side {
    pub(crate) fn new(clock: MonotonicClock, config: IbConfig) -> Side {
        Side::over(clock, IbTransport::new(config).expect("this machine has an RDMA device"))
    }

    pub(crate) fn over(clock: MonotonicClock, transport: IbTransport) -> Side {
        Side { transport, events: VecDeque::new(), scratch: Vec::new(), clock }
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(crate) fn poll(&mut self) -> bool {
        let busy = self.transport.poll(self.clock.now(), &mut self.scratch);
        self.events.extend(self.scratch.drain(..));
        busy
    }

    /// Polls until there is an event.
    pub(crate) fn next(&mut self, what: &str) -> Event {
        self.next_beside(&mut [], what)
    }

    /// Polls this side and others until this one has an event.
    pub(crate) fn next_beside(&mut self, others: &mut [&mut Side], what: &str) -> Event {
        let give_up = self.now() + PATIENCE;
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            assert!(self.now() < give_up, "waited in vain for: {what}");
            self.poll();
            others.iter_mut().for_each(|other| {
                other.poll();
            });
            std::thread::yield_now();
        }
    }

    /// Returns the remaining completions of a connection, and why it ended.
    pub(crate) fn end_of(
        &mut self,
        conn: ConnId,
        others: &mut [&mut Side],
        what: &str,
    ) -> (Vec<WorkCompletion>, Error) {
        let mut completions = Vec::new();
        loop {
            match self.next_beside(others, what) {
                Event::Work(completion) => completions.push(completion),
                Event::Disconnected { conn: ended, reason } if ended == conn => return (completions, reason),
                Event::Established { .. } => {}
                other => panic!("{what}: {other:?}"),
            }
        }
    }

    pub(crate) fn listen(&mut self) -> Addr {
        self.transport.listen(&Addr::ib(None, "127.0.0.1", 0)).expect("listen")
    }

    pub(crate) fn dial(&mut self, addr: &Addr) -> ConnId {
        let deadline = self.now() + PATIENCE;
        self.transport.connect(addr, b"", deadline).expect("connect")
    }
}

/// Two adapters and a connection between them.
pub(crate) struct Pair {
    pub(crate) a: Side,
    pub(crate) b: Side,
    pub(crate) addr: Addr,
    pub(crate) near: ConnId,
    pub(crate) far: ConnId,
}

impl Pair {
    pub(crate) fn new() -> Pair {
        Pair::with(IbConfig::default())
    }

    pub(crate) fn with(config: IbConfig) -> Pair {
        let clock = MonotonicClock::new();
        let (mut a, mut b) = (Side::new(clock, config.clone()), Side::new(clock, config));
        let addr = b.listen();
        let (near, far) = link(&mut a, &mut b, &addr);
        Pair { a, b, addr, near, far }
    }

    pub(crate) fn again(&mut self) -> (ConnId, ConnId) {
        link(&mut self.a, &mut self.b, &self.addr)
    }
}

/// Connects `a` to `b`, which listens at `addr`.
pub(crate) fn link(a: &mut Side, b: &mut Side, addr: &Addr) -> (ConnId, ConnId) {
    let near = a.dial(addr);
    let Event::ConnectRequest { conn: far, .. } = b.next_beside(&mut [a], "a request") else { panic!("no request") };
    b.transport.accept(far, b"").expect("accept");
    assert!(matches!(a.next_beside(&mut [b], "established"), Event::Established { .. }));
    assert!(matches!(b.next_beside(&mut [a], "established"), Event::Established { .. }));
    (near, far)
}
