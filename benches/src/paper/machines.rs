//! The machines of the papers: profiles of the simulator, and settings of the file system as the papers describe theirs.

use bmi_core::Config;
use bmi_sim::{DiskProfile, Profile};

use crate::workload::{Bed, Setup};

/// Paper 000 over verbs, files in memory.
pub(super) fn vapi() -> Bed {
    Bed::sim(Profile::vapi_2003().on_ramfs())
}

/// Paper 000 over verbs, files on disk.
pub(super) fn vapi_disk() -> Bed {
    Bed::sim(Profile::vapi_2003())
}

/// Paper 000 over TCP, files in memory.
pub(super) fn ibnice() -> Bed {
    Bed::sim(Profile::ibnice_2003().on_ramfs())
}

/// Paper 000 over TCP, files on disk.
pub(super) fn ibnice_disk() -> Bed {
    Bed::sim(Profile::ibnice_2003())
}

/// Paper 001 over verbs, *Normal* service of files that the system has in its cache: 590 MB/s read, 476 MB/s written (Table 1), by the processor.
pub(super) fn vapi_cached() -> Bed {
    Bed::sim(Profile::vapi_2003().with_disk(cache()))
}

/// Paper 002: Quadrics Elan4, no registration; files in the system's cache.
pub(super) fn elan4() -> Bed {
    Bed::sim(Profile::named("elan4-2005").expect("a profile of the simulator's own").with_disk(cache()))
}

/// Files that the system has in its cache (001, Table 1).
fn cache() -> DiskProfile {
    let ramfs = DiskProfile::named("ramfs-2003").expect("a profile of the simulator's own");
    DiskProfile { read_ps_per_byte: 1_616, write_ps_per_byte: 2_003, ..ramfs }
}

/// The file system as it is by default: strips of 64 KiB, inline to 4 KiB, fast RDMA to 64 KiB, as paper 000 has it.
pub(super) fn setup(clients: usize, servers: usize) -> Setup {
    Setup { endpoint: Config::default(), ..Setup::new(clients, servers) }
}
