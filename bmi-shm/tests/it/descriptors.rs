//! A process that has no descriptor left.

use std::fs::File;
use std::os::fd::AsRawFd;

use bmi_conformance::world::{alone, completion, pattern};
use bmi_core::transport::{Event, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, ErrorKind, Transport};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common::world;

/// A regression test. The kernel drops the descriptors of a packet for which the receiver has no
/// room. The receiver took that for a breach by the peer and cut it off. Now the memory is reached
/// another way, and a connection that cannot be made reports what ran out.
#[test]
fn a_want_of_descriptors_here_is_no_breach_by_the_peer() {
    if !alone(|| ()) {
        return;
    }
    let mut world = world();
    let (ca, cb) = world.connect();
    let (target, segment) = world.b.memory(5000);
    let (_, source) = world.a.pattern(5000);
    let (late, addr) = (world.addr(), world.addr());
    world.b.transport.listen(&addr).unwrap();
    let limit = getrlimit(Resource::Nofile);
    // The lowest free descriptor: all below it are taken.
    let free = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(free), ..limit }).unwrap();

    let remote = world.b.transport.expose(cb, &segment, Access::READ_WRITE).unwrap();
    world.settle();
    let list = [source];
    world.a.transport.post_write(ca, WorkId(1), &[], &list, remote.into(), WorkOptions::SIGNALLED).unwrap();
    assert_eq!(world.work_a(), completion(ca, 1, WorkKind::Write, WorkStatus::Ok, 5000));
    world.until(|_| (target.to_vec() == pattern(5000)).then_some(()));
    assert_eq!(world.b.transport.listen(&late).unwrap_err().kind(), ErrorKind::Exhausted);
    let deadline = world.later(5);
    assert_eq!(world.a.transport.connect(&addr, b"", deadline).unwrap_err().kind(), ErrorKind::Exhausted);
    assert!(!world.b.events.iter().any(|event| matches!(event, Event::Disconnected { .. })), "{:?}", world.b.events);

    setrlimit(Resource::Nofile, limit).unwrap();
    world.connect();
}
