//! Servers with caches, whose disks fail: a script of operations runs again and again, and each
//! time another call of the disks fails.
//!
//! **Procedure.** A file is striped over two I/O servers with small caches, so that bytes are
//! evicted, read ahead and written behind. A client writes, reads, truncates and syncs it. Each
//! call of the disks has a number. The one with the number *n* fails, or all from there on until
//! the script has ended, for every *n*. Disks are also full, with every number of free chunks. At
//! the end the disks are sound, and every other run kills the servers.
//!
//! **Checks.**
//! 1. An error names the server whose disk has failed, and the ranges of a read or a write. All
//!    other bytes were read or written.
//! 2. A read finds, for each byte, the last acknowledged value, or that of a write or a truncation
//!    that failed after it.
//! 3. After a sync that succeeds, the disks have these values, whatever failed before. The disks
//!    are looked at, not the servers.
//! 4. Once the disks are sound, a sync succeeds, and nothing is dirty. A change of length that
//!    failed is tried again after a pause, until which a sync fails.
//!
//! The sync of a datafile itself is none of the steps that fail: after that, nothing of the
//! datafile can be used (`store/tests/failures.rs` has that).

mod script;
mod servers;

use std::sync::Arc;

use bmi_sim::SimConfig;
use fs_client::{ClientOptions, CreateOptions, FsPath};

use self::script::{Model, Run, script};
use self::servers::{Disks, Fault, Machine, start_manager};
use super::*;

const SERVERS: u32 = 2;
const STRIP: u64 = 16 << 10;
/// Longest file. Each server has half of it, which is more than its cache.
const LONGEST: u64 = 320 << 10;
const AGE: Duration = Duration::from_millis(4);
/// Pause before a server that has ended is started again.
const START_AGAIN: Duration = Duration::from_millis(10);
/// Bytes of a chunk of the disks.
const CHUNK: u64 = 64 << 10;

/// Runs the script. Returns the number of calls of the disks, and of errors, in it.
fn run(fault: Fault, kill: bool) -> (u64, u64) {
    let world = World::with(SimConfig::seeded(11));
    let disks = Rc::new(Disks { fault, steps: Arc::default() });
    let manager = start_manager(&world);
    let machines: Vec<_> = (0..SERVERS).map(|index| Machine::start(&world, index, manager.clone(), &disks)).collect();
    let endpoint = world.node("client").endpoint(Config::named("client")).unwrap();
    world.block_on(async {
        let (timeout, retry_for) = (Duration::from_millis(500), Duration::from_millis(100));
        let options = ClientOptions { timeout, retry_for, ..ClientOptions::new(1) };
        let client = fs_client::Client::connect(endpoint, manager, options).await.unwrap();
        let path = FsPath::root().join("file").unwrap();
        let file = loop {
            match client.create(&path, CreateOptions::default()).await {
                Ok(file) => break file,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
            client.endpoint().sleep(START_AGAIN).await;
        };
        let datafiles = file.datafiles().await.unwrap();
        let datafiles: Vec<_> = datafiles.iter().map(|one| (one.server.iod.unwrap(), one.handle)).collect();
        assert_eq!(datafiles.len(), SERVERS as usize);
        let mut run =
            Run { disks: disks.clone(), machines, file, datafiles, model: Model::new(), writes: 0, errors: 0 };
        disks.steps().active = true;
        for op in script() {
            run.step(&op).await;
        }
        let errors = run.errors;
        run.end(kill).await;
        (disks.steps().count, errors)
    })
}

/// Fails each call of the disks in turn, until there are no more. Returns the number of runs, and
/// of those in which the client saw an error.
fn fail_each(fault: impl Fn(u64) -> Fault) -> (u64, u64) {
    let mut seen = 0;
    for nth in 0.. {
        let (calls, errors) = run(fault(nth), nth % 2 == 1);
        if calls <= nth {
            assert_eq!(errors, 0, "no call has failed");
            return (nth, seen);
        }
        seen += u64::from(errors > 0);
    }
    unreachable!("it goes on until it ends")
}

#[test]
fn every_call_of_the_disks_fails_once() {
    let (runs, seen) = fail_each(|nth| Fault::Io { nth, lasting: false });
    assert!(runs > 50 && seen > runs / 4, "{seen} errors in {runs} runs");
}

#[test]
fn every_call_of_the_disks_is_the_first_that_fails() {
    let (runs, seen) = fail_each(|nth| Fault::Io { nth, lasting: true });
    assert!(runs > 50 && seen > runs / 2, "{seen} errors in {runs} runs");
}

#[test]
fn every_write_to_the_disks_finds_no_room() {
    for lasting in [false, true] {
        let (runs, seen) = fail_each(|nth| Fault::Space { nth, lasting });
        assert!(runs > 20 && seen > 0, "{seen} errors in {runs} runs");
    }
}

#[test]
fn disks_are_full_after_every_number_of_chunks() {
    let (_, sound) = run(Fault::Room(LONGEST / CHUNK + 1), false);
    assert_eq!(sound, 0);
    for chunks in 0..3 {
        for kill in [false, true] {
            let (_, errors) = run(Fault::Room(chunks), kill);
            assert!(errors > 0, "{chunks} chunks have room for {LONGEST} bytes");
        }
    }
}
