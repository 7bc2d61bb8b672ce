//! Files of 32 MiB in the file system over shared memory, and a plain `pwrite` and `pread` of the
//! same size in the directory of their data.
//!
//! **How.** One manager and the default I/O servers are threads of this process, with their data in
//! memory. Both files are written once before the measurement. Then rounds of both alternate, so
//! that both have the same conditions. The client's buffer is [`Client::memory`], so that the
//! servers' kernel can access its pages directly.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use benches::net;
use bmi_core::Scheme;
use bmi_core::driver::event;
use fs_client::{Client, ClientOptions, CreateOptions};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};

/// Any error that ends the run.
type Failed = Box<dyn std::error::Error>;

/// Rates in bytes per second.
pub(crate) struct Figure {
    /// The rate through the file system, one sample for each round.
    pub(crate) ours: Vec<f64>,
    /// The rate of one system call.
    pub(crate) plain: Vec<f64>,
}

/// Measures writing and reading of `size` bytes.
///
/// # Errors
/// If no file system is in memory, or the servers do not start.
#[expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]
pub(crate) fn run(size: usize, rounds: usize) -> Result<[Figure; 2], Failed> {
    let folder = tempfile::Builder::new().prefix("shm-bench-").tempdir_in(Path::new("/dev/shm"))?;
    let options = ClusterOptions { over: vec![Scheme::Shm], ..ClusterOptions::default() };
    let cluster = EmbeddedCluster::start(folder.path(), options)?;
    let mut buffer = vec![3u8; size];
    let local = File::options().read(true).write(true).create_new(true).open(folder.path().join("plain"))?;
    let endpoint = net::endpoint(Scheme::Shm, "bench")?;
    let figures = event::block_on(endpoint.clone(), async {
        let client = Client::connect(endpoint, cluster.manager().clone(), ClientOptions::new(1)).await?;
        let file = client.create(&"/file".parse()?, CreateOptions::default()).await?;
        let memory = client.memory(size)?;
        memory.copy_from(0, &buffer);
        let mut figures = [(); 2].map(|()| Figure { ours: Vec::new(), plain: Vec::new() });
        let speed = |begin: Instant| size as f64 / begin.elapsed().as_secs_f64();
        for round in 0..=rounds {
            let begin = Instant::now();
            file.write_at(0, &memory).await?;
            let write = speed(begin);
            let begin = Instant::now();
            local.write_all_at(&buffer, 0)?;
            let plain_write = speed(begin);
            let begin = Instant::now();
            file.read_at(0, &memory).await?;
            let read = speed(begin);
            let begin = Instant::now();
            local.read_exact_at(&mut buffer, 0)?;
            let plain_read = speed(begin);
            // The first round creates the pages.
            if round > 0 {
                figures[0].ours.push(write);
                figures[0].plain.push(plain_write);
                figures[1].ours.push(read);
                figures[1].plain.push(plain_read);
            }
        }
        Ok::<_, Failed>(figures)
    })??;
    cluster.stop()?;
    Ok(figures)
}
