//! I/O servers whose cache is the memory of the transport, over real transports and real disks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

use bmi::{Addr, Memory, Scheme};
use fs_client::{ClientOptions, File};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};
use fs_server::store::{CacheSettings, Service};

use crate::support::bodies::{self, options, path, pattern, striped, with_client};
use crate::support::cluster::Cluster;
use crate::support::typed;

fn unifier() -> Service {
    Service::Unifier(CacheSettings::for_bytes(8 << 20))
}

/// Writes and reads pieces of a file, whose bytes are `model`, on each path, and checks that
/// nothing else has changed.
async fn pieces(file: &File, model: &mut Vec<u8>) {
    let sizes = [1, 700, 4096, 65_536, 100_001, 700_000, 3 << 20];
    for (round, len) in sizes.into_iter().cycle().take(21).enumerate() {
        let at = (round * 77_777) % 500_000;
        let bytes = pattern(len, round as u64);
        file.write_at(at as u64, bytes.clone()).await.unwrap();
        model.resize(model.len().max(at + len), 0);
        model[at..at + len].copy_from_slice(&bytes);
        let from = (round * 31_111) % model.len();
        let until = (from + len).min(model.len());
        assert!(bodies::read(file, from as u64, until - from).await == model[from..until], "{round}: {len} at {from}");
    }
    assert!(bodies::read(file, 0, model.len()).await == *model);
}

fn everything_over(scheme: Scheme, threads: usize, first: Service) {
    use fs_client::Path::{ClientBased, FastRdma, Inline, ServerBased};

    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let usual = ClusterOptions { over: vec![scheme], threads, ..ClusterOptions::with_iods(4) };
    let with = |service| ClusterOptions { service, ..usual.clone() };
    let servers = EmbeddedCluster::start(&data, with(first)).unwrap();
    let mut models = Vec::new();
    with_client(scheme, servers.manager(), options(), async |client| {
        bodies::everything(&client, 4, 3000).await;
        typed::everything(&client, 4).await;
    });
    for (number, way) in
        [None, Some(Inline), Some(FastRdma), Some(ServerBased), Some(ClientBased)].into_iter().enumerate()
    {
        with_client(scheme, servers.manager(), ClientOptions { path: way, ..options() }, async |client| {
            let file = client.create(&path(&format!("/f{number}")), striped(65_536, 2)).await.unwrap();
            let mut model = Vec::new();
            pieces(&file, &mut model).await;
            if number % 2 == 0 {
                file.sync().await.unwrap();
            }
            models.push(model);
        });
    }
    servers.stop().unwrap();
    // A server that stops writes everything to the disk. One without a cache then has it.
    for service in [Service::Mmap, Service::Normal, unifier()] {
        let servers = EmbeddedCluster::start(&data, with(service)).unwrap();
        with_client(scheme, servers.manager(), options(), async |client| {
            for (number, model) in models.iter().enumerate() {
                let file = client.open(&path(&format!("/f{number}"))).await.unwrap();
                assert_eq!(file.size().await.unwrap(), model.len() as u64);
                assert!(bodies::read(&file, 0, model.len()).await == *model, "file {number}");
            }
        });
        servers.stop().unwrap();
    }
}

#[test]
fn everything_works_with_a_cache_over_tcp() {
    everything_over(Scheme::Tcp, 1, unifier());
}

#[test]
fn everything_works_with_a_cache_over_tcp_and_several_loops() {
    everything_over(Scheme::Tcp, 2, unifier());
}

#[test]
fn everything_works_with_a_cache_over_shared_memory() {
    everything_over(Scheme::Shm, 1, unifier());
}

#[test]
fn everything_works_with_mapped_files_over_tcp_and_several_loops() {
    everything_over(Scheme::Tcp, 2, Service::Mmap);
}

#[test]
fn everything_works_with_mapped_files_over_shared_memory() {
    everything_over(Scheme::Shm, 1, Service::Mmap);
}

/// Returns a datafile of `len` bytes in a directory.
fn datafile_of(dir: &Path, len: u64) -> Option<PathBuf> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).find_map(|path| match path.is_dir() {
        true => datafile_of(&path, len),
        false => (path.metadata().unwrap().len() == len).then_some(path),
    })
}

/// Somebody cuts the files of a running server off and makes them longer, which nobody should do.
/// Every read ends, with bytes or with an error, and the server goes on.
#[test]
fn files_that_are_cut_off_under_their_mappings_end_no_server() {
    for scheme in [Scheme::Tcp, Scheme::Shm] {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let mapped = ClusterOptions { over: vec![scheme], service: Service::Mmap, ..ClusterOptions::with_iods(1) };
        let servers = EmbeddedCluster::start(&data, mapped).unwrap();
        let bytes = pattern(4 << 20, 3);
        with_client(scheme, servers.manager(), options(), async |client| {
            let file = client.create(&path("/f"), striped(65_536, 1)).await.unwrap();
            file.write_at(0, bytes.clone()).await.unwrap();
        });
        // A read may end its connection, and is then repeated until its time is over.
        let (path_taken, timeout) = (Some(fs_client::Path::ServerBased), std::time::Duration::from_millis(200));
        let soon = ClientOptions { path: path_taken, timeout, ..options() };
        with_client(scheme, servers.manager(), soon, async |client| {
            let Ok(file) = client.open(&path("/f")).await else { panic!("nothing is wrong yet") };
            let datafile = datafile_of(&data, 4 << 20).expect("one datafile has the bytes");
            let open = fs::File::options().write(true).open(datafile).unwrap();
            let ends = Arc::new(AtomicBool::new(false));
            let told = ends.clone();
            let cut = move || {
                while !told.load(Ordering::Relaxed) {
                    open.set_len(5000).unwrap();
                    open.set_len(4 << 20).unwrap();
                }
            };
            let cutter = Builder::new().name("cutter".to_owned()).spawn(cut).unwrap();
            for round in 0..30 {
                let (at, memory) = (round % 3 * 4096, Memory::zeroed(3 << 20).unwrap());
                if file.read_at(at as u64, &memory).await.is_ok() {
                    // What was cut off is zeros.
                    let is_sound = |(byte, written): (&u8, &u8)| *byte == 0 || byte == written;
                    assert!(memory.to_vec().iter().zip(&bytes[at..]).all(is_sound));
                }
            }
            ends.store(true, Ordering::Relaxed);
            cutter.join().unwrap();
        });
        with_client(scheme, servers.manager(), options(), async |client| {
            let file = client.open(&path("/f")).await.unwrap();
            file.write_at(0, bytes.clone()).await.unwrap();
            assert!(bodies::read(&file, 0, bytes.len()).await == bytes);
        });
        servers.stop().unwrap();
    }
}

/// Sets the service of the I/O servers that are started from now on. Dirty bytes stay in the cache
/// as long as they may.
fn configure(cluster: &Cluster, service: &str) {
    configure_in(cluster, service, "memory");
}

/// As [`configure`], with the caches in the directory `memory` of the cluster.
fn configure_in(cluster: &Cluster, service: &str, memory: &str) {
    let file = cluster.path("pvfs.toml");
    let text = fs::read_to_string(&file).unwrap();
    let before = text.split("[cache]").next().unwrap();
    let memory = cluster.path(memory);
    fs::create_dir_all(&memory).unwrap();
    let cache = format!("[cache]\nservice = {service:?}\nmemory = \"64M\"\ndir = {memory:?}\nage_ms = 3600000\n");
    fs::write(&file, format!("{before}{cache}")).unwrap();
}

/// Returns the files of caches that exist.
fn caches(cluster: &Cluster) -> Vec<PathBuf> {
    let entries = fs::read_dir(cluster.path("memory")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Returns the bytes of the files in a directory of datafiles.
fn on_disk(dir: &Path) -> u64 {
    let below = |entry: fs::DirEntry| if entry.path().is_dir() { on_disk(&entry.path()) } else { 0 };
    let entries = || fs::read_dir(dir).unwrap().map(Result::unwrap);
    let is_datafile = |entry: &fs::DirEntry| entry.file_name().len() == 16;
    let own: u64 = entries().filter(is_datafile).map(|entry| entry.metadata().unwrap().len()).sum();
    own + entries().map(below).sum::<u64>()
}

/// What was acknowledged and not synced survives `kill -9`, whatever service the next start has.
#[test]
fn acknowledged_writes_survive_kill_9() {
    let mut cluster = Cluster::start(1);
    cluster.kill_server(1);
    configure(&cluster, "unifier");
    cluster.start_server(1);
    let manager: Addr = cluster.manager.parse().unwrap();
    let bytes = pattern(2_000_003, 7);
    for (round, next) in ["unifier", "normal"].into_iter().enumerate() {
        let name = path(&format!("/f{round}"));
        with_client(Scheme::Tcp, &manager, options(), async |client| {
            let file = client.create(&name, striped(65_536, 1)).await.unwrap();
            file.write_at(5, bytes.clone()).await.unwrap();
        });
        let before = on_disk(&cluster.path("iod0"));
        assert!(before < (round as u64 + 1) * 2_000_000, "{before} bytes are on the disk: nothing is tested");
        cluster.kill_server(1);
        assert_eq!(caches(&cluster).len(), 1);
        configure(&cluster, next);
        cluster.start_server(1);
        with_client(Scheme::Tcp, &manager, options(), async |client| {
            for round in 0..=round {
                let file = client.open(&path(&format!("/f{round}"))).await.unwrap();
                assert!(bodies::read(&file, 5, bytes.len()).await == bytes, "after a start as {next}");
            }
        });
    }
    assert!(caches(&cluster).is_empty(), "all of it is on the disk, and the cache is gone");
    assert!(on_disk(&cluster.path("iod0")) >= 4_000_000);
}

/// Writes a byte, which stays in the cache.
fn write_byte(manager: &Addr, byte: u8) {
    with_client(Scheme::Tcp, manager, options(), async |client| {
        let file = client.open(&path("/f")).await.unwrap();
        file.write_at(0, vec![byte]).await.unwrap();
    });
}

fn byte(manager: &Addr) -> u8 {
    let mut found = 0;
    with_client(Scheme::Tcp, manager, options(), async |client| {
        let file = client.open(&path("/f")).await.unwrap();
        found = bodies::read(&file, 0, 1).await[0];
    });
    found
}

/// Returns a cluster with one I/O server that has a cache, and with a file of one byte, 65, which
/// is on the disk.
fn cluster_with_a_synced_byte() -> (Cluster, Addr) {
    let mut cluster = Cluster::start(1);
    let manager: Addr = cluster.manager.parse().unwrap();
    cluster.kill_server(1);
    configure(&cluster, "unifier");
    cluster.start_server(1);
    with_client(Scheme::Tcp, &manager, options(), async |client| {
        let file = client.create(&path("/f"), striped(65_536, 1)).await.unwrap();
        file.write_at(0, vec![65]).await.unwrap();
        file.sync().await.unwrap();
    });
    (cluster, manager)
}

/// A cache that a killed server had left was adopted by any later start. Write 65 and sync; write
/// 66; kill; start with another directory of caches, write 67; start with the first directory: 66
/// was read, and 67 was gone from the disk, too.
#[test]
fn a_cache_is_found_wherever_it_is_and_never_used_after_a_newer_one() {
    let (mut cluster, manager) = cluster_with_a_synced_byte();
    write_byte(&manager, 66);
    // Another directory: the bytes of the killed server are found.
    let copy = cluster.path("copy");
    cluster.kill_server(1);
    let left = caches(&cluster).remove(0);
    fs::copy(&left, &copy).unwrap();
    configure_in(&cluster, "unifier", "elsewhere");
    cluster.start_server(1);
    assert_eq!((byte(&manager), caches(&cluster).len()), (66, 0), "taken over, and removed");
    write_byte(&manager, 67);
    // The old frames come back, as after a start on another host. They are refused, and stay.
    cluster.kill_server(1);
    fs::rename(&copy, &left).unwrap();
    configure(&cluster, "unifier");
    let log = cluster.try_start_server(1, &[]).unwrap_err();
    assert!(log.contains("gone on without") && log.contains("--discard-cache"), "{log}");
    assert!(left.exists(), "nothing is removed by itself");
    cluster.start_server_with(1, &["--discard-cache"]);
    let said = fs::read_to_string(cluster.path("said-1")).unwrap();
    assert!(said.contains("discarded 1 bytes of datafile"), "{said}");
    assert_eq!(byte(&manager), 67, "what was acknowledged last");
}

/// A cache that the label named and that was gone was no error: what it held was lost in silence.
#[test]
fn a_cache_that_is_gone_is_told_as_the_loss_that_it_is() {
    let (mut cluster, manager) = cluster_with_a_synced_byte();
    write_byte(&manager, 66);
    cluster.kill_server(1);
    let left = caches(&cluster).remove(0);
    fs::rename(&left, cluster.path("aside")).unwrap();
    for service in ["unifier", "normal"] {
        configure(&cluster, service);
        let log = cluster.try_start_server(1, &[]).unwrap_err();
        assert!(log.contains("is gone") && log.contains("--discard-cache"), "{log}");
    }
    // It comes back, and nothing is lost.
    fs::rename(cluster.path("aside"), &left).unwrap();
    cluster.start_server(1);
    assert_eq!(byte(&manager), 66);
    assert!(caches(&cluster).is_empty(), "the service that is configured now has no cache");
}

/// A regression test. What a killed server had left held nothing, and the next start made it anew
/// with other sizes. Then it took the old one for a cache that was gone.
#[test]
fn a_cache_that_holds_nothing_may_get_other_sizes_and_another_place() {
    let (mut cluster, manager) = cluster_with_a_synced_byte();
    cluster.kill_server(1);
    let file = cluster.path("pvfs.toml");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"64M\""), "{text}");
    fs::write(&file, text.replace("\"64M\"", "\"32M\"")).unwrap();
    cluster.start_server(1);
    assert_eq!((byte(&manager), caches(&cluster).len()), (65, 1));
    cluster.kill_server(1);
    configure_in(&cluster, "unifier", "elsewhere");
    cluster.start_server(1);
    assert_eq!((byte(&manager), caches(&cluster).len()), (65, 0));
}
