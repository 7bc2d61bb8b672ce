//! The processor time of a node, by kind of work.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// Processor time of a node by kind of work, since the start. Subtract an earlier value from a
/// later one to get the time in between.
///
/// Everything but [`Usage::spinning`] occupied a core of [`crate::Profile::cpu_cores`]. Spinning is
/// the time that polling drivers spent without a result. It does not keep other work from running,
/// because work takes the core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time that the program charged with [`crate::Node::compute`].
    pub application: Duration,
    /// Copies: in the protocol, between program and kernel (TCP), and from and to files in memory.
    pub copying: Duration,
    /// Posting, and TCP's work for messages and packets.
    pub protocol: Duration,
    /// Entering the kernel and coming back.
    pub system_calls: Duration,
    /// Interrupts, and switches to the programs that they wake.
    pub interrupts: Duration,
    /// Registering and deregistering memory.
    pub registration: Duration,
    /// Taking completions: polls that found something.
    pub polling: Duration,
    /// Holding locks of the program ([`crate::Node::locked`]).
    pub locking: Duration,
    /// Waiting for locks that another core held.
    pub lock_waiting: Duration,
    /// Polls that found nothing.
    pub spinning: Duration,
}

impl Usage {
    /// Returns the sum of everything but spinning.
    pub fn busy(&self) -> Duration {
        self.parts()[..9].iter().map(|(_, time)| *time).sum()
    }

    /// Returns the part of `window` for which `cores` cores were busy, from 0 to 1. It is more than
    /// 1 if work was charged ahead: the last request of a window ends after it.
    pub fn utilisation(&self, window: Duration, cores: u32) -> f64 {
        let available = window.as_secs_f64() * f64::from(cores);
        if available > 0.0 { self.busy().as_secs_f64() / available } else { 0.0 }
    }

    /// Returns each part with its name, spinning last.
    pub fn parts(&self) -> [(&'static str, Duration); 10] {
        [
            ("application", self.application),
            ("copying", self.copying),
            ("protocol", self.protocol),
            ("system calls", self.system_calls),
            ("interrupts", self.interrupts),
            ("registration", self.registration),
            ("polling", self.polling),
            ("locking", self.locking),
            ("waiting for locks", self.lock_waiting),
            ("spinning", self.spinning),
        ]
    }

    fn with(self, other: Usage, f: impl Fn(Duration, Duration) -> Duration) -> Usage {
        Usage {
            application: f(self.application, other.application),
            copying: f(self.copying, other.copying),
            protocol: f(self.protocol, other.protocol),
            system_calls: f(self.system_calls, other.system_calls),
            interrupts: f(self.interrupts, other.interrupts),
            registration: f(self.registration, other.registration),
            polling: f(self.polling, other.polling),
            locking: f(self.locking, other.locking),
            lock_waiting: f(self.lock_waiting, other.lock_waiting),
            spinning: f(self.spinning, other.spinning),
        }
    }
}

impl Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        self.with(other, Duration::saturating_add)
    }
}

impl Sub for Usage {
    type Output = Usage;

    /// Returns the time spent after `earlier`; zero where `earlier` has more.
    fn sub(self, earlier: Usage) -> Usage {
        self.with(earlier, Duration::saturating_sub)
    }
}

impl fmt::Display for Usage {
    /// Formats one line, without the parts that took no time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "busy {:?}", self.busy())?;
        for (name, time) in self.parts().into_iter().filter(|(_, time)| !time.is_zero()) {
            write!(f, ", {name} {time:?}")?;
        }
        Ok(())
    }
}
