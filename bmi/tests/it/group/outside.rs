//! Groups over real transports, with a thread for each member.

use std::thread;

use bmi::config::HandleConfig;
use bmi::group::{GroupError, Groups, Lane};
use bmi::threading::AnyThread;
use bmi::{Addr, Config, ErrorKind, Handle, MemList, Memory, OpenOptions};
use futures_util::future::{join, join_all};

use super::{named, options, part, parts};

const SIZE: u32 = 4;

fn open(at: &Addr) -> (Handle, Groups<AnyThread>) {
    let config = Config::named("member");
    let handle = bmi::handle(at.scheme(), &OpenOptions::default(), config, 1, HandleConfig::default());
    let handle = handle.expect("a handle");
    let groups = Groups::of(&handle).expect("one endpoint");
    (handle, groups)
}

/// Each member has a handle of its own. The last one dies after the work.
fn works_at(at: &Addr) {
    let host = open(at);
    // Port 0 becomes one that is free.
    let at = &host.1.listen(at).expect("the address is free");
    let member = |(handle, groups): (Handle, Groups<AnyThread>), rank: u32| {
        handle.block_on(async {
            let group = groups.meet(at, rank, SIZE, options()).await?;
            for round in 0..10 {
                let (values, came) =
                    join(group.all_gather(&[rank as u8; 5000]), group.all_to_all(parts(round, rank, SIZE))).await;
                assert!(values?.iter().zip(0..).all(|(value, rank)| value[..] == [rank; 5000]));
                assert!(came?.iter().zip(0..).all(|(came, from)| *came == part(round, from, rank)));
                group.barrier().await?;
            }
            // Parts for neighbours alone, in two lanes, in opposite orders at even and odd ranks.
            let lanes = [group.lane(), group.lane()];
            let next = (rank + 1) % SIZE;
            let list = |to: u32| (0..SIZE).map(move |at| if at == to { vec![rank as u8; 70_000] } else { Vec::new() });
            let neighbour = |lane: &Lane<AnyThread>| {
                let into: Vec<_> = list((rank + SIZE - 1) % SIZE).map(Memory::from).collect();
                let lists = into.iter().map(|memory| memory.all().into()).collect();
                let exchanged = lane.exchange(list(next).map(MemList::from).collect(), lists);
                async move { exchanged.await.map(|()| into) }
            };
            let exchanges = [(rank % 2) as usize, 1 - (rank % 2) as usize].map(|lane| neighbour(&lanes[lane]));
            for came in join_all(exchanges).await {
                let from = (rank + SIZE - 1) % SIZE;
                assert!(came?[from as usize].to_vec() == [from as u8; 70_000]);
            }
            let aborted = async {
                // Others may be told before they have seen the end of the meeting.
                let aborted = groups.meet(at, rank, SIZE, options()).await?;
                let lane = aborted.lane();
                if rank == 1 {
                    lane.abort("it has seen enough");
                }
                lane.barrier().await
            };
            let error = aborted.await.expect_err("one has aborted");
            assert!(error.to_string().contains("it has seen enough"), "{error}");
            assert_eq!(named(&error), Some(1), "{error}");
            let second = groups.meet(at, rank, SIZE, options()).await?;
            group.leave().await?;
            if rank == SIZE - 1 {
                return Ok(());
            }
            let error = second.barrier().await.expect_err("one is gone");
            assert_eq!(named(&error), Some(SIZE - 1), "{error}");
            let GroupError::Member { error, .. } = &error else { panic!("{error}") };
            assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            Ok::<_, GroupError>(())
        })
    };
    thread::scope(|scope| {
        let mut host = Some(host);
        for rank in 0..SIZE {
            let this = host.take();
            scope.spawn(move || member(this.unwrap_or_else(|| open(at)), rank).expect("it works"));
        }
    });
}

#[test]
fn a_group_works_over_tcp() {
    works_at(&Addr::tcp("127.0.0.1", 0));
}

#[test]
fn a_group_works_over_shared_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    works_at(&Addr::shm(folder.path().join("sockets/place").to_str().expect("a path")));
}

#[test]
fn a_handle_with_several_endpoints_has_no_groups() {
    let two = bmi::handle(bmi::Scheme::Tcp, &OpenOptions::default(), Config::default(), 2, HandleConfig::default());
    let error = Groups::of(&two.expect("a handle")).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
}
