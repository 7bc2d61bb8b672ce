//! The bare model: raw transports that play ping-pong, without the protocol above them.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Instant;

use bmi::backend::{Armed, ConnId, Event, Payload, Transport, WorkId, WorkKind, WorkOptions};
use bmi::memory::MemoryRegion;
use bmi::{Error, Memory, Time};
use bmi_sim::{Node, SimConfig, SimTransport, World};

use super::Run;

const LEN: usize = 64;

/// One player: a transport, its connection, and a receive buffer.
struct Player {
    transport: SimTransport,
    conn: ConnId,
    buffer: MemoryRegion,
}

/// Waits for the next batch of events.
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

/// Runs `nodes` nodes in pairs. Each pair sends `rounds` messages in each direction.
#[expect(clippy::disallowed_methods, reason = "measures how long the simulation takes in real time")]
pub(crate) fn run(config: SimConfig, nodes: u32, rounds: u64) -> Result<Run, Error> {
    let world = World::with(config);
    let mut players = Vec::new();
    for pair in 0..nodes / 2 {
        let (server, client) = (world.node(&format!("server{pair}")), world.node(&format!("client{pair}")));
        players.push(server.spawn(serve(server.clone(), rounds)));
        players.push(client.spawn(connect(client.clone(), server, rounds)));
    }
    let begin = Instant::now();
    // All nodes stay until all have played.
    let mut held = Vec::new();
    for player in players {
        held.push(world.block_on(player).expect("nobody is killed")?);
    }
    Ok(Run {
        digest: world.digest(),
        events: world.events(),
        messages: u64::from(nodes) * rounds,
        virtual_seconds: world.now().as_nanos() as f64 / 1e9,
        real_seconds: begin.elapsed().as_secs_f64(),
    })
}
