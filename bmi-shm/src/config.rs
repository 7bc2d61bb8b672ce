//! What can be set, with defaults that suit a storage server and its clients on one host.

use std::time::Duration;

use bmi_backend::{Limit, software};
use bmi_core::{Capabilities, Error, ErrorKind};

pub(crate) use bmi_backend::software::{MAX_HEAD, MAX_INLINE, MAX_READS, MAX_SEGMENTS, MAX_WORK_LEN};

use crate::area::Geometry;

/// Settings of a [`ShmTransport`](crate::ShmTransport).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShmConfig {
    /// A socket that has not sent its whole, right hello this long after it was accepted is
    /// dropped. 5 s.
    pub handshake_timeout: Duration,
    /// Accepted sockets without a hello, at most; above, new ones are closed at once. 256.
    pub max_half_open: usize,
    /// Connections of all kinds, at most. 4096.
    pub max_connections: usize,
    /// Registered regions, at most. 1 Mi.
    pub max_regions: usize,
    /// Exposures of one connection, at most; never more than 1 Mi. 1 Mi.
    pub max_exposures: usize,
    /// Exposures of one connection of which the peer can find the place by itself, at most; it asks
    /// for the others. 4096: as many as the pieces of the longest list. Each takes 64 bytes of
    /// shared memory once it was used.
    pub advertised_exposures: usize,
    /// Bytes of the ring from this side to the peer, a power of two from 64 KiB to 64 MiB. 256 KiB:
    /// it stays in the cache.
    pub ring_len: usize,
    /// Memory that peers passed and that is kept mapped for each connection: pieces, and bytes
    /// together. The least recently used is unmapped first. 1024 pieces, 64 GiB.
    pub max_mapped: (usize, u64),
    /// The same for all connections together; what finds no room goes another way. A process may
    /// have some 65,000 mappings, and addresses for 128 TiB. 16,384 pieces, 16 TiB.
    pub max_mapped_in_all: (usize, u64),
    /// Pass memory that lives in shareable pages to peers that it is exposed to, and that it is
    /// sent to if they can reach it anyway. Without it they go by the next two ways, and messages
    /// through the ring. `true`.
    pub share_pages: bool,
    /// Reach memory of the peer through the kernel (`process_vm_readv`, `process_vm_writev`) if
    /// both run under one user and it allows that. Without it bytes go through the ring, in pieces,
    /// and the peer moves them while it polls. `true`.
    pub cross_memory: bool,
    /// Users beside this process's own, and root, whose processes may connect. None.
    pub allowed_users: Vec<u32>,
    /// Work requests that a connection's send queue holds. 1024.
    pub send_queue_depth: usize,
    /// Receives that a connection's receive queue holds. 4096.
    pub recv_queue_depth: usize,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig {
            handshake_timeout: Duration::from_secs(5),
            max_half_open: 256,
            max_connections: 4096,
            max_regions: 1 << 20,
            max_exposures: 1 << 20,
            advertised_exposures: 4096,
            ring_len: 256 << 10,
            max_mapped: (1024, 64 << 30),
            max_mapped_in_all: (16 << 10, 16 << 40),
            share_pages: true,
            cross_memory: true,
            allowed_users: Vec::new(),
            send_queue_depth: 1024,
            recv_queue_depth: 4096,
        }
    }
}

impl ShmConfig {
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { ring_len: self.ring_len, exposures: self.advertised_exposures }
    }

    /// Whether processes of `user` may talk to this one, which runs as `own`. (The socket's
    /// directory is closed to others than `own` and root too; this holds also where somebody has
    /// opened it, and for the listener that this side dials.)
    pub(crate) fn admits(&self, user: u32, own: u32) -> bool {
        user == own || user == 0 || self.allowed_users.contains(&user)
    }

    /// Whether the kernel may copy between this process, which runs as `own`, and one of `user`:
    /// between processes of one user only. A peer of another user that this process may do more
    /// than (root may do more than anybody) could otherwise have it write where the peer itself may
    /// not: it becomes, or gives its number to, a program of somebody else's, while a child keeps
    /// the socket. And whoever reaches a peer's memory by the kernel can be made to wait there for
    /// ever (memory behind FUSE, `userfaultfd`), which a process of the same user can do to it
    /// anyway, by a signal.
    pub(crate) fn crosses(&self, user: u32, own: u32) -> bool {
        self.cross_memory && user == own
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        if self.geometry().is_sane() {
            return Ok(());
        }
        let why = format!(
            "ring_len is {}, advertised_exposures {}; a power of two from {} to {} bytes and at most {} are possible",
            self.ring_len,
            self.advertised_exposures,
            Geometry::RING.start(),
            Geometry::RING.end(),
            Geometry::MAX_EXPOSURES
        );
        Err(Error::new(ErrorKind::Invalid, why))
    }

    /// What a transport with this configuration can do: by the initiator's processor where memory
    /// can be reached; where it cannot, the peer must poll.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let mut capabilities = software::capabilities(self.send_queue_depth, self.recv_queue_depth);
        capabilities.shares_pages = self.share_pages;
        capabilities
    }

    pub(crate) fn connections(&self) -> Limit {
        Limit { max: self.max_connections, what: "connections", setting: "ShmConfig::max_connections" }
    }

    pub(crate) fn regions(&self) -> Limit {
        Limit { max: self.max_regions, what: "regions", setting: "ShmConfig::max_regions" }
    }

    pub(crate) fn exposures(&self) -> Limit {
        Limit { max: self.max_exposures, what: "exposures on the connection", setting: "ShmConfig::max_exposures" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_user_root_and_those_named_are_admitted() {
        let mut config = ShmConfig::default();
        assert!(config.admits(1000, 1000) && config.admits(0, 1000));
        assert!(!config.admits(1001, 1000) && !config.admits(1000, 0));
        config.allowed_users = vec![1001];
        assert!(config.admits(1001, 1000) && !config.admits(1002, 1000));
    }

    /// A server that ran as root reached the memory of whatever process had the number that an
    /// admitted user's client had once had, on that client's word.
    #[test]
    fn the_memory_of_another_users_process_is_not_reached_by_the_kernel() {
        let mut config = ShmConfig { allowed_users: vec![1001], ..ShmConfig::default() };
        for (user, own) in [(1001, 0), (1001, 1000), (0, 1000)] {
            assert!(config.admits(user, own) && !config.crosses(user, own), "{user} and {own}");
        }
        assert!(config.crosses(1000, 1000) && config.crosses(0, 0));
        config.cross_memory = false;
        assert!(!config.crosses(1000, 1000));
    }
}
