//! The machines of the papers: profiles of the simulator, and settings of the file system as the
//! papers describe them.

use bmi::Config;
use bmi::driver::Waiting;
use bmi_sim::{DiskProfile, Profile};

use crate::workload::{Bed, Setup};

/// A testbed, and how its clients wait.
pub(super) struct Machine {
    pub(super) bed: Bed,
    pub(super) waiting: Waiting,
}

impl Machine {
    /// Returns a machine whose clients poll for the completion of a send, and sleep until the reply
    /// ([PVFS-IB §3.2.4]).
    pub(super) fn verbs(bed: Bed) -> Machine {
        Machine { bed, waiting: Waiting::PAPER_CLIENT }
    }

    /// Returns a machine whose clients sleep in the kernel, because sockets have nothing to poll.
    pub(super) fn tcp(bed: Bed) -> Machine {
        Machine { bed, waiting: Waiting::Event }
    }
}

/// Returns the profile and the disk of the simulator with these names.
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

/// [PVFS-IB] over TCP, files in memory, the buffers of clients and servers in no cache.
pub(super) fn ibnice() -> Bed {
    machine("ibnice-uncached-2003", "ramfs-uncached-2003")
}

/// [PVFS-IB] over TCP, files on disk.
pub(super) fn ibnice_disk() -> Bed {
    machine("ibnice-uncached-2003", "ext3-ide-2003")
}

/// [Unifier-PVFS]: the prices of copies between the system's cache and a server's buffers.
pub(super) fn cached_files() -> DiskProfile {
    DiskProfile::named("ramfs-uncached-2003").expect("disks that the simulator comes with")
}

/// [Quadrics-PVFS2]: Quadrics Elan4, which needs no registration, and PVFS2 with its files in the
/// system's cache. The paper has no figure for the cache. Its cost is that of [Unifier-PVFS], at
/// the bandwidth of this machine's bus.
pub(super) fn elan4() -> Bed {
    machine("elan4-2005", "ramfs-uncached-2005")
}

/// [Quadrics-PVFS2]: the same machines with their other network, of whose cost the paper says
/// nothing. The adapter and its registrations are those of [PVFS-IB].
pub(super) fn infiniband_2005() -> Bed {
    let [verbs, nodes] =
        ["vapi-2003", "elan4-2005"].map(|name| Profile::named(name).expect("a profile of the simulator"));
    let profile = Profile {
        copy_cached_ps_per_byte: nodes.copy_cached_ps_per_byte,
        copy_ps_per_byte: nodes.copy_ps_per_byte,
        memory_ps_per_byte: nodes.memory_ps_per_byte,
        ..verbs
    };
    Bed::sim(profile.with_disk(DiskProfile::named("ramfs-uncached-2005").expect("a disk of the simulator")))
}

/// Returns the default settings of the file system: strips of 64 KiB, inline to 4 KiB, fast RDMA to
/// 64 KiB, as in [PVFS-IB].
pub(super) fn setup(clients: usize, servers: usize) -> Setup {
    Setup { endpoint: Config::default(), ..Setup::new(clients, servers) }
}
