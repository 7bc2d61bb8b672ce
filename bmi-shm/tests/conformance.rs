//! The shared conformance suite over shared memory: with mapped pages, through the kernel, through
//! the ring alone with small limits, and behind adapters that inject faults.

#[path = "it/common/mod.rs"]
mod common;

use std::process::ExitCode;

use bmi_conformance::{FaultyBackend, Local, Plan, Suite, software_capabilities};
use bmi_core::Capabilities;
use bmi_shm::ShmConfig;
use common::local;

/// The capabilities with page sharing.
fn pinned() -> Capabilities {
    let mut expected = software_capabilities();
    expected.shares_pages = true;
    expected
}

/// The defaults: the peer maps the suite's memory.
fn ordinary() -> Local {
    local("shm", ShmConfig::default(), pinned())
}

/// No pages are passed: the kernel copies between the processes.
fn copied() -> Local {
    let mut config = ShmConfig::default();
    config.share_pages = false;
    local("shm, by the kernel", config, software_capabilities())
}

/// Everything goes through the smallest ring, and the queues are short.
fn little() -> Local {
    let mut config = ShmConfig::scarce();
    config.share_pages = false;
    config.cross_memory = false;
    let mut expected = software_capabilities();
    (expected.send_queue_depth, expected.recv_queue_depth) = (32, 128);
    local("shm, scarce", config, expected)
}

/// A table with room for two exposures, and one mapped piece at a time. All ways are used, and they
/// change.
fn all_ways() -> Local {
    let mut config = ShmConfig::default();
    config.tuning.advertised_exposures = 2;
    config.tuning.max_mapped = 1;
    local("shm, changing", config, pinned())
}

fn main() -> ExitCode {
    Suite::new("shm")
        .over("plain", ordinary)
        .over("by_kernel", copied)
        .over("scarce", little)
        .over("changing", all_ways)
        .over("troubled", || FaultyBackend::new(Box::new(ordinary()), Plan::mild(4)))
        .run()
}
