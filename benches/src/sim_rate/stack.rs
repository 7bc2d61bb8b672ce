//! Messages through the whole stack: matching, credits, the simulated adapters, the network.

use std::time::Instant;

use bmi::{Addr, Config, Endpoint, Error, Memory, Options, PeerEvent, Tag};
use bmi_sim::{SimConfig, World};

use super::Run;

const PING: Tag = 1;
const PONG: Tag = 2;

/// Runs `nodes` nodes in pairs. Each pair sends `rounds` messages of `size` bytes in each
/// direction.
#[expect(clippy::disallowed_methods, reason = "measures how long the simulation takes in real time")]
pub(crate) fn run(config: SimConfig, nodes: u32, rounds: u64, size: u32) -> Result<(Run, World), Error> {
    let world = World::with(config);
    let mut pairs = Vec::new();
    for pair in 0..nodes / 2 {
        let (left, right) = (world.node(&format!("left{pair}")), world.node(&format!("right{pair}")));
        let server = right.endpoint(Config::named("right"))?;
        let addr = server.listen(&right.addr(1))?;
        let client = left.endpoint(Config::named("left"))?;
        let size = size as usize;
        pairs.push(right.spawn(async move { pong(&server, size, rounds).await }));
        pairs.push(left.spawn(async move { ping(&client, &addr, size, rounds).await }));
    }
    let begin = Instant::now();
    world.block_on(async {
        for task in pairs {
            task.await.map_err(|killed| Error::new(bmi::ErrorKind::Io, killed.to_string()))??;
        }
        Ok::<(), Error>(())
    })?;
    let run = Run {
        digest: world.digest(),
        events: world.events(),
        messages: u64::from(nodes) * rounds,
        virtual_seconds: world.now().as_nanos() as f64 / 1e9,
        real_seconds: begin.elapsed().as_secs_f64(),
    };
    Ok((run, world))
}

async fn ping(endpoint: &Endpoint, addr: &Addr, size: usize, rounds: u64) -> Result<(), Error> {
    let peer = endpoint.connect(addr, Options::default()).await?;
    let (out, back) = (Memory::zeroed(size)?, Memory::zeroed(size)?);
    for _ in 0..rounds {
        let answer = peer.recv(PONG, &back, Options::default());
        peer.send(PING, &out, Options::default()).await?;
        answer.await?;
    }
    Ok(())
}

async fn pong(endpoint: &Endpoint, size: usize, rounds: u64) -> Result<(), Error> {
    let peer = match endpoint.next_event().await {
        PeerEvent::Connected { peer, .. } => peer,
        PeerEvent::Lost { reason, .. } => return Err(reason),
    };
    let (out, back) = (Memory::zeroed(size)?, Memory::zeroed(size)?);
    for _ in 0..rounds {
        peer.recv(PING, &back, Options::default()).await?;
        peer.send(PONG, &out, Options::default()).await?;
    }
    Ok(())
}
