//! What differs between the transports: how a cluster comes up, what drives a client, which clock and which processor count.
//!
//! | | over TCP | in the simulator |
//! |---|---|---|
//! | servers | threads of this process, on the loopback | nodes |
//! | data | files in a temporary folder, in memory (`/dev/shm`) where there is one | memory; disks take no time |
//! | client | this thread, driven by its event fd | two nodes, one for each client |
//! | client CPU | of this thread, the driver's work included | of the client's node: the transport's work |

use std::path::{Path, PathBuf};
use std::time::Duration;

use benches::limit::Limit;
use benches::{cpu, net};
use bmi_core::driver::event;
use bmi_core::{Addr, Config};
use bmi_sim::{SimConfig, World};
use fs_client::{Client, ClientOptions};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster, SimCluster};

use crate::job::{Failed, read_back, store};
use crate::progress::Progress;
use crate::report::Measured;
use crate::tree::Tree;

/// Numbers of the two clients; any two that differ.
const WRITER: u128 = 1;
const READER: u128 = 2;

/// The job over TCP on the loopback.
///
/// # Errors
/// If a server does not come up, or an operation fails.
pub(crate) fn over_tcp(tree: &Tree, progress: &Progress, limit: Duration) -> Result<Measured, Failed> {
    let folder = tempfile::Builder::new().prefix("ab-").tempdir_in(data_folder())?;
    let remains = folder.path().to_owned();
    let _limit = Limit::new("the run over TCP", limit, move || drop(std::fs::remove_dir_all(remains)))?;
    let cluster = EmbeddedCluster::start(folder.path(), ClusterOptions::default())?;

    progress.say("tcp: storing");
    let (put, sums) = with_tcp_client(cluster.manager(), WRITER, async |client| {
        store(&client, &cpu::of_thread, tree, progress).await
    })?;
    progress.say("tcp: reading back");
    let (get, wrong) = with_tcp_client(cluster.manager(), READER, async |client| {
        read_back(&client, &cpu::of_thread, tree, &sums, progress).await
    })?;
    cluster.stop()?;
    Ok(Measured { transport: "tcp", put, get, wrong })
}

fn with_tcp_client<R>(
    manager: &Addr,
    id: u128,
    work: impl AsyncFnOnce(Client<net::Tcp>) -> Result<R, Failed>,
) -> Result<R, Failed> {
    let endpoint = net::tcp_endpoint("ab")?;
    event::block_on(endpoint.clone(), async {
        work(Client::connect(endpoint, manager.clone(), ClientOptions::new(id)).await?).await
    })?
}

/// Memory if there is a file system in it, so that what is measured is the network and not a disk.
fn data_folder() -> PathBuf {
    let memory = Path::new("/dev/shm");
    match tempfile::tempfile_in(memory) {
        Ok(_) => memory.to_owned(),
        Err(_) => std::env::temp_dir(),
    }
}

/// The job in a simulated world.
///
/// # Errors
/// If an operation fails, or the world comes to a stand.
pub(crate) fn in_sim(tree: &Tree, progress: &Progress, seed: u64) -> Result<Measured, Failed> {
    let world = World::with(SimConfig::seeded(seed));
    let cluster = SimCluster::start(&world, ClusterOptions::default())?;
    let manager = cluster.manager();

    progress.say("sim: storing");
    let node = world.node("writer");
    let endpoint = node.endpoint(Config::named("writer"))?;
    let (put, sums) = world.try_block_on(async {
        let client = Client::connect(endpoint, manager.clone(), ClientOptions::new(WRITER)).await?;
        store(&client, &|| node.cpu_busy(), tree, progress).await
    })??;

    progress.say("sim: reading back");
    let node = world.node("reader");
    let endpoint = node.endpoint(Config::named("reader"))?;
    let (get, wrong) = world.try_block_on(async {
        let client = Client::connect(endpoint, manager, ClientOptions::new(READER)).await?;
        read_back(&client, &|| node.cpu_busy(), tree, &sums, progress).await
    })??;
    Ok(Measured { transport: "sim", put, get, wrong })
}
