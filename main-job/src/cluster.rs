//! The differences between the transports: how a cluster starts, how a client is driven, which
//! clock is used, and which processor time is counted.
//!
//! | | over TCP, verbs, shared memory | in the simulator |
//! |---|---|---|
//! | servers | threads of this process, or of another one, on this machine | nodes |
//! | data | files in a temporary directory, in memory (`/dev/shm`) if possible | memory; disks take no time |
//! | client | this thread, driven by the event fd | two nodes, one for each client |
//! | client CPU | of this thread, with the driver's work | of the client's node: the transport's work |

use std::time::Duration;

use bmi::driver::event;
use bmi::paths::Plan;
use bmi::{Addr, Config, Scheme};
use bmi_sim::{SimConfig, World};
use fs_client::{Client, ClientOptions};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster, SimCluster};
use fs_server::scratch::Servers;

use crate::job::{Failed, read_back, store};
use crate::machine::{self, Limit};
use crate::progress::Progress;
use crate::report::Measured;
use crate::tree::Tree;

/// The numbers of the two clients. Any two different numbers will do.
const WRITER: u128 = 1;
const READER: u128 = 2;

/// A cluster on this machine.
enum Cluster {
    Here(Box<EmbeddedCluster>),
    Beside(Servers),
}

impl Cluster {
    fn manager(&self) -> &Addr {
        match self {
            Cluster::Here(cluster) => cluster.manager(),
            Cluster::Beside(cluster) => cluster.manager(),
        }
    }

    fn stop(self) -> Result<(), Failed> {
        match self {
            Cluster::Here(cluster) => Ok(cluster.stop()?),
            Cluster::Beside(cluster) => Ok(cluster.stop()?),
        }
    }
}

/// Runs the job over a transport of this machine. The client and the servers know no other
/// transport.
///
/// # Errors
/// If the transport cannot be opened, a server does not start, or an operation fails.
pub(crate) fn over(
    scheme: Scheme,
    processes: bool,
    tree: &Tree,
    progress: &Progress,
    limit: Duration,
) -> Result<Measured, Failed> {
    // Before any server starts, so that a missing transport is reported once and clearly.
    machine::endpoint(scheme)?;
    let data = tempfile::Builder::new().prefix("ab-").tempdir_in(machine::data_folder())?;
    let _limit = Limit::new(format!("the run over {scheme}"), limit, Some(data.path().to_owned()))?;
    let options = ClusterOptions { over: vec![scheme], ..ClusterOptions::default() };
    let cluster = match processes {
        true => Cluster::Beside(Servers::start(scheme, options.iods, &[])?),
        false => Cluster::Here(Box::new(EmbeddedCluster::start(data.path(), options)?)),
    };

    progress.say(&format!("{scheme}: storing"));
    let (plan, (put, sums)) = with_client(cluster.manager(), WRITER, async |client| {
        let plan = calibrated(&client).await?;
        Ok((plan, store(&client, &machine::cpu_of_thread, tree, progress).await?))
    })?;
    progress.say(&format!("{scheme}: reading back"));
    let (get, wrong) = with_client(cluster.manager(), READER, async |client| {
        calibrated(&client).await?;
        read_back(&client, &machine::cpu_of_thread, tree, &sums, progress).await
    })?;
    cluster.stop()?;
    Ok(Measured { transport: scheme.to_string(), plan, put, get, wrong })
}

/// Measures where the paths cross, and returns the resulting plan. All I/O servers are on this
/// host.
async fn calibrated(client: &Client) -> Result<Plan, Failed> {
    let (_, plan) = client.plans(true).await.swap_remove(0);
    Ok(plan?)
}

fn with_client<R>(manager: &Addr, id: u128, work: impl AsyncFnOnce(Client) -> Result<R, Failed>) -> Result<R, Failed> {
    let endpoint = machine::endpoint(manager.scheme())?;
    event::block_on(endpoint.clone(), async {
        work(Client::connect(endpoint, manager.clone(), ClientOptions::new(id)).await?).await
    })?
}

/// Runs the job in a simulated world.
///
/// # Errors
/// If an operation fails, or the world stops making progress.
pub(crate) fn in_sim(tree: &Tree, progress: &Progress, seed: u64) -> Result<Measured, Failed> {
    let world = World::with(SimConfig::seeded(seed));
    let cluster = SimCluster::start(&world, ClusterOptions::default())?;
    let manager = cluster.manager();

    progress.say("sim: storing");
    let node = world.node("writer");
    let endpoint = node.endpoint(Config::named("writer"))?;
    let (plan, (put, sums)) = world.try_block_on(async {
        let client = Client::connect(endpoint, manager.clone(), ClientOptions::new(WRITER)).await?;
        let plan = calibrated(&client).await?;
        Ok::<_, Failed>((plan, store(&client, &|| node.cpu_busy(), tree, progress).await?))
    })??;

    progress.say("sim: reading back");
    let node = world.node("reader");
    let endpoint = node.endpoint(Config::named("reader"))?;
    let (get, wrong) = world.try_block_on(async {
        let client = Client::connect(endpoint, manager, ClientOptions::new(READER)).await?;
        calibrated(&client).await?;
        read_back(&client, &|| node.cpu_busy(), tree, &sums, progress).await
    })??;
    Ok(Measured { transport: "sim".to_owned(), plan, put, get, wrong })
}
