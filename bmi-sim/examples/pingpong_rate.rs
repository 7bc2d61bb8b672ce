//! How many events a second the simulator executes: 64 nodes, 32 pairs, ping-pong between raw transports, twice with one seed.
//!
//! ```text
//! cargo run --release -p bmi-sim --example pingpong_rate [rounds]
//! ```

use std::future::poll_fn;
use std::task::Poll;

use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{Armed, ConnId, Event, Payload, Transport, WorkId, WorkKind, WorkOptions};
use bmi_core::{Clock, Error, Memory, MemoryRegion, Time};
use bmi_sim::{Node, SimTransport, World};

const PAIRS: usize = 32;
const LEN: usize = 64;

/// One player: a transport, its connection, and a receive buffer.
struct Player {
    transport: SimTransport,
    conn: ConnId,
    buffer: MemoryRegion,
}

/// The next batch of events.
async fn events(transport: &mut SimTransport, into: &mut Vec<Event>) {
    poll_fn(|cx| {
        while !transport.poll(Time::ZERO, into) {
            if transport.arm(cx.waker()) == Armed::Waiting {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    })
    .await;
}

impl Player {
    fn post(&mut self) {
        let segments = [self.buffer.segment(0, LEN)];
        self.transport.post_recv(self.conn, WorkId(0), &segments).expect("room for one receive");
    }

    fn send(&mut self) {
        let options = WorkOptions::UNSIGNALLED;
        self.transport.post_send(self.conn, WorkId(1), &[7; LEN], Payload::EMPTY, options).expect("room for one send");
    }

    /// Answers `rounds` messages.
    async fn play(&mut self, rounds: u64) {
        let mut batch = Vec::new();
        let mut played = 0;
        while played < rounds {
            events(&mut self.transport, &mut batch).await;
            for event in batch.drain(..) {
                if matches!(event, Event::Work(done) if done.kind == WorkKind::Recv) {
                    played += 1;
                    self.post();
                    self.send();
                }
            }
        }
    }
}

async fn serve(node: Node, rounds: u64) -> Result<Player, Error> {
    let mut transport = node.transport()?;
    transport.listen(&node.addr(1))?;
    let buffer = transport.register(&Memory::zeroed(LEN)?)?;
    let mut batch = Vec::new();
    loop {
        events(&mut transport, &mut batch).await;
        for event in batch.drain(..) {
            match event {
                Event::ConnectRequest { conn, .. } => {
                    let segments = [buffer.segment(0, LEN)];
                    transport.post_recv(conn, WorkId(0), &segments).expect("room for one receive");
                    transport.accept(conn, &[])?;
                }
                Event::Established { conn, .. } => {
                    let mut player = Player { transport, conn, buffer };
                    player.play(rounds).await;
                    return Ok(player);
                }
                other => panic!("unexpected {other:?}"),
            }
        }
    }
}

async fn connect(node: Node, server: Node, rounds: u64) -> Result<Player, Error> {
    let mut transport = node.transport()?;
    let buffer = transport.register(&Memory::zeroed(LEN)?)?;
    node.sleep(std::time::Duration::from_micros(1)).await;
    let conn = transport.connect(&server.addr(1), &[], Time::from_nanos(u64::MAX))?;
    let mut player = Player { transport, conn, buffer };
    player.post();
    let mut batch = Vec::new();
    events(&mut player.transport, &mut batch).await;
    assert!(matches!(batch[..], [Event::Established { .. }]), "{batch:?}");
    player.send();
    player.play(rounds).await;
    Ok(player)
}

/// Runs the world; returns events, digest and seconds of real time.
fn run(seed: u64, rounds: u64) -> Result<(u64, u64, f64), Error> {
    let world = World::new(seed);
    let mut players = Vec::new();
    for pair in 0..PAIRS {
        let (server, client) = (world.node(&format!("server{pair}")), world.node(&format!("client{pair}")));
        players.push(server.spawn(serve(server.clone(), rounds)));
        players.push(client.spawn(connect(client.clone(), server, rounds)));
    }
    let clock = MonotonicClock::new();
    let start = clock.now();
    // Nobody leaves before all have played.
    let mut held = Vec::new();
    for player in players {
        held.push(world.block_on(player).expect("nobody is killed")?);
    }
    let seconds = (clock.now() - start).as_secs_f64();
    Ok((world.events(), world.digest(), seconds))
}

fn main() -> Result<(), Error> {
    let rounds = std::env::args().nth(1).map_or(10_000, |text| text.parse().expect("rounds: a number"));
    let first = run(1, rounds)?;
    let second = run(1, rounds)?;
    for (events, digest, seconds) in [first, second] {
        let rate = events as f64 / seconds / 1e6;
        println!("{events} events in {seconds:.3} s: {rate:.2} million a second, digest {digest:016x}");
    }
    assert_eq!((first.0, first.1), (second.0, second.1), "one seed, one run");
    Ok(())
}
