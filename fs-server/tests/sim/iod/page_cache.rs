//! The page cache of a simulated server's system: what is in it needs no disk. A server that maps
//! its files registers memory for each read, and copies nothing.

use bmi_sim::faults::Loss;
use bmi_sim::{DiskProfile, Profile, SimConfig, Usage};
use fs_server::embedded::PageCacheOptions;
use fs_server::store::{CacheSettings, Service};

use super::*;

/// The memory of the cache.
const CACHE: u64 = 1 << 20;

fn settings() -> PageCacheOptions {
    PageCacheOptions { bytes: CACHE, copies: DiskProfile::named("ramfs-uncached-2003").unwrap() }
}

/// A cluster of one I/O server on the machines of 2003, and a client of it.
struct Place {
    world: World,
    cluster: SimCluster,
    client: Client,
}

impl Place {
    fn new(service: Service) -> Place {
        let world = World::with(SimConfig { profile: Profile::vapi_2003(), ..SimConfig::seeded(5) });
        let options = ClusterOptions { service, ..ClusterOptions::with_iods(1) };
        let cluster = SimCluster::start_with_page_cache(&world, options, settings()).unwrap();
        with_datafiles(&cluster);
        let client = Client::new(&world.node("client"), 1).forcing(Path::ServerBased);
        Place { world, cluster, client }
    }

    /// Runs `work` with a connection, and returns its result, and for how long the disk and the
    /// processor worked meanwhile.
    fn during<R>(&self, work: impl AsyncFnOnce(PeerId) -> R) -> (R, Duration, Usage) {
        let node = self.cluster.iod_node(0);
        let now = || (Duration::from_nanos(node.disk().busy_ns()), node.usage());
        self.world.block_on(async {
            let peer = self.client.connect(&self.cluster.iods()[0]).await;
            let before = now();
            let result = work(peer).await;
            let after = now();
            (result, after.0 - before.0, after.1 - before.1)
        })
    }

    /// Reads bytes of a datafile.
    fn read(&self, list: &[(u64, u64)]) -> (Vec<u8>, Duration, Usage) {
        self.during(async |peer| self.client.read(peer, DatafileHandle(0), &regions(list)).await.unwrap())
    }
}

/// Checks that the disk has read so many bytes, in requests whose times are rounded up.
#[track_caller]
fn check_read(disk: Duration, bytes: u64) {
    let time = Duration::from_nanos(bytes * Profile::vapi_2003().disk.read_ps_per_byte / 1000);
    assert!(disk >= time && disk <= time + Duration::from_nanos(10), "{disk:?} for {bytes} bytes, {time:?}");
}

#[test]
fn what_is_in_the_cache_needs_no_disk() {
    for service in [Service::Normal, Service::Mmap] {
        let place = Place::new(service);
        let half = &[(0, CACHE / 2)];
        check_read(place.read(half).1, CACHE / 2);
        assert_eq!(place.read(half).1, Duration::ZERO);
        // A part of it, and one page that is not in it.
        check_read(place.read(&[(100, 50), (CACHE / 2 - 1, 2)]).1, 4096);
        // Other bytes take the place of all of them.
        place.read(&[(CACHE, CACHE)]);
        check_read(place.read(half).1, CACHE / 2);
        // A loop that does not fit never hits.
        for round in 0..3 {
            let disk: Duration = (0..3).map(|part| place.read(&[(part * CACHE / 2, CACHE / 2)]).1).sum();
            if round > 0 {
                check_read(disk, 3 * CACHE / 2);
            }
        }
    }
}

#[test]
fn a_copy_or_a_registration_is_what_a_hit_costs() {
    let long = &[(0, CACHE / 2)];
    let hit = |service| {
        let place = Place::new(service);
        // The first read makes buffers, which stay registered.
        (0..2).for_each(|_| drop(place.read(long)));
        place.read(long).2
    };
    let (normal, mapped, profile) = (hit(Service::Normal), hit(Service::Mmap), Profile::vapi_2003());
    let copy = Duration::from_nanos(CACHE / 2 * settings().copies.read_ps_per_byte / 1000);
    // What the adapter moves meanwhile slows it.
    assert!(normal.copying >= copy && normal.copying < copy * 2, "{normal}");
    assert_eq!(normal.registration, Duration::ZERO);
    assert!(mapped.copying < Duration::from_micros(1), "of messages only: {mapped}");
    let pages = Duration::from_nanos(CACHE / 2 / 4096 * profile.register_page_ns);
    let units = (mapped.registration - pages).as_nanos() as f64 / profile.register_region_ns as f64;
    assert!(units >= 1.0 && units.fract() == 0.0, "each unit is registered: {mapped}");
}

#[test]
fn mapped_files_have_what_was_written() {
    let place = Place::new(Service::Mmap);
    let bytes = pattern(300_000, 3);
    let write = async |peer| {
        let memory = MemList::from(Memory::from(bytes.clone()));
        place.client.write(peer, DatafileHandle(0), &regions(&[(5000, 300_000)]), &memory).await.unwrap();
    };
    place.during(write);
    let found = place.read(&[(5000 + 200_000, 100_000), (5000, 200_000), (0, 10)]).0;
    assert!(found == [&bytes[200_000..], &bytes[..200_000], &[0; 10]].concat());
}

#[test]
fn a_write_is_in_the_cache_and_on_the_disk_after_a_sync() {
    let place = Place::new(Service::Normal);
    let (len, file) = (CACHE / 8, DatafileHandle(0));
    let write = async |peer| {
        let memory = MemList::from(Memory::from(pattern(len as usize, 1)));
        let start = place.world.now();
        place.client.write(peer, file, &regions(&[(0, len)]), &memory).await.unwrap();
        let written = place.world.now();
        place.client.iod(peer, IodRequest::Sync { datafiles: vec![file] }).await.unwrap();
        (written.since(start), place.world.now().since(start))
    };
    let ((written, synced), disk, _) = place.during(write);
    let on_disk = Duration::from_nanos(len * Profile::vapi_2003().disk.write_ps_per_byte / 1000);
    assert!(disk >= on_disk && disk < on_disk * 2, "{disk:?}");
    assert!(written < on_disk / 2 && synced >= on_disk, "{written:?}, {synced:?} of {on_disk:?}");
    assert_eq!(place.read(&[(0, len)]).1, Duration::ZERO);
}

#[test]
fn the_cache_is_the_systems() {
    let place = Place::new(Service::Normal);
    let half = &[(0, CACHE / 2)];
    place.read(half);
    place.cluster.restart_iod(0);
    assert_eq!(place.read(half).1, Duration::ZERO, "the end of the server leaves it as it is");
    place.cluster.iod_node(0).crash(&mut Loss::everything());
    place.cluster.iod_node(0).restart();
    // A power failure takes it.
    check_read(place.read(half).1, CACHE / 2);
}

#[test]
fn what_was_cut_off_is_not_in_the_cache() {
    let place = Place::new(Service::Normal);
    place.read(&[(0, CACHE / 2)]);
    let cut = async |peer| {
        for size in [CACHE, 4096] {
            let truncate = IodRequest::Truncate { datafile: DatafileHandle(0), size };
            place.client.iod(peer, truncate).await.unwrap();
        }
    };
    place.during(cut);
    check_read(place.read(&[(0, CACHE / 2)]).1, CACHE / 2 - 4096);
}

#[test]
fn a_cache_of_the_servers_own_bypasses_that_of_the_system() {
    let service = Service::Unifier(CacheSettings::for_bytes(8 << 20));
    let options = ClusterOptions { service, ..ClusterOptions::with_iods(1) };
    let refused = SimCluster::start_with_page_cache(&World::new(1), options, settings());
    assert_eq!(code(refused.map(drop)), Some(ErrorCode::Invalid));
}
