//! Requests whose time limit passes. They end at the server before they end at the client.

use bmi::Options;
use bmi_sim::{DiskProfile, Profile, SimConfig};
use fs_proto::{DatafileHandle, ErrorCode, IodReply, IodRequest, ManagerReply, ManagerRequest};
use fs_server::embedded::ClusterOptions;
use fs_server::service::Limits;

use super::*;

const FILE: DatafileHandle = DatafileHandle(77);

/// Replays a bug: a request's time began when its turn came. So a write that had waited behind
/// others was executed long after its client had given it up, and overwrote what the client had
/// written there since.
#[test]
fn a_request_that_waited_too_long_is_not_begun() {
    let limits = Limits { per_peer: 1, ..Limits::default() };
    with_client(1, ClusterOptions { limits, ..ClusterOptions::with_iods(1) }, async |_, cluster, client| {
        let iod = client.connect(&cluster.iods()[0]).await;
        let write = |offset: u64, len: usize, timeout_ms: u32| {
            let (client, regions) = (client.clone(), regions(&[(offset, len as u64)]));
            async move {
                let body = IodRequest::Write { datafile: FILE, regions, sync: false };
                let request = Request { timeout_ms, ..client.request(body) };
                client.send(iod, &request, Body::Out(vec![7; len].into())).await.unwrap().result
            }
        };
        // The first takes some milliseconds of network, and both are bulk.
        let both = futures_util::future::join(write(0, 64 << 20, 10_000), write(100 << 20, 1 << 20, 1));
        let (first, second) = both.await;
        first.unwrap();
        assert_eq!(code(second), Some(ErrorCode::Timeout));
        let size = client.iod(iod, IodRequest::Getsize { datafile: FILE }).await.unwrap();
        assert!(matches!(size, IodReply::Held { size: 0x400_0000, .. }), "nothing of the second was written: {size:?}");
    });
}

/// Replays a bug: the server continued a transfer after its client had given up. It accessed memory
/// that had been taken back, and the connection was cut.
#[test]
fn a_transfer_that_runs_out_of_time_does_not_cost_the_connection() {
    for path in [Path::ServerBased, Path::ClientBased] {
        // A disk that writes some 20 MB/s.
        let profile = Profile { disk: DiskProfile::named("ext3-ide-2003").unwrap(), ..Profile::default() };
        let world = World::with(SimConfig { profile, ..SimConfig::seeded(2) });
        let options = ClusterOptions { disk_costs: true, ..ClusterOptions::with_iods(1) };
        let cluster = SimCluster::start(&world, options).unwrap();
        with_datafiles(&cluster);
        let client = Client::new(&world.node("client"), 1).forcing(path);
        world.block_on(async {
            let iod = client.connect(&cluster.iods()[0]).await;
            let len = 64 << 20;
            let body = IodRequest::Write { datafile: FILE, regions: regions(&[(0, len)]), sync: false };
            let request = Request { timeout_ms: 400, ..client.request(body) };
            let options = Options::by(client.endpoint.now() + Duration::from_millis(400));
            let data = Body::Out(vec![7; len as usize].into());
            let bytes = codec::encode_request(&request);
            let call = client.endpoint.peer(iod).call(&bytes, data, options.path(path)).unwrap();
            let reply = call.reply().await.unwrap();
            let reply = codec::decode_reply(&reply.bytes).unwrap();
            assert_eq!(code(reply.result), Some(ErrorCode::Timeout), "{path}: the server says so itself");
            client.endpoint.sleep(Duration::from_secs(1)).await;
            assert_eq!(client.iod(iod, IodRequest::Ping).await, Ok(IodReply::Done), "{path}: the connection stands");
        });
    }
}

/// Replays a bug: each name that a peer invented was a separate client to the manager, which can
/// remember only a limited number.
#[test]
fn a_connection_speaks_for_one_client() {
    with_client(3, ClusterOptions::with_iods(1), async |_, cluster, client| {
        let manager = client.connect(&cluster.manager()).await;
        client.entry(manager, mkdir("a")).await.unwrap();
        let other = Client { id: 2, ..client.clone() };
        assert_eq!(code(other.manager(manager, mkdir("b")).await), Some(ErrorCode::Invalid));
        assert_eq!(
            other.manager(manager, ManagerRequest::Ping).await,
            Ok(ManagerReply::Done),
            "looking changes nothing"
        );
        client.entry(manager, mkdir("b")).await.unwrap();
        // The same client over two connections, as after a loss that only the client has noticed.
        let second = client.connect(&cluster.manager()).await;
        client.entry(second, mkdir("c")).await.unwrap();
        assert!(client.endpoint.peer(manager).disconnect(client.endpoint.within(PATIENCE)).await.is_ok());
        assert_eq!(client.call(manager, &[], Body::None).await.map_err(|error| error.kind()), Err(ErrorKind::PeerLost));
    });
}
