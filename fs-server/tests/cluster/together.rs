//! Collective operations under every fault.
//!
//! **Procedure.** The members of a group write the same file together, in all ways, while random
//! faults hit all nodes. Members crash, and meet again. A byte that all have written and synced
//! without an error is there. Any other one is one of those that somebody has tried to write. Once
//! the faults are over, each way must succeed, in time, and every byte is exact.

use std::cell::RefCell;
use std::time::Duration;

use bmi::Memory;
use bmi::group::{GroupOptions, Groups};
use bmi_sim::check::Case;
use bmi_sim::{Node, Rng};
use fs_client::{Client, ClientOptions, CollectiveOptions, CreateOptions, Datatype, FileView, FsPath, Way};
use fs_server::embedded::SimCluster;
use futures_util::future::join_all;

use super::model::ZOMBIE;
use super::{BOUND, PATIENCE, endpoint, insist, leaks_between_heartbeats, options, unless_it_crashes};

pub const NODES: [&str; 7] = ["manager", "iod0", "iod1", "iod2", "client0", "client1", "client2"];
const MEMBERS: u32 = 3;
/// Bytes of the file.
const LEN: usize = 24_000;

/// What the members write at once: each its own elements in turn, some of a gap's length apart.
#[derive(Clone, Copy, Debug)]
struct Write {
    element: u64,
    gap: u64,
    at: u64,
    way: Option<Way>,
    salt: u8,
}

impl Write {
    fn drawn(rng: &mut Rng, way: Option<Way>, salt: u8) -> Write {
        Write {
            element: [3, 8, 100, 1500][rng.below(4) as usize],
            gap: rng.below(2) * 7,
            at: rng.below(5000),
            way,
            salt,
        }
    }

    fn stride(&self) -> u64 {
        u64::from(MEMBERS) * self.element + self.gap
    }

    fn view(&self, rank: u32) -> FileView {
        let element = Datatype::bytes(self.element).unwrap();
        let filetype = Datatype::resized(0, self.stride() as i64, &element).unwrap();
        FileView::new(self.at + u64::from(rank) * self.element, Datatype::BYTE, filetype).unwrap()
    }

    /// Returns the bytes of a member: elements that are all before the end of the file.
    fn len(&self) -> usize {
        ((LEN as u64 - self.at) / self.stride() * self.element) as usize
    }

    fn memory(&self, rank: u32) -> Memory {
        Memory::from((0..self.len()).map(|at| self.byte(rank, at)).collect::<Vec<u8>>())
    }

    /// No two writes have the same salt.
    fn byte(&self, rank: u32, at: usize) -> u8 {
        self.salt.wrapping_mul(31) ^ rank as u8 ^ (at as u8 & 0xf8)
    }

    /// Calls `f` with the place of each byte of a member in the file, and the byte.
    fn for_each(&self, rank: u32, mut f: impl FnMut(usize, u8)) {
        for at in 0..self.len() {
            let (index, within) = (at as u64 / self.element, at as u64 % self.element);
            let place = self.at + u64::from(rank) * self.element + index * self.stride() + within;
            f(place as usize, self.byte(rank, at));
        }
    }
}

/// What the bytes of the file may be.
struct Model {
    sure: Vec<u8>,
    doubts: Vec<Vec<u8>>,
}

impl Model {
    /// Notes a write. `succeeded` says of which members all was synced.
    fn note(&mut self, write: &Write, succeeded: &[bool]) {
        for rank in 0..MEMBERS {
            write.for_each(rank, |place, byte| match succeeded[rank as usize] {
                true => self.sure[place] = byte,
                false => self.doubts[place].push(byte),
            });
        }
    }

    fn check(&self, bytes: &[u8]) -> Result<(), String> {
        let good = |at: &usize| bytes[*at] == self.sure[*at] || self.doubts[*at].contains(&bytes[*at]);
        match (0..LEN).find(|at| !good(at)) {
            Some(at) => Err(format!("byte {at} is {} and not {} or {:?}", bytes[at], self.sure[at], self.doubts[at])),
            None => Ok(()),
        }
    }
}

fn path() -> FsPath {
    FsPath::root().join("together").unwrap()
}

/// One member's part of a write: it connects, meets, writes and syncs.
async fn member(world: &Case, cluster: &SimCluster, (rank, round): (u32, u64), write: Write) -> Result<(), String> {
    let node: Node = world.node(&format!("client{rank}"));
    let options =
        ClientOptions { timeout: PATIENCE, ..ClientOptions::new((u128::from(round) << 32) | (u128::from(rank) + 1)) };
    let endpoint = node.endpoint(endpoint(world.seed, "client")).map_err(|error| error.to_string())?;
    let groups = Groups::new(&endpoint);
    groups.listen(&node.addr(9 + round as u16)).map_err(|error| error.to_string())?;
    let work = async {
        let client = Client::connect(endpoint.clone(), cluster.manager(), options).await.map_err(|e| e.to_string())?;
        let place = world.node("client0").addr(9 + round as u16);
        let limits = GroupOptions::default().name(round.to_string()).limit(PATIENCE);
        let group = groups.meet(&place, rank, MEMBERS, limits).await.map_err(|e| format!("meeting: {e}"))?;
        let file = client.open(&path()).await.map_err(|e| e.to_string())?;
        let (view, memory) = (write.view(rank), write.memory(rank));
        let options = write.way.map_or_else(CollectiveOptions::default, |way| CollectiveOptions::default().way(way));
        let options = options.buffer(16 << 10);
        file.write_all(&group, &view, 0, (&memory).into(), options.clone()).await.map_err(|e| e.to_string())?;
        file.sync().await.map_err(|e| e.to_string())?;
        let back = Memory::zeroed(memory.len()).map_err(|e| e.to_string())?;
        file.read_all(&group, &view, 0, (&back).into(), options).await.map_err(|e| e.to_string())?;
        // All have synced what this member has sent by another.
        group.leave().await.map_err(|e| e.to_string())?;
        if back.to_vec() != memory.to_vec() {
            return Err(format!("WRONG: rank {rank} reads other bytes than it has written: {write:?}"));
        }
        Ok(())
    };
    work.await
}

/// Lets all members write. Returns what became of each.
async fn all(world: &Case, cluster: &SimCluster, round: u64, write: Write) -> Vec<Result<(), String>> {
    let one = |rank| async move {
        let node = world.node(&format!("client{rank}"));
        while !node.is_alive() {
            world.sleep(Duration::from_millis(1)).await;
        }
        let done = unless_it_crashes(&node, member(world, cluster, (rank, round), write)).await;
        done.unwrap_or_else(|| Err("it has crashed".into()))
    };
    join_all((0..MEMBERS).map(one)).await
}

pub async fn scenario(world: Case, failures: &RefCell<u64>) -> Result<(), String> {
    let cluster = SimCluster::start(&world, options(world.seed)).map_err(|error| error.to_string())?;
    let mut rng = world.rng(11);
    let reader = world.node("reader").endpoint(endpoint(world.seed, "client")).map_err(|error| error.to_string())?;
    let connect = || {
        Client::connect(
            reader.clone(),
            cluster.manager(),
            ClientOptions { timeout: PATIENCE, ..ClientOptions::new(1 << 100) },
        )
    };
    let client = insist(&world, connect).await;
    let at = path();
    let create = CreateOptions { servers: 1 + rng.below(3) as u32, exclusive: false, ..CreateOptions::default() };
    let file = insist(&world, || client.create(&at, create)).await;
    let zeros = Memory::zeroed(LEN).map_err(|error| error.to_string())?;
    insist(&world, || file.write_at(0, &zeros)).await;
    insist(&world, || file.sync()).await;
    let mut model = Model { sure: vec![0; LEN], doubts: vec![Vec::new(); LEN] };
    let check = async |model: &Model| {
        let memory = Memory::zeroed(LEN).map_err(|error| error.to_string())?;
        insist(&world, || file.read_at(0, &memory)).await;
        model.check(&memory.to_vec())
    };
    let mut round = 0;
    while round < 4 || world.now() < world.calm_at() {
        round += 1;
        let way = [None, Some(Way::Independent), Some(Way::TwoPhase), Some(Way::Extended)][rng.below(4) as usize];
        let write = Write::drawn(&mut rng, way, round as u8);
        let ended = all(&world, &cluster, round, write).await;
        if let Some(Err(wrong)) = ended.iter().find(|end| matches!(end, Err(text) if text.starts_with("WRONG"))) {
            return Err(wrong.clone());
        }
        // If one has failed, what it has written for others may be lost with a server's memory.
        let good = ended.iter().all(Result::is_ok);
        *failures.borrow_mut() += u64::from(!good);
        model.note(&write, &[good; MEMBERS as usize]);
        check(&model).await?;
    }
    world.calm().await;
    world.sleep(ZOMBIE + Duration::from_millis(1)).await;
    for way in [None, Some(Way::Independent), Some(Way::TwoPhase), Some(Way::Extended)] {
        round += 1;
        let (write, begun) = (Write::drawn(&mut rng, way, round as u8), world.now());
        for (rank, ended) in all(&world, &cluster, round, write).await.into_iter().enumerate() {
            ended.map_err(|error| format!("after the faults, {write:?}, rank {rank}: {error}"))?;
        }
        if world.now() - begun > BOUND {
            return Err(format!("{write:?} took {:?}", world.now() - begun));
        }
        model.note(&write, &[true; MEMBERS as usize]);
        (0..MEMBERS).for_each(|rank| write.for_each(rank, |place, _| model.doubts[place].clear()));
        check(&model).await?;
    }
    world.sleep(Duration::from_secs(3)).await;
    (0..MEMBERS).for_each(|rank| world.node(&format!("client{rank}")).kill());
    let leaks = leaks_between_heartbeats(&world, "reader").await;
    NODES.iter().chain(&["reader"]).for_each(|name| world.node(name).kill());
    if leaks.is_empty() { Ok(()) } else { Err(format!("servers hold\n{}", leaks.join("\n"))) }
}
