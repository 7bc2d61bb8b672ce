//! The file descriptors that a server may have, and how they are divided.
//!
//! **Why.** Connections and open datafiles come out of one limit (`RLIMIT_NOFILE`). A server that
//! accepted connections until no descriptor was left could not open datafiles any more, and the
//! requests of all clients failed. So each kind of descriptor has its part, and a connection above
//! its part is refused.
//!
//! **Layout** of the limit:
//!
//! ```text
//!   ┌──────────┬───────────────────────┬─────────────────────────┬────────────────────┐
//!   │ reserved │ datafiles: the least  │ connections, as many as │ more datafiles, as │
//!   │          │ part                  │ the transports allow    │ many as are useful │
//!   └──────────┴───────────────────────┴─────────────────────────┴────────────────────┘
//! ```
//!
//! The reserved part is for listeners, event descriptors, the files of a store apart from
//! datafiles, directories that are opened for a moment, and connections that are refused.
//!
//! **Invariants**
//! 1. The parts are never more than the limit, however small it is.
//! 2. A server never allows more connections than its transports were set to.
//!
//! **Source.** getrlimit(2).
//!
//! **Tests** with processes are in `fs-client/tests/it/commands/descriptors.rs`.

use bmi::{OpenOptions, Scheme};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are neither for datafiles nor for connections. A server with three transports
/// has about 30 when it is idle.
const RESERVED: usize = 64;

/// Descriptors of this kind that each further event loop has: its runtime, and an event descriptor
/// or two for each transport.
const RESERVED_PER_LOOP: usize = 16;

/// Datafiles that a store keeps open at least, if the limit allows four times as many descriptors.
const MIN_DATAFILES: usize = 256;

/// Most datafiles that a store keeps open. More are of little use: a request for one that is not
/// open costs a hand-over to a worker thread.
const MAX_DATAFILES: usize = 16 << 10;

/// Raises this process's limit as far as it may. Returns the limit.
pub(crate) fn raise() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files stays {:?}", limit.current);
            limit.current
        }
    };
    // `None` stands for no limit.
    raised.map_or(usize::MAX, |raised| usize::try_from(raised).unwrap_or(usize::MAX))
}

/// The parts of the limit, in descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    limit: usize,
    reserved: usize,
    datafiles: usize,
    connections: usize,
    /// What the connections would take that the transports allow.
    wanted: usize,
}

impl Division {
    /// Divides `limit` for a server with `loops` event loops that may have connections with
    /// `wanted` descriptors. `stores` is false if it has no datafiles.
    fn new(limit: usize, loops: usize, wanted: usize, stores: bool) -> Division {
        let reserved = (RESERVED + loops.saturating_sub(1) * RESERVED_PER_LOOP).min(limit / 4);
        let least = if stores { MIN_DATAFILES.min(limit / 4) } else { 0 };
        let rest = limit - reserved - least;
        let connections = wanted.min(rest);
        let datafiles = if stores { MAX_DATAFILES.min(least + (rest - connections)) } else { 0 };
        Division { limit, reserved, datafiles, connections, wanted }
    }

    /// Divides `limit` for a server with transports of these schemes, and lowers the numbers of
    /// connections that they allow if there are too few descriptors.
    pub(crate) fn settle(
        limit: usize,
        loops: usize,
        stores: bool,
        schemes: &[Scheme],
        transports: &mut OpenOptions,
    ) -> Division {
        let mut allowed: Vec<(&mut usize, usize)> = Vec::new();
        if schemes.contains(&Scheme::Tcp) {
            allowed.push((&mut transports.tcp.limits.max_connections, transports.tcp.streams.into()));
        }
        if schemes.contains(&Scheme::Ib) {
            // The socket of the side channel.
            allowed.push((&mut transports.ib.limits.max_connections, 1));
        }
        if schemes.contains(&Scheme::Shm) {
            // The socket. The shared area has one more, until the peer has it.
            allowed.push((&mut transports.shm.limits.max_connections, 1));
        }
        let sum = allowed.iter().fold(0usize, |sum, (most, each)| sum.saturating_add(most.saturating_mul(*each)));
        let division = Division::new(limit, loops, sum, stores);
        if division.connections < sum {
            for (most, _) in allowed {
                let part = *most as u128 * division.connections as u128 / sum as u128;
                *most = usize::try_from(part).unwrap_or(*most).max(1);
            }
        }
        division
    }

    /// Returns how many established connections a transport may have that may have `all`
    /// connections, of which `half_open` may be half open. Some more are ending. So there is room
    /// for the newcomer that an idle connection has to leave for.
    pub(crate) fn established(all: usize, half_open: usize) -> usize {
        ((all - half_open.min(all / 4)) * 8 / 9).max(1)
    }

    /// Returns true if there are too few descriptors for the connections that were wanted.
    pub(crate) fn is_short(&self) -> bool {
        self.connections < self.wanted
    }

    /// Returns the number of datafiles that the store may keep open.
    pub(crate) fn datafiles(&self) -> usize {
        self.datafiles
    }

    /// Logs the division, with a warning if there are too few descriptors.
    pub(crate) fn log(&self, servers: usize) {
        let Division { limit, reserved, datafiles, connections, .. } = *self;
        tracing::debug!(limit, reserved, datafiles, connections, "file descriptors");
        if let Some(warning) = self.warning(servers) {
            tracing::warn!("{warning}");
        }
    }

    /// Returns a warning if there are too few descriptors for the connections that the transports
    /// allow. `servers` have the process's limit together.
    fn warning(&self, servers: usize) -> Option<String> {
        let Division { limit, reserved, datafiles, connections, wanted } = *self;
        if !self.is_short() {
            return None;
        }
        let least = if datafiles > 0 { MIN_DATAFILES } else { 0 };
        let enough = wanted.saturating_add(RESERVED.max(reserved) + least).saturating_mul(servers);
        Some(format!(
            "this server may have {limit} file descriptors: {datafiles} for open datafiles, {reserved} reserved, and \
             {connections} for connections, which would take {wanted} if there were as many as the configuration \
             allows. Beyond that a newcomer takes the place of an idle client, or is refused. Raise the process's limit to {enough} (`ulimit -n {enough}`, or \
             LimitNOFILE={enough} of systemd)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_ordinary_limit_is_for_connections_first_and_then_for_datafiles() {
        // The limit, what connections want, what they have, and the datafiles.
        let cases = [
            (256, 4096, 128, 64),
            (1024, 4096, 704, 256),
            (4096 + 320, 4096, 4096, 256),
            (10_000, 4096, 4096, 5840),
            (1 << 20, 4096, 4096, 16 << 10),
            (usize::MAX, 4096, 4096, 16 << 10),
        ];
        for (limit, wanted, connections, datafiles) in cases {
            let division = Division::new(limit, 1, wanted, true);
            assert_eq!((division.connections, division.datafiles), (connections, datafiles), "{limit}");
            assert_eq!(division.warning(1).is_some(), connections < wanted, "{limit}");
        }
        assert_eq!(Division::new(1024, 1, 4096, false).connections, 960, "a manager has no datafiles");
        assert_eq!(Division::new(10_000, 3, 4096, true).datafiles, 5840 - 32, "each further loop has some descriptors");
    }

    proptest! {
        #[test]
        fn the_parts_are_never_more_than_the_limit(
            limit in 0..100_000usize,
            loops in 1..64usize,
            wanted in 0..20_000usize,
            stores: bool,
        ) {
            let division = Division::new(limit, loops, wanted, stores);
            prop_assert!(division.reserved + division.datafiles + division.connections <= limit);
            prop_assert!(division.connections <= wanted && division.datafiles <= MAX_DATAFILES);
            prop_assert!(division.datafiles >= MIN_DATAFILES || !stores || limit < 4 * MIN_DATAFILES);
            // Nothing is left over that a connection could have.
            prop_assert!(division.connections == wanted || division.connections >= limit / 2);
        }
    }

    #[test]
    fn transports_share_what_there_is_in_proportion() {
        let mut transports = OpenOptions::default();
        (transports.tcp.limits.max_connections, transports.shm.limits.max_connections) = (3000, 1000);
        let untouched = transports.ib.limits.max_connections;
        let all = [Scheme::Tcp, Scheme::Shm];
        let division = Division::settle(20_000, 1, true, &all, &mut transports);
        assert_eq!((division.connections, division.wanted), (4000, 4000));
        assert_eq!((transports.tcp.limits.max_connections, transports.shm.limits.max_connections), (3000, 1000));
        let division = Division::settle(1024, 1, true, &all, &mut transports);
        assert_eq!(division.connections, 704);
        assert_eq!((transports.tcp.limits.max_connections, transports.shm.limits.max_connections), (528, 176));
        assert_eq!(transports.ib.limits.max_connections, untouched, "the server has no such transport");
    }

    #[test]
    fn established_connections_leave_room_for_others() {
        for (all, half_open) in [(704, 256), (4096, 256), (100, 256), (1, 1)] {
            let fit = Division::established(all, half_open);
            let others = fit / 8 + half_open.min(all / 4);
            assert!(fit > 0 && fit + others <= all && 2 * fit >= all, "{fit} of {all}");
        }
    }

    #[test]
    fn a_warning_names_the_numbers_and_the_remedy() {
        let warning = Division::new(512, 1, 4096, true).warning(2).unwrap();
        for part in ["512", "128 for open datafiles", "64 reserved", "320 for connections", "4096", "ulimit -n 8832"] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
    }
}
