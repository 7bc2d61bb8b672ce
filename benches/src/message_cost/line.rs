//! The lines of the table: what is played, over which transport, and how often.

use bmi_report::units;
use clap::ValueEnum;

/// The transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// Memory that two processes share. Here both sides are in one process.
    Shm,
    /// TCP over the loopback.
    Tcp,
    /// Plain sockets over the loopback, beside the library over TCP. Each message is written by a
    /// call of its own.
    Sockets,
    /// The same. All messages that are ready are written by one call.
    BatchedSockets,
}

/// How both sides wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By polling.
    Polling,
    /// In `poll(2)` on the transport's event fd, as a driver that sleeps does. Plain sockets in
    /// `epoll_wait`.
    Sleeping,
    /// As the library's own driver waits. Each side has a thread.
    Thread,
    /// As the driver under tokio waits. Each side has a thread with a runtime of its own.
    Tokio,
}

/// The content of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Play {
    /// Each side polls once and finds nothing.
    Idle,
    /// One side sleeps, is woken without work, and goes back to sleep.
    Wake,
    /// A message in each direction. A receive is posted for each.
    Ping,
    /// [`Play::BATCH`] messages in one direction. A receive is posted for each. Then both sides
    /// poll until all are received.
    Rate,
    /// As `Ping`, between `async` endpoints of one thread.
    Task,
    /// As `Ping`, between `async` endpoints of any thread.
    SharedTask,
    /// A transfer to memory that the other side exposes.
    Push,
    /// A transfer from memory that the other side exposes.
    Pull,
    /// A second in which one side asks once, and the other answers.
    RareSecond,
    /// A second in which both sides do nothing. One of them has a timer at its end.
    IdleSecond,
    /// As `Idle`, for the transport without the protocol above it.
    RawIdle,
    /// As `Ping`, for the transport alone.
    RawPing,
    /// As `Rate`, for the transport alone.
    RawRate,
}

impl Target {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Shm => "shm",
            Target::Tcp => "tcp",
            Target::Sockets => "sockets",
            Target::BatchedSockets => "batched sockets",
        }
    }

    /// Returns true if the library is not in it.
    pub(crate) fn is_plain(self) -> bool {
        matches!(self, Target::Sockets | Target::BatchedSockets)
    }
}

impl Mode {
    /// Returns true if drivers run the two sides.
    pub(crate) fn is_driven(self) -> bool {
        matches!(self, Mode::Thread | Mode::Tokio)
    }

    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl Play {
    /// The number of messages of one `Rate`.
    pub(crate) const BATCH: usize = 32;

    /// Returns the number of things in one operation. [`Play::counts`] names the things.
    pub(crate) fn things(self) -> usize {
        match self {
            Play::Ping | Play::RawPing | Play::Task | Play::SharedTask => 2,
            Play::Rate | Play::RawRate => Play::BATCH,
            Play::Idle | Play::RawIdle | Play::Wake | Play::Push | Play::Pull => 1,
            Play::RareSecond | Play::IdleSecond => 1,
        }
    }

    /// Returns true if an operation takes a second.
    pub(crate) fn takes_seconds(self) -> bool {
        matches!(self, Play::RareSecond | Play::IdleSecond)
    }

    /// Returns the name of the thing that a line's figures are for.
    pub(crate) fn counts(self) -> &'static str {
        match self {
            Play::Idle | Play::RawIdle => "poll of both sides",
            Play::Wake => "wake-up",
            Play::Ping | Play::RawPing | Play::Rate | Play::RawRate | Play::Task | Play::SharedTask => "message",
            Play::Push | Play::Pull => "transfer",
            Play::RareSecond | Play::IdleSecond => "second",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Play::Idle => "idle",
            Play::Wake => "wake",
            Play::Ping => "ping",
            Play::Rate => "rate",
            Play::Task => "task ping",
            Play::SharedTask => "shared task ping",
            Play::Push => "push",
            Play::Pull => "pull",
            Play::RareSecond => "request a second",
            Play::IdleSecond => "idle second",
            Play::RawIdle => "raw idle",
            Play::RawPing => "raw ping",
            Play::RawRate => "raw rate",
        }
    }
}

/// A line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) over: Target,
    pub(crate) play: Play,
    /// The bytes of a message or transfer.
    pub(crate) len: usize,
    pub(crate) mode: Mode,
}

impl Line {
    /// Returns the name, which is the same in every run: "tcp ping 8 B, polling".
    pub(crate) fn name(&self) -> String {
        let (over, mode) = (self.over.name(), self.mode.name());
        let len = if self.len > 0 { format!(" {}", units::size(self.len)) } else { String::new() };
        format!("{over} {}{len}, {mode}", self.play.name())
    }

    /// Returns the number of operations to count. Rare events should occur equally often in each
    /// repetition: an idle transport asks the kernel after 32 polls (bmi-tcp) or 256 (bmi-shm), and
    /// a receiver returns credits after 62 messages.
    pub(crate) fn count(&self) -> usize {
        match self.play {
            _ if self.play.takes_seconds() => 1,
            Play::Idle | Play::RawIdle => 2048,
            Play::Rate | Play::RawRate => 248,
            _ if self.len >= 256 << 10 => 32,
            _ if self.len >= 64 << 10 => 128,
            _ => 512,
        }
    }

    /// Returns the instructions of each message or transfer that its figure leaves out: those of
    /// one copy over shared memory.
    ///
    /// Callgrind counts the string instruction that copies (`bmi-core/src/mem/copy.rs`) once for
    /// each byte, so that the copy would hide the rest. Over TCP the kernel copies.
    pub(crate) fn copied(&self) -> u64 {
        let by_string_move = cfg!(target_arch = "x86_64") && self.over == Target::Shm && self.len >= 64 << 10;
        if by_string_move { self.len as u64 } else { 0 }
    }

    /// Returns the line of plain sockets beside this one. With a driver it is that which sleeps: a
    /// plain program needs nothing else.
    pub(crate) fn partner(&self) -> Option<Line> {
        let over = if self.play == Play::Rate { Target::BatchedSockets } else { Target::Sockets };
        let mode = if self.mode.is_driven() { Mode::Sleeping } else { self.mode };
        let partner = Line { over, mode, ..*self };
        (self.over == Target::Tcp && all().contains(&partner)).then_some(partner)
    }

    /// Returns the number of operations to play before the count begins. By then all lists have
    /// grown, and an idle transport is at rest.
    pub(crate) fn warm_up(&self) -> usize {
        match self.play {
            // Until this many polls have found nothing, bmi-tcp reads a socket without being told
            // that there is data.
            Play::Idle | Play::RawIdle => 4200,
            _ => 1000 / self.play.things() / (1 + self.len / 4096) + 20,
        }
    }
}

/// Returns all lines.
pub(crate) fn all() -> Vec<Line> {
    use Mode::{Polling, Sleeping, Thread, Tokio};
    use Play::{
        Idle, IdleSecond, Ping, Pull, Push, RareSecond, Rate, RawIdle, RawPing, RawRate, SharedTask, Task, Wake,
    };
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    let mut lines = Vec::new();
    let mut add = |over, mode, plays: &[(Play, usize)]| {
        lines.extend(plays.iter().map(|&(play, len)| Line { over, play, len, mode }));
    };
    let short = [(Idle, 0), (Ping, 8), (Rate, 64)];
    add(Target::Shm, Polling, &short);
    // Over shared memory, up to 256 KiB are one unit of work, which ends when it is posted.
    let transfers = [(Push, 256 * KIB), (Pull, 256 * KIB), (Push, 257 * KIB), (Pull, 257 * KIB)];
    add(Target::Shm, Polling, &[(Ping, 64 * KIB)]);
    add(Target::Shm, Polling, &transfers);
    let tasks = [(Task, 8), (SharedTask, 8)];
    add(Target::Shm, Polling, &tasks);
    let raw = [(RawIdle, 0), (RawPing, 8), (RawRate, 64), (RawPing, 4 * KIB)];
    add(Target::Shm, Polling, &raw);
    add(Target::Shm, Sleeping, &[(Wake, 0), (Ping, 8), (Rate, 64)]);
    let pings = [(Ping, 4), (Ping, 4 * KIB), (Ping, 64 * KIB), (Ping, MIB)];
    let transfers = [(Push, 64 * KIB), (Pull, 64 * KIB), (Push, MIB), (Pull, MIB)];
    for over in [Target::Tcp, Target::Sockets] {
        add(over, Polling, &short);
        add(over, Sleeping, &short[1..]);
        for mode in [Polling, Sleeping] {
            add(over, mode, &pings);
            add(over, mode, &transfers);
        }
    }
    for mode in [Polling, Sleeping] {
        add(Target::BatchedSockets, mode, &short[2..]);
    }
    add(Target::Tcp, Polling, &tasks);
    add(Target::Tcp, Polling, &raw);
    add(Target::Tcp, Sleeping, &[(Wake, 0)]);
    for mode in [Thread, Tokio] {
        add(Target::Tcp, mode, &pings);
        add(Target::Tcp, mode, &[(RareSecond, 4), (IdleSecond, 0)]);
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_line_has_a_name_of_its_own() {
        let names: HashSet<String> = all().iter().map(Line::name).collect();
        assert_eq!(names.len(), all().len());
        for name in ["shm idle, polling", "tcp ping 8 B, sleeping", "tcp raw ping 4 KiB, polling"] {
            assert!(names.contains(name), "{name} is missing");
        }
    }

    #[test]
    fn lines_over_tcp_have_plain_sockets_beside_them() {
        let partner = |name: &str| {
            let line = all().into_iter().find(|line| line.name() == name).unwrap();
            line.partner().map(|partner| partner.name())
        };
        assert_eq!(partner("tcp ping 4 B, tokio").as_deref(), Some("sockets ping 4 B, sleeping"));
        assert_eq!(partner("tcp pull 1 MiB, polling").as_deref(), Some("sockets pull 1 MiB, polling"));
        assert_eq!(partner("tcp rate 64 B, sleeping").as_deref(), Some("batched sockets rate 64 B, sleeping"));
        for alone in ["tcp raw ping 8 B, polling", "shm ping 8 B, polling", "sockets rate 64 B, polling"] {
            assert_eq!(partner(alone), None);
        }
    }
}
