//! Calls that are dropped before their reply. A server that is moving their data goes on, the
//! connection stays, and what the server may access is given back when it can access it no more.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bmi_core::comm::{Body, Direction, Path, serve};
use bmi_core::driver::Waiting;
use bmi_core::{Addr, Config, Endpoint, Error, ErrorKind, HandleConfig, Memory, Options, Peer, ResourceUsage};
use bmi_sim::{Node, World};
use futures_util::future::{Either, select};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Takes some milliseconds.
const LONG: usize = 16 << 20;

/// What the server does with a call, by the first byte of the request.
const MOVE: &[u8] = b"m";
const ECHO: &[u8] = b"e";
const IGNORE: &[u8] = b"i";
const REFUSE: &[u8] = b"r";

/// How far the server is.
#[derive(Default)]
struct Seen {
    begun: Cell<usize>,
    moved: Cell<usize>,
    failed: Cell<usize>,
}

struct Rig {
    world: World,
    near: Node,
    client: Endpoint,
    server: Endpoint,
    addr: Addr,
    seen: Rc<Seen>,
}

impl Rig {
    fn new(config: &Config) -> Rig {
        let world = World::new(1);
        let (near, far) = (world.node("client"), world.node("server"));
        let (client, server) = (near.endpoint(config.clone()).unwrap(), far.endpoint(config.clone()).unwrap());
        let addr = server.listen(&far.addr(1)).unwrap();
        let seen = Rc::new(Seen::default());
        let (serving, count) = (server.clone(), Rc::clone(&seen));
        far.spawn(async move {
            serve(&serving, 8, async |call| {
                let options = call.within(SECOND / 5);
                count.begun.set(count.begun.get() + 1);
                match &call.request()[..1] {
                    IGNORE => std::future::pending().await,
                    REFUSE => {
                        serving.sleep(MILLISECOND).await;
                        return Ok(());
                    }
                    _ => {}
                }
                let memory = Memory::zeroed(call.len() as usize)?;
                let moved: Result<(), Error> = match call.direction() {
                    Some(Direction::Write) => call.fetch(0, &memory, options).await,
                    Some(Direction::Read) if !call.replies_with_data() => call.store(0, &memory, options).await,
                    _ => Ok(()),
                };
                let ended = if moved.is_ok() { &count.moved } else { &count.failed };
                ended.set(ended.get() + 1);
                let data = call.replies_with_data().then(|| (&memory).into());
                call.reply(b"done", data, options).await
            })
            .await
        });
        Rig { world, near, client, server, addr, seen }
    }

    async fn connect(&self) -> Peer {
        self.client.connect(&self.addr, self.client.within(SECOND)).await.unwrap()
    }

    /// Calls, and drops the call when the server has begun, and some more time has passed.
    async fn call_and_drop(&self, peer: &Peer, request: &[u8], body: Body, options: Options) {
        let begun = self.seen.begun.get();
        let call = peer.call(request, body, options).unwrap();
        let time = Box::pin(async {
            while self.seen.begun.get() == begun {
                self.near.sleep(MILLISECOND / 100).await;
            }
            self.near.sleep(MILLISECOND).await;
        });
        match select(Box::pin(call.reply()), time).await {
            Either::Left((reply, _)) => panic!("the reply was here before: {reply:?}"),
            Either::Right(_) => {}
        }
    }

    /// Waits until neither side has anything outstanding. Returns the time that it took.
    async fn settle(&self) -> Duration {
        let begin = self.near.now();
        while is_busy(&self.client.resource_usage()) || is_busy(&self.server.resource_usage()) {
            let (client, server) = (self.client.resource_usage(), self.server.resource_usage());
            assert!(self.near.now() < begin + 100 * SECOND, "{client:?}, {server:?}");
            self.near.sleep(MILLISECOND).await;
        }
        self.near.now() - begin
    }

    fn exposures(&self) -> usize {
        self.client.resource_usage().exposures
    }
}

/// A call that has nothing to do with the others.
async fn echo(peer: &Peer) -> Result<(), Error> {
    let reply = peer.call(ECHO, Body::None, peer.within(SECOND))?.reply().await?;
    assert_eq!(reply.bytes, b"done".as_slice());
    Ok(())
}

fn is_busy(usage: &ResourceUsage) -> bool {
    ResourceUsage { peers: 0, ..*usage } != ResourceUsage::default()
}

fn body(direction: Direction, memory: &Memory) -> Body {
    match direction {
        Direction::Write => Body::Out(memory.into()),
        Direction::Read => Body::In(memory.into()),
    }
}

/// The server is in the middle of a long move when the client drops the call. The connection was
/// cut, and every other call on it failed.
#[test]
fn a_server_in_the_middle_of_a_move_goes_on() {
    for direction in [Direction::Write, Direction::Read] {
        let rig = Rig::new(&Config::default());
        rig.world.block_on(async {
            let peer = rig.connect().await;
            let mut memory = Memory::zeroed(LONG).unwrap();
            let body = body(direction, &memory);
            rig.call_and_drop(&peer, MOVE, body, peer.within(60 * SECOND).path(Path::ServerBased)).await;
            assert_eq!((rig.seen.begun.get(), rig.seen.moved.get()), (1, 0), "in the middle of the move");
            assert!(memory.is_retired() && memory.get_mut().is_none(), "the server may be at it");
            echo(&peer).await.unwrap();
            assert!(rig.settle().await < SECOND, "the late reply ends it");
            assert_eq!((rig.seen.moved.get(), rig.seen.failed.get()), (2, 0));
            assert!(!memory.is_retired() && memory.get_mut().is_some());
            echo(&peer).await.unwrap();
        });
    }
}

/// As above, with a list that is packed, and with many calls that are dropped.
#[test]
fn many_calls_with_lists_are_dropped() {
    let rig = Rig::new(&Config::default());
    rig.world.block_on(async {
        let peer = rig.connect().await;
        for lists in [bmi_core::Lists::Pack, bmi_core::Lists::Chain] {
            for direction in [Direction::Write, Direction::Read, Direction::Write] {
                let pieces: Vec<Memory> = (0..40).map(|_| Memory::zeroed(LONG / 40).unwrap()).collect();
                let list = pieces.iter().map(Memory::all).collect();
                let body = if direction == Direction::Write { Body::Out(list) } else { Body::In(list) };
                let options = peer.within(60 * SECOND).lists(lists);
                rig.call_and_drop(&peer, MOVE, body, options.path(Path::ServerBased)).await;
                echo(&peer).await.unwrap();
            }
        }
        assert!(rig.settle().await < SECOND);
        assert_eq!(rig.seen.failed.get(), 0);
        echo(&peer).await.unwrap();
    });
}

/// The client moves the data, and stops. The server ends its part at its own deadline. It cannot
/// know that the client is not at its memory, so it leaves that for a while.
#[test]
fn a_client_that_moves_the_data_stops() {
    for direction in [Direction::Write, Direction::Read] {
        let rig = Rig::new(&Config::default().dropped_call(7 * SECOND));
        rig.world.block_on(async {
            let peer = rig.connect().await;
            let memory = Memory::zeroed(LONG).unwrap();
            let body = body(direction, &memory);
            rig.call_and_drop(&peer, MOVE, body, peer.within(60 * SECOND).path(Path::ClientBased)).await;
            assert_eq!((rig.seen.begun.get(), rig.seen.moved.get()), (1, 0), "in the middle of the move");
            echo(&peer).await.unwrap();
            rig.near.sleep(SECOND).await;
            assert!(!is_busy(&rig.client.resource_usage()), "the client is not at it any more");
            let held = rig.settle().await;
            assert!(held > 6 * SECOND && held < 7 * SECOND, "{held:?}");
            assert_eq!(rig.seen.failed.get(), 1);
            echo(&peer).await.unwrap();
        });
    }
}

/// Data ahead of a reply, and data in a slot.
#[test]
fn a_short_read_is_dropped_before_its_reply() {
    for (len, path) in [(60_000, Path::FastRdma), (3_000, Path::Inline), (60_000, Path::Inline)] {
        for request in [IGNORE, REFUSE] {
            let rig = Rig::new(&Config::default());
            rig.world.block_on(async {
                let peer = rig.connect().await;
                let memory = Memory::zeroed(len).unwrap();
                // Short enough for the server that ignores it.
                let options = peer.within(SECOND / 2).path(path);
                let call = peer.call(request, Body::In((&memory).into()), options).unwrap();
                rig.near.sleep(MILLISECOND / 2).await;
                drop(call);
                echo(&peer).await.unwrap();
                rig.near.sleep(SECOND).await;
                assert!(!is_busy(&rig.client.resource_usage()), "{:?}", rig.client.resource_usage());
                echo(&peer).await.unwrap();
            });
        }
    }
}

/// A server that gives the request up ends the access as a reply does.
#[test]
fn a_request_that_the_server_gives_up_leaves_nothing() {
    let rig = Rig::new(&Config::default());
    rig.world.block_on(async {
        let peer = rig.connect().await;
        let memory = Memory::zeroed(LONG).unwrap();
        let options = Options::default().path(Path::ServerBased);
        let call = peer.call(REFUSE, Body::In((&memory).into()), options).unwrap();
        rig.near.sleep(MILLISECOND / 2).await;
        drop(call);
        assert_eq!(rig.exposures(), 1);
        assert!(rig.settle().await < 10 * MILLISECOND);
        echo(&peer).await.unwrap();
    });
}

/// A server that never replies has its access until the deadline, and no longer.
#[test]
fn a_server_that_never_replies_keeps_its_access_until_the_deadline() {
    let config = Config::default().dropped_call(7 * SECOND);
    for (deadline, expected) in [(Some(3 * SECOND), 3 * SECOND), (None, 7 * SECOND)] {
        let rig = Rig::new(&config);
        rig.world.block_on(async {
            let peer = rig.connect().await;
            let memory = Memory::zeroed(LONG).unwrap();
            let options = deadline.map_or_else(Options::default, |timeout| peer.within(timeout));
            let begin = rig.near.now();
            rig.call_and_drop(&peer, IGNORE, body(Direction::Read, &memory), options.path(Path::ServerBased)).await;
            let mut held = Duration::ZERO;
            while rig.exposures() > 0 {
                held = rig.near.now() - begin;
                rig.near.sleep(MILLISECOND).await;
            }
            assert!(held + 10 * MILLISECOND > expected && held < expected + 10 * MILLISECOND, "{held:?}");
            assert!(!is_busy(&rig.client.resource_usage()) && !memory.is_retired());
            echo(&peer).await.unwrap();
        });
    }
}

/// The end of the connection ends the access.
#[test]
fn nothing_is_left_of_a_call_whose_connection_ends() {
    let rig = Rig::new(&Config::default());
    rig.world.block_on(async {
        let peer = rig.connect().await;
        let memory = Memory::zeroed(LONG).unwrap();
        rig.call_and_drop(&peer, IGNORE, body(Direction::Write, &memory), Options::default().path(Path::ServerBased))
            .await;
        assert_eq!(rig.exposures(), 1);
        peer.disconnect(peer.within(SECOND)).await.unwrap();
        assert!(!is_busy(&rig.client.resource_usage()) && !memory.is_retired());
    });
}

/// A request that waits for credit is taken back.
#[test]
fn a_request_that_was_not_sent_leaves_nothing() {
    let config = Config::default().credit_bytes(40_000).fast_slots(0);
    let rig = Rig::new(&config);
    rig.world.block_on(async {
        let peer = rig.connect().await;
        // The server works on six of them. The others keep their credits.
        let (long, options) = (IGNORE.repeat(4000), peer.within(2 * SECOND));
        let call = |_| peer.call(&long, Body::None, options).unwrap();
        let waiting: Vec<_> = (0..40).map(call).collect();
        rig.near.sleep(10 * MILLISECOND).await;
        let before = rig.client.resource_usage();
        let memory = Memory::zeroed(LONG).unwrap();
        let body = body(Direction::Read, &memory);
        let call = peer.call(MOVE, body, peer.within(60 * SECOND).path(Path::ServerBased)).unwrap();
        rig.near.sleep(10 * MILLISECOND).await;
        assert_eq!(rig.exposures(), 1);
        drop(call);
        rig.near.sleep(MILLISECOND).await;
        assert_eq!(rig.client.resource_usage(), before);
        assert!(!memory.is_retired());
        drop(waiting);
    });
}

/// What is left does not hold up the end of a handle.
#[test]
fn a_handle_is_closed_in_time() {
    let world = World::new(1);
    let (near, far) = (world.node("near"), world.node("far"));
    let settings = HandleConfig::default().waiting(Waiting::Event).max_operations(8);
    let handle = |node: &Node| node.handle(&Config::default(), 1, settings).unwrap();
    let (client, server) = (handle(&near), handle(&far));
    let addr = server.listen(&far.addr(1)).unwrap();
    let mut memory = Memory::zeroed(LONG).unwrap();
    world.block_on(async {
        let peer = client.connect(&addr, client.within(SECOND)).await.unwrap();
        let call = || peer.call(MOVE, Body::In((&memory).into()), Options::default());
        for _ in 0..8 {
            drop(call().unwrap());
            near.sleep(MILLISECOND).await;
        }
        // Those that were dropped count until they have ended.
        assert_eq!(call().map(|_| ()).unwrap_err().kind(), ErrorKind::Exhausted);
        let usage = &client.resource_usage()[0];
        assert_eq!((usage.operations, usage.exposures), (8, 8));
        let begin = near.now();
        client.close().await;
        assert!(near.now() - begin < 2 * SECOND);
        let usage = &client.resource_usage()[0];
        assert_eq!((usage.operations, usage.peers), (0, 0), "{usage:?}");
        server.close().await;
    });
    assert!(memory.get_mut().is_some());
}
