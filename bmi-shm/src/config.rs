//! The settings of this backend, with defaults that suit a storage server and its clients on one
//! host.

use bmi_backend::{Limits, software};
use bmi_core::{Capabilities, Error, ErrorKind};

pub(crate) use bmi_backend::software::{MAX_HEAD, MAX_INLINE, MAX_READS, MAX_SEGMENTS, MAX_WORK_LEN, WORK_LIMITS};

use crate::shared::Geometry;

/// Most pieces of an in-place message.
pub(crate) const MAX_IN_PLACE_PIECES: usize = 4;

/// Settings of a [`ShmTransport`](crate::ShmTransport).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShmConfig {
    /// Limits on the connections.
    pub limits: Limits,
    /// Most memory that peers have passed and that stays mapped, for all connections together: the
    /// number of pieces, and their bytes together. One connection has 1024 pieces and half of the
    /// bytes at most. Bytes of a piece that finds no room go another way. A process may have some
    /// 65,000 mappings. The system charges a page to the process that touches it first. So the
    /// bytes bound what peers can make this process pay for by memory that they have passed and
    /// never touched. Choose them below the memory limit of the process. Several transports behind
    /// one address share this room. 16,384 pieces, 16 GiB.
    pub max_mapped_in_all: (usize, u64),
    /// Most memory of this side that peers may keep after its operation has ended, because they do
    /// not finish writing to it: the number of exposures, and the bytes of their memories. Above
    /// it, no memory is lent to any peer until some comes back, and bytes go through the ring. What
    /// was lent before may still be added, at most 32 exposures for each connection. 256
    /// exposures, 1 GiB.
    pub max_retired: (usize, u64),
    /// Pass memory in shareable pages to peers. It is passed when it is exposed to a peer, or sent
    /// to a peer that can reach it anyway. Without this setting bulk goes through the kernel or the
    /// ring, and messages go through the ring. `true`.
    pub share_pages: bool,
    /// Reach memory of the peer through the kernel (`process_vm_readv`, `process_vm_writev`) if
    /// both processes run under one user and the kernel allows it. Without this setting bytes go
    /// through the ring in pieces, and the peer moves them while it polls. `true`.
    pub cross_memory: bool,
    /// Users whose processes may connect, besides this process's own user and root. None.
    pub allowed_users: Vec<u32>,
    /// What no program has had a reason to change. Tests make it scarce.
    #[doc(hidden)]
    pub tuning: Tuning,
}

/// What no program has had a reason to change.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// Most exposures of one connection whose location is advertised to the peer. For the others,
    /// the peer asks through the ring. The default is as many as the longest list has pieces. Each
    /// takes 64 bytes of shared memory once it has been used.
    pub advertised_exposures: usize,
    /// Bytes of the ring from this side to the peer: a power of two from 64 KiB to 64 MiB. The
    /// default stays in the cache.
    pub ring_len: usize,
    /// Most pieces of memory that a peer has passed and that stay mapped, per connection. The least
    /// recently used piece is unmapped first.
    pub max_mapped: usize,
    /// Most work requests in a connection's send queue.
    pub send_queue_depth: usize,
    /// Most receives in a connection's receive queue.
    pub recv_queue_depth: usize,
}

impl Default for ShmConfig {
    fn default() -> ShmConfig {
        ShmConfig {
            limits: Limits::default(),
            max_mapped_in_all: (16 << 10, 16 << 30),
            max_retired: (256, 1 << 30),
            share_pages: true,
            cross_memory: true,
            allowed_users: Vec::new(),
            tuning: Tuning {
                advertised_exposures: 4096,
                ring_len: 256 << 10,
                max_mapped: 1024,
                send_queue_depth: 1024,
                recv_queue_depth: 4096,
            },
        }
    }
}

impl ShmConfig {
    /// Returns settings with the smallest ring, short queues, and room for the location of two
    /// exposures and for one mapped piece of the peer's memory.
    #[doc(hidden)]
    pub fn scarce() -> ShmConfig {
        let tuning = Tuning {
            advertised_exposures: 2,
            ring_len: 64 << 10,
            max_mapped: 1,
            send_queue_depth: 32,
            recv_queue_depth: 128,
        };
        ShmConfig { tuning, ..ShmConfig::default() }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { ring_len: self.tuning.ring_len, exposures: self.tuning.advertised_exposures }
    }

    /// Returns whether processes of `user` may talk to this process, which runs as `own`. The
    /// socket's directory is closed to users other than `own` and root already. This check also
    /// holds if the directory has been opened to others, and for the listener that this side dials.
    pub(crate) fn admits(&self, user: u32, own: u32) -> bool {
        user == own || user == 0 || self.allowed_users.contains(&user)
    }

    /// Returns whether the kernel may copy between this process, which runs as `own`, and a process
    /// of `user`. It may only between processes of one user.
    ///
    /// A peer of another user is dangerous if this process has more rights than it (root has them
    /// all). Such a peer could make this process write where the peer itself may not. It executes
    /// another user's program, or gives up its process number to one, while a child keeps the
    /// socket. Also, a process that reaches a peer's memory through the kernel can be made to wait
    /// there forever (memory behind FUSE, `userfaultfd`). A process of the same user can stop this
    /// process anyway, with a signal.
    pub(crate) fn crosses(&self, user: u32, own: u32) -> bool {
        self.cross_memory && user == own
    }

    pub(crate) fn validate(&self) -> Result<(), Error> {
        if self.geometry().is_sane() {
            return Ok(());
        }
        let why = format!(
            "ring_len is {}, advertised_exposures {}; a power of two from {} to {} bytes and at most {} are possible",
            self.tuning.ring_len,
            self.tuning.advertised_exposures,
            Geometry::RING.start(),
            Geometry::RING.end(),
            Geometry::MAX_EXPOSURES
        );
        Err(Error::new(ErrorKind::Invalid, why))
    }

    /// Returns the capabilities of a transport with this configuration. The initiator's processor
    /// moves the bytes where it can reach the memory. Where it cannot, the peer must poll.
    pub(crate) fn capabilities(&self) -> Capabilities {
        let mut capabilities = software::capabilities(self.tuning.send_queue_depth, self.tuning.recv_queue_depth);
        capabilities.shares_pages = self.share_pages;
        capabilities
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

    /// A regression test. A server that ran as root trusted the word of an admitted user's client.
    /// It reached the memory of whatever process had the number that this client had once had.
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
