//! A disk that stalls for real: an I/O server's directory is on a FUSE file system in which single
//! operations stall until the test lets them go. Everything that does not wait for this disk goes
//! on meanwhile, and what waits for it ends well.
//!
//! The tests need root and `/dev/fuse`, and fail without. So `cargo test` runs them only by name
//! (`--test stalled_disk`), and `cargo xtask test` as a step of its own.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod stalling;

use std::fs;
use std::time::Duration;

use bmi::backend::AnyTransport;
use bmi::{Config, Memory, OpenOptions, Scheme, driver};
use fs_client::{Client, ClientOptions, CreateOptions, File, FsPath};
use fs_proto::ErrorCode;
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};
use fs_server::service::Limits;
use futures_util::FutureExt;
use stalling::{Op, Stalling};

/// Bytes of a short transfer.
const LEN: usize = 4096;

struct World {
    client: Client,
    cluster: EmbeddedCluster,
    /// The disk of I/O server 0.
    disk: Stalling,
    /// A file on I/O server 0, and one on I/O server 1. Both were written.
    stalled: File,
    other: File,
}

fn path(text: &str) -> FsPath {
    text.parse().unwrap()
}

fn bytes(salt: u8) -> Vec<u8> {
    (0..LEN).map(|at| (at % 251) as u8 ^ salt).collect()
}

async fn read(file: &File) -> Vec<u8> {
    let memory = Memory::zeroed(LEN).unwrap();
    file.read_at(0, &memory).await.unwrap();
    memory.to_vec()
}

/// Creates a file on one server.
async fn create_at(client: &Client, iod: u32, name: &str) -> File {
    for attempt in 0..100 {
        let options = CreateOptions { servers: 1, ..CreateOptions::default() };
        let file = client.create(&path(&format!("/{name}-{attempt}")), options).await.unwrap();
        if file.servers()[0].iod == Some(iod) {
            return file;
        }
    }
    panic!("no file was placed on server {iod}");
}

/// Runs `body` in a cluster of two I/O servers, the first of which has a disk that can stall.
fn with_world(body: impl AsyncFnOnce(&mut World)) {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    // A server that stops waits for this time for requests in progress, and again for its disk.
    let limits = Limits { reply_timeout: Duration::from_millis(100), ..Limits::default() };
    let options = ClusterOptions { limits, ..ClusterOptions::with_iods(2) };
    let mut cluster = EmbeddedCluster::start(&data, options).unwrap();
    cluster.stop_iod(0).unwrap();
    let (shown, at) = (dir.path().join("shown"), data.join("iod0"));
    fs::rename(&at, &shown).unwrap();
    fs::create_dir(&at).unwrap();
    let disk = Stalling::mount(&shown, &at);
    cluster.start_iod(0).unwrap();
    let clock = driver::MonotonicClock::new();
    let endpoint = bmi::endpoint(Scheme::Tcp, &OpenOptions::default(), Config::named("test"), clock).unwrap();
    driver::event::block_on(endpoint.clone(), async {
        let options = ClientOptions { timeout: Duration::from_secs(60), ..ClientOptions::new(11) };
        let client = Client::connect(endpoint.clone(), cluster.manager().clone(), options).await.unwrap();
        let (stalled, other) = (create_at(&client, 0, "stalled").await, create_at(&client, 1, "other").await);
        for file in [&stalled, &other] {
            file.write_at(0, bytes(1)).await.unwrap();
            file.sync().await.unwrap();
        }
        let mut world = World { client, cluster, disk, stalled, other };
        body(&mut world).await;
        let World { cluster, disk, .. } = world;
        // First the server, then its disk.
        cluster.stop().unwrap();
        drop(disk);
    })
    .unwrap();
}

impl World {
    /// Does everything that does not need the disk of I/O server 0.
    async fn others_go_on(&self) {
        for pong in self.client.ping().await {
            pong.result.unwrap();
        }
        let space = self.client.statfs().await.unwrap();
        assert_eq!(space.servers.iter().filter(|server| server.result.is_ok()).count(), 2);
        self.client.lookup(self.stalled.path()).await.unwrap();
        self.other.write_at(0, bytes(7)).await.unwrap();
        self.other.sync().await.unwrap();
        assert_eq!(read(&self.other).await, bytes(7));
        assert_eq!(self.other.size().await.unwrap(), LEN as u64);
    }

    /// Does `work` while operations stall. It comes to its end only when they are let go.
    async fn stalls<R>(&self, ops: &[Op], work: impl Future<Output = R>) -> R {
        self.disk.stall(ops);
        let mut work = Box::pin(work.fuse());
        let endpoint = self.client.endpoint();
        while self.disk.waiting() == 0 {
            assert!(work.as_mut().now_or_never().is_none(), "{ops:?} did not stall");
            endpoint.sleep(Duration::from_millis(1)).await;
        }
        self.others_go_on().await;
        assert!(work.as_mut().now_or_never().is_none(), "{ops:?} have not been let go");
        self.disk.let_go();
        work.await
    }
}

#[test]
fn what_does_not_wait_for_a_stalled_operation_goes_on() {
    with_world(async |world| {
        let World { client, stalled, .. } = &*world;
        world.stalls(&[Op::WRITE], stalled.write_at(0, bytes(2))).await.unwrap();
        assert_eq!(world.stalls(&[Op::READ], read(stalled)).await, bytes(2));
        world.stalls(&[Op::FSYNC], stalled.sync()).await.unwrap();
        world.stalls(&[Op::SETATTR], stalled.set_len(100)).await.unwrap();
        assert_eq!(world.stalls(&[Op::GETATTR], client.stat(stalled.path())).await.unwrap().attr.size, 100);
        // A datafile's first write looks for its file, and makes it.
        for op in [Op::LOOKUP, Op::CREATE] {
            let new = create_at(client, 0, &format!("{op:?}")).await;
            world.stalls(&[op], new.write_at(0, bytes(3))).await.unwrap();
            assert_eq!(read(&new).await, bytes(3));
        }
        // While the size of the file system is asked for, the last answer is given.
        world.disk.stall(&[Op::STATFS]);
        for _ in 0..3 {
            world.others_go_on().await;
        }
        assert_eq!(world.disk.waiting(), 1, "it is asked once");
        world.disk.let_go();
    });
}

#[test]
fn opening_and_counting_stall_only_their_own_server() {
    with_world(async |world| {
        world.cluster.stop_iod(0).unwrap();
        world.cluster.start_iod(0).unwrap();
        assert_eq!(world.stalls(&[Op::OPEN], read(&world.stalled)).await, bytes(1));
    });
}

/// So many requests wait for the disk that no more are admitted.
#[test]
fn a_server_full_of_requests_that_wait_answers_what_needs_no_disk() {
    with_world(async |world| {
        let World { stalled, .. } = &*world;
        let all = futures_util::future::join_all((0..40).map(|_| stalled.write_at(0, bytes(4))));
        let results = world.stalls(&[Op::WRITE], all).await;
        results.into_iter().for_each(|result| result.unwrap());
        assert_eq!(read(stalled).await, bytes(4));
    });
}

#[test]
fn a_server_stops_while_its_disk_stalls_and_keeps_its_directory_locked() {
    with_world(async |world| {
        let before = world.disk.waiting();
        world.disk.stall(&[Op::WRITE]);
        let mut write = Box::pin(world.stalled.write_at(0, bytes(5)).fuse());
        while world.disk.waiting() == before {
            assert!(write.as_mut().now_or_never().is_none());
            world.client.endpoint().sleep(Duration::from_millis(1)).await;
        }
        world.cluster.stop_iod(0).unwrap();
        let locked = world.cluster.start_iod(0).unwrap_err();
        assert_eq!(locked.code, ErrorCode::Busy, "{locked}");
        drop(write);
        world.disk.let_go();
        // The worker that has waited ends, and with it the lock.
        while world.cluster.start_iod(0).is_err() {
            world.client.endpoint().sleep(Duration::from_millis(5)).await;
        }
        let found = read(&world.stalled).await;
        assert!(found == bytes(5) || found == bytes(1), "one of the two versions");
    });
}
