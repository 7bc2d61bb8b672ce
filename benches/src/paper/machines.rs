//! The machines of the papers: profiles of the simulator, and settings of the file system as the papers describe theirs.

use bmi_core::Config;
use bmi_sim::Profile;

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
    Bed::sim(Profile { disk_read_byte_ps: 1_616, disk_write_byte_ps: 2_003, ..Profile::vapi_2003().on_ramfs() })
}

/// Paper 002: Quadrics Elan4, no registration; files in the system's cache.
pub(super) fn elan4() -> Bed {
    Bed::sim(Profile { register_region_ns: 0, register_page_ns: 0, disk_read_byte_ps: 1_616, disk_write_byte_ps: 2_003, ..Profile::vapi_2003().on_ramfs() })
}

/// The file system as it is by default: strips of 64 KiB, inline to 4 KiB, fast RDMA to 64 KiB, as paper 000 has it.
pub(super) fn setup(clients: usize, servers: usize) -> Setup {
    Setup { endpoint: Config::default(), ..Setup::new(clients, servers) }
}
