//! Hints for the caches of I/O servers, and questions to them: the client with real servers that
//! have a cache, and with servers that misbehave, in the simulator.

use std::time::Duration;

use bmi::Config;
use bmi_sim::World;
use fs_client::{
    AccessPattern, CacheCoverage, CacheHints, CachePolicy, CacheState, CachedFile, Client, ClientOptions,
    CreateOptions, ErrorCode, File, OpenFileOptions, Path, ServiceKind,
};
use fs_proto::{DatafileHandle, IodReply, IodRequest, RequestBody};
use fs_server::embedded::{ClusterOptions, SimCluster};
use fs_server::store::{CacheSettings, Service};

use crate::support::bodies::{self, code, path, pattern, striped};
use crate::support::relay::{Deed, Relayed};

const HINTS: CacheHints = CacheHints {
    unit: Some(8192),
    policy: CachePolicy::Stream,
    pattern: AccessPattern::Sequential,
    write_through: false,
};

fn hinted(hints: CacheHints) -> OpenFileOptions {
    OpenFileOptions { hints }
}

/// A cluster of real servers with caches, and a client.
async fn with_caches(world: &World, iods: usize, options: ClientOptions) -> (SimCluster, Client) {
    let service = Service::Unifier(CacheSettings::for_bytes(8 << 20));
    let cluster = SimCluster::start(world, ClusterOptions { service, ..ClusterOptions::with_iods(iods) }).unwrap();
    let endpoint = world.node("client").endpoint(Config::named("client")).unwrap();
    let client = Client::connect(endpoint, cluster.manager(), options).await.unwrap();
    (cluster, client)
}

/// Takes the hints that I/O servers have got since the last call.
fn told(cluster: &Relayed) -> Vec<(u32, DatafileHandle, CacheHints)> {
    let hints = |(iod, body)| match body {
        RequestBody::Iod(IodRequest::Advise { datafile, hints }) => Some((iod?, datafile, hints)),
        _ => None,
    };
    cluster.passed().into_iter().filter_map(hints).collect()
}

/// Returns what each server has of the files.
async fn files(client: &Client) -> Vec<Vec<CachedFile>> {
    client.cache_state(100).await.into_iter().map(|server| server.result.unwrap().files).collect()
}

/// The size of a unit counts only while nothing of the file is cached. So the hints must be there
/// before the first data.
#[test]
fn hints_arrive_before_the_first_data_on_every_path() {
    for way in Path::TAKEN.map(Some).into_iter().chain([None]) {
        for len in [100, 40_000, 900_000] {
            let world = World::new(1);
            world.block_on(async {
                let options = ClientOptions { path: way, ..ClientOptions::new(1) };
                let (_cluster, client) = with_caches(&world, 2, options).await;
                let create = CreateOptions { hints: HINTS, ..striped(65536, 2) };
                let file = client.create(&path("/f"), create).await.unwrap();
                file.write_at(0, pattern(2 * len, 1)).await.unwrap();
                for server in files(&client).await.into_iter().filter(|files| !files.is_empty()) {
                    let found: Vec<_> = server.iter().map(|file| (file.unit, file.hints)).collect();
                    assert_eq!(found, [(8192, HINTS)], "{way:?}, {len} bytes");
                }
                // The same for a file that is opened, and read first.
                client.create(&path("/g"), striped(4096, 2)).await.unwrap();
                let opened =
                    client.open_with(&path("/g"), hinted(CacheHints { unit: Some(4096), ..HINTS })).await.unwrap();
                opened.read_at(0, client.memory(2 * len).unwrap()).await.unwrap();
                for server in files(&client).await {
                    assert!(server.iter().all(|file| [4096, 8192].contains(&file.unit)), "{way:?}: {server:?}");
                }
            });
        }
    }
}

#[test]
fn a_server_is_told_once_with_the_first_access_and_at_once_if_asked_for() {
    let cluster = Relayed::new(2, 3);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        // By the place of a server in the file.
        let servers = |file: &File, told: Vec<(u32, DatafileHandle, CacheHints)>| {
            let place = |iod| file.servers().iter().position(|server| server.iod == Some(iod)).unwrap();
            let mut servers: Vec<_> = told.into_iter().map(|(iod, _, hints)| (place(iod), hints.policy)).collect();
            servers.sort_by_key(|(place, _)| *place);
            servers
        };
        let options = CreateOptions { hints: HINTS, ..striped(4096, 3) };
        let file = client.create(&path("/f"), options).await.unwrap();
        assert_eq!(told(&cluster), [], "opening sends nothing");
        file.write_at(4096, pattern(8192, 1)).await.unwrap();
        assert_eq!(servers(&file, told(&cluster)), [(1, CachePolicy::Stream), (2, CachePolicy::Stream)]);
        for _ in 0..3 {
            file.write_at(0, pattern(50_000, 1)).await.unwrap();
            bodies::read(&file, 0, 50_000).await;
        }
        assert_eq!(servers(&file, told(&cluster)), [(0, CachePolicy::Stream)], "the others know");
        let keep = CacheHints { policy: CachePolicy::Keep, ..CacheHints::default() };
        file.advise(keep).await.unwrap();
        let all = told(&cluster);
        let datafiles = file.datafiles().await.unwrap();
        for (iod, datafile, hints) in &all {
            let own = datafiles.iter().find(|datafile| datafile.server.iod == Some(*iod)).unwrap();
            assert_eq!((own.handle, *hints), (*datafile, keep));
        }
        assert_eq!(all.len(), 3);
        file.advise(CacheHints::default()).await.unwrap();
        assert_eq!(told(&cluster).len(), 3, "no hints are news, too");
        client.open(&path("/f")).await.unwrap().write_at(0, pattern(50_000, 1)).await.unwrap();
        assert_eq!(told(&cluster), [], "who has nothing to tell sends nothing");
    });
}

/// The first access with hints takes as long as one without, but for the time that a message more
/// keeps the adapters busy: no part of a round trip.
#[test]
fn hints_cost_no_round_trip() {
    let first_write = |hints: CacheHints| {
        let cluster = Relayed::new(3, 1);
        cluster.world.block_on(async {
            let client = cluster.client().await;
            let ping = async || client.ping().await.pop().unwrap().result.unwrap();
            ping().await;
            let round_trip = ping().await;
            let create = CreateOptions { hints, ..striped(65536, 1) };
            let file = client.create(&path("/f"), create).await.unwrap();
            let begun = cluster.world.now();
            file.write_at(0, pattern(2000, 1)).await.unwrap();
            let took = cluster.world.now().since(begun);
            assert_eq!(told(&cluster).len(), usize::from(hints != CacheHints::default()));
            (took, round_trip)
        })
    };
    let ((with, round_trip), (without, _)) = (first_write(HINTS), first_write(CacheHints::default()));
    assert!(with < without + round_trip / 2, "{with:?} with hints, {without:?} without; {round_trip:?} for a ping");
}

#[test]
fn servers_that_do_not_answer_hints_delay_no_access() {
    let cluster = Relayed::new(4, 2);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let deafen = || {
            cluster.set(|_, request| match request {
                RequestBody::Iod(IodRequest::Advise { .. }) => Deed::Keep,
                _ => Deed::Pass,
            });
        };
        deafen();
        let file = client.create(&path("/f"), CreateOptions { hints: HINTS, ..striped(4096, 2) }).await.unwrap();
        let begun = cluster.world.now();
        file.write_at(0, pattern(8192, 1)).await.unwrap();
        assert!(cluster.world.now().since(begun) < Duration::from_millis(50));
        let error = file.advise(HINTS).await.unwrap_err();
        assert!(error.to_string().starts_with("advise /f at 2 servers failed"), "{error}");
        // They are told once they listen.
        cluster.pass();
        assert_eq!(bodies::read(&file, 0, 8192).await, pattern(8192, 1));
        assert_eq!(told(&cluster).len(), 2);
        deafen();
        file.write_at(0, pattern(8192, 1)).await.unwrap();
        cluster.pass();
        file.write_at(0, pattern(8192, 1)).await.unwrap();
        assert_eq!(told(&cluster), [], "and not again");
    });
}

/// A server that goes down before it was told. A failure to tell it fails nothing else.
#[test]
fn a_server_that_is_lost_is_told_when_it_is_back() {
    let cluster = Relayed::new(5, 2);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(4096, 2)).await.unwrap();
        file.write_at(0, pattern(8192, 1)).await.unwrap();
        let second = file.servers()[1].iod.unwrap();
        cluster.cluster.iod_node(second as usize).kill();
        let error = file.advise(HINTS).await.unwrap_err();
        assert_eq!((error.code(), error.failures().len()), (ErrorCode::Unreachable, 1), "{error}");
        cluster.cluster.iod_node(second as usize).restart();
        file.write_at(0, pattern(8192, 1)).await.unwrap();
        let told: Vec<u32> = told(&cluster).iter().map(|(iod, ..)| *iod).collect();
        assert_eq!(told, [1 - second, second]);
    });
}

#[test]
fn coverage_is_that_of_the_file() {
    let world = World::new(6);
    world.block_on(async {
        let (cluster, client) = with_caches(&world, 3, ClientOptions::new(1)).await;
        let file = client.create(&path("/f"), striped(4096, 3)).await.unwrap();
        assert_eq!(file.cached(0, u64::MAX).await.unwrap().total, CacheCoverage::default());
        file.write_at(10_000, pattern(100_000, 1)).await.unwrap();
        for (offset, len, expected) in [
            (10_000, 100_000, 100_000),
            (0, 200_000, 100_000),
            (0, 10_000, 0),
            (9_000, 2_000, 1_000),
            (50_000, 1, 1),
            (109_999, u64::MAX, 1),
            (u64::MAX, u64::MAX, 0),
            (50_000, 0, 0),
        ] {
            let cached = file.cached(offset, len).await.unwrap();
            assert_eq!((cached.total.cached, cached.total.dirty), (expected, expected), "{len} at {offset}");
            let asked: u64 = cached.servers.iter().map(|server| server.len).sum();
            assert_eq!(asked, len.min((i64::MAX as u64).saturating_sub(offset)), "{len} at {offset}");
        }
        let before = file.cached(0, 110_000).await.unwrap();
        assert!(before.servers.iter().all(|server| server.coverage.unwrap().cached > 30_000), "{before:?}");
        assert_eq!(before.total.ready, 100_000);
        file.sync().await.unwrap();
        assert_eq!(file.cached(0, 110_000).await.unwrap().total, CacheCoverage { dirty: 0, ..before.total });
        // A cache without dirty bytes ends with its server.
        cluster.restart_iod(1);
        let after = file.cached(0, 110_000).await.unwrap();
        assert_eq!(after.servers[1].coverage, Some(CacheCoverage::default()));
        assert_eq!((after.servers.len(), &after.servers[0].server), (3, &before.servers[0].server));
        bodies::read(&file, 4096, 1).await;
        let after = file.cached(0, 110_000).await.unwrap();
        assert!(after.servers[1].coverage.unwrap().cached > 30_000, "it has read a whole unit: {after:?}");
    });
}

#[test]
fn each_server_tells_its_state_and_its_busiest_files() {
    let world = World::new(7);
    world.block_on(async {
        let (_cluster, client) = with_caches(&world, 2, ClientOptions::new(1)).await;
        let mut handles = Vec::new();
        for number in 0..30u64 {
            let file = client.create(&path(&format!("/{number}")), striped(4096, 1)).await.unwrap();
            file.write_at(0, pattern(100 + (number * 7 % 30) as usize, 1)).await.unwrap();
            handles.push((100 + number * 7 % 30, file.datafiles().await.unwrap().remove(0)));
        }
        handles.sort_by_key(|(len, _)| std::cmp::Reverse(*len));
        for most in [0, 3, 1000] {
            for found in client.cache_state(most).await {
                let state = found.result.unwrap();
                let own = handles.iter().filter(|(_, datafile)| datafile.server == found.server);
                let expected: Vec<_> = own.map(|(len, datafile)| (*len, datafile.handle)).take(most).collect();
                let files: Vec<_> = state.files.iter().map(|file| (file.written, file.datafile)).collect();
                assert_eq!((files, state.next, state.service), (expected, None, ServiceKind::Unifier));
            }
        }
        let written: u64 = client
            .cache_state(0)
            .await
            .iter()
            .map(|server| server.result.as_ref().unwrap().cache.unwrap().written)
            .sum();
        assert_eq!(written, handles.iter().map(|(len, _)| *len).sum::<u64>());
    });
}

#[test]
fn servers_without_a_cache_say_so() {
    let world = World::new(8);
    let cluster = SimCluster::start(&world, ClusterOptions::with_iods(2)).unwrap();
    world.block_on(async {
        let endpoint = world.node("client").endpoint(Config::named("client")).unwrap();
        let client = Client::connect(endpoint, cluster.manager(), ClientOptions::new(1)).await.unwrap();
        let file = client.create(&path("/f"), CreateOptions { hints: HINTS, ..striped(4096, 2) }).await.unwrap();
        file.write_at(0, pattern(10_000, 1)).await.unwrap();
        file.advise(HINTS).await.unwrap();
        for server in client.cache_state(5).await {
            let state = server.result.unwrap();
            assert_eq!((state.service, state.cache, state.files.len()), (ServiceKind::Normal, None, 0));
        }
        let cached = file.cached(0, 10_000).await.unwrap();
        assert_eq!(cached.total, CacheCoverage::default());
        assert!(cached.servers.iter().all(|server| server.coverage.is_none()));
    });
}

#[test]
fn answers_in_parts_are_put_together_and_endless_ones_are_refused() {
    let cluster = Relayed::new(9, 2);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(4096, 2)).await.unwrap();
        let of_cache = |endless: bool| {
            move |_, request: &RequestBody| {
                let reply = match request {
                    RequestBody::Iod(IodRequest::CacheState { after, .. }) if endless => {
                        let next = Some(after.unwrap_or(DatafileHandle(1)));
                        IodReply::CacheState(Box::new(CacheState { next, ..CacheState::default() }))
                    }
                    RequestBody::Iod(IodRequest::CacheCoverage { offset, len, .. }) => {
                        // All of it is there, and told in two parts.
                        let half = if endless { 0 } else { len.div_ceil(2) };
                        let coverage = Some(CacheCoverage { cached: half, dirty: half.min(1), ready: 0 });
                        IodReply::CacheCoverage { coverage, next: (endless || *len > 1).then_some(offset + half) }
                    }
                    _ => return Deed::Pass,
                };
                Deed::reply(Ok(reply.into()))
            }
        };
        cluster.set(of_cache(false));
        let all = file.cached(100, 20_000).await.unwrap();
        assert_eq!(all.total.cached, 20_000, "the servers answer half of the rest each time");
        assert!(all.servers.iter().all(|server| server.coverage.unwrap().dirty > 5), "in many parts");
        cluster.set(of_cache(true));
        assert_eq!(code(file.cached(0, 10_000)).await, ErrorCode::Protocol);
        for server in client.cache_state(10).await {
            assert_eq!(server.result.unwrap_err().code(), ErrorCode::Protocol);
        }
    });
}
