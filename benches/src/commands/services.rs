//! A cluster for each service of an I/O server, and the bytes of their files.

use std::path::Path;

use bmi::{Memory, Scheme};
use fs_server::scratch::Servers;

use super::Failed;

/// The services, the first of which the others are compared with.
pub(crate) const SERVICES: [&str; 3] = ["normal", "mmap", "unifier"];
/// Each block of a file begins with its offset.
pub(crate) const BLOCK: usize = 4 << 10;

/// Starts a manager and one I/O server for each service, with their data in `dir`, or in memory.
/// `memory` is that of the cache, and `views` the part of it that it lends.
pub(crate) fn start(scheme: Scheme, dir: Option<&Path>, memory: &str, views: &str) -> Result<Vec<Servers>, Failed> {
    let dir = dir.map(|dir| dir.display().to_string());
    let start = |service: &str| {
        let cache = format!("service = {service:?}, memory = {memory:?}, views = {views:?}");
        let mut options = vec!["--cache", &cache];
        options.extend(dir.iter().flat_map(|dir| ["--dir", dir]));
        Ok(Servers::start(scheme, 1, &options)?)
    };
    SERVICES.into_iter().map(start).collect()
}

/// Stops all servers.
pub(crate) fn stop(servers: Vec<Servers>) -> Result<(), Failed> {
    Ok(servers.into_iter().try_for_each(Servers::stop)?)
}

/// Writes its offset into each block.
pub(crate) fn mark(memory: &Memory, at: u64, len: usize) {
    for block in (0..len).step_by(BLOCK) {
        memory.copy_from(block, &(at + block as u64).to_le_bytes());
    }
}
