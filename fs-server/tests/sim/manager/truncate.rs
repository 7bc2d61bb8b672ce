//! Changes of a file's size at several servers: crashes at every moment, repeated and late
//! requests, and races with other changes of the same file.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bmi_sim::SimConfig;
use bmi_sim::faults::Loss;
use fs_client::{ClientOptions, CreateOptions, Endpoints, File, FsPath, Publish};
use fs_proto::RemoveKind;

use super::*;

type FsClient = fs_client::Client;

/// Length of a file before it is truncated, and after.
pub(super) const LONG: usize = 40_000;
const SHORT: usize = 13_000;
/// Number of files that are truncated at about the same time.
const COUNT: u64 = 150;
/// The datafile of tests that ask an I/O server as the manager does.
const FILE: DatafileHandle = DatafileHandle(7);

pub(super) fn options(iods: usize) -> ClusterOptions {
    let heartbeat = Duration::from_millis(30);
    ClusterOptions { strip_size: 4096, disk_cache: true, heartbeat, pool: 8, ..ClusterOptions::with_iods(iods) }
}

/// Creates a world with a cluster whose servers have no datafiles but those of the manager.
pub(super) fn empty_cluster(seed: u64, options: ClusterOptions) -> (World, SimCluster) {
    let world = World::with(SimConfig::seeded(seed));
    let cluster = SimCluster::start(&world, options).unwrap();
    (world, cluster)
}

/// Runs a test with such a cluster and a client of it.
pub(super) fn with_fs(seed: u64, options: ClusterOptions, test: impl AsyncFnOnce(&World, &SimCluster, &FsClient)) {
    let (world, cluster) = empty_cluster(seed, options);
    world.block_on(async {
        let client = connect(&world, &cluster, 1).await;
        test(&world, &cluster, &client).await;
    });
}

pub(super) async fn connect(world: &World, cluster: &SimCluster, id: u128) -> FsClient {
    let node = world.node(&format!("client{id}"));
    let endpoint = node.endpoint(Config::named("client")).unwrap();
    // A test sees what a single request does.
    let (timeout, retry_for) = (Duration::from_millis(500), Duration::ZERO);
    let options = ClientOptions { timeout, retry_for, ..ClientOptions::new(id) };
    loop {
        match FsClient::connect(endpoint.clone(), cluster.manager(), options.clone()).await {
            Ok(client) => return client,
            Err(error) => assert_eq!(error.code(), ErrorCode::Unreachable, "{error}"),
        }
        endpoint.sleep(Duration::from_millis(1)).await;
    }
}

pub(super) fn path(name: &str) -> FsPath {
    format!("/{name}").parse().unwrap()
}

/// Creates a file of [`LONG`] bytes, synced.
pub(super) async fn long_file(client: &FsClient, name: &str, salt: u64) -> File {
    let file = client.create(&path(name), CreateOptions::default()).await.unwrap();
    file.write_at(0, &Memory::from(pattern(LONG, salt))).await.unwrap();
    file.sync().await.unwrap();
    file
}

/// Reads a whole file as soon as its servers serve it. That must be within a second.
pub(super) async fn contents(client: &FsClient, file: &File) -> Vec<u8> {
    for _ in 0..10 {
        let memory = Memory::from(vec![0xee; LONG + 10_000]);
        match file.read_at(0, &memory).await {
            Ok(read) => {
                let bytes = memory.to_vec();
                assert!(bytes[read as usize..].iter().all(|byte| *byte == 0), "bytes behind the end");
                return bytes[..read as usize].to_vec();
            }
            Err(error) => {
                let codes = [ErrorCode::Busy, ErrorCode::Unreachable, ErrorCode::Timeout];
                assert!(codes.contains(&error.code()), "{error}");
            }
        }
        client.endpoint().sleep(Duration::from_millis(100)).await;
    }
    panic!("the file is not served again");
}

/// Returns the number of datafiles that belong to files or to nothing.
pub(super) async fn left(client: &FsClient) -> u64 {
    let space = client.statfs().await.unwrap();
    assert_eq!((space.manager.orphans, space.manager.nameless), (0, 0));
    let datafiles = space.servers.iter().map(|server| server.result.as_ref().unwrap().datafiles);
    datafiles.sum::<u64>() - space.manager.prepared
}

/// Truncates a file, and lets the power of nodes fail after some microseconds. They come back one
/// after the other. Returns whether the truncation was acknowledged, and whether it happened.
fn truncate_with_a_crash(after_us: u64, victims: &[&str]) -> (bool, bool) {
    let (world, cluster) = empty_cluster(after_us, options(3));
    let (client, file) = world.block_on(async {
        let client = connect(&world, &cluster, 1).await;
        let file = long_file(&client, "file", 1).await;
        (client, file)
    });
    let truncated = world.node("client1").spawn(async move { file.set_len(SHORT as u64).await });
    world.run_for(Duration::from_micros(after_us));
    victims.iter().for_each(|name| world.node(name).crash(&mut Loss::everything()));
    for name in victims {
        world.run_for(Duration::from_millis(200));
        world.node(name).restart();
    }
    world.block_on(async {
        // A client that has crashed too does not know, and does not ask again.
        let acknowledged = truncated.await.is_ok_and(|result| result.is_ok());
        let client = if victims.contains(&"client1") { connect(&world, &cluster, 2).await } else { client };
        client.endpoint().sleep(Duration::from_millis(300)).await;
        let file = client.open(&path("file")).await.unwrap();
        let found = contents(&client, &file).await;
        let happened = found.len() == SHORT;
        let expected = pattern(if happened { SHORT } else { LONG }, 1);
        assert!(found == expected, "after {after_us} us: a mixture of {} bytes", found.len());
        assert!(happened || !acknowledged, "after {after_us} us: acknowledged, and did not happen");
        // It does not come later, and it can be written.
        file.write_at(0, &Memory::from(pattern(LONG, 2))).await.unwrap();
        client.endpoint().sleep(Duration::from_secs(3)).await;
        assert!(contents(&client, &file).await == pattern(LONG, 2), "after {after_us} us: a later write was cut off");
        (acknowledged, happened)
    })
}

/// Crashes nodes at many moments of a truncation, and at every microsecond around the decision.
/// Both outcomes must occur.
fn crash_at_every_moment(victims: &[&str]) {
    let coarse: Vec<bool> = (0..20).map(|step| truncate_with_a_crash(step * 10, victims).1).collect();
    let decided = coarse.iter().position(|happened| *happened).expect("a truncation that happens") as u64 * 10;
    assert!(decided > 10, "crashes before the decision");
    let fine: Vec<(bool, bool)> = (decided - 12..decided + 12).map(|us| truncate_with_a_crash(us, victims)).collect();
    println!("{victims:?}, around {decided} us: {fine:?}");
    assert!(fine.iter().any(|(_, happened)| !happened));
    // Decided, and not carried out yet.
    assert!(fine.iter().any(|(acknowledged, happened)| *happened && !acknowledged) || victims == ["iod1"]);
}

#[test]
fn an_io_server_that_crashes_truncates_all_or_nothing() {
    crash_at_every_moment(&["iod1"]);
}

#[test]
fn a_manager_that_crashes_truncates_all_or_nothing() {
    crash_at_every_moment(&["manager", "client1"]);
}

#[test]
fn what_was_decided_before_a_crash_of_the_manager_is_carried_out() {
    crash_at_every_moment(&["manager", "client1", "iod1"]);
}

/// Replays a bug: a cancellation that was on its way also cancelled a later change, which was
/// prepared over another connection. The later change was then acknowledged, and did not happen at
/// this server.
#[test]
fn a_cancellation_does_not_reach_later_changes() {
    with_client(1, ClusterOptions::with_iods(1), async |_, cluster, client| {
        let manager = client.connect_as_manager(cluster, 0).await;
        let number = 5 | 1 << 60;
        let prepare = |number| IodRequest::PrepareTruncate { datafile: FILE, size: 100, number };
        client.iod(manager, prepare(number)).await.unwrap();
        let cancel = IodRequest::CancelTruncates { before: number, except: Vec::new() };
        client.iod(manager, cancel).await.unwrap();
        let commit = IodRequest::CommitTruncates { before: number + 1, datafiles: vec![(FILE, 100, 100)] };
        client.iod(manager, commit).await.unwrap();
        let size = client.iod(manager, IodRequest::Getsize { datafile: FILE }).await.unwrap();
        assert!(matches!(size, IodReply::Held { size: 100, .. }), "{size:?}");
    });
}

#[test]
fn a_request_to_prepare_that_comes_after_its_cancellation_is_refused() {
    with_client(2, ClusterOptions::with_iods(1), async |_, cluster, client| {
        let manager = client.connect_as_manager(cluster, 0).await;
        let first = 1 << 60;
        let prepare = |number, size| IodRequest::PrepareTruncate { datafile: FILE, size, number };
        let cancel = |before, except| IodRequest::CancelTruncates { before, except };
        let commit = || IodRequest::CommitTruncates { before: first + 3, datafiles: vec![(FILE, 200, 200)] };
        let size = async || client.iod(manager, IodRequest::Getsize { datafile: FILE }).await;
        client.iod(manager, cancel(first + 1, Vec::new())).await.unwrap();
        assert_eq!(code(client.iod(manager, prepare(first, 100)).await), Some(ErrorCode::Stale));
        assert!(matches!(size().await, Ok(IodReply::Held { size: 0, .. })), "it is served");
        // Nor does it replace a later change of the same datafile that the cancellation excepts.
        client.iod(manager, prepare(first + 2, 200)).await.unwrap();
        assert_eq!(code(size().await), Some(ErrorCode::Busy));
        client.iod(manager, cancel(first + 3, vec![FILE])).await.unwrap();
        assert_eq!(code(client.iod(manager, prepare(first, 100)).await), Some(ErrorCode::Stale));
        client.iod(manager, commit()).await.unwrap();
        assert!(matches!(size().await, Ok(IodReply::Held { size: 200, .. })));
        assert_eq!(code(client.iod(manager, prepare(first, 100)).await), Some(ErrorCode::Stale), "after the commit");
        // Repeated after a lost reply, it does not cut off what was written since.
        client.write(manager, FILE, &regions(&[(0, 300)]), &vec![7; 300].into()).await.unwrap();
        client.iod(manager, commit()).await.unwrap();
        assert!(matches!(size().await, Ok(IodReply::Held { size: 300, .. })));
    });
}

/// Replays a bug: the manager connected to a server to cancel a change. What it then excepted from
/// the cancellation was what had been in progress before it connected.
#[test]
fn changes_that_begin_while_others_are_cancelled_are_left_alone() {
    for seed in 0..3 {
        let (world, cluster) = empty_cluster(seed, options(2));
        let (client, files) = world.block_on(async {
            let client = connect(&world, &cluster, 1).await;
            let mut files = Vec::new();
            for number in 0..COUNT {
                files.push(long_file(&client, &format!("file{number}"), number).await);
            }
            (client, files)
        });
        let truncate = |file: &File| {
            let file = file.clone();
            world.node("client1").spawn(async move { file.set_len(SHORT as u64).await })
        };
        // The first one is prepared at one server and not at the other, which is then back.
        cluster.iod_node(1).pause();
        let first = truncate(&files[0]);
        world.run_for(Duration::from_micros(100));
        cluster.iod_node(1).kill();
        world.block_on(async { first.await.unwrap().unwrap_err() });
        cluster.iod_node(1).restart();
        let mut begun = Vec::new();
        for file in &files[1..] {
            world.run_for(Duration::from_micros(47 + seed));
            begun.push(truncate(file));
        }
        let mut happened = 0;
        world.block_on(async {
            assert!(contents(&client, &files[0]).await == pattern(LONG, 0), "the first one was cancelled");
            for (salt, (file, result)) in (1..).zip(files[1..].iter().zip(begun)) {
                let len = match result.await.unwrap() {
                    Ok(()) => SHORT,
                    Err(error) if error.code() == ErrorCode::Unreachable => LONG,
                    Err(error) => panic!("{error}"),
                };
                happened += u64::from(len == SHORT);
                let found = contents(&client, file).await;
                assert!(found == pattern(len, salt), "{} bytes instead of {len}", found.len());
            }
        });
        println!("{happened} of {COUNT}");
        assert!(happened > 10 && happened < COUNT - 1, "{happened} of {COUNT}");
    }
}

#[test]
fn a_truncation_while_a_server_is_down_fails_and_changes_nothing() {
    with_fs(1, options(3), async |_, cluster, client| {
        let file = long_file(client, "file", 1).await;
        cluster.iod_node(1).kill();
        for _ in 0..3 {
            assert_eq!(file.set_len(SHORT as u64).await.unwrap_err().code(), ErrorCode::Unreachable);
        }
        cluster.iod_node(1).restart();
        client.endpoint().sleep(Duration::from_millis(300)).await;
        assert!(contents(client, &file).await == pattern(LONG, 1));
        file.set_len(SHORT as u64).await.unwrap();
        assert!(contents(client, &file).await == pattern(SHORT, 1));
    });
}

#[test]
fn concurrent_truncations_of_a_file_happen_one_after_the_other() {
    for delay_us in (0..200).step_by(10) {
        let (world, cluster) = empty_cluster(delay_us, options(3));
        world.block_on(async {
            let (one, two) = (connect(&world, &cluster, 1).await, connect(&world, &cluster, 2).await);
            let file = long_file(&one, "file", 1).await;
            let same = two.open(&path("file")).await.unwrap();
            let later = async {
                two.endpoint().sleep(Duration::from_micros(delay_us)).await;
                same.set_len(2 * SHORT as u64).await
            };
            let (first, second) = futures_util::future::join(file.set_len(SHORT as u64), later).await;
            first.unwrap();
            second.unwrap();
            let found = contents(&one, &file).await;
            let mut longer = pattern(2 * SHORT, 1);
            longer[SHORT..].fill(0);
            assert!(found == pattern(SHORT, 1) || found == longer, "after {delay_us} us: {} bytes", found.len());
        });
    }
}

/// The reply to a truncation is lost, and the client asks again.
#[test]
fn a_truncation_that_is_asked_for_again_cuts_off_no_later_write() {
    let mut resent = 0;
    for delay_us in (0..200).step_by(10) {
        let (world, cluster) = empty_cluster(delay_us, options(3));
        let (client, file) = world.block_on(async {
            let client = connect(&world, &cluster, 1).await;
            let file = long_file(&client, "file", 1).await;
            (client, file)
        });
        let before = client.stats().resent;
        let truncated = world.node("client1").spawn({
            let file = file.clone();
            async move { file.set_len(SHORT as u64).await }
        });
        world.run_for(Duration::from_micros(delay_us));
        world.cut(&world.node("client1"), &cluster.manager_node());
        world.block_on(async {
            truncated.await.unwrap().unwrap();
            assert!(contents(&client, &file).await == pattern(SHORT, 1), "after {delay_us} us");
            file.write_at(0, &Memory::from(pattern(LONG, 2))).await.unwrap();
            client.endpoint().sleep(Duration::from_secs(1)).await;
            assert!(contents(&client, &file).await == pattern(LONG, 2), "after {delay_us} us: cut off");
        });
        resent += client.stats().resent - before;
    }
    assert!(resent > 5, "{resent}");
}

/// Replays a bug: a request that came again was prepared again before the manager looked for its
/// answer. If a server was down by then, the client was told that nothing had changed.
#[test]
fn a_truncation_that_is_asked_for_again_has_its_answer_although_a_server_is_down() {
    with_fs(5, options(3), async |world, cluster, client| {
        let file = long_file(client, "file", 1).await.handle();
        let raw = Client::new(&world.node("raw"), 9);
        let manager = raw.connect(&cluster.manager()).await;
        let request = raw.request(ManagerRequest::Truncate { file, size: SHORT as u64 });
        let first = raw.send(manager, &request, Body::None).await.unwrap();
        assert_eq!(first.result, Ok(ManagerReply::Truncation(Vec::new()).into()));
        cluster.iod_node(1).crash(&mut Loss::everything());
        raw.endpoint.sleep(Duration::from_secs(1)).await;
        assert_eq!(raw.send(manager, &request, Body::None).await.unwrap(), first);
    });
}

#[test]
fn a_truncation_and_a_removal_or_a_replacement_leave_nothing() {
    let (mut truncated, mut stale) = (0, 0);
    for (delay_us, replace) in (0..20).flat_map(|step| [(step * 10, false), (step * 10, true)]) {
        let (world, cluster) = empty_cluster(delay_us, options(3));
        world.block_on(async {
            let (one, two) = (connect(&world, &cluster, 1).await, connect(&world, &cluster, 2).await);
            let file = long_file(&one, "file", 1).await;
            let draft = two.draft(&path("file"), CreateOptions::default()).await.unwrap();
            draft.file().write_at(0, &Memory::from(pattern(LONG, 2))).await.unwrap();
            let other = async {
                two.endpoint().sleep(Duration::from_micros(delay_us)).await;
                if replace {
                    draft.publish(Publish { size: Some(LONG as u64), ..Publish::default() }).await.unwrap();
                } else {
                    two.remove(&path("file"), RemoveKind::File).await.unwrap();
                    draft.abandon().await.unwrap();
                }
            };
            let (result, ()) = futures_util::future::join(file.set_len(SHORT as u64), other).await;
            match result {
                Ok(()) => truncated += 1,
                Err(error) if error.code() == ErrorCode::Stale => stale += 1,
                Err(error) => panic!("after {delay_us} us, replace: {replace}: {error}"),
            }
            two.endpoint().sleep(Duration::from_secs(1)).await;
            if replace {
                let new = one.open(&path("file")).await.unwrap();
                assert!(contents(&one, &new).await == pattern(LONG, 2), "after {delay_us} us");
                one.remove(&path("file"), RemoveKind::File).await.unwrap();
                two.endpoint().sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(left(&one).await, 0, "after {delay_us} us, replace: {replace}");
        });
    }
    assert!(truncated > 0 && stale > 0, "{truncated}, {stale}");
}

/// Replays a bug: a server that answers that it is busy has answered, so the user was told that it
/// is waited for at each attempt, dozens of times.
#[test]
fn a_user_is_told_once_that_a_busy_file_is_waited_for() {
    let (world, cluster) = empty_cluster(7, options(1));
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    world.block_on(async {
        let file = long_file(&connect(&world, &cluster, 1).await, "file", 1).await;
        let datafile = file.datafiles().await.unwrap()[0].handle;
        let raw = Client::new(&world.node("raw"), 9);
        let iod = raw.connect_as_manager(&cluster, 0).await;
        let prepare = IodRequest::PrepareTruncate { datafile, size: 5, number: 1 << 60 };
        raw.iod(iod, prepare).await.unwrap();
        let endpoint = world.node("client2").endpoint(Config::named("client")).unwrap();
        let wait = Duration::from_secs(20);
        let options = ClientOptions { timeout: 2 * wait, retry_for: wait, ..ClientOptions::new(2) };
        let endpoints = Endpoints::one(cluster.manager().scheme(), endpoint);
        let waiting = move |_: &_, _, _: &str| {
            count.fetch_add(1, Ordering::Relaxed);
        };
        let client = FsClient::connect_waiting(endpoints, cluster.manager(), options, waiting).await.unwrap();
        let file = client.open(&path("file")).await.unwrap();
        assert_eq!(file.read_at(0, &Memory::from(vec![0; 10])).await.unwrap_err().code(), ErrorCode::Busy);
    });
    assert_eq!(told.load(Ordering::Relaxed), 1);
}

/// Replays a bug: a change of size at one server was acknowledged when it was in memory, and the
/// power failed.
#[test]
fn a_truncation_at_one_server_is_durable_as_at_several() {
    for size in [SHORT, LONG + 5_000] {
        with_fs(6, options(1), async |_, cluster, client| {
            let file = long_file(client, "file", 1).await;
            file.set_len(size as u64).await.unwrap();
            cluster.iod_node(0).crash(&mut Loss::everything());
            cluster.iod_node(0).restart();
            client.endpoint().sleep(Duration::from_millis(200)).await;
            let mut expected = pattern(LONG, 1);
            expected.resize(size, 0);
            assert!(contents(client, &file).await == expected);
            // Nothing is in doubt.
            file.sync().await.unwrap();
        });
    }
}
