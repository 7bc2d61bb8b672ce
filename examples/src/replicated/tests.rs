//! The store in the simulator, under faults.
//!
//! A writer writes 1, 2, 3 and so on. A reader reads. Meanwhile replicas crash, disks fail,
//! connections end and messages are late.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bmi::{Bytes, Config, Error};
use bmi_sim::Node;
use bmi_sim::check::{self, Case, Failure, Report};
use bmi_sim::faults::{Kind, Swarm};

use super::*;

const KEY: &str = "block";
const PATIENCE: Duration = Duration::from_millis(3);

/// Blocks on a simulated disk. The map is what the disk contains, so it outlives a crash.
struct OnDisk {
    node: Node,
    blocks: Rc<RefCell<BTreeMap<String, Block>>>,
}

impl Blocks for OnDisk {
    async fn get(&self, key: &str) -> Result<Option<Block>, Error> {
        let block = self.blocks.borrow().get(key).cloned();
        self.node.disk().read(block.as_ref().map_or(0, |block| block.bytes.len() as u64)).await?;
        Ok(block)
    }

    async fn put(&mut self, key: &str, block: Block) -> Result<(), Error> {
        self.node.disk().write(block.bytes.len() as u64).await?;
        self.node.disk().sync().await?;
        self.blocks.borrow_mut().insert(key.to_owned(), block);
        Ok(())
    }
}

/// Returns a block for a number. The lengths differ, so that the data takes all paths.
fn block(number: u64) -> Bytes {
    let len = [8, 3000, 40_000, 300_000][number as usize % 4];
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Returns the number of a block. 0 means that there is no block.
fn number(read: Option<(Version, Bytes)>) -> u64 {
    let Some((_, bytes)) = read else { return 0 };
    let number = u64::from_le_bytes(*bytes.first_chunk().expect("no block is shorter"));
    assert!(bytes == block(number), "a damaged block");
    number
}

fn sweep(seeds: u64, quorum: Option<usize>) -> Result<Report, Box<Failure>> {
    // The clients are the test itself, so they do not crash.
    let faults = Swarm::all().sparing(Kind::Crash, "writer").sparing(Kind::Crash, "reader");
    let sweep = check::sweep("replicated").named(&["a", "b", "c", "writer", "reader"]).seeds(0..seeds).faults(faults);
    sweep.try_run(|world| async move {
        for node in &world.nodes[..3] {
            let blocks = Rc::default();
            node.boot(move |node| replica(node, Rc::clone(&blocks)));
        }
        let (attempted, acknowledged) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let writing = world.nodes[3].spawn(write(world.clone(), quorum, attempted.clone(), acknowledged.clone()));
        let reading = world.nodes[4].spawn(read(world.clone(), quorum, attempted.clone(), acknowledged.clone()));
        writing.await.expect("the writer does not crash")?;
        reading.await.expect("the reader does not crash")?;
        assert!(acknowledged.get() > 0 && acknowledged.get() == attempted.get());
        Ok::<_, Error>(())
    })
}

async fn replica(node: Node, blocks: Rc<RefCell<BTreeMap<String, Block>>>) {
    let endpoint = node.endpoint(Config::named("replica")).expect("the node is up");
    endpoint.listen(&node.addr(1)).expect("the port is free");
    match run(&endpoint, OnDisk { node, blocks }).await {}
}

fn client(world: &Case, index: usize, quorum: Option<usize>) -> Result<Client, Error> {
    let replicas = world.nodes[..3].iter().map(|node| node.addr(1)).collect();
    let mut client =
        Client::new(world.nodes[index].endpoint(Config::named("client"))?, replicas, index as u64, PATIENCE);
    client.quorum = quorum.unwrap_or(client.quorum);
    Ok(client)
}

/// Writes until the faults are over, and then until it succeeds once more.
async fn write(
    world: Case,
    quorum: Option<usize>,
    attempted: Rc<Cell<u64>>,
    acknowledged: Rc<Cell<u64>>,
) -> Result<(), Error> {
    let mut client = client(&world, 3, quorum)?;
    let mut rng = world.rng(3);
    loop {
        let calm = world.now() > world.calm_at();
        attempted.set(attempted.get() + 1);
        match client.put(KEY, block(attempted.get())).await {
            Ok(_) => acknowledged.set(attempted.get()),
            // The last faults are noticed late. After that, a put must succeed.
            Err(error) if world.now() > world.calm_at() + Duration::from_secs(1) => return Err(error),
            Err(_) => {
                world.sleep(PATIENCE).await;
                continue;
            }
        }
        if calm {
            client.close().await;
            return Ok(());
        }
        world.sleep(Duration::from_micros(rng.below(2000))).await;
    }
}

/// Reads until the faults are over, and then until it succeeds once more.
async fn read(
    world: Case,
    quorum: Option<usize>,
    attempted: Rc<Cell<u64>>,
    acknowledged: Rc<Cell<u64>>,
) -> Result<(), Error> {
    let mut client = client(&world, 4, quorum)?;
    let (mut rng, mut last) = (world.rng(4), 0);
    loop {
        let calm = world.now() > world.calm_at();
        let oldest = acknowledged.get().max(last);
        match client.get(KEY).await.map(number) {
            Ok(number) => {
                assert!(number >= oldest, "read {number} after {oldest} was acknowledged or read");
                assert!(number <= attempted.get(), "read {number}, which was not written");
                last = number;
            }
            // The last faults are noticed late. After that, a get must succeed.
            Err(error) if world.now() > world.calm_at() + Duration::from_secs(1) => return Err(error),
            Err(_) => {
                world.sleep(PATIENCE).await;
                continue;
            }
        }
        if calm {
            client.close().await;
            return Ok(());
        }
        world.sleep(Duration::from_micros(rng.below(2000))).await;
    }
}

#[test]
fn no_acknowledged_write_is_lost_or_read_as_an_older_one() {
    let report = sweep(60, None).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{report}");
}

/// One replica is no majority, so the sweep must find reads that are too old.
#[test]
fn a_quorum_of_one_is_found_to_be_wrong() {
    let failure = sweep(60, Some(1)).unwrap_err();
    println!("{failure}");
    assert!(failure.to_string().contains("was acknowledged or read"), "{failure}");
}
