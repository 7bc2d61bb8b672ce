//! A peer that accesses memory that was not exposed to it. Needs an RDMA device; `cargo xtask rxe`
//! has one.

use crate::support::Pair;
use bmi_conformance::Rng;
use bmi_core::transport::{WorkId, WorkOptions};
use bmi_core::{Access, Memory, RemoteKey, RemoteSlice, Transport};

const BYTES: usize = 64 << 10;
const SECRET: u8 = 0x5a;

/// 10,000 attempts with random keys, addresses and lengths, many of them nearly valid. They aim at
/// memory that is exposed to another connection, not at all, or for reading only, or that is on a
/// neighbouring page. No byte of it changes and none is read. An attempt that is carried out ends
/// its connection.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn ten_thousand_random_attempts_change_no_byte() {
    const ATTEMPTS: u32 = 10_000;
    // Attempts per connection. The first one that reaches the victim's adapter ends the connection,
    // and the others end with it.
    const PER_CONNECTION: u32 = 100;
    let mut rng = Rng::new(11);
    let mut pair = Pair::new();
    let victim = Memory::from(vec![SECRET; BYTES]);
    let region = pair.b.transport.register(&victim).unwrap();
    // The bait is memory that another peer may access; the forger knows its true keys.
    let (owner, owner_far) = (pair.near, pair.far);
    let writable = pair.b.transport.expose(owner_far, &region.segment(4096, 4096), Access::READ_WRITE).unwrap();
    let loot = Memory::from(vec![0u8; 4096]);
    let own = pair.a.transport.register(&loot).unwrap();
    let mut tried = 0;
    while tried < ATTEMPTS {
        let (near, far) = pair.again();
        let readable = pair.b.transport.expose(far, &region.segment(100, 1000), Access::READ).unwrap();
        for _ in 0..PER_CONNECTION {
            let (slice, write) = attempt(&mut rng, writable, readable);
            let list = [own.segment(0, slice.len as usize)];
            let work = WorkId(tried.into());
            let posted = if write {
                pair.a.transport.post_write(near, work, &[], &list, slice.into(), WorkOptions::SIGNALLED)
            } else {
                pair.a.transport.post_read(near, work, &list, slice, WorkOptions::SIGNALLED)
            };
            tried += 1;
            if posted.is_err() {
                pair.a.poll();
            }
        }
        let (completions, _) = pair.a.end_of(near, &mut [&mut pair.b], "the forger is cut off");
        for completion in &completions {
            assert!(completion.status != bmi_core::transport::WorkStatus::Ok, "an attempt succeeded: {completion:?}");
        }
        let (_, reason) = pair.b.end_of(far, &mut [&mut pair.a], "the victim hears of it");
        assert!(!reason.detail().is_empty());
        assert!(victim.to_vec().iter().all(|byte| *byte == SECRET), "a byte of the victim changed");
        assert!(loot.to_vec().iter().all(|byte| *byte == 0), "a byte was read");
    }
    // The owner's connection and its rights are unchanged.
    let list = [own.segment(0, 16)];
    pair.a
        .transport
        .post_write(owner, WorkId(1), &[], &list, writable.slice(0, 16).unwrap().into(), WorkOptions::SIGNALLED)
        .unwrap();
    let event = pair.a.next_beside(&mut [&mut pair.b], "the owner's write");
    assert!(format!("{event:?}").contains("status: Ok"), "{event:?}");
    assert_eq!(victim.slice(4096, 17).to_vec(), [vec![0; 16], vec![SECRET]].concat());
}

/// Returns a forged access: random, or valid in all but one respect.
fn attempt(rng: &mut Rng, writable: RemoteSlice, readable: RemoteSlice) -> (RemoteSlice, bool) {
    let len = 1 + rng.below(4096);
    match rng.below(6) {
        // Random in every respect.
        0 => (RemoteSlice { key: RemoteKey(rng.next_u64()), addr: rng.next_u64(), len }, rng.chance(500)),
        // A key of 32 bits, like an adapter's, close to a valid one.
        1 => {
            let key = RemoteKey((readable.key.0 ^ (1 + rng.below(0xffff))) & 0xffff_ffff);
            (RemoteSlice { key, addr: readable.addr, len }, rng.chance(500))
        }
        // Another connection's valid key.
        2 => (RemoteSlice { len, ..writable }, rng.chance(500)),
        // A valid key, but only for reading.
        3 => (RemoteSlice { len: 1 + rng.below(1000), ..readable }, true),
        // A valid key, beyond the end or before the beginning.
        4 => (
            RemoteSlice { addr: readable.addr + 1001 - len.min(1000), len: len.min(1000), ..readable },
            rng.chance(500),
        ),
        _ => (
            RemoteSlice { addr: readable.addr.wrapping_sub(1 + rng.below(100)), len: 1 + rng.below(1000), ..readable },
            rng.chance(500),
        ),
    }
}
