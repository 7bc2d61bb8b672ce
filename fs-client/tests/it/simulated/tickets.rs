//! Clients of a cluster whose I/O servers let nobody use what the manager has not opened for him:
//! a client notices nothing of it.

use std::cell::Cell;
use std::time::Duration;

use bmi::{Config, PeerIdentity};
use bmi_sim::World;
use fs_client::{Attr, Caller, Client, ClientOptions, CreateOptions, ErrorCode, FsPath, SetAttr};
use fs_server::embedded::{ClusterOptions, SimCluster};

use crate::support::bodies::{self, code, path, pattern, striped};

struct Setting {
    clients: Cell<u128>,
    world: World,
    cluster: SimCluster,
}

impl Setting {
    fn new(seed: u64) -> Setting {
        let world = World::new(seed);
        let options = ClusterOptions { tickets: true, ..ClusterOptions::with_iods(3) };
        let cluster = SimCluster::start(&world, options).unwrap();
        let setting = Setting { clients: Cell::new(0), world, cluster };
        setting.world.block_on(async {
            let admin = setting.client("admin", 1, &["pvfs:may/admin"]).await.for_caller(Caller::ROOT);
            admin.mkdir_for(&path("/d"), 0o777, (0, 0)).await.unwrap();
        });
        setting
    }

    /// Returns a client of a user, who says that he is root.
    async fn client(&self, name: &str, uid: u32, more: &[&str]) -> Client {
        let node = self.world.node(name);
        let own = [format!("pvfs:user/{name}"), format!("pvfs:uid/{uid}"), format!("pvfs:gid/{uid}")];
        node.identify(PeerIdentity::named(own.into_iter().chain(more.iter().map(ToString::to_string))));
        let endpoint = node.endpoint(Config::named("client")).unwrap();
        let id = self.clients.get() + 1;
        self.clients.set(id);
        let options = ClientOptions { timeout: Duration::from_secs(20), ..ClientOptions::new(id) };
        Client::connect(endpoint, self.cluster.manager(), options).await.unwrap()
    }
}

fn is_of(attr: &Attr) -> (u32, u32, u32) {
    (attr.uid, attr.gid, attr.mode)
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

#[test]
fn files_belong_to_who_the_certificate_says_and_others_have_what_their_modes_allow() {
    let setting = Setting::new(1);
    setting.world.block_on(async {
        let (anna, bob) = (setting.client("anna", 1000, &[]).await, setting.client("bob", 1001, &[]).await);
        let options = CreateOptions { mode: 0o604, ..striped(4096, 3) };
        let file = anna.create(&path("/d/f"), options).await.unwrap();
        file.write_at(0, pattern(50_000, 1)).await.unwrap();
        assert_eq!(is_of(&anna.stat(&path("/d/f")).await.unwrap().attr), (1000, 1000, 0o604));
        let his = bob.open(&path("/d/f")).await.unwrap();
        assert_eq!(bodies::read(&his, 0, 50_000).await, pattern(50_000, 1));
        assert_eq!(code(his.write_at(0, pattern(10, 2))).await, ErrorCode::Permission);
        assert_eq!(code(his.set_len(10)).await, ErrorCode::Permission);
        assert_eq!(code(bob.remove(&path("/d"), fs_client::RemoveKind::Any)).await, ErrorCode::Permission);
        // What is open stays so, and another one is not opened.
        anna.setattr(&path("/d/f"), mode(0o600)).await.unwrap();
        assert_eq!(bodies::read(&his, 0, 50_000).await, pattern(50_000, 1));
        assert_eq!(code(bob.open(&path("/d/f"))).await, ErrorCode::Permission);
        // One that is created to be read is written by who has created it.
        let options = CreateOptions { mode: 0o400, ..striped(4096, 3) };
        let (held, own, _) = anna.create_held(&path("/d/g"), options).await.unwrap();
        own.write_at(0, pattern(9000, 3)).await.unwrap();
        own.sync().await.unwrap();
        own.set_len(8000).await.unwrap();
        own.write_at(0, pattern(8000, 4)).await.unwrap();
        assert_eq!(bodies::read(&own, 0, 9000).await, pattern(8000, 4));
        drop((held, own));
        anna.release_held().await.unwrap();
        let other = setting.client("anna", 1000, &[]).await;
        let again = other.open(&path("/d/g")).await.unwrap();
        assert_eq!(code(again.write_at(0, pattern(1, 4))).await, ErrorCode::Permission, "it is opened anew");
    });
}

/// A handle that was looked up needs no open: its first access asks for the ticket.
#[test]
fn a_file_is_used_through_restarts_of_servers_and_after_a_long_pause() {
    let setting = Setting::new(2);
    setting.world.block_on(async {
        let anna = setting.client("anna", 1000, &[]).await;
        let file = anna.create(&path("/d/f"), striped(4096, 3)).await.unwrap();
        let write = async |salt| {
            file.write_at(0, pattern(30_000, salt)).await.unwrap();
            assert_eq!(bodies::read(&file, 0, 30_000).await, pattern(30_000, salt));
        };
        write(1).await;
        let entry = anna.lookup(&path("/d/f")).await.unwrap();
        let other = setting.client("anna", 1000, &[]).await;
        let found = other.file(&FsPath::of(entry.handle), entry.clone()).await.unwrap();
        assert_eq!(bodies::read(&found, 0, 30_000).await, pattern(30_000, 1));
        let ends = [("iod0", 1), ("manager", 1), ("iod1", 70), ("manager", 70), ("manager", 4000)];
        for ((node, pause), salt) in ends.into_iter().zip(2..) {
            let node = setting.world.node(node);
            node.kill();
            node.restart();
            setting.world.sleep(Duration::from_secs(pause)).await;
            write(salt).await;
        }
    });
}

#[test]
fn every_way_to_use_a_file_shows_its_ticket() {
    let setting = Setting::new(3);
    setting.world.block_on(async {
        let anna = setting.client("anna", 1000, &[]).await;
        // Small, and grows.
        let options = CreateOptions { small: true, ..striped(4096, 3) };
        let small = anna.create(&path("/d/small"), options).await.unwrap();
        small.write_at(0, pattern(100, 1)).await.unwrap();
        small.write_at(0, pattern(60_000, 2)).await.unwrap();
        assert_eq!(bodies::read(&small, 0, 60_000).await, pattern(60_000, 2));
        // Locks, space, holes, hints, shared reads, and the size through another client.
        let file = anna.create(&path("/d/f"), striped(4096, 3)).await.unwrap();
        let atomic = file.atomic(true);
        atomic.write_at(0, pattern(20_000, 3)).await.unwrap();
        assert_eq!(bodies::read(&atomic, 0, 20_000).await, pattern(20_000, 3));
        let how = fs_client::Allocation::Hole;
        file.allocate(fs_client::Region::new(0, 4096), how).await.unwrap();
        file.seek(0, fs_client::Sought::Data).await.unwrap();
        file.advise(fs_client::CacheHints::default()).await.unwrap();
        assert_eq!(file.read_shared(8192, 100).await.unwrap().len(), 100);
        file.cached(0, 20_000).await.unwrap();
        let bob = setting.client("bob", 1001, &[]).await;
        assert_eq!(bob.stat(&path("/d/f")).await.unwrap().attr.size, 20_000);
        // A draft that replaces it.
        let draft = anna.draft(&path("/d/f"), striped(4096, 2)).await.unwrap();
        draft.file().write_at(0, pattern(10_000, 5)).await.unwrap();
        draft.publish(Default::default()).await.unwrap();
        let new = bob.open(&path("/d/f")).await.unwrap();
        assert_eq!(bodies::read(&new, 0, 10_000).await, pattern(10_000, 5));
    });
}
