//! Packets of the socket and the descriptors that come with them.

use super::*;

/// Descriptors that must be refused, each with the length that is claimed for it.
fn wrong_descriptors(len: u64) -> Vec<(&'static str, Vec<OwnedFd>)> {
    let good = SealFlags::SHRINK | SealFlags::GROW;
    let file = tempfile::tempfile().unwrap();
    file.set_len(len).unwrap();
    vec![
        ("none", vec![]),
        ("a file", vec![file.into()]),
        ("a device", vec![File::open("/dev/zero").unwrap().into()]),
        ("a directory", vec![File::open("/").unwrap().into()]),
        ("a socket", vec![std::os::unix::net::UnixDatagram::unbound().unwrap().into()]),
        ("an unsealed memfd", vec![memfd(len, SealFlags::empty())]),
        ("a memfd that may shrink", vec![memfd(len, SealFlags::GROW)]),
        ("a shorter memfd", vec![memfd(len - 1, good)]),
        ("a longer memfd", vec![memfd(len + 4096, good)]),
        ("two memfds", vec![memfd(len, good), memfd(len, good)]),
        ("too many memfds", (0..8).map(|_| memfd(len, good)).collect()),
    ]
}

#[test]
fn wrong_descriptors_in_the_handshake_are_refused() {
    let mut victim = Victim::new();
    for (what, fds) in wrong_descriptors(GEOMETRY.len() as u64) {
        let hostile = Hostile::dial(&victim.path);
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        hostile.say(encode_hello(&HELLO, b"").bytes(), &fds);
        for _ in 0..2000 {
            victim.poll();
        }
        assert!(victim.events.is_empty(), "{what}: {:?}", victim.events);
        let mut byte = [0; MAX_PACKET];
        assert!(matches!(socket::receive(&hostile.socket, &mut byte), Ok((0, _)) | Err(_)), "{what}: closed");
    }
    victim.prove_honest();
}

/// A process that connected, broke the rules and connected again kept its victim at work without
/// end, and honest peers waited for the processor.
#[test]
fn a_process_that_broke_the_rules_is_heard_later() {
    let mut victim = Victim::new();
    let (greets, is_closed) = (encode_hello(&HELLO, b""), |hostile: &Hostile| {
        matches!(socket::receive(&hostile.socket, &mut [0; MAX_PACKET]), Ok((0, _)))
    });
    let poll = |victim: &mut Victim, until: Time| {
        for _ in 0..1000 {
            victim.transport.poll(until, &mut victim.events);
        }
    };
    let offenders: Vec<_> = (0..3).map(|_| Hostile::dial(&victim.path)).collect();
    offenders.iter().for_each(|hostile| hostile.say(&[99], &[]));
    let now = victim.now;
    poll(&mut victim, now);
    assert!(offenders.iter().all(is_closed), "the first ones are heard at once");
    let again = Hostile::dial(&victim.path);
    again.say(greets.bytes(), &[again.area_fd.as_fd()]);
    let late = now + Duration::from_millis(15);
    poll(&mut victim, now + Duration::from_micros(14_999));
    assert!(victim.events.is_empty(), "not heard yet: {:?}", victim.events);
    assert_eq!(victim.transport.next_deadline(), Some(late));
    poll(&mut victim, late);
    assert!(matches!(victim.events[..], [Event::ConnectRequest { .. }]), "{:?}", victim.events);
}

/// Descriptors that come with a refused packet are closed. The reading end of a pipe sees the end
/// once no process holds the writing end.
#[test]
fn descriptors_of_refused_packets_are_closed() {
    let mut victim = Victim::new();
    let hello = encode_hello(&HELLO, b"");
    let pages = Packet::Pages { id: 0, len: 4096 }.encode();
    for (established, packet) in [(false, &hello), (true, &pages), (true, &Packet::Wake.encode())] {
        for count in [1, 2, 8] {
            let hostile = if established { victim.hostile().0 } else { Hostile::dial(&victim.path) };
            let pipes: Vec<_> = (0..count).map(|_| std::io::pipe().unwrap()).collect();
            let fds: Vec<_> = pipes.iter().map(|(_, write)| write.as_fd()).collect();
            hostile.say(packet.bytes(), &fds);
            drop(fds);
            for _ in 0..2000 {
                victim.poll();
            }
            for (mut read, write) in pipes {
                drop(write);
                rustix::io::ioctl_fionbio(&read, true).unwrap();
                assert_eq!(std::io::Read::read(&mut read, &mut [0]).unwrap(), 0, "somebody has the other end");
            }
        }
    }
    victim.events.clear();
    victim.prove_honest();
}

#[test]
fn wrong_descriptors_for_memory_cost_the_connection() {
    let mut victim = Victim::new();
    for (what, fds) in wrong_descriptors(8192) {
        let (hostile, conn) = victim.hostile();
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        hostile.say(Packet::Pages { id: 0, len: 8192 }.encode().bytes(), &fds);
        let end = victim.end_of(conn);
        assert_eq!(end.kind(), ErrorKind::Protocol, "{what}: {end}");
    }
    victim.prove_honest();
}

#[test]
fn lengths_that_cannot_be_mapped_cost_nothing_but_the_connection() {
    let mut victim = Victim::new();
    for len in [0, 1 << 46, u64::MAX] {
        let (hostile, conn) = victim.hostile();
        let fd = memfd(4096, SealFlags::SHRINK | SealFlags::GROW);
        hostile.say(Packet::Pages { id: 0, len }.encode().bytes(), &[fd.as_fd()]);
        assert_eq!(victim.end_of(conn).kind(), ErrorKind::Protocol, "{len}");
    }
    victim.prove_honest();
}

/// The peer cannot change what the victim wrote: it can neither write, nor map writable, nor
/// truncate the victim's area.
#[test]
fn a_victims_area_is_out_of_reach() {
    let mut victim = Victim::new();
    let (hostile, _) = victim.hostile();
    let fd = hostile.victims_fd.as_ref().unwrap();
    let len = victim.transport.config.geometry().len();
    assert!(sys::map_peer(fd, len as u64, true).unwrap().is_err(), "mapped writable");
    assert!(rustix::io::pwrite(fd, b"x", 0).is_err(), "written");
    assert!(rustix::fs::ftruncate(fd, 0).is_err(), "cut");
    assert!(
        rustix::fs::fallocate(
            fd,
            rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
            0,
            4096
        )
        .is_err(),
        "punched"
    );
    victim.prove_honest();
}

#[test]
fn random_packets_cost_at_most_the_connection() {
    let mut victim = Victim::new();
    let mut rng = Rng::new(5);
    for round in 0..300 {
        let hostile = if round % 2 == 0 { Hostile::dial(&victim.path) } else { victim.hostile().0 };
        for _ in 0..rng.index(4) {
            let mut bytes: Vec<u8> = (0..rng.index(80)).map(|_| rng.below(256) as u8).collect();
            if let Some(first) = bytes.first_mut() {
                *first = rng.below(8) as u8;
            }
            let fd = memfd(4096, SealFlags::SHRINK | SealFlags::GROW);
            let fds = [fd.as_fd()];
            hostile.say(&bytes, if rng.below(3) == 0 { &fds } else { &[] });
            victim.poll();
        }
        drop(hostile);
        for _ in 0..300 {
            victim.poll();
        }
        victim.events.clear();
    }
    victim.prove_honest();
}
