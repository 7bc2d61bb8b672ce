//! Data of every length, in both directions.

use std::time::Duration;

use bmi::{Bytes, Client, ErrorKind, MemList, Memory};

use crate::bed::{Bed, everywhere, in_a_world};

/// Around each limit: a message, a slot, the memory that is offered, and long ones.
const LENGTHS: [usize; 12] = [0, 1, 100, 4000, 8100, 8192, 8200, 65_000, 65_536, 65_537, 300_000, 3 << 20];

fn pattern(len: usize) -> Bytes {
    (0..len).map(|at| (at * 7 + len) as u8).collect::<Vec<_>>().into()
}

#[test]
fn data_of_any_length_goes_both_ways() {
    everywhere(async |bed: &Bed| {
        let (server, client) = bed.echo().await;
        for len in LENGTHS {
            let reply = client.call(b"echo").data(pattern(len)).await.expect("a reply");
            assert_eq!((&reply.bytes[..], reply.data_len), (&b"echo"[..], len as u64));
            assert!(reply.data == pattern(len), "{len} bytes");
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A call without data offers memory: within it, the data comes in one round trip.
#[test]
fn a_reply_of_unknown_length_arrives() {
    everywhere(async |bed: &Bed| {
        let handler = |call: bmi::Call| async move {
            let len = u32::from_le_bytes(call.request().try_into().expect("a length"));
            call.reply(b"").data(pattern(len as usize)).await
        };
        let (server, addr) = bed.serve(handler).await;
        for client in [Client::new(addr.as_str()), Client::builder().offer(0).to(addr.as_str())] {
            for len in LENGTHS {
                let reply = client.call((len as u32).to_le_bytes()).await.expect("a reply");
                assert!(reply.data == pattern(len), "{len} bytes");
            }
            client.close().await;
        }
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A client offers what the last replies needed, in memory that it uses again.
#[test]
fn long_replies_come_in_one_round_trip_once_they_are_expected() {
    in_a_world(async |bed: &Bed| {
        let handler = |call: bmi::Call| async move {
            let len = u32::from_le_bytes(call.request().try_into().expect("a length"));
            call.reply(b"").data(vec![len as u8; len as usize]).await
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        let read = async |len: u32| {
            let begun = bmi::Instant::now();
            let reply = client.call(len.to_le_bytes()).await.expect("a reply");
            assert!(reply.data.len() == len as usize && reply.data.iter().all(|byte| *byte == len as u8));
            (begun.elapsed(), reply.data.as_ptr())
        };
        read(0).await;
        let (unexpected, _) = read(1 << 20).await;
        let (expected, memory) = read(1 << 20).await;
        assert!(expected < unexpected.mul_f64(0.9), "{expected:?} after {unexpected:?}");
        assert_eq!(read(1 << 20).await.1, memory);
        assert!(read((1 << 20) - 100_000).await.0 <= expected);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn memory_of_the_program_is_used_on_both_sides() {
    everywhere(async |bed: &Bed| {
        let handler = |call: bmi::Call| async move {
            let memory = Memory::zeroed(call.data_len() as usize)?;
            let (front, back) = (memory.slice(0, memory.len() / 2), memory.slice(memory.len() / 2, memory.len() / 2));
            call.data_into([front.clone(), back.clone()].into_iter().collect::<MemList>()).await?;
            call.reply(b"").data([back, front].into_iter().collect::<MemList>()).await
        };
        let (server, addr) = bed.serve(handler).await;
        let client = Client::new(addr);
        for len in [1000, 40_000, 400_000] {
            let data = pattern(len);
            let (half, into) = (len / 2, Memory::zeroed(len + 7).expect("memory"));
            let reply = client.call(b"swap").data(data.clone()).data_into(&into).await.expect("a reply");
            assert_eq!((reply.data_len, reply.data.len()), (len as u64, 0));
            assert!(into.slice(0, len).to_vec() == [&data[half..], &data[..half]].concat(), "{len}");
            let short = Memory::zeroed(len - 1).expect("memory");
            let error = client.call(b"swap").data(data).data_into(&short).await.expect_err("too short");
            assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

#[test]
fn many_calls_are_in_flight() {
    everywhere(async |bed: &Bed| {
        let (server, client) = bed.echo().await;
        let calls: Vec<_> = (0..300_usize)
            .map(|number| {
                let client = client.clone();
                bmi::spawn(async move {
                    let len = LENGTHS[number % 10];
                    let reply = client.call(number.to_le_bytes()).data(pattern(len)).await.expect("a reply");
                    assert!(reply.bytes[..] == number.to_le_bytes() && reply.data == pattern(len));
                })
            })
            .collect();
        for call in calls {
            call.await.expect("a task");
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A thread without a runtime makes calls too.
#[test]
fn a_thread_without_a_runtime_waits_for_a_reply() {
    crate::bed::outside(async |bed: &Bed| {
        let (server, addr) = bed.serve(crate::bed::echo).await;
        let calling = tokio::task::spawn_blocking(move || {
            let call = move || {
                let client = Client::new(addr);
                client.call(b"from a thread").data(pattern(100_000)).wait().expect("a reply").data
            };
            std::thread::Builder::new().spawn(call).expect("a thread").join()
        });
        assert!(calling.await.expect("a task").expect("the thread") == pattern(100_000));
        server.shutdown(Duration::from_secs(1)).await;
    });
}
