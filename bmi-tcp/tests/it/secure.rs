//! TLS: who is let in, who is told why not, and what somebody on the way can see and do.

use std::cell::RefCell;
use std::fs;
use std::io::{ErrorKind as IoErrorKind, Read, Write};
use std::net::TcpStream;
use std::rc::Rc;

use bmi_conformance::certificates::{Authority, Issued, Says};
use bmi_conformance::log;
use bmi_conformance::world::completion;
use bmi_core::transport::{ConnId, Event, Payload, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, Addr, Error, ErrorKind, Memory, Transport};
use bmi_tcp::{Security, TcpConfig, TcpTransport};
use bmi_tls::Channel;

use crate::common::{World, preamble, raw};
use crate::streams::proxy::{connect, connect_by, proxy, settle};

const SIGNALLED: WorkOptions = WorkOptions::SIGNALLED;

fn security(authority: &Authority, issued: &Issued) -> Security {
    Security::mutual(&issued.certificate, &issued.key, authority.certificate()).unwrap()
}

fn world_of(a: Option<&Security>, b: Option<&Security>, streams: u8) -> World {
    let transport = |security: Option<&Security>| {
        let mut config = TcpConfig::default();
        (config.security, config.streams) = (security.cloned(), streams);
        TcpTransport::new(config).unwrap()
    };
    World::new(transport(a), transport(b), || Addr::tcp("127.0.0.1", 0))
}

/// An authority, and two whom it has certified.
fn friends() -> (Authority, Security, Security) {
    let authority = Authority::new("friends");
    let client = security(&authority, &authority.issue("client", &Says::names(&["pvfs:user/anna"])));
    let server = security(&authority, &authority.issue("server", &Says::names(&["pvfs:manager"])));
    (authority, client, server)
}

fn secure_world() -> (Authority, World) {
    let (authority, client, server) = friends();
    let world = world_of(Some(&client), Some(&server), 1);
    (authority, world)
}

/// Connects, and returns why it fails, with what the log says.
fn refused(world: &mut World) -> (Error, String) {
    let (error, lines) = log::capture(|| {
        let addr = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
        let deadline = world.later(60);
        let conn = world.a.transport.connect(&addr, b"hello", deadline).unwrap();
        let error = world.until(|world| world.a.take_end(conn));
        world.settle();
        error
    });
    assert!(world.b.events.is_empty(), "nobody above hears of it: {:?}", world.b.events);
    (error, format!("{lines:?}"))
}

#[track_caller]
fn assert_refused(world: &mut World, client: &str, server: &str) {
    let (error, log) = refused(world);
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains(client), "the client: {error}");
    assert!(log.contains(server), "the server: {log}");
}

#[test]
fn who_is_not_trusted_is_told_why_on_both_sides() {
    let (mut authority, client, server) = friends();
    let stranger = Authority::new("strangers");
    let wrong = security(&authority, &stranger.issue("wrong", &Says::names(&[])));
    let mut world = world_of(Some(&wrong), Some(&server), 1);
    assert_refused(&mut world, "it does not know the authority of the certificate", "does not trust");
    let mut world = world_of(Some(&client), Some(&wrong), 1);
    assert_refused(&mut world, "of an authority that this side does not trust", "does not know the authority");
    let elsewhere = Says { names: vec!["elsewhere.example".into()], ..Says::names(&[]) };
    let elsewhere = security(&authority, &authority.issue("elsewhere", &elsewhere));
    let mut world = world_of(Some(&client), Some(&elsewhere), 1);
    assert_refused(&mut world, "not for 127.0.0.1, but for: ", "not good for this");
    let leaver = authority.issue("leaver", &Says::names(&[]));
    let server = server.without_revoked(authority.revoke(&leaver)).unwrap();
    let mut world = world_of(Some(&security(&authority, &leaver)), Some(&server), 1);
    assert_refused(&mut world, "the certificate is revoked", "its certificate is revoked");
}

#[test]
fn one_side_in_the_clear_is_told_so_on_both_sides() {
    let (_authority, client, server) = friends();
    let mut world = world_of(None, Some(&server), 1);
    assert_refused(&mut world, "it requires TLS, and this side has no certificate", "speaks without TLS");
    let mut world = world_of(Some(&client), None, 1);
    assert_refused(&mut world, "it speaks without TLS, and this side requires it", "it speaks TLS, and this side");
}

/// Moves `len` bytes in each way there is.
fn move_each_way(world: &mut World, (ca, cb): (ConnId, ConnId), len: usize, mut turn: impl FnMut()) -> [Memory; 3] {
    let (_, source) = world.a.pattern(len);
    let (_, exposed) = world.b.pattern(len);
    let [(sent, to_send), (written, to_write)] = [world.b.memory(len), world.b.memory(len)];
    let (read, to_read) = world.a.memory(len);
    world.b.transport.post_recv(cb, WorkId(1), &[to_send]).unwrap();
    world.a.transport.post_send(ca, WorkId(1), &[], Payload::Gather(std::slice::from_ref(&source)), SIGNALLED).unwrap();
    let target = world.b.transport.expose(cb, &to_write, Access::WRITE).unwrap();
    world.a.transport.post_write(ca, WorkId(2), &[], &[source], target.into(), SIGNALLED).unwrap();
    let from = world.b.transport.expose(cb, &exposed, Access::READ).unwrap();
    world.a.transport.post_read(ca, WorkId(3), &[to_read], from, SIGNALLED).unwrap();
    for _ in 0..3 {
        let done = world.until(|world| {
            turn();
            world.a.take_work()
        });
        assert_eq!(done.status, WorkStatus::Ok);
    }
    let received = world.until(|world| {
        turn();
        world.b.take_work()
    });
    assert_eq!(received, completion(cb, 1, WorkKind::Recv, WorkStatus::Ok, len as u64));
    [sent, written, read]
}

#[test]
fn nothing_of_a_mebibyte_is_to_be_seen_on_the_way() {
    const LEN: usize = 1 << 20;
    let (_authority, mut world) = secure_world();
    let (mut proxy, addr) = proxy(&mut world, false);
    let seen = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&seen);
    proxy.spy = Some(Box::new(move |_, bytes| log.borrow_mut().extend_from_slice(bytes)));
    let conns = connect_by(&mut world, &mut proxy, &addr);
    let memories = move_each_way(&mut world, conns, LEN, || proxy.turn());
    settle(&mut world, &mut proxy);
    let known = bmi_conformance::world::pattern(LEN);
    assert!(memories.iter().all(|memory| memory.to_vec() == known));
    let seen = seen.borrow();
    assert!(seen.len() > 3 * LEN);
    let pieces: std::collections::BTreeSet<&[u8]> = known.chunks_exact(16).collect();
    assert!(!seen.windows(16).any(|window| pieces.contains(window)), "known bytes are on the wire");
    assert!(!seen.windows(8).any(|window| window == b"BMI-TCP\n"), "greetings too are sealed");
}

#[test]
fn a_change_on_the_way_ends_the_connection_and_brings_nothing() {
    for from in [0, 1] {
        let (_authority, mut world) = secure_world();
        let (mut proxy, ca, cb) = connect(&mut world);
        settle(&mut world, &mut proxy);
        let (sender, receiver, side) = if from == 0 { (ca, cb, "b") } else { (cb, ca, "a") };
        let [target, source] = match side {
            "b" => [world.b.memory(5000).1, world.a.pattern(5000).1],
            _ => [world.a.memory(5000).1, world.b.pattern(5000).1],
        };
        let (near, far) = if from == 0 { (&mut world.a, &mut world.b) } else { (&mut world.b, &mut world.a) };
        far.transport.post_recv(receiver, WorkId(1), std::slice::from_ref(&target)).unwrap();
        near.transport.post_send(sender, WorkId(1), &[], Payload::Gather(&[source]), SIGNALLED).unwrap();
        proxy.spy = Some(Box::new(move |end, bytes| {
            let at = bytes.len() / 2;
            bytes[at] ^= u8::from(end == from);
        }));
        let reason = world.until(|world| {
            proxy.turn();
            if from == 0 { world.b.take_end(cb) } else { world.a.take_end(ca) }
        });
        assert_eq!(reason.kind(), ErrorKind::Protocol, "{reason}");
        assert!(reason.to_string().contains("a record that its key has not sealed"), "{reason}");
        assert_eq!(target.to_slice().to_vec(), [0; 5000], "what is not genuine reaches no memory");
    }
}

#[test]
fn an_end_that_the_peer_has_not_told_is_a_loss() {
    let (_authority, mut world) = secure_world();
    let (mut proxy, ca, cb) = connect(&mut world);
    settle(&mut world, &mut proxy);
    proxy.kill(0);
    for reason in [world.until(|world| world.a.take_end(ca)), world.until(|world| world.b.take_end(cb))] {
        assert_eq!(reason.kind(), ErrorKind::PeerLost, "{reason}");
    }
    let (ca, cb) = world.connect();
    let deadline = world.later(10);
    world.a.transport.disconnect(ca, deadline);
    let reason = world.until(|world| world.b.take_end(cb));
    assert!(reason.to_string().contains("the peer closed the connection"), "{reason}");
}

#[test]
fn what_was_recorded_opens_nothing_when_it_is_sent_again() {
    let (_authority, mut world) = secure_world();
    let (mut proxy, addr) = proxy(&mut world, false);
    let recorded = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&recorded);
    proxy.spy = Some(Box::new(move |from, bytes| {
        if from == 0 {
            log.borrow_mut().extend_from_slice(bytes);
        }
    }));
    connect_by(&mut world, &mut proxy, &addr);
    world.settle();
    for cut in [recorded.borrow().len(), 300] {
        let mut socket = raw(&mut world);
        socket.write_all(&recorded.borrow()[..cut]).unwrap();
        world.settle();
        assert!(world.b.events.is_empty(), "{:?}", world.b.events);
    }
}

#[test]
fn a_thousand_half_open_handshakes_keep_nobody_out() {
    let (_authority, mut world) = secure_world();
    let (mut proxy, addr) = proxy(&mut world, false);
    let hello = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&hello);
    proxy.spy = Some(Box::new(move |from, bytes| {
        if from == 0 && log.borrow().is_empty() {
            log.borrow_mut().extend_from_slice(bytes);
        }
    }));
    connect_by(&mut world, &mut proxy, &addr);
    let (hello, listening) = (hello.borrow(), world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap());
    let mut sockets = std::collections::VecDeque::new();
    for number in 0..1000 {
        let mut socket = TcpStream::connect(("127.0.0.1", listening.port())).unwrap();
        // Half of them have the server sign something, the others keep it waiting.
        socket.write_all(&hello[..hello.len() / (1 + number % 2)]).unwrap();
        sockets.push_back(socket);
        if sockets.len() > 300 {
            sockets.pop_front();
        }
        world.poll();
    }
    world.connect_at(&Addr::tcp("127.0.0.1", 0));
    assert!(world.b.events.is_empty());
}

#[test]
fn files_that_are_read_again_count_for_new_connections() {
    let (mut authority, client, server) = friends();
    let leaver = authority.issue("leaver", &Says::names(&["pvfs:user/ben"]));
    let other = authority.issue("other", &Says::names(&[]));
    let server = server.without_revoked(authority.revoke(&other)).unwrap();
    let mut world = world_of(Some(&security(&authority, &leaver)), Some(&server), 1);
    let conns = world.connect();
    authority.revoke(&leaver);
    server.reload().unwrap();
    assert_refused(&mut world, "the certificate is revoked", "its certificate is revoked");
    move_each_way(&mut world, conns, 3000, || {});
    // Files that are no good change nothing.
    let file = authority.folder().join("server.pem");
    fs::write(&file, "nothing").unwrap();
    server.reload().unwrap_err();
    world_of(Some(&client), Some(&server), 1).connect();
}

/// Somebody who speaks TLS and the preamble, and nothing else.
struct Speaker {
    socket: TcpStream,
    channel: Channel,
}

impl Speaker {
    fn new(world: &mut World, port: u16, security: &Security) -> Speaker {
        let socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut speaker = Speaker { socket, channel: Channel::client(security, "127.0.0.1").unwrap() };
        world.until(|_| {
            speaker.push();
            if speaker.channel.session().is_some() {
                return Some(());
            }
            let n = (&speaker.socket).read(speaker.channel.space()).unwrap_or(0);
            speaker.channel.advance(n).unwrap();
            None
        });
        speaker
    }

    fn push(&mut self) {
        let n = (&self.socket).write(self.channel.unsent()).unwrap();
        self.channel.sent(n).unwrap();
    }

    fn say(&mut self, bytes: &[u8]) {
        self.channel.session().unwrap().seal(bytes.len(), |to| to.copy_from_slice(bytes)).unwrap();
        self.push();
    }

    /// Returns the next answer, or nothing at the end.
    fn hear(&mut self, world: &mut World) -> Vec<u8> {
        world.until(|_| {
            let session = self.channel.session().unwrap();
            let payload = session.payload().unwrap_or_default().to_vec();
            if !payload.is_empty() {
                session.consume(payload.len());
                return Some(payload);
            }
            match (&self.socket).read(session.space()) {
                Ok(0) => Some(Vec::new()),
                Ok(n) => {
                    session.filled(n);
                    None
                }
                Err(error) if error.kind() == IoErrorKind::WouldBlock => None,
                Err(_) => Some(Vec::new()),
            }
        })
    }
}

/// The token of a connection's further streams is of no use to another peer, though it has a good
/// certificate.
#[test]
fn a_stream_joins_only_a_connection_of_the_same_peer() {
    let (authority, anna, server) = friends();
    let ben = security(&authority, &authority.issue("ben", &Says::names(&["pvfs:user/ben"])));
    let mut world = world_of(None, Some(&server), 4);
    let port = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap().port();
    let mut first = Speaker::new(&mut world, port, &anna);
    let mut connects = preamble(1, b"");
    connects[11] = 2;
    first.say(&connects);
    let conn = world.until(|world| {
        world.b.take(|event| if let Event::ConnectRequest { conn, .. } = event { Some(*conn) } else { None })
    });
    world.b.transport.accept(conn, b"").unwrap();
    let accepts = first.hear(&mut world);
    assert_eq!((accepts.len(), accepts[10], accepts[11]), (16 + 20, 2, 2));
    let joins = preamble(4, &accepts[16..]);
    for (who, welcome) in [(&ben, false), (&anna, true)] {
        let mut further = Speaker::new(&mut world, port, who);
        further.say(&joins);
        assert_eq!(further.hear(&mut world) == preamble(2, b""), welcome);
    }
}
