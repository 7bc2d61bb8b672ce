//! Shared reads: clients look at the pages of real servers, over shared memory. And what becomes of
//! the memory when they do not let go.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bmi::Scheme;
use fs_client::{File, RemoveKind, SharedView, Stale};
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};
use fs_server::store::{CacheSettings, Service, ViewSettings};

use crate::support::bodies::{options, path, pattern, striped, with_client};

const K: usize = 1 << 10;
/// Length of a view segment.
const SEGMENT: u64 = (16 << 20) + 4096;

/// Lets one test run at a time: segments are counted for the whole process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number of view segments that the servers of this process have, and the bytes of
/// memory that they take.
fn segments() -> (usize, u64) {
    let entries = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_ours = |path: &std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|name| name.to_string_lossy().starts_with("/memfd:bmi-memory"))
    };
    let found = entries.filter(is_ours).filter_map(|path| fs::metadata(path).ok());
    let blocks: Vec<u64> = found.filter(|data| data.len() == SEGMENT).map(|data| data.blocks() * 512).collect();
    (blocks.len(), blocks.iter().sum())
}

/// Starts servers with caches that lend `views` bytes.
fn servers(scheme: Scheme, iods: u32, views: ViewSettings) -> (tempfile::TempDir, EmbeddedCluster) {
    let dir = tempfile::tempdir().unwrap();
    let servers = servers_in(dir.path(), scheme, iods, views);
    (dir, servers)
}

fn servers_in(dir: &Path, scheme: Scheme, iods: u32, views: ViewSettings) -> EmbeddedCluster {
    let service = Service::Unifier(CacheSettings { views, ..CacheSettings::for_bytes(16 << 20) });
    let options = ClusterOptions { over: vec![scheme], service, ..ClusterOptions::with_iods(iods as usize) };
    EmbeddedCluster::start(dir.join("data"), options).unwrap()
}

async fn lent(file: &File, offset: usize, len: usize) -> SharedView {
    let view = file.read_shared(offset as u64, len as u64).await.unwrap();
    assert!(view.is_lent(), "{}", file.plan_shared(offset as u64, len as u64));
    view
}

fn bytes(view: &SharedView) -> Result<Vec<u8>, Stale> {
    let mut bytes = vec![0; view.len()];
    view.copy_to(0, &mut bytes).map(|()| bytes)
}

#[test]
fn a_view_has_the_bytes_of_the_file() {
    let _alone = alone();
    let (_dir, servers) = servers(Scheme::Shm, 3, ViewSettings::for_bytes(4 << 20));
    with_client(Scheme::Shm, servers.manager(), options(), async |client| {
        for (name, strip, over) in [("/one", 65_536, 1), ("/small", 4096, 3), ("/odd", 100_000, 2)] {
            let file = client.create(&path(name), striped(strip, over)).await.unwrap();
            let model = pattern(900_001, strip);
            file.write_at(0, model.clone()).await.unwrap();
            for (offset, len) in [(0, 1), (0, 64 * K), (65_535, 2), (77_777, 300_000), (900_000, 1), (0, 900_001)] {
                for round in 0..2 {
                    let view = lent(&file, offset, len).await;
                    assert!(bytes(&view).unwrap() == model[offset..offset + len], "{name} {offset} {len} {round}");
                    let pieces: usize = view.pieces().map(|piece| piece.len()).sum();
                    assert_eq!(pieces, len);
                    // SAFETY: nobody writes to the file or needs the memory.
                    let first = view.pieces().next().map(|piece| unsafe { piece.bytes() }[0]);
                    assert_eq!(first, Some(model[offset]));
                }
            }
            // The end of the file, and what is behind it.
            for (offset, len, found) in [(800_000, 500_000, 100_001), (900_001, 10, 0), (5_000_000, 10, 0)] {
                let view = file.read_shared(offset, len).await.unwrap();
                assert_eq!(view.len(), found, "{name} {offset}");
                assert!(bytes(&view).unwrap() == model[(offset as usize).min(900_001)..]);
            }
        }
    });
    servers.stop().unwrap();
}

/// Whatever takes bytes away or changes them makes views of them stale, and no others. The memory
/// returns although the views are kept.
#[test]
fn a_view_is_stale_when_its_bytes_change() {
    let _alone = alone();
    let (_dir, servers) = servers(Scheme::Shm, 1, ViewSettings::for_bytes(4 << 20));
    with_client(Scheme::Shm, servers.manager(), options(), async |client| {
        let file = client.create(&path("/f"), striped(65_536, 1)).await.unwrap();
        let mut model = pattern(1 << 20, 1);
        file.write_at(0, model.clone()).await.unwrap();
        let (first, second) = (lent(&file, 0, 64 * K).await, lent(&file, 64 * K, 128 * K).await);
        assert_eq!(segments(), (1, 3 * 65_536 + 4096));
        // A write.
        file.write_at(70_000, vec![9]).await.unwrap();
        model[70_000] = 9;
        assert_eq!((first.check(), second.check()), (Ok(()), Err(Stale)));
        assert_eq!(segments(), (1, 2 * 65_536 + 4096), "a granule went back, and two are lent");
        let second = lent(&file, 64 * K, 128 * K).await;
        assert!(bytes(&second).unwrap() == model[64 * K..192 * K]);
        // A write that does not touch it, and one that extends the file.
        file.write_at(192 * K as u64, vec![1; 100]).await.unwrap();
        file.write_at(2 << 20, vec![1; 100]).await.unwrap();
        assert_eq!((first.check(), second.check()), (Ok(()), Ok(())));
        // A truncation.
        file.set_len(100_000).await.unwrap();
        assert_eq!((first.check(), second.check()), (Ok(()), Err(Stale)));
        let second = file.read_shared(64 * K as u64, 128 * K as u64).await.unwrap();
        assert_eq!(second.len(), 100_000 - 64 * K, "the file has become shorter");
        assert!(bytes(&second).unwrap() == model[64 * K..100_000]);
        file.set_len(1 << 20).await.unwrap();
        let second = lent(&file, 64 * K, 128 * K).await;
        model.truncate(100_000);
        model.resize(1 << 20, 0);
        assert!(bytes(&second).unwrap() == model[64 * K..192 * K], "zeros where it was cut off");
        // A view of the end of the file, whose end moves without a change of these bytes.
        let third = lent(&file, 1 << 20, 10).await;
        assert_eq!(third.len(), 0);
        file.write_at((1 << 20) + 100_000, vec![7]).await.unwrap();
        assert_eq!(lent(&file, 1 << 20, 10).await.len(), 10);
        // The removal.
        client.remove(&path("/f"), RemoveKind::File).await.unwrap();
        while first.check().is_ok() {
            client.ping().await; // the manager removes the data later
        }
        // Readers are told first, and then the memory goes.
        while segments() != (0, 0) {
            client.ping().await;
        }
        let mut bytes = vec![0; first.len()];
        assert_eq!(first.copy_to(0, &mut bytes), Err(Stale));
    });
    servers.stop().unwrap();
}

/// When the memory for views is wanted for something else, what is lent goes, in bounds that a
/// client cannot extend by asking for more files, or by keeping what it has.
#[test]
fn memory_and_segments_are_bounded_whatever_clients_keep() {
    let _alone = alone();
    let views = ViewSettings { bytes: 1 << 20, lease: Duration::from_millis(1) };
    let (_dir, servers) = servers(Scheme::Shm, 1, views);
    with_client(Scheme::Shm, servers.manager(), options(), async |client| {
        let mut kept = Vec::new();
        for number in 0..40 {
            let file = client.create(&path(&format!("/f{number}")), striped(65_536, 1)).await.unwrap();
            let model = pattern(200_000, number);
            file.write_at(0, model.clone()).await.unwrap();
            let view = loop {
                // The leases of others are over soon.
                let view = file.read_shared(0, 200_000).await.unwrap();
                if view.is_lent() {
                    break view;
                }
            };
            assert!(bytes(&view).is_ok_and(|bytes| bytes == model));
            kept.push(view);
            let (count, bytes) = segments();
            assert!(count <= 24 && bytes <= (1 << 20) + 24 * 4096, "{bytes} bytes in {count} segments");
        }
        let valid = kept.iter().filter(|view| view.check().is_ok()).count();
        assert_eq!(valid, 4, "four views of four granules are in a MiB");
        // What is too long for the memory is read as usual.
        let file = client.create(&path("/long"), striped(65_536, 1)).await.unwrap();
        file.write_at(0, pattern(1_200_000, 1)).await.unwrap();
        let view = file.read_shared(0, 1_200_000).await.unwrap();
        assert!(!view.is_lent() && bytes(&view).unwrap() == pattern(1_200_000, 1));
        assert!(view.why_copied().unwrap().contains("in use"), "{:?}", view.why_copied());
    });
    servers.stop().unwrap();
}

/// All that a client can see of a segment are bytes of the file that it has read.
#[test]
fn a_segment_has_no_bytes_of_other_files() {
    let _alone = alone();
    let (_dir, servers) = servers(Scheme::Shm, 1, ViewSettings::for_bytes(4 << 20));
    with_client(Scheme::Shm, servers.manager(), options(), async |client| {
        let secret = client.create(&path("/secret"), striped(65_536, 1)).await.unwrap();
        secret.write_at(0, vec![0xEE; 1 << 20]).await.unwrap();
        let file = client.create(&path("/f"), striped(65_536, 1)).await.unwrap();
        file.write_at(0, vec![0x11; 1 << 20]).await.unwrap();
        let _other = lent(&secret, 0, 1 << 20).await;
        let view = lent(&file, 0, 70_000).await;
        let address = view.pieces().next().unwrap().as_ptr() as usize;
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| {
            let (from, to) = bounds(line);
            (from..to).contains(&address)
        });
        let line = line.unwrap();
        assert!(line.contains(" r--s "), "mapped for reading: {line}");
        let (from, to) = bounds(line);
        assert_eq!((to - from) as u64, SEGMENT);
        let all: Vec<u8> = (from..to)
            // SAFETY: the mapping has these bytes, and the view keeps it.
            .map(|at| unsafe { std::ptr::with_exposed_provenance::<u8>(at).read_volatile() })
            .collect();
        let (entries, granules) = all.split_at(4096);
        assert!(granules[..2 * 65_536].iter().all(|byte| *byte == 0x11));
        assert!(granules[2 * 65_536..].iter().all(|byte| *byte == 0), "nothing else");
        assert!(entries[..32].iter().any(|byte| *byte > 0) && entries[32..].iter().all(|byte| *byte == 0));
    });
    servers.stop().unwrap();
}

/// Returns the addresses of a line of `/proc/self/maps`.
fn bounds(line: &str) -> (usize, usize) {
    let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
    (usize::from_str_radix(from, 16).unwrap(), usize::from_str_radix(to, 16).unwrap())
}

#[test]
fn bytes_are_read_where_they_cannot_be_lent_and_the_plan_says_why() {
    let _alone = alone();
    let lends = ViewSettings::for_bytes(1 << 20);
    for (scheme, views, unifier, why) in [
        (Scheme::Tcp, lends, true, "shares no pages"),
        (Scheme::Shm, ViewSettings::for_bytes(0), true, "lends no views"),
        (Scheme::Shm, lends, false, "no cache of its own"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let service = match unifier {
            true => Service::Unifier(CacheSettings { views, ..CacheSettings::for_bytes(8 << 20) }),
            false => Service::Normal,
        };
        let cluster = ClusterOptions { over: vec![scheme], service, ..ClusterOptions::with_iods(2) };
        let servers = EmbeddedCluster::start(dir.path().join("data"), cluster).unwrap();
        with_client(scheme, servers.manager(), options(), async |client| {
            let file = client.create(&path("/f"), striped(4096, 2)).await.unwrap();
            let model = pattern(100_000, 3);
            file.write_at(0, model.clone()).await.unwrap();
            for (offset, len) in [(0, 100_000), (5000, 100), (90_000, 20_000)] {
                let view = file.read_shared(offset, len).await.unwrap();
                assert!(!view.is_lent());
                assert!(view.why_copied().unwrap().contains(why), "{:?}", view.why_copied());
                assert!(bytes(&view).unwrap() == model[offset as usize..(offset + len).min(100_000) as usize]);
                assert_eq!(view.pieces().map(|piece| piece.len()).sum::<usize>(), view.len());
            }
            let plan = file.plan_shared(0, 100_000);
            assert!(!plan.lends && plan.why.contains(why), "{plan}");
            assert!(file.plan_shared(0, 0).why.contains("nothing to lend"));
            assert!(file.plan_shared(0, 1 << 40).why.contains("at most"));
            assert!(!file.plan_shared(u64::MAX, 1).lends);
            assert!(file.read_shared(u64::MAX, 1).await.is_err());
        });
        assert_eq!(segments(), (0, 0));
        servers.stop().unwrap();
    }
}

/// Readers beside a writer. Each write fills two granules with one byte, which is one more than
/// before. A view that was checked never has two different ones, nor one from before the last
/// write that had ended when the view was made.
#[test]
fn a_checked_view_is_never_a_mixture_nor_old() {
    const LEN: usize = 100_000;
    const WRITES: u64 = 400;
    let _alone = alone();
    let (_dir, servers) = servers(Scheme::Shm, 1, ViewSettings::for_bytes(1 << 20));
    let (manager, written, done) = (servers.manager().clone(), AtomicU64::new(0), AtomicBool::new(false));
    with_client(Scheme::Shm, &manager, options(), async |client| {
        let file = client.create(&path("/f"), striped(65_536, 1)).await.unwrap();
        file.write_at(1000, vec![0; LEN]).await.unwrap();
    });
    let read = || {
        with_client(Scheme::Shm, &manager, options(), async |client| {
            let file = client.open(&path("/f")).await.unwrap();
            let (mut lent, mut stale, mut found) = (0u64, 0u64, vec![0; LEN]);
            while !done.load(Ordering::SeqCst) || lent == 0 {
                let before = written.load(Ordering::SeqCst);
                let view = file.read_shared(1000, LEN as u64).await.unwrap();
                if view.copy_to(0, &mut found).is_err() {
                    stale += 1;
                    continue;
                }
                lent += u64::from(view.is_lent());
                assert!(!view.is_lent() || found.iter().all(|byte| *byte == found[0]), "a mixture");
                let after = written.load(Ordering::SeqCst) + 1;
                let ok = (before..=after).any(|number| number as u8 == found[0]);
                assert!(ok, "{} is not between {before} and {after}", found[0]);
            }
            (lent, stale)
        })
    };
    let write = || {
        with_client(Scheme::Shm, &manager, options(), async |client| {
            let file = client.open(&path("/f")).await.unwrap();
            for number in 1..=WRITES {
                file.write_at(1000, vec![number as u8; LEN]).await.unwrap();
                written.store(number, Ordering::SeqCst);
            }
            done.store(true, Ordering::SeqCst);
        });
    };
    std::thread::scope(|scope| {
        let thread = || std::thread::Builder::new();
        let readers = [(); 2].map(|()| thread().spawn_scoped(scope, read).unwrap());
        thread().spawn_scoped(scope, write).unwrap().join().unwrap();
        for reader in readers {
            let (lent, _stale) = reader.join().unwrap();
            assert!(lent > 0);
        }
    });
    servers.stop().unwrap();
}

// ---- the death of either side -------------------------------------------------------------------

/// Starts this program again, for the test `child`, and returns the line that it prints.
fn child(role: &str, argument: &str) -> (Child, String) {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "transports::views::child_process", "--nocapture", "--test-threads", "1"]);
    command.env("VIEWS_ROLE", role).env("VIEWS_ARGUMENT", argument);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find_map(|line| line.split_once("VIEWS ").map(|(_, said)| said.to_owned())).unwrap();
    (child, line)
}

/// Waits until it is killed.
fn wait_for_the_end() {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// Does the work of a child. Does nothing when it runs as a test among others.
#[test]
fn child_process() {
    let (Ok(role), Ok(argument)) = (std::env::var("VIEWS_ROLE"), std::env::var("VIEWS_ARGUMENT")) else { return };
    match role.as_str() {
        "client" => with_client(Scheme::Shm, &argument.parse().unwrap(), options(), async |client| {
            let file = client.open(&path("/f")).await.unwrap();
            let view = lent(&file, 0, 1 << 20).await;
            println!("VIEWS {}", view.check().is_ok());
            wait_for_the_end();
        }),
        _ => {
            // The directory is the parent's, because this process is killed.
            let servers = servers_in(Path::new(&argument), Scheme::Shm, 1, ViewSettings::for_bytes(4 << 20));
            println!("VIEWS {}", servers.manager());
            wait_for_the_end();
        }
    }
}

/// A client that hangs, and then is killed, keeps no memory of the server, and holds up nobody.
#[test]
fn a_client_that_hangs_or_dies_keeps_nothing() {
    let _alone = alone();
    let views = ViewSettings { bytes: 1 << 20, lease: Duration::from_millis(1) };
    let (_dir, servers) = servers(Scheme::Shm, 1, views);
    with_client(Scheme::Shm, servers.manager(), options(), async |client| {
        let file = client.create(&path("/f"), striped(65_536, 1)).await.unwrap();
        file.write_at(0, pattern(1 << 20, 1)).await.unwrap();
        let (mut hanging, said) = child("client", &servers.manager().to_string());
        assert_eq!((said.as_str(), segments()), ("true", (1, (1 << 20) + 4096)));
        // It hangs, and its lease is over: others get the memory.
        let other = client.create(&path("/other"), striped(65_536, 1)).await.unwrap();
        other.write_at(0, pattern(1 << 20, 2)).await.unwrap();
        while !other.read_shared(0, 1 << 20).await.unwrap().is_lent() {}
        assert_eq!(segments(), (2, (1 << 20) + 2 * 4096));
        file.write_at(0, pattern(1 << 20, 3)).await.unwrap();
        other.write_at(0, pattern(1 << 20, 4)).await.unwrap();
        assert_eq!(segments(), (2, 2 * 4096), "all of it went back");
        hanging.kill().unwrap();
        hanging.wait().unwrap();
        assert!(bytes(&lent(&file, 0, 1 << 20).await).unwrap() == pattern(1 << 20, 3));
    });
    servers.stop().unwrap();
    assert_eq!(segments(), (0, 0));
}

/// A server that was killed cannot take back what it has lent. Its client notices.
#[test]
fn a_view_of_a_dead_server_is_stale() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let (mut server, manager) = child("server", dir.path().to_str().unwrap());
    with_client(Scheme::Shm, &manager.parse().unwrap(), options(), async |client| {
        let file = client.create(&path("/f"), striped(65_536, 1)).await.unwrap();
        file.write_at(0, pattern(100_000, 1)).await.unwrap();
        let view = lent(&file, 0, 100_000).await;
        assert!(bytes(&view).unwrap() == pattern(100_000, 1));
        server.kill().unwrap();
        server.wait().unwrap();
        assert_eq!(view.check(), Err(Stale));
        // The bytes can still be touched.
        let mut bytes = vec![0; 100_000];
        assert_eq!(view.copy_to(0, &mut bytes), Err(Stale));
    });
}

/// A server that stops in order tells those that look.
#[test]
fn a_view_of_a_stopped_server_is_stale() {
    let _alone = alone();
    let (_dir, servers) = servers(Scheme::Shm, 1, ViewSettings::for_bytes(4 << 20));
    let manager = servers.manager().clone();
    with_client(Scheme::Shm, &manager, options(), async |client| {
        let file = client.create(&path("/f"), striped(65_536, 1)).await.unwrap();
        file.write_at(0, pattern(100_000, 1)).await.unwrap();
        let view = lent(&file, 0, 100_000).await;
        servers.stop().unwrap();
        assert_eq!(view.check(), Err(Stale));
    });
}
