//! Moves of data by the client that the server ends early: at its deadline, or because its program
//! gives the request up. The client writes or reads on, because it has not heard of it. That ends
//! its call, and nothing else.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use bmi_core::comm::{Body, Direction, Incoming, Path, Reply, serve};
use bmi_core::{Addr, Config, Endpoint, Error, ErrorKind, Memory, Peer};
use bmi_sim::{Node, World};
use futures_util::future::{join_all, select};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Takes some milliseconds.
const LONG: usize = 16 << 20;
/// Equal to the default of `Config::dropped_call`.
const LEFT: Duration = Duration::from_secs(30);

/// What the server does with a call, by the first byte of the request.
const SHORT: &[u8] = b"s";
const GIVE_UP: &[u8] = b"g";
const BYTES: &[u8] = b"b";
const ECHO: &[u8] = b"e";

struct Rig {
    world: World,
    near: Node,
    client: Endpoint,
    server: Endpoint,
    addr: Addr,
    /// The server's memory of each call.
    used: Rc<RefCell<Vec<Memory>>>,
    failed: Rc<Cell<usize>>,
}

async fn moved(call: &Incoming, memory: &Memory, timeout: Duration) -> Result<(), Error> {
    match call.direction() {
        Some(Direction::Write) => call.fetch(0, memory, call.within(timeout)).await,
        Some(Direction::Read) => call.store(0, memory, call.within(timeout)).await,
        None => Ok(()),
    }
}

impl Rig {
    fn new() -> Rig {
        let world = World::new(1);
        let (near, far) = (world.node("client"), world.node("server"));
        let (client, server) = (near.endpoint(Config::default()).unwrap(), far.endpoint(Config::default()).unwrap());
        let addr = server.listen(&far.addr(1)).unwrap();
        let (used, failed) = (Rc::new(RefCell::new(Vec::new())), Rc::new(Cell::new(0)));
        let (serving, memories, count) = (server.clone(), Rc::clone(&used), Rc::clone(&failed));
        far.spawn(async move {
            serve(&serving, 100, async |call| {
                let memory = Memory::zeroed(call.len() as usize)?;
                memories.borrow_mut().push(memory.clone());
                match &call.request()[..1] {
                    GIVE_UP => {
                        let given_up = serving.sleep(MILLISECOND);
                        select(Box::pin(moved(&call, &memory, SECOND)), Box::pin(given_up)).await;
                        assert!(memory.is_retired(), "the client may be at it");
                        return Ok(());
                    }
                    BYTES => {
                        let byte = |at: usize| call.fetch(at as u64, memory.slice(at, 1), call.within(SECOND));
                        join_all((0..memory.len()).map(byte)).await.into_iter().collect::<Result<(), _>>()?;
                    }
                    _ => {
                        if let Err(error) = moved(&call, &memory, MILLISECOND).await {
                            assert_eq!(error.kind(), ErrorKind::TimedOut);
                            assert!(memory.is_retired(), "the client may be at it");
                            count.set(count.get() + 1);
                        }
                    }
                }
                let options = call.within(SECOND);
                call.reply(b"done", None, options).await
            })
            .await
        });
        Rig { world, near, client, server, addr, used, failed }
    }

    async fn connect(&self) -> Peer {
        self.client.connect(&self.addr, self.client.within(SECOND)).await.unwrap()
    }

    fn left(&self) -> usize {
        self.server.resource_usage().exposures
    }
}

async fn call(peer: &Peer, request: &[u8], body: Body) -> Result<Reply, Error> {
    let path = (!matches!(body, Body::None)).then_some(Path::ClientBased);
    peer.call(request, body, peer.within(SECOND).path(path))?.reply().await
}

async fn echo(peer: &Peer) {
    assert_eq!(call(peer, ECHO, Body::None).await.unwrap().bytes, b"done".as_slice());
}

fn body(direction: Direction) -> Body {
    let memory = Memory::zeroed(LONG).unwrap();
    match direction {
        Direction::Write => Body::Out((&memory).into()),
        Direction::Read => Body::In((&memory).into()),
    }
}

/// The next access of the client was a violation, which ended the connection with all its calls.
#[test]
fn a_move_that_the_server_ends_early_ends_its_call_alone() {
    for direction in [Direction::Write, Direction::Read] {
        for request in [SHORT, GIVE_UP] {
            let rig = Rig::new();
            rig.world.block_on(async {
                let peer = rig.connect().await;
                let ended = call(&peer, request, body(direction)).await;
                match ended {
                    Ok(reply) => assert_eq!((request, &reply.bytes[..]), (SHORT, &b"done"[..])),
                    Err(error) => assert_eq!((request, error.kind()), (GIVE_UP, ErrorKind::Abandoned)),
                }
                assert_eq!(rig.failed.get(), usize::from(request == SHORT), "in the middle of a {direction:?}");
                rig.near.sleep(100 * MILLISECOND).await;
                echo(&peer).await;
                assert_eq!(rig.client.resource_usage().peers, 1, "the connection is the same");
                let memory = rig.used.borrow()[0].clone();
                rig.near.sleep(LEFT).await;
                assert!(!memory.is_retired() && rig.left() == 0, "it is given back in the end");
                assert_eq!((rig.server.resource_usage().operations, rig.client.resource_usage().operations), (0, 0));
            });
        }
    }
}

/// A client that writes all that it was granted says so, and the memory is given back at once.
#[test]
fn memory_that_was_left_is_given_back_when_the_client_has_written_it() {
    let rig = Rig::new();
    rig.world.block_on(async {
        let peer = rig.connect().await;
        // The server's reply does not end the client's write.
        call(&peer, SHORT, body(Direction::Write)).await.unwrap();
        assert_eq!(rig.failed.get(), 1);
        rig.near.sleep(100 * MILLISECOND).await;
        assert!(rig.left() == 0 && !rig.used.borrow()[0].is_retired());
    });
}

/// Clients whose moves end early cannot make a server hold more and more memory.
#[test]
fn a_bounded_number_of_memories_is_left() {
    let rig = Rig::new();
    rig.world.block_on(async {
        let peer = rig.connect().await;
        for number in 0..200 {
            let _ = call(&peer, GIVE_UP, body(Direction::Read)).await;
            rig.near.sleep(10 * MILLISECOND).await;
            assert!(rig.left() <= 64, "{} after {number}", rig.left());
        }
        let retired = rig.used.borrow().iter().filter(|memory| memory.is_retired()).count();
        assert_eq!((retired, rig.left()), (64, 64));
        echo(&peer).await;
        rig.near.sleep(LEFT).await;
        assert_eq!(rig.left(), 0);
        echo(&peer).await;
    });
}

/// A server may grant a byte at a time. Each was an operation of the client, until the reply.
#[test]
fn a_call_has_few_operations_however_many_grants_there_are() {
    let rig = Rig::new();
    rig.world.block_on(async {
        let peer = rig.connect().await;
        let memory = Memory::from(vec![7; 300]);
        let most = Cell::new(0);
        let watch = Box::pin(async {
            loop {
                most.set(most.get().max(rig.client.resource_usage().operations));
                rig.near.sleep(MILLISECOND / 1000).await;
            }
        });
        let called = Box::pin(call(&peer, BYTES, Body::Out((&memory).into())));
        let reply = match select(called, watch).await {
            futures_util::future::Either::Left((reply, _)) => reply,
            futures_util::future::Either::Right(((), _)) => unreachable!("it goes on without end"),
        };
        assert_eq!(reply.unwrap().bytes, b"done".as_slice());
        assert_eq!(rig.used.borrow()[0].to_vec(), memory.to_vec());
        // The receive, two grants, and the timer of this test.
        assert!((3..=4).contains(&most.get()), "{} operations", most.get());
    });
}
