//! Views: a peer's published pages are mapped for reading, and nothing that either side does with
//! them ends a connection or writes to them.

use bmi_conformance::world::{completion, pattern};
use bmi_core::mem::{PublishedPages, RemoteView};
use bmi_core::transport::{Payload, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, Memory, RemoteKey, RemoteSlice, Transport};
use bmi_shm::ShmConfig;

use crate::common::{World, world, world_with};

const LEN: usize = 64 << 10;

fn view(world: &mut World, ca: bmi_core::transport::ConnId, remote: RemoteSlice) -> Option<RemoteView> {
    world.a.transport.view_remote(ca, remote)
}

#[test]
fn a_view_shows_what_its_owner_does_and_outlives_everything() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let published = PublishedPages::new(LEN).unwrap();
    let region = world.b.transport.register(published.memory()).unwrap();
    let remote = world.b.transport.expose(cb, &region.segment(0, LEN), Access::READ).unwrap();
    world.settle();
    let whole = view(&mut world, ca, remote).expect("mapped here");
    published.memory().copy_from(5000, b"bytes");
    published.publish(8, 7);
    let mut bytes = [0; 5];
    whole.copy_to(5000, &mut bytes);
    assert_eq!((&bytes, whole.word(8), whole.len()), (b"bytes", Some(7), LEN));
    let part = view(&mut world, ca, remote.slice(4096, 4096).unwrap()).unwrap();
    part.copy_to(904, &mut bytes);
    assert_eq!(&bytes, b"bytes");
    // It is no access in progress: a revocation ends nothing.
    world.b.transport.revoke(cb, remote.key);
    assert!(view(&mut world, ca, remote).is_none(), "revoked");
    world.settle();
    let (_, room) = world.a.memory(100);
    world.a.transport.post_recv(ca, WorkId(1), &[room]).unwrap();
    let (_, message) = world.b.pattern(100);
    let message = [message];
    world.b.transport.post_send(cb, WorkId(2), b"", Payload::Gather(&message), WorkOptions::SIGNALLED).unwrap();
    assert_eq!(world.work_a(), completion(ca, 1, WorkKind::Recv, WorkStatus::Ok, 100));
    // Nor does the owner lose memory by it, and the view outlives the owner's memory.
    published.withdraw([8]);
    assert_eq!((whole.word(8), whole.is_alive()), (Some(0), true));
    drop((published, region));
    world.settle();
    whole.copy_to(5000, &mut bytes);
    assert_eq!(bytes, [0; 5], "its pages were given back");
}

#[test]
fn a_view_needs_key_bounds_and_rights() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let published = PublishedPages::new(LEN).unwrap();
    let region = world.b.transport.register(published.memory()).unwrap();
    let remote = world.b.transport.expose(cb, &region.segment(4096, 8192), Access::READ).unwrap();
    let (_, writable) = world.b.memory(5000);
    let only_written = world.b.transport.expose(cb, &writable, Access::WRITE).unwrap();
    let plain = world.b.transport.register(&Memory::zeroed(5000).unwrap()).unwrap().segment(0, 5000);
    let not_shared = world.b.transport.expose(cb, &plain, Access::READ).unwrap();
    world.settle();
    assert!(view(&mut world, ca, remote).is_some());
    assert!(view(&mut world, ca, only_written).is_none(), "it may only be written");
    assert!(view(&mut world, ca, not_shared).is_none(), "it lives in no shareable pages");
    let beyond = [RemoteSlice { addr: 1, ..remote }, RemoteSlice { addr: u64::MAX, ..remote }];
    let beyond = beyond.into_iter().chain([8193, LEN as u64, u64::MAX].map(|len| RemoteSlice { len, ..remote }));
    for beyond in beyond {
        assert!(view(&mut world, ca, beyond).is_none(), "{beyond:?}");
    }
    let forged = RemoteSlice { key: RemoteKey(remote.key.0 ^ 1 << 40), ..remote };
    assert!(view(&mut world, ca, forged).is_none(), "another key");
    assert!(world.b.transport.view_remote(cb, remote).is_none(), "another side's");
}

/// A peer advertises memory for writing that this side could map for reading only. A write goes
/// through the ring then, and does not touch the mapping.
#[test]
fn pages_that_were_passed_for_reading_are_never_written_to() {
    let mut world = world();
    let (ca, cb) = world.connect();
    let published = PublishedPages::new(LEN).unwrap();
    let region = world.b.transport.register(published.memory()).unwrap();
    let remote = world.b.transport.expose(cb, &region.segment(0, LEN), Access::READ_WRITE).unwrap();
    world.settle();
    assert!(world.a.transport.map_remote(ca, remote, Access::WRITE).is_none());
    assert!(world.a.transport.map_remote(ca, remote, Access::READ).is_some());
    let (_, source) = world.a.pattern(20_000);
    let target = remote.slice(100, 20_000).unwrap().into();
    let source = [source];
    world.a.transport.post_write(ca, WorkId(1), &[], &source, target, WorkOptions::SIGNALLED).unwrap();
    assert_eq!(world.work_a(), completion(ca, 1, WorkKind::Write, WorkStatus::Ok, 20_000));
    world.settle();
    assert!(published.memory().to_vec()[100..20_100] == pattern(20_000));
}

#[test]
fn mappings_of_views_are_bounded() {
    let mut config = ShmConfig::default();
    (config.tuning.max_mapped, config.max_mapped_in_all) = (4, (3, 2 << 20));
    let mut world = world_with(&config);
    let (ca, cb) = world.connect();
    let (mut kept, mut owned) = (Vec::new(), Vec::new());
    for number in 0..6 {
        let published = PublishedPages::new(LEN).unwrap();
        let region = world.b.transport.register(published.memory()).unwrap();
        let remote = world.b.transport.expose(cb, &region.segment(0, LEN), Access::READ).unwrap();
        world.settle();
        let found = view(&mut world, ca, remote);
        assert_eq!(found.is_some(), number < 3, "{number}");
        kept.extend(found);
        owned.push((published, region, remote));
    }
    // The pages come again when there is room.
    let last = owned[5].2;
    drop(kept);
    for (published, region, remote) in owned.drain(..5) {
        world.b.transport.revoke(cb, remote.key);
        drop((published, region));
    }
    for _ in 0..10 {
        if view(&mut world, ca, last).is_some() {
            return;
        }
        world.now = world.later(2);
        world.settle();
    }
    panic!("it is never mapped");
}
