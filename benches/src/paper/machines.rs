//! The machines of the papers: profiles of the simulator, and settings of the file system as the
//! papers describe theirs.

use bmi_core::Config;
use bmi_core::driver::Waiting;
use bmi_sim::{DiskProfile, Profile};

use crate::workload::{Bed, Setup};

/// A testbed, and how its clients wait.
pub(super) struct Machine {
    pub(super) bed: Bed,
    pub(super) waiting: Waiting,
}

impl Machine {
    /// Clients poll for what they send and sleep until the reply ([PVFS-IB §3.2.4]).
    pub(super) fn verbs(bed: Bed) -> Machine {
        Machine { bed, waiting: Waiting::PAPER_CLIENT }
    }

    /// Clients sleep in the kernel: sockets have nothing to poll.
    pub(super) fn tcp(bed: Bed) -> Machine {
        Machine { bed, waiting: Waiting::Event }
    }
}

/// A profile and a disk that the simulator has under these names.
fn machine(profile: &str, disk: &str) -> Bed {
    let known = "a profile that the simulator comes with";
    Bed::sim(Profile::named(profile).expect(known).with_disk(DiskProfile::named(disk).expect(known)))
}

/// [PVFS-IB] over verbs, files in memory, the server's buffers in no cache.
pub(super) fn vapi() -> Bed {
    machine("vapi-2003", "ramfs-uncached-2003")
}

/// [PVFS-IB] over verbs, files on disk.
pub(super) fn vapi_disk() -> Bed {
    machine("vapi-2003", "ext3-ide-2003")
}

/// [PVFS-IB] over TCP, files in memory, everybody's buffers in no cache.
pub(super) fn ibnice() -> Bed {
    machine("ibnice-uncached-2003", "ramfs-uncached-2003")
}

/// [PVFS-IB] over TCP, files on disk.
pub(super) fn ibnice_disk() -> Bed {
    machine("ibnice-uncached-2003", "ext3-ide-2003")
}

/// [Unifier-PVFS] over verbs, *Normal* service of files that the system has in its cache.
pub(super) fn vapi_cached() -> Bed {
    machine("vapi-2003", "ramfs-uncached-2003")
}

/// [Quadrics-PVFS2]: Quadrics Elan4, which needs no registration, and PVFS2 with its files in the
/// system's cache. The paper has no figure for the cache. Its cost is that of [Unifier-PVFS], at
/// the bandwidth of this machine's bus.
pub(super) fn elan4() -> Bed {
    machine("elan4-2005", "ramfs-uncached-2005")
}

/// The file system as it is by default: strips of 64 KiB, inline to 4 KiB, fast RDMA to 64 KiB, as
/// [PVFS-IB] has it.
pub(super) fn setup(clients: usize, servers: usize) -> Setup {
    Setup { endpoint: Config::default(), ..Setup::new(clients, servers) }
}
