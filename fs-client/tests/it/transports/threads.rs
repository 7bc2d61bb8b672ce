//! One client for many threads, over TCP and shared memory, with real servers.

use std::sync::{Arc, Barrier};
use std::thread::Builder;
use std::time::Duration;

use bmi::driver::{MonotonicClock, event};
use bmi::polled::Engine;
use bmi::{Clock, Config, Memory, OpenOptions, Scheme, SharedEndpoint};
use fs_client::copy::Copier;
use fs_client::{
    CacheHints, Client, ClientOptions, CreateOptions, Draft, Extended, ExtendedRaw, FsPath, OpenFileOptions, Publish,
    RemoveKind, SharedClient, SharedFile,
};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};
use tokio::task::JoinSet;

use crate::support::bodies::{self, IODS, LEN, path, pattern, read, small_requests, striped, whole_life};

/// Number of tasks that share a client.
const TASKS: u64 = 8;

fn start(over: Scheme) -> (tempfile::TempDir, EmbeddedCluster) {
    let dir = tempfile::tempdir().unwrap();
    let options = ClusterOptions { over: vec![over], ..ClusterOptions::with_iods(IODS) };
    let cluster = EmbeddedCluster::start(dir.path().join("data"), options).unwrap();
    (dir, cluster)
}

fn endpoint(over: Scheme) -> SharedEndpoint {
    let (transport, clock) = (bmi::backend::open(over, &OpenOptions::default()).unwrap(), MonotonicClock::new());
    SharedEndpoint::shared(Engine::new(transport, Config::named("test"), clock.now()).unwrap(), clock)
}

/// Options of a client that has the number `id`.
fn options(id: u128) -> ClientOptions {
    ClientOptions { timeout: Duration::from_secs(20), ..ClientOptions::new(id) }
}

/// Runs `body` with a client of a new cluster.
async fn with_client<F: Future<Output = ()>>(over: Scheme, body: impl FnOnce(SharedClient) -> F) {
    let (_dir, cluster) = start(over);
    let endpoint = endpoint(over);
    let driver = tokio::spawn(event::drive(endpoint.clone()));
    let client = Client::connect(endpoint, cluster.manager().clone(), options(11)).await.unwrap();
    body(client).await;
    driver.abort();
    tokio::task::block_in_place(|| cluster.stop()).unwrap();
}

/// Ends when all tasks have ended, and fails if one has.
async fn all(mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// Waits until the client's endpoint holds connections only: one to each server.
async fn until_idle(client: &SharedClient) {
    until_idle_with(client, 1).await;
}

/// Waits until the endpoint of so many clients holds connections only. All but `client` may have
/// lost theirs.
async fn until_idle_with(client: &SharedClient, clients: usize) {
    let mut left = None;
    for _ in 0..1000 {
        client.endpoint().sleep(Duration::from_millis(10)).await;
        let usage = client.endpoint().resource_usage();
        let busy = usage.operations + usage.exposures + usage.work + usage.parked + usage.fast_slots;
        if busy == 0 && usage.peers > IODS && usage.peers <= clients * (1 + IODS) {
            return;
        }
        left = Some(usage);
    }
    panic!("this did not come back: {left:?}");
}

/// Tasks with files of their own, and with one file at different offsets.
async fn share(client: SharedClient) {
    let common = client.create(&path("/common"), striped(65536, IODS as u32)).await.unwrap();
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let (client, common) = (client.clone(), common.clone());
        tasks.spawn(async move { bodies::share(&client, &common, number, 5).await });
    }
    all(tasks).await;
    bodies::was_shared(&common, TASKS, 5).await;
    until_idle(&client).await;
}

/// Runs `work`, and drops it after `soon` if it has not ended.
async fn drop_after(client: &SharedClient, soon: Duration, work: impl Future<Output = ()>) {
    tokio::select! {
        () = work => {}
        () = client.endpoint().sleep(soon) => {}
    }
}

/// Tasks whose futures are dropped early, beside tasks that do their work over the same
/// connections. The data of those that are dropped is in the messages.
async fn drop_futures(client: SharedClient) {
    let common = client.create(&path("/dropped"), striped(65536, IODS as u32)).await.unwrap();
    common.write_at(0, pattern(LEN, 1)).await.unwrap();
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let (client, common) = (client.clone(), common.clone());
        tasks.spawn(async move {
            for round in 0..20 {
                if number % 2 == 0 {
                    whole_life(&client, number, round).await;
                    continue;
                }
                let work = small_requests(&client, &common, number, round);
                drop_after(&client, Duration::from_micros(round * 150), work).await;
            }
        });
    }
    all(tasks).await;
    assert!(read(&common, 0, LEN).await == pattern(LEN, 1));
    until_idle(&client).await;
}

/// Transfers that are dropped while the servers move their data. That may cost their connections,
/// so other transfers of the same client may fail. Another client of the same endpoint does its
/// work.
async fn drop_transfers(client: SharedClient) {
    let (endpoint, manager) = (client.endpoint().clone(), client.manager().addr.clone());
    let rough = Client::connect(endpoint, manager, options(12)).await.unwrap();
    let common = rough.create(&path("/dropped"), striped(65536, IODS as u32)).await.unwrap();
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let (client, rough, common) = (client.clone(), rough.clone(), common.clone());
        tasks.spawn(async move {
            for round in 0..20 {
                if number % 2 == 0 {
                    whole_life(&client, number, round).await;
                    continue;
                }
                let memory = Memory::zeroed(LEN).unwrap();
                let work = async {
                    for _ in 0..10 {
                        let results = [common.write_at(0, &memory).await, common.read_at(0, &memory).await.map(|_| ())];
                        for error in results.into_iter().filter_map(Result::err) {
                            assert!(error.is_retryable(), "{error}");
                        }
                    }
                };
                drop_after(&rough, Duration::from_micros(round * 150), work).await;
            }
        });
    }
    all(tasks).await;
    common.write_at(0, pattern(LEN, 1)).await.unwrap();
    assert!(read(&common, 0, LEN).await == pattern(LEN, 1), "a new connection works");
    until_idle_with(&client, 2).await;
}

/// Clients that are dropped while they connect.
async fn drop_connecting(client: SharedClient) {
    // Both servers are connected.
    whole_life(&client, 0, 0).await;
    for round in 0..40 {
        let endpoint = client.endpoint();
        let other = Client::connect(endpoint.clone(), client.manager().addr.clone(), options(100 + u128::from(round)));
        let soon = endpoint.sleep(Duration::from_micros(round * 40));
        // A client that has connected leaves its connection open.
        tokio::select! {
            biased;
            () = soon => {}
            connected = other => {
                connected.unwrap();
                break;
            }
        }
    }
    whole_life(&client, 1, 0).await;
}

/// A task that panics while it holds a file, beside tasks that do their work.
async fn panic_with_a_file(client: SharedClient) {
    let file = client.create(&path("/held"), striped(65536, IODS as u32)).await.unwrap();
    file.write_at(0, pattern(LEN, 1)).await.unwrap();
    let held = file.clone();
    let panicking = tokio::spawn(async move {
        held.write_at(LEN as u64, pattern(LEN, 2)).await.unwrap();
        let _begun = held.write_at(0, pattern(10, 3));
        panic!("the task of a test, which panics");
    });
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        let client = client.clone();
        tasks.spawn(async move { whole_life(&client, number, 0).await });
    }
    assert!(panicking.await.unwrap_err().is_panic());
    all(tasks).await;
    assert!(read(&file, LEN as u64, LEN).await == pattern(LEN, 2));
    file.sync().await.unwrap();
    until_idle(&client).await;
}

/// New clients, each of which is connected to its I/O servers by two tasks at once.
async fn connect_at_once(over: Scheme) {
    let (_dir, cluster) = start(over);
    for round in 0..30 {
        let endpoint = endpoint(over);
        let driver = tokio::spawn(event::drive(endpoint.clone()));
        let client = Client::connect(endpoint, cluster.manager().clone(), options(round + 1)).await.unwrap();
        let file = client.create(&path(&format!("/f{round}")), striped(65536, IODS as u32)).await.unwrap();
        let together = Arc::new(tokio::sync::Barrier::new(2));
        let mut tasks = JoinSet::new();
        for number in 0..2 {
            let (file, together) = (file.clone(), together.clone());
            tasks.spawn(async move {
                together.wait().await;
                file.write_at(number * LEN as u64, pattern(LEN, number)).await.unwrap();
            });
        }
        all(tasks).await;
        for number in 0..2 {
            assert!(read(&file, number * LEN as u64, LEN).await == pattern(LEN, number));
        }
        until_idle(&client).await;
        driver.abort();
    }
    tokio::task::block_in_place(|| cluster.stop()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_share_a_client_over_tcp() {
    with_client(Scheme::Tcp, share).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tasks_share_a_client_over_shared_memory() {
    with_client(Scheme::Shm, share).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn dropped_futures_leave_nothing_over_tcp() {
    with_client(Scheme::Tcp, drop_futures).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn dropped_futures_leave_nothing_over_shared_memory() {
    with_client(Scheme::Shm, drop_futures).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn dropped_transfers_harm_no_other_client_over_tcp() {
    with_client(Scheme::Tcp, drop_transfers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn dropped_transfers_harm_no_other_client_over_shared_memory() {
    with_client(Scheme::Shm, drop_transfers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clients_that_are_dropped_while_they_connect_harm_nobody() {
    with_client(Scheme::Tcp, drop_connecting).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_task_that_panics_with_a_file_harms_nobody() {
    with_client(Scheme::Tcp, panic_with_a_file).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_tasks_that_connect_at_once_make_one_connection_over_tcp() {
    connect_at_once(Scheme::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_tasks_that_connect_at_once_make_one_connection_over_shared_memory() {
    connect_at_once(Scheme::Shm).await;
}

/// Threads without a common runtime. One drives the endpoint.
#[test]
fn plain_threads_share_a_client() {
    let (_dir, cluster) = start(Scheme::Tcp);
    let endpoint = endpoint(Scheme::Tcp);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let driven = endpoint.clone();
    let driver = Builder::new().name("driver".to_owned()).spawn(move || event::block_on(driven, stopped));
    let run = |work: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work);
    };
    let manager = cluster.manager().clone();
    let connecting = Client::connect(endpoint, manager, options(11));
    let client = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(connecting).unwrap();
    let together = Arc::new(Barrier::new(4));
    let threads = (0..4).map(|number| {
        let (client, together) = (client.clone(), together.clone());
        let work = move || {
            together.wait();
            run(Box::pin(async move {
                for round in 0..5 {
                    whole_life(&client, number, round).await;
                }
            }));
        };
        Builder::new().name(format!("worker-{number}")).spawn(work).unwrap()
    });
    let threads: Vec<_> = threads.collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    stop.send(()).unwrap();
    driver.unwrap().join().unwrap().unwrap().unwrap();
    drop(client);
    cluster.stop().unwrap();
}

fn is_send<V: Send>(_: &V) {}

fn is_shared<V: Send + Sync>(_: &V) {}

/// A shared client, what it opens, and all futures may go to any thread. The compiler checks it,
/// for every transport that is `Send`.
#[allow(dead_code, reason = "the compiler checks it; it never runs")]
struct Check<'a> {
    client: &'a SharedClient,
    file: &'a SharedFile,
    path: &'a FsPath,
}

#[allow(dead_code, reason = "the compiler checks it; it never runs")]
impl Check<'_> {
    fn connecting(endpoint: SharedEndpoint, manager: bmi::Addr) {
        is_send(&Client::connect(endpoint, manager, ClientOptions::new(1)));
    }

    fn connecting_through(handle: bmi::Handle, manager: bmi::Addr) {
        is_send(&Client::connect_through(handle, manager, ClientOptions::new(1)));
    }

    async fn names(&self) {
        let Check { client, path, .. } = self;
        is_shared(*client);
        is_send(&client.open(path));
        is_send(&client.create(path, CreateOptions::default()));
        is_send(&client.mkdir(path));
        is_send(&client.mkdir_all(path));
        is_send(&client.lookup(path));
        is_send(&client.stat(path));
        is_send(&client.truncate(path, 0));
        is_send(&client.rename(path, path));
        is_send(&client.remove(path, RemoveKind::Any));
        is_send(&client.remove_all(path));
        is_send(&client.readdir(path));
        is_send(&client.read_dir(path));
        let mut pages = client.read_dir(path).await.unwrap();
        is_shared(&pages);
        is_send(&pages.next_page());
        is_send(&client.stay_connected());
        is_send(&client.refresh());
        is_send(&client.ping());
        is_send(&client.latencies(1));
        is_send(&client.routes());
        is_send(&client.plans(true));
        is_send(&client.statfs());
        is_send(&client.open_with(path, OpenFileOptions::default()));
        is_send(&client.cache_state(1));
    }

    fn data(&self, memory: &Memory, access: Extended<'_>, raw: ExtendedRaw<'_>) {
        let Check { file, .. } = self;
        is_shared(*file);
        is_send(&file.read_at(0, memory));
        is_send(&file.write_at(0, memory));
        is_send(&file.read_list(&[], memory));
        is_send(&file.write_list(&[], memory));
        is_send(&file.read_extended(access));
        is_send(&file.write_extended(access));
        // SAFETY: this never runs.
        is_send(&unsafe { file.read_extended_raw(raw) });
        // SAFETY: this never runs.
        is_send(&unsafe { file.write_extended_raw(raw) });
        is_send(&file.sync());
        is_send(&file.size());
        is_send(&file.set_len(0));
        is_send(&file.record_size(0));
        is_send(&file.datafiles());
        is_send(&file.advise(CacheHints::default()));
        is_send(&file.cached(0, 1));
        is_send(&file.read_shared(0, 1));
    }

    fn copies(&self, copier: &Copier<bmi::threading::AnyThread>, draft: Draft<bmi::threading::AnyThread>) {
        let (path, local) = (self.path, std::path::Path::new("/tmp"));
        is_shared(copier);
        is_send(&copier.put(local, path));
        is_send(&copier.copy(path, path));
        is_send(&copier.get_file(path, local));
        is_send(&copier.get_tree(path, local));
        is_send(&self.client.draft(path, CreateOptions::default()));
        is_send(&draft.publish(Publish::default()));
        is_send(&draft.abandon());
    }
}
