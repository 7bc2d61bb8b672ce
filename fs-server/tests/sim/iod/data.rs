//! Reading and writing datafiles.

use fs_proto::{DatafileHandle, ErrorCode, IodReply, IodRequest};
use fs_server::embedded::ClusterOptions;
use fs_server::iod::IodSettings;

use super::*;

const FILE: DatafileHandle = DatafileHandle(7);

#[test]
fn small_data_travels_by_every_path() {
    for path in Path::TAKEN {
        let (world, cluster) = cluster(1, ClusterOptions::with_iods(1));
        let client = Client::new(&world.node("client"), 1).forcing(path);
        world.block_on(async {
            let iod = client.connect(&cluster.iods()[0]).await;
            for len in [1, 3000, 7000, 30_000] {
                let bytes = pattern(len, 1);
                let regions = regions(&[(100, len as u64 / 3), (50_000, len as u64 - len as u64 / 3)]);
                let write = IodRequest::Write { datafile: FILE, regions: regions.clone(), sync: true };
                let reply = client.iod_with(iod, write, Body::Out(bytes.clone().into())).await;
                let end = 50_000 + len as u64 - len as u64 / 3;
                assert_eq!(reply, Ok(IodReply::Written { len: len as u64, size: end, start: 1 }), "{path}");
                assert_eq!(client.read(iod, FILE, &regions).await.unwrap(), bytes, "{path}");
            }
            client.endpoint.sleep(Duration::from_millis(1)).await;
        });
    }
}

#[test]
fn large_data_is_moved_in_units() {
    let settings = IodSettings { unit: 64 << 10, buffers: 3, depth: 2 };
    for path in [None, Some(Path::ServerBased), Some(Path::ClientBased), Some(Path::Hybrid)] {
        let (world, cluster) = cluster(2, ClusterOptions { iod: settings, ..ClusterOptions::with_iods(1) });
        let client = Client::new(&world.node("client"), 1);
        client.forced.set(path);
        world.block_on(async {
            let iod = client.connect(&cluster.iods()[0]).await;
            // Lists of different shapes on both sides, not aligned to units.
            let len = 1_000_001;
            let memory = Memory::from(pattern(len + 100, 3));
            let list: MemList =
                [memory.slice(100, 400_000), memory.slice(400_100, len - 400_000)].into_iter().collect();
            let regions = regions(&[(10, 5), (1_000_000, 700_000), (50, 299_996)]);
            let reply = client.write(iod, FILE, &regions, &list).await.unwrap();
            assert_eq!(reply, IodReply::Written { len: len as u64, size: 1_700_000, start: 1 });
            assert!(client.read(iod, FILE, &regions).await.unwrap() == list.to_vec(), "{path:?}");
        });
    }
}

/// Replays a bug: the client's policy sent a read into registered memory ahead of its reply without
/// a slot. The server checked its length against the slots, which did not exist. So reads of 8 to
/// 64 KiB failed as too large wherever slots were disabled.
#[test]
fn a_read_ahead_of_its_reply_needs_no_slot() {
    let endpoint = Config::default().fast_slots(0);
    let (world, cluster) = cluster(11, ClusterOptions { endpoint: endpoint.clone(), ..ClusterOptions::with_iods(1) });
    for forced in [None, Some(Path::FastRdma)] {
        let mut client = Client::new(&world.node("client"), 1);
        client.endpoint = world.node("client").endpoint(endpoint.clone()).unwrap();
        client.forced.set(forced);
        world.block_on(async {
            let iod = client.connect(&cluster.iods()[0]).await;
            for len in [20_000, 60_000, 400_000] {
                let (all, bytes) = (regions(&[(0, len as u64)]), pattern(len, 5));
                client.write(iod, FILE, &all, &bytes.clone().into()).await.unwrap();
                assert!(client.read(iod, FILE, &all).await.unwrap() == bytes, "{len} bytes, {forced:?}");
            }
        });
    }
}

#[test]
fn a_full_disk_names_the_ranges_and_keeps_the_rest() {
    let options = ClusterOptions { disk_capacity: 512 << 10, ..ClusterOptions::with_iods(1) };
    with_client(5, options, async |_, cluster, client| {
        let iod = client.connect(&cluster.iods()[0]).await;
        let kept = pattern(100_000, 5);
        client.write(iod, FILE, &regions(&[(0, 100_000)]), &kept.clone().into()).await.unwrap();
        let bytes = pattern(2 << 20, 6);
        let other = DatafileHandle(8);
        let error = client.write(iod, other, &regions(&[(0, 2 << 20)]), &bytes.clone().into()).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::NoSpace);
        // Every byte is either in the store or in a range that the error names.
        let stored = client.read(iod, other, &regions(&[(0, 2 << 20)])).await.unwrap();
        let failed = |at: usize| error.ranges.iter().any(|r| (r.offset..r.offset + r.len).contains(&(at as u64)));
        assert!((0..bytes.len()).all(|at| failed(at) || stored[at] == bytes[at]));
        assert!(error.ranges.iter().map(|range| range.len).sum::<u64>() < 2 << 20, "{error}");
        assert_eq!(client.read(iod, FILE, &regions(&[(0, 100_000)])).await.unwrap(), kept, "what was acknowledged");
    });
}

#[test]
fn many_clients_share_few_buffers_and_all_end() {
    let iod = IodSettings { unit: 16 << 10, buffers: 2, depth: 3 };
    let (world, cluster) = cluster(6, ClusterOptions { iod, disk_costs: true, ..ClusterOptions::with_iods(1) });
    let tasks: Vec<_> = (0..6u64)
        .map(|index| {
            let node = world.node(&format!("client{index}"));
            let client = Client::new(&node, index.into());
            let addr = cluster.iods()[0].clone();
            node.spawn(async move {
                let iod = client.connect(&addr).await;
                let writes = (0..4u64).map(|file| {
                    let client = client.clone();
                    async move {
                        let handle = DatafileHandle(index * 100 + file);
                        let bytes = pattern(200_000, handle.0);
                        let regions = regions(&[(file * 10, 200_000)]);
                        client.write(iod, handle, &regions, &bytes.clone().into()).await.unwrap();
                        assert_eq!(client.read(iod, handle, &regions).await.unwrap(), bytes);
                    }
                });
                futures_util::future::join_all(writes).await;
            })
        })
        .collect();
    world.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    with_client(7, ClusterOptions::with_iods(1), async |_, cluster, client| {
        let iod = client.connect(&cluster.iods()[0]).await;
        assert_eq!(code(client.ask(iod, mkdir("a")).await), Some(ErrorCode::Invalid), "not a manager");
        let cut = IodRequest::Truncate { datafile: FILE, size: u64::MAX };
        assert_eq!(code(client.iod(iod, cut).await), Some(ErrorCode::TooLarge));
        let ten = || MemList::from(vec![0; 10]);
        for (len, body, why) in [
            (11, Body::Out(ten()), "fewer bytes than regions"),
            (9, Body::Out(ten()), "more bytes than regions"),
            (10, Body::In(ten()), "the wrong way"),
            (10, Body::None, "no bytes at all"),
        ] {
            let write = IodRequest::Write { datafile: FILE, regions: regions(&[(0, len)]), sync: false };
            assert_eq!(code(client.iod_with(iod, write, body).await), Some(ErrorCode::Invalid), "{why}");
        }
        let read = IodRequest::Read { datafile: FILE, regions: regions(&[(0, 10)]) };
        assert_eq!(code(client.iod_with(iod, read, Body::Out(ten())).await), Some(ErrorCode::Invalid), "a read");
        let nothing = IodRequest::Read { datafile: FILE, regions: regions(&[]) };
        let size = client.iod_with(iod, nothing, Body::In(MemList::from(Vec::new()))).await;
        assert_eq!(size, Ok(IodReply::Read { len: 0, size: 0 }), "nothing at all makes sense");
        assert_eq!(client.iod(iod, IodRequest::Ping).await, Ok(IodReply::Done), "and the connection stands");
    });
}
