//! One client for several tasks in the simulator, over a handle of its node. All runs on one
//! thread, in virtual time, and a run can be repeated.

use std::time::Duration;

use bmi::config::HandleConfig;
use bmi::driver::Waiting;
use bmi::{Config, Memory, Time};
use bmi_sim::{SimConfig, World};
use fs_client::{Client, ClientOptions, SharedClient};
use fs_server::embedded::ClusterOptions;

use super::file_system::Setting;
use crate::support::bodies::{self, IODS, LEN, path, pattern, read, small_requests, striped, whole_life};

/// Number of tasks that share a client.
const TASKS: u64 = 6;

/// What a run looked like: the digest of its events, and when each task ended.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    digest: u64,
    ended: Vec<Time>,
}

/// Every message is late by a time that the seed draws.
fn setting(seed: u64) -> Setting {
    let world = World::with(SimConfig { jitter_ns: 20_000, ..SimConfig::seeded(seed) });
    Setting::in_world(world, ClusterOptions::with_iods(IODS))
}

impl Setting {
    fn handle(&self, waiting: Waiting) -> bmi::Handle {
        self.node.handle(&Config::named("client"), 1, HandleConfig::default().waiting(waiting)).unwrap()
    }

    fn shared_client(&self, waiting: Waiting) -> SharedClient {
        let connecting = Client::connect_through(self.handle(waiting), self.cluster.manager(), options(1));
        self.world.block_on(connecting).unwrap()
    }

    /// Runs `work` for each number in a task of the client's node, and `meanwhile` beside them.
    fn tasks<F: Future<Output = ()> + 'static>(
        &self,
        client: &SharedClient,
        work: impl Fn(SharedClient, u64) -> F,
        meanwhile: impl Future<Output = ()>,
    ) -> Vec<Time> {
        let tasks = (0..TASKS).map(|number| {
            let (own, work) = (client.clone(), work(client.clone(), number));
            self.node.spawn(async move {
                work.await;
                own.endpoint().now()
            })
        });
        let tasks: Vec<_> = tasks.collect();
        self.world.block_on(async {
            let all = async { futures_util::future::join_all(tasks).await };
            let (ended, ()) = futures_util::future::join(all, meanwhile).await;
            ended.into_iter().map(Result::unwrap).collect()
        })
    }

    /// Waits until the client's endpoint holds a connection to each server and nothing else.
    fn until_idle(&self, client: &SharedClient) {
        self.world.block_on(async {
            for _ in 0..1000 {
                client.endpoint().sleep(Duration::from_millis(10)).await;
                let usage = client.endpoint().resource_usage();
                let busy = usage.operations + usage.exposures + usage.work + usage.parked + usage.fast_slots;
                if busy == 0 && usage.peers == 1 + IODS {
                    return;
                }
            }
            panic!("this did not come back: {:?}", client.endpoint().resource_usage());
        });
    }
}

fn options(id: u128) -> ClientOptions {
    ClientOptions { timeout: Duration::from_secs(20), ..ClientOptions::new(id) }
}

/// Runs each of a few seeds twice. The two runs are the same, and no two seeds are.
fn repeats(run: impl Fn(u64, Waiting) -> Run) {
    for waiting in [Waiting::Busy, Waiting::Event] {
        let runs: Vec<_> = (0..3).map(|seed| run(seed, waiting)).collect();
        for (seed, first) in (0..).zip(&runs) {
            assert_eq!(run(seed, waiting), *first, "seed {seed}, {waiting:?}");
        }
        assert!(runs[0] != runs[1] && runs[1] != runs[2], "{waiting:?}: {runs:?}");
    }
}

/// Tasks with files of their own, and with one file at different offsets.
#[test]
fn tasks_share_a_client_and_a_run_can_be_repeated() {
    repeats(|seed, waiting| {
        let setting = setting(seed);
        let client = setting.shared_client(waiting);
        let name = path("/common");
        let common = setting.world.block_on(client.create(&name, striped(65536, IODS as u32))).unwrap();
        let work = |client: SharedClient, number: u64| {
            let common = common.clone();
            async move { bodies::share(&client, &common, number, 3).await }
        };
        let ended = setting.tasks(&client, work, async {});
        setting.world.block_on(bodies::was_shared(&common, TASKS, 3));
        setting.until_idle(&client);
        Run { digest: setting.world.digest(), ended }
    });
}

/// Tasks whose futures are dropped early, beside tasks that do their work over the same
/// connections. The data of those that are dropped is in the messages.
#[test]
fn dropped_futures_leave_nothing_and_a_run_can_be_repeated() {
    repeats(|seed, waiting| {
        let setting = setting(seed);
        let client = setting.shared_client(waiting);
        let common = setting.world.block_on(async {
            let common = client.create(&path("/dropped"), striped(65536, IODS as u32)).await.unwrap();
            common.write_at(0, pattern(LEN, 1)).await.unwrap();
            common
        });
        let dropped = std::rc::Rc::new(std::cell::Cell::new(0));
        let work = |client: SharedClient, number: u64| {
            let (common, dropped) = (common.clone(), dropped.clone());
            async move {
                for round in 0..20 {
                    if number.is_multiple_of(2) {
                        whole_life(&client, number, round).await;
                        continue;
                    }
                    let work = small_requests(&client, &common, number, round);
                    tokio::select! {
                        biased;
                        () = work => {}
                        () = client.endpoint().sleep(Duration::from_micros(1 + 17 * round)) => {
                            dropped.set(dropped.get() + 1);
                        }
                    }
                }
            }
        };
        let ended = setting.tasks(&client, work, async {});
        assert!(dropped.get() > 5, "{} were dropped", dropped.get());
        setting.world.block_on(async { assert!(read(&common, 0, LEN).await == pattern(LEN, 1)) });
        setting.until_idle(&client);
        Run { digest: setting.world.digest(), ended }
    });
}

/// The servers are killed and come back while the tasks do their work. The client connects again,
/// once for all of its tasks.
#[test]
fn tasks_go_on_when_servers_start_again_and_a_run_can_be_repeated() {
    repeats(|seed, waiting| {
        let setting = setting(seed);
        let client = setting.shared_client(waiting);
        let (node, cluster) = (&setting.node, &setting.cluster);
        let restarts = async {
            for at in 0..6 {
                node.sleep(Duration::from_millis(5)).await;
                if at % 3 == 2 {
                    cluster.restart_manager();
                } else {
                    cluster.restart_iod(at % 3);
                }
            }
        };
        let lost = std::rc::Rc::new(std::cell::Cell::new(0));
        let work = |client: SharedClient, number: u64| {
            let lost = lost.clone();
            async move {
                let file = client.create(&path(&format!("/f{number}")), striped(65536, IODS as u32)).await.unwrap();
                for round in 0..10 {
                    let bytes = pattern(LEN, number * 100 + round);
                    // A write whose connection is lost is the program's to repeat, and a read, too.
                    while let Err(error) = file.write_at(0, bytes.clone()).await {
                        assert!(error.is_retryable(), "{error}");
                        lost.set(lost.get() + 1);
                    }
                    let memory = Memory::zeroed(LEN).unwrap();
                    while let Err(error) = file.read_at(0, &memory).await {
                        assert!(error.is_retryable(), "{error}");
                        lost.set(lost.get() + 1);
                    }
                    assert!(memory.to_vec() == bytes, "task {number}, round {round}");
                    client.endpoint().sleep(Duration::from_millis(3)).await;
                }
            }
        };
        let ended = setting.tasks(&client, work, restarts);
        let again = client.stats().resent + lost.get();
        assert!(again > 0, "the servers were killed while requests were in flight");
        setting.world.block_on(async { assert!(client.ping().await.iter().all(|pong| pong.result.is_ok())) });
        setting.until_idle(&client);
        Run { digest: setting.world.digest(), ended }
    });
}

/// Two clients share the handle of a program, and a third has an endpoint of it. A client keeps the
/// handle, so its connections live as long as it does. Then they end, and so do the drivers.
#[test]
fn a_client_keeps_the_handle_that_it_was_made_through() {
    let setting = setting(1);
    let handle = setting.handle(Waiting::Event);
    let manager = || setting.cluster.manager();
    let observer = handle.endpoints().next().unwrap().observer();
    let (first, second) = setting.world.block_on(async {
        let first = Client::connect_through(handle.clone(), manager(), options(1)).await.unwrap();
        let second = Client::connect_through(handle.clone(), manager(), options(2)).await.unwrap();
        let endpoint = handle.endpoints().next().unwrap().clone();
        let third = Client::connect(endpoint, manager(), options(3)).await.unwrap();
        drop(handle);
        whole_life(&third, 3, 0).await;
        (first, second)
    });
    setting.world.block_on(async {
        whole_life(&first, 1, 0).await;
        let file = second.create(&path("/kept"), striped(65536, IODS as u32)).await.unwrap();
        drop((first, second));
        // The file has its client.
        file.write_at(0, pattern(LEN, 1)).await.unwrap();
        assert!(read(&file, 0, LEN).await == pattern(LEN, 1));
        assert!(observer().is_some());
        drop(file);
        setting.node.sleep(Duration::from_secs(2)).await;
        assert!(observer().is_none(), "the driver has ended");
    });
}
