//! The client against servers that misbehave on request, in the simulator.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi::Memory;
use fs_client::{Datatype, ErrorCode, FileView, Handle};
use fs_proto::{
    ClusterInfo, DirEntry, DirHandle, FsError, IodInfo, IodReply, IodRequest, ManagerReply, ManagerRequest,
    RequestBody, codec,
};

use crate::support::bodies::{self, code, path, pattern, striped};
use crate::support::relay::{Deed, Relayed};

/// No operation may take longer than its own time limit plus the grace period for letting go of
/// memory.
const LIMIT: Duration = Duration::from_secs(5);

#[test]
fn the_list_of_servers_comes_in_pages() {
    let cluster = Relayed::new(1, 5);
    let all: Vec<_> = cluster.cluster.iods();
    let expected = all.clone();
    cluster.set(move |_, request| {
        let RequestBody::Manager(ManagerRequest::Cluster { first }) = request else { return Deed::Pass };
        let two = all.iter().skip(*first as usize).take(2);
        let iods = two.map(|addr| IodInfo { addr: addr.clone(), store: None, up: true }).collect();
        Deed::reply(Ok(ManagerReply::Cluster(ClusterInfo { iods, total: 5, strip_size: 65536 }).into()))
    });
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let found: Vec<_> = client.iods().into_iter().map(|iod| iod.addr).collect();
        assert_eq!(found, expected);
        for pong in client.ping().await {
            assert!(pong.result.unwrap() > Duration::ZERO, "{}", pong.server);
        }
    });
}

/// The manager makes this many more changes whose reply is lost. Returns the number.
fn lose_replies(cluster: &Relayed) -> Rc<Cell<u32>> {
    let left = Rc::new(Cell::new(0));
    let lost = left.clone();
    cluster.set(move |_, request| match request {
        RequestBody::Manager(request) if request.changes() && lost.get() > 0 => {
            lost.set(lost.get() - 1);
            Deed::Cut
        }
        _ => Deed::Pass,
    });
    left
}

#[test]
fn a_change_whose_reply_was_lost_is_made_once() {
    let cluster = Relayed::new(2, 1);
    let losses = lose_replies(&cluster);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        losses.set(1);
        client.mkdir(&path("/d")).await.unwrap();
        losses.set(3);
        client.rename(&path("/d"), &path("/e")).await.unwrap();
        losses.set(1);
        client.remove(&path("/e"), fs_client::RemoveKind::Any).await.unwrap();
        assert_eq!(losses.get(), 0);
        assert!(client.stats().resent >= 3, "{:?}", client.stats());
    });
}

#[test]
fn a_manager_that_comes_back_within_the_time_limit_is_waited_for() {
    let cluster = Relayed::new(3, 1);
    let losses = lose_replies(&cluster);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        losses.set(1);
        let (manager, sim) = (cluster.cluster.manager_node(), cluster.world.sim());
        cluster.passed();
        let dir = path("/d");
        let change = client.mkdir(&dir);
        let back = async {
            while cluster.passed().is_empty() {
                sim.sleep(Duration::from_micros(10)).await;
            }
            manager.kill();
            sim.sleep(Duration::from_secs(1)).await;
            manager.restart();
        };
        futures_util::future::join(change, back).await.0.unwrap();
        let requests = cluster.passed();
        let is_change = |body: &RequestBody| matches!(body, RequestBody::Manager(request) if request.changes());
        assert_eq!(requests.iter().filter(|(_, body)| is_change(body)).count(), 1, "sent again: {requests:?}");
    });
}

/// Lets the disk of an I/O server be full.
fn fill(cluster: &Relayed, full: u32) {
    cluster.set(move |iod, request| match request {
        RequestBody::Iod(IodRequest::Write { regions, .. }) if iod == Some(full) => {
            let error = FsError::new(ErrorCode::NoSpace, "the store is full");
            Deed::reply(Err(error.with_ranges(regions.iter().copied())))
        }
        RequestBody::Iod(IodRequest::WriteView { .. }) if iod == Some(full) => {
            Deed::reply(Err(FsError::new(ErrorCode::NoSpace, "the store is full")))
        }
        _ => Deed::Pass,
    });
}

/// Also the windows that were not begun are named.
#[test]
fn a_failed_write_through_a_view_names_all_that_was_not_written() {
    const PIECE: u64 = 16;
    const PIECES: u64 = 700_000;
    let cluster = Relayed::new(8, 4);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(65536, 4)).await.unwrap();
        file.write_at(0, pattern((2 * PIECE * PIECES) as usize, 1)).await.unwrap();
        fill(&cluster, file.servers()[2].iod.unwrap());
        let filetype = Datatype::resized(0, 2 * PIECE as i64, &Datatype::bytes(PIECE).unwrap()).unwrap();
        let view = FileView::new(0, Datatype::BYTE, filetype).unwrap();
        let new = pattern((PIECE * PIECES) as usize, 2);
        let error = file.write_view(&view, 0, &Memory::from(new.clone())).await.unwrap_err();
        assert_eq!((error.code(), error.failures().len()), (ErrorCode::NoSpace, 1), "{error}");
        let named = &error.failures()[0].ranges;
        assert!(named.iter().map(|range| range.end - range.start).sum::<u64>() < 2 * PIECE * PIECES, "{error}");
        let found = bodies::read(&file, 0, (2 * PIECE * PIECES) as usize).await;
        let old = pattern((2 * PIECE * PIECES) as usize, 1);
        for piece in 0..PIECES {
            let (at, hole) = ((2 * PIECE * piece) as usize, (2 * PIECE * piece + PIECE) as usize);
            assert!(found[hole..hole + PIECE as usize] == old[hole..hole + PIECE as usize], "a gap at {hole}");
            let is_named = named.iter().any(|range| range.contains(&(at as u64)));
            let is_new = found[at..hole] == new[(PIECE * piece) as usize..(PIECE * (piece + 1)) as usize];
            assert!(is_named || is_new, "{at} is neither written nor named: {error}");
        }
    });
}

#[test]
fn a_full_disk_names_server_and_ranges_and_the_rest_stays() {
    let cluster = Relayed::new(6, 4);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(65536, 4)).await.unwrap();
        file.write_at(0, pattern(1 << 20, 1)).await.unwrap();
        let third = file.servers()[2].clone();
        fill(&cluster, third.iod.unwrap());
        let error = file.write_at(0, pattern(262_144, 2)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NoSpace);
        assert_eq!(
            error.to_string(),
            format!("write of /f at {third} of bytes 131072..196608 failed: no space left: the store is full")
        );
        let found = bodies::read(&file, 0, 1 << 20).await;
        let (old, new) = (pattern(1 << 20, 1), pattern(262_144, 2));
        assert!(found[..131_072] == new[..131_072], "what the others acknowledged is there");
        assert!(found[131_072..196_608] == old[131_072..196_608]);
        assert!(found[196_608..262_144] == new[196_608..] && found[262_144..] == old[262_144..]);
        // Small writes report the same.
        let error = file.write_at(131_072 + 5, pattern(10, 1)).await.unwrap_err();
        assert_eq!(error.failures()[0].ranges, std::slice::from_ref(&(131_077..131_087)));
    });
}

#[test]
fn several_failures_are_told_together() {
    let cluster = Relayed::new(7, 4);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(65536, 4)).await.unwrap();
        file.write_at(0, pattern(1 << 20, 1)).await.unwrap();
        fill(&cluster, 1);
        cluster.cluster.iod_node(3).kill();
        let start = cluster.world.now();
        let error = file.write_at(0, pattern(1 << 20, 2)).await.unwrap_err();
        assert!(cluster.world.now().since(start) < LIMIT);
        let mut servers: Vec<_> = error.failures().iter().map(|f| f.server.as_ref().unwrap().iod.unwrap()).collect();
        servers.sort_unstable();
        assert_eq!(servers, [1, 3]);
        assert!(error.to_string().starts_with("write of /f at 2 servers failed: "), "{error}");
    });
}

#[test]
fn a_silent_server_costs_the_time_limit_and_no_more() {
    let cluster = Relayed::new(8, 2);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(65536, 2)).await.unwrap();
        file.write_at(0, pattern(200_000, 1)).await.unwrap();
        let silent = file.servers()[1].iod;
        cluster.set(move |iod, _| if iod == silent { Deed::Keep } else { Deed::Pass });
        let start = cluster.world.now();
        for bulk in [true, false] {
            let len = if bulk { 65536 } else { 100 };
            let error = file.read_at(65536, Memory::zeroed(len).unwrap()).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::Timeout, "{error}");
            assert_eq!(error.failures()[0].ranges, std::slice::from_ref(&(65536..65536 + len as u64)));
        }
        assert!(cluster.world.now().since(start) < LIMIT * 2);
        cluster.pass();
        assert_eq!(bodies::read(&file, 0, 200_000).await, pattern(200_000, 1));
    });
}

#[test]
fn nonsense_from_a_server_is_an_error_and_nothing_else() {
    let good = |reply: IodReply| codec::encode_reply(&Ok(reply.into()).into());
    let replies = [
        vec![],
        vec![codec::VERSION],
        vec![9; 40],
        vec![codec::VERSION, 0xFF, 0xFF, 0xFF],
        // A reply for a ping, and one with bytes that were not announced.
        good(IodReply::Done),
        [good(IodReply::Done), vec![0; 7]].concat(),
        // A write of fewer bytes than were sent, and a read that claims to be complete.
        good(IodReply::Written { len: 3, size: 3, start: 1 }),
        good(IodReply::Read { len: 100, size: 100 }),
        vec![0xAB; 8000],
    ];
    let messages = [vec![], vec![0; 100], vec![0xFF; 128]];
    let all = replies.map(|bytes| (true, bytes)).into_iter().chain(messages.map(|bytes| (false, bytes)));
    let cluster = Relayed::new(9, 2);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        let file = client.create(&path("/f"), striped(65536, 2)).await.unwrap();
        file.write_at(0, pattern(200_000, 1)).await.unwrap();
        let liar = file.servers()[0].iod;
        for (is_reply, bytes) in all {
            cluster.set(move |iod, _| match iod == liar {
                true if is_reply => Deed::Say(bytes.clone()),
                true => Deed::SayRaw(bytes.clone()),
                false => Deed::Pass,
            });
            assert_eq!(code(file.write_at(0, pattern(100, 1))).await, ErrorCode::Protocol);
            assert_eq!(code(file.read_at(0, Memory::zeroed(100).unwrap())).await, ErrorCode::Protocol);
        }
        cluster.pass();
        assert_eq!(bodies::read(&file, 0, 200_000).await, pattern(200_000, 1));
    });
}

/// Replays a bug: if a manager sent the same page again and again, the client asked endlessly and
/// stored all the pages.
#[test]
fn a_listing_without_end_is_an_error() {
    let cluster = Relayed::new(12, 1);
    cluster.world.block_on(async {
        let client = cluster.client().await;
        client.mkdir(&path("/endless")).await.unwrap();
        cluster.set(|_, request| match request {
            RequestBody::Manager(ManagerRequest::Readdir { .. }) => {
                let entry = |name: &str| DirEntry { name: name.into(), handle: Handle::Dir(DirHandle(7)) };
                let entries = vec![entry("a"), entry("b")];
                Deed::reply(Ok(ManagerReply::Entries { entries, more: true }.into()))
            }
            _ => Deed::Pass,
        });
        assert_eq!(code(client.readdir(&path("/endless"))).await, ErrorCode::Protocol);
        cluster.pass();
        assert_eq!(client.readdir(&path("/")).await.unwrap().len(), 1, "other folders come to their end");
    });
}
