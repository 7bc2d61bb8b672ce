//! A manager whose commits take time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use bmi_sim::Rng;
use fs_proto::{ErrorCode, ManagerReply, ManagerRequest, Place, RemoveKind};
use fs_server::embedded::ClusterOptions;
use futures_util::future::join_all;

use super::*;

/// Returns the options of a cluster whose manager has this many event loops, and whose commits take
/// this long.
fn slow(threads: usize, seconds: u64) -> ClusterOptions {
    ClusterOptions { threads, commit_time: Duration::from_secs(seconds), ..ClusterOptions::with_iods(1) }
}

/// The numbers of event loops that each test tries.
const LOOPS: [usize; 2] = [1, 3];

fn lookup(name: &str) -> ManagerRequest {
    ManagerRequest::Lookup { place: Place::root(name), open: false }
}

/// Connects, and waits until the manager has nothing to do any more.
async fn quiet(client: &Client, cluster: &SimCluster) -> PeerId {
    let manager = client.connect(&cluster.manager()).await;
    client.endpoint.sleep(Duration::from_secs(60)).await;
    manager
}

/// Random work of several clients, with names of their own, while the power of the manager fails
/// now and then. What was acknowledged is there afterwards. Nothing is acknowledged before a commit
/// can have ended, and lookups do not wait for commits.
#[test]
fn nothing_is_lost_or_acknowledged_early_while_commits_take_seconds() {
    for loops in LOOPS {
        for seed in 0..10 {
            let (world, cluster) = cluster(seed, slow(loops, 3));
            // The names that must and that may be there.
            let outcomes = world.block_on(async {
                let work = join_all((0..4_u64).map(|who| work(&world, &cluster, seed, who)));
                let crashes = async {
                    let mut rng = Rng::new(seed);
                    for _ in 0..3 {
                        world.node("reader").sleep(Duration::from_millis(rng.below(30_000))).await;
                        cluster.restart_manager();
                    }
                };
                futures_util::future::join(work, crashes).await.0
            });
            cluster.restart_manager();
            world.block_on(async {
                let client = Client::new(&world.node("reader"), 99);
                let manager = client.connect(&cluster.manager()).await;
                let (mut sure, mut waited) = (0, 0);
                for (name, states) in outcomes.into_iter().flatten() {
                    let found = client.entry(manager, lookup(&name)).await;
                    let found = found.map(drop).map_err(|error| error.code);
                    assert!(found == Ok(()) || found == Err(ErrorCode::NotFound), "seed {seed}, {name}: {found:?}");
                    assert!(states.contains(&found.is_ok()), "seed {seed}, {name}: {found:?}, possible is {states:?}");
                    sure += u32::from(states.len() == 1);
                    waited += u32::from(states.len() == 2);
                }
                assert!(sure > 10, "seed {seed}: {sure} known, {waited} not");
            });
        }
    }
}

/// Makes and removes directories. Returns which of them may exist.
async fn work(world: &World, cluster: &SimCluster, seed: u64, who: u64) -> Vec<(String, BTreeSet<bool>)> {
    let client = Client::new(&world.node(&format!("client{who}")), u128::from(who) + 1);
    let mut rng = Rng::new(seed << 8 | who);
    let mut states = BTreeMap::<String, BTreeSet<bool>>::new();
    let mut manager = client.connect(&cluster.manager()).await;
    for _ in 0..15 {
        let name = format!("{who}-{}", rng.below(8));
        let made = rng.below(3) > 0;
        let request = match made {
            true => mkdir(&name),
            false => ManagerRequest::Remove { place: Place::root(name.as_str()), kind: RemoveKind::Dir },
        };
        let begun = client.endpoint.now();
        let outcome = client.manager(manager, request).await;
        let known = states.entry(name.clone()).or_insert_with(|| [false].into());
        match outcome {
            Ok(_) => {
                assert!(
                    client.endpoint.now().since(begun) >= Duration::from_secs(3),
                    "acknowledged before the commit was done"
                );
                assert!(known.contains(&!made), "{name}");
                *known = [made].into();
            }
            Err(error) if error.code == ErrorCode::Exists => *known = [true].into(),
            Err(error) if error.code == ErrorCode::NotFound => *known = [false].into(),
            Err(_) => {
                known.insert(made);
                manager = client.connect(&cluster.manager()).await;
            }
        }
        let begun = client.endpoint.now();
        let looked = client.manager(manager, lookup(&name)).await;
        let took = client.endpoint.now().since(begun);
        match &looked {
            Ok(_) => assert!(states[&name].contains(&true), "seed {seed}, {name}"),
            Err(error) if error.code == ErrorCode::NotFound => {
                assert!(states[&name].contains(&false), "seed {seed}, {name}");
            }
            Err(_) => manager = client.connect(&cluster.manager()).await,
        }
        if looked.is_ok() {
            assert!(took < Duration::from_secs(1), "a lookup waited for a commit");
        }
    }
    states.into_iter().collect()
}

#[test]
fn a_failed_commit_answers_exactly_its_changes_with_the_error() {
    for loops in LOOPS {
        let (world, cluster) = cluster(1, slow(loops, 3));
        let client = Client::new(&world.node("client"), 1);
        let other = Client::new(&world.node("other"), 2);
        world.block_on(async {
            let (manager, second) = (quiet(&client, &cluster).await, other.connect(&cluster.manager()).await);
            let failing = async {
                cluster.metadata().refuse(Some((io::ErrorKind::StorageFull, false)));
                let result = client.manager(manager, mkdir("a")).await;
                (code(result), client.endpoint.now())
            };
            let later = async {
                // When the first commit is on its way.
                other.endpoint.sleep(Duration::from_secs(1)).await;
                assert_eq!(code(other.manager(second, lookup("a")).await), Some(ErrorCode::NotFound));
                let result = other.manager(second, mkdir("b"));
                let room = async {
                    other.endpoint.sleep(Duration::from_secs(1)).await;
                    cluster.metadata().refuse(None);
                };
                let (result, ()) = futures_util::future::join(result, room).await;
                (code(result), other.endpoint.now())
            };
            let (first, second) = futures_util::future::join(failing, later).await;
            assert_eq!((first.0, second.0), (Some(ErrorCode::NoSpace), None));
            assert!(first.1 < second.1);
            assert_eq!(code(client.manager(manager, lookup("a")).await), Some(ErrorCode::NotFound));
            assert_eq!(code(client.manager(manager, lookup("b")).await), None);
            assert_eq!(code(client.manager(manager, mkdir("a")).await), None);
        });
    }
}

/// A change whose time limit passes while its commit is on its way has an unknown fate. The same
/// request gets the answer of the change.
#[test]
fn a_change_that_is_late_may_be_made_and_is_made_once() {
    for loops in LOOPS {
        with_client(2, slow(loops, 12), async |_, cluster, client| {
            let manager = quiet(client, cluster).await;
            let request = client.request(mkdir("a"));
            let late = client.send(manager, &request, Body::None).await.unwrap().result;
            assert_eq!(code(late), Some(ErrorCode::Timeout));
            // The same once more, behind the first one.
            client.endpoint.sleep(Duration::from_secs(4)).await;
            assert_eq!(code(client.manager(manager, lookup("a")).await), None);
            let again = client.send(manager, &request, Body::None).await.unwrap().result;
            assert_eq!(code(again), Some(ErrorCode::Timeout));
            client.endpoint.sleep(Duration::from_secs(20)).await;
            let ManagerReply::Stat(stat) = client.manager(manager, ManagerRequest::Statfs).await.unwrap() else {
                panic!()
            };
            assert_eq!(stat.dirs, 2);
        });
    }
}

#[test]
fn changes_that_wait_for_a_stalled_disk_leave_room_for_others() {
    for loops in LOOPS {
        let mut options = slow(loops, 4);
        options.limits.requests = 16;
        let (world, cluster) = cluster(3, options);
        let clients: Vec<_> = (1..=5).map(|id| Client::new(&world.node(&format!("client{id}")), id)).collect();
        let reader = Client::new(&world.node("reader"), 99);
        world.block_on(async {
            let manager = quiet(&reader, &cluster).await;
            let begun = reader.endpoint.now();
            let cluster = &cluster;
            let changes = clients.iter().enumerate().map(|(who, client)| async move {
                let manager = client.connect(&cluster.manager()).await;
                let one = |name: u32| {
                    let request = mkdir(&format!("{who}-{name}"));
                    async move { (code(client.manager(manager, request).await), client.endpoint.now().since(begun)) }
                };
                join_all((0..4).map(one)).await
            });
            let pings = async {
                reader.endpoint.sleep(Duration::from_secs(1)).await;
                for _ in 0..5 {
                    let sent = reader.endpoint.now();
                    reader.manager(manager, ManagerRequest::Ping).await.unwrap();
                    assert!(reader.endpoint.now().since(sent) < Duration::from_millis(100));
                    reader.endpoint.sleep(Duration::from_millis(500)).await;
                }
            };
            let (results, ()) = futures_util::future::join(join_all(changes), pings).await;
            let results: Vec<_> = results.into_iter().flatten().collect();
            let made = results.iter().filter(|(code, _)| code.is_none()).count();
            let refused = |(code, after): &&(Option<ErrorCode>, Duration)| {
                *code == Some(ErrorCode::Busy) && *after < Duration::from_secs(1)
            };
            let refused = results.iter().filter(refused).count();
            assert_eq!((made, refused), (12, 8), "{results:?}");
            let ManagerReply::Stat(stat) = reader.manager(manager, ManagerRequest::Statfs).await.unwrap() else {
                panic!()
            };
            assert_eq!(stat.dirs, 1 + 12, "those that were refused were not made");
        });
    }
}

/// Replays a bug: the next start of a server was judged while the one before was being recorded.
/// Its label then did not know that start, and it was refused as one that has gone back in time.
#[test]
fn a_server_that_starts_again_while_its_registration_is_recorded_is_accepted() {
    for loops in LOOPS {
        for pause_ms in [1, 500, 1000, 1600, 2500, 3500, 4500, 6000] {
            with_client(4, slow(loops, 3), async |_, cluster, client| {
                client.endpoint.sleep(Duration::from_millis(pause_ms)).await;
                cluster.restart_iod(0);
                let manager = quiet(client, cluster).await;
                client.entry(manager, create("file")).await.unwrap();
            });
        }
    }
}
