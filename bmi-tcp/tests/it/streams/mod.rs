//! Several streams for one connection: transfers, order, and ends.

use bmi_conformance::world::{completion, pattern};
use bmi_core::transport::{WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, Transport};
use bmi_tcp::TcpConfig;

use crate::common::{World, world_with};

const SIGNALLED: WorkOptions = WorkOptions::SIGNALLED;

fn world(streams: u8) -> World {
    let mut config = TcpConfig::default();
    config.streams = streams;
    world_with(&config)
}

#[test]
fn reads_and_writes_of_several_frames_bring_what_is_there() {
    const LENGTHS: [usize; 8] = [0, 1, 262_143, 262_144, 262_145, 300_000, 1 << 20, 5_000_001];
    let mut world = world(4);
    let (ca, cb) = world.connect();
    world.settle();
    let (_, source) = world.b.pattern(5_000_100);
    let remote = world.b.transport.expose(cb, &source, Access::READ).unwrap();
    let targets = LENGTHS.map(|len| world.a.memory(len));
    for (at, (target, segment)) in (0..).zip(&targets) {
        let (len, half) = (target.len(), target.len() / 2);
        let list = [segment.slice(0, half), segment.slice(half, 0), segment.slice(half, len - half)];
        let part = remote.slice(at, len as u64).unwrap();
        world.a.transport.post_read(ca, WorkId(at), &list, part, SIGNALLED).unwrap();
    }
    for (at, (target, _)) in targets.iter().enumerate() {
        let len = target.len();
        assert_eq!(world.work_a(), completion(ca, at as u64, WorkKind::Read, WorkStatus::Ok, len as u64));
        assert!(target.to_vec() == pattern(5_000_100)[at..at + len], "{len} bytes");
    }
}
