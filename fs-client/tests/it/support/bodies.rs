//! Test bodies that do not depend on the transport. They run over the simulator, over TCP, and over
//! shared memory.

use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bmi::driver::{MonotonicClock, event};
use bmi::threading::Threading;
use bmi::{Addr, Config, MemList, Memory, OpenOptions, Scheme};
use bmi_report::stats::Random;
use fs_client::{
    Allocation, Client, ClientOptions, CreateOptions, Direction, ErrorCode, File, FsPath, Kind, Path, Region,
    RemoveKind, SetAttr, Sought,
};
use proptest::prelude::*;

use super::cluster::{Cluster, count};

pub fn path(text: &str) -> FsPath {
    text.parse().unwrap()
}

/// Returns bytes that differ from place to place, so that a misplaced one is noticed.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(0, &mut bytes);
    bytes
}

pub fn striped(strip_size: u64, servers: u32) -> CreateOptions {
    CreateOptions { strip_size, servers, ..CreateOptions::default() }
}

/// Returns the options of another client. Each has a number of its own: the manager knows the last
/// changes of each.
pub fn options() -> ClientOptions {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let id = u128::from(std::process::id()) << 64 | u128::from(NEXT.fetch_add(1, Ordering::Relaxed));
    ClientOptions { timeout: Duration::from_secs(60), ..ClientOptions::new(id) }
}

/// Runs `body` with a client over a transport of this machine.
pub fn with_client<R>(
    scheme: Scheme,
    manager: &Addr,
    options: ClientOptions,
    body: impl AsyncFnOnce(Client) -> R,
) -> R {
    let clock = MonotonicClock::new();
    let endpoint = bmi::endpoint(scheme, &OpenOptions::default(), Config::named("test"), clock).unwrap();
    let work = async { body(Client::connect(endpoint.clone(), manager.clone(), options).await.unwrap()).await };
    event::block_on(endpoint.clone(), work).unwrap()
}

/// Runs a test in a process of its own, for instance because it counts the threads of its process.
/// `name` is that of the test.
pub fn in_own_process(name: &str, test: impl FnOnce()) {
    if std::env::var_os("OWN_PROCESS").is_some_and(|own| own == name) {
        return test();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", name, "--nocapture"]).env("OWN_PROCESS", name).output().unwrap();
    let [said, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(output.status.success() && said.contains(" 1 passed"), "{said}{errors}");
}

/// Looks again until a condition holds, for at most a minute.
#[expect(clippy::disallowed_methods, reason = "waits for other processes")]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not within a minute: {what}");
}

/// Waits until the I/O servers have removed what is not used any more.
pub(crate) fn until_removed(cluster: &Cluster) {
    eventually("the datafiles of removed files are removed", || count(cluster, "orphaned_datafiles") == 0);
}

/// Stores a file that has these bytes.
pub fn stores(cluster: &Cluster, name: &str, bytes: &[u8]) {
    fs::write(cluster.path("stored"), bytes).unwrap();
    cluster.ok(&["put", "stored", name]);
}

/// Fetches a file, which must have these bytes.
pub fn fetches(cluster: &Cluster, name: &str, bytes: &[u8]) {
    cluster.ok(&["get", name, "fetched"]);
    assert!(fs::read(cluster.path("fetched")).unwrap() == bytes, "{name}");
}

/// Returns the names in a local directory.
pub fn names_in(dir: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Copies a local tree.
pub fn copy_tree(from: &std::path::Path, to: &std::path::Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_tree(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// Fails unless two trees have the same directories, files, bytes and modification times of files.
pub fn assert_same_tree(a: &std::path::Path, b: &std::path::Path) {
    assert_eq!(names_in(a), names_in(b), "{}", a.display());
    for name in names_in(a) {
        let (a, b) = (a.join(&name), b.join(&name));
        if a.is_dir() {
            assert_same_tree(&a, &b);
            continue;
        }
        assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{} differs", a.display());
        let modified = |path: &std::path::Path| fs::metadata(path).unwrap().modified().unwrap();
        assert_eq!(modified(&a), modified(&b), "{}", a.display());
    }
}

pub async fn code<V>(result: impl Future<Output = Result<V, fs_client::Error>>) -> ErrorCode {
    match result.await {
        Ok(_) => panic!("this should have failed"),
        Err(error) => error.code(),
    }
}

/// Runs every body once, over `servers` servers, with a directory of `entries`. At the end no
/// resources are held.
pub async fn everything(client: &Client, servers: u32, entries: usize) {
    namespace(client).await;
    links(client).await;
    many_entries(client, entries).await;
    striping(client, servers).await;
    sparse_and_truncate(client).await;
    holes_and_space(client).await;
    plans(client).await;
    let file = client.create(&path("/lists"), striped(4096, 4)).await.unwrap();
    list_io(&file, &hard_steps()).await;
    assert!(client.ping().await.iter().all(|pong| pong.result.is_ok()));
    assert!(client.statfs().await.unwrap().servers.iter().all(|server| server.result.is_ok()));
    let left = client.endpoint().with(|engine| engine.resource_usage());
    assert_eq!((left.operations, left.exposures, left.parked), (0, 0, 0), "everything came back: {left:?}");
}

/// Directories, names, attributes.
pub async fn namespace(client: &Client) {
    client.mkdir(&path("/d")).await.unwrap();
    assert_eq!(code(client.mkdir(&path("/d"))).await, ErrorCode::Exists);
    assert_eq!(code(client.mkdir(&path("/no/d"))).await, ErrorCode::NotFound);
    client.mkdir_all(&path("/d/x/y/z")).await.unwrap();
    client.mkdir_all(&path("/d/x/y/z")).await.unwrap();
    let file = client.create(&path("/d/f"), CreateOptions::default()).await.unwrap();
    assert_eq!(code(client.create(&path("/d/f"), CreateOptions::default())).await, ErrorCode::Exists);
    let again = CreateOptions { exclusive: false, ..CreateOptions::default() };
    assert_eq!(client.create(&path("/d/f"), again).await.unwrap().handle(), file.handle());
    assert_eq!(code(client.mkdir_all(&path("/d/f/g"))).await, ErrorCode::NotDirectory);
    assert_eq!(code(client.open(&path("/d/x"))).await, ErrorCode::IsDirectory);
    assert_eq!(code(client.open(&path("/d/none"))).await, ErrorCode::NotFound);
    assert_eq!(code(client.readdir(&path("/d/f"))).await, ErrorCode::NotDirectory);

    file.write_at(0, pattern(100_000, 1)).await.unwrap();
    let stat = client.stat(&path("/d/f")).await.unwrap();
    assert_eq!((stat.attr.kind, stat.attr.size), (Kind::File, 100_000));
    let set = SetAttr { mode: Some(0o600), mtime_ns: Some(1_000_000_007), ..SetAttr::default() };
    client.setattr(&path("/d/f"), set).await.unwrap();
    let stat = client.stat(&path("/d/f")).await.unwrap();
    assert_eq!((stat.attr.mode, stat.attr.mtime_ns, stat.attr.size), (0o600, 1_000_000_007, 100_000));

    // A rename replaces a file completely.
    let other = client.create(&path("/d/g"), CreateOptions::default()).await.unwrap();
    other.write_at(0, pattern(10, 2)).await.unwrap();
    client.rename(&path("/d/g"), &path("/d/f")).await.unwrap();
    assert_eq!(code(client.lookup(&path("/d/g"))).await, ErrorCode::NotFound);
    let renamed = client.open(&path("/d/f")).await.unwrap();
    assert_eq!(renamed.handle(), other.handle());
    assert_eq!(read(&renamed, 0, 100).await, pattern(10, 2));

    let names: Vec<_> = client.readdir(&path("/d")).await.unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["f", "x"]);
    assert_eq!(code(client.remove(&path("/d"), RemoveKind::Any)).await, ErrorCode::NotEmpty);
    assert_eq!(code(client.remove(&path("/d/x/y/z"), RemoveKind::File)).await, ErrorCode::IsDirectory);
    client.remove(&path("/d/x/y/z"), RemoveKind::Dir).await.unwrap();
    client.remove_all(&path("/d")).await.unwrap();
    assert_eq!(code(client.lookup(&path("/d"))).await, ErrorCode::NotFound);
    assert_eq!(code(client.remove(&path("/d"), RemoveKind::Any)).await, ErrorCode::NotFound);
}

/// Links, exchanged names, extended attributes, and objects that are known by their handles.
pub async fn links(client: &Client) {
    let root = client.mkdir(&path("/l")).await.unwrap();
    let dir = FsPath::of(root);
    let name = dir.join(b"\xff").unwrap();
    let file = client.create(&name, striped(65536, 2)).await.unwrap();
    file.write_at(0, pattern(100_000, 1)).await.unwrap();
    let of = FsPath::of(file.handle());
    assert_eq!(client.stat(&of).await.unwrap().attr.size, 100_000);
    client.link(&of, &dir.join("two").unwrap()).await.unwrap();
    client.remove(&name, RemoveKind::File).await.unwrap();
    let again = client.open(&of).await.unwrap();
    assert_eq!((again.handle(), read(&again, 0, 100_000).await), (file.handle(), pattern(100_000, 1)));

    let made = client.symlink(&path("/l/s"), "two", (7, 8)).await.unwrap();
    assert_eq!((made.attr.kind, made.attr.uid), (Kind::Symlink, 7));
    assert_eq!(client.read_link(&path("/l/s")).await.unwrap(), "two");
    assert_eq!(code(client.open(&path("/l/s"))).await, ErrorCode::Invalid);
    client.exchange(&path("/l/s"), &path("/l/two")).await.unwrap();
    assert_eq!(client.lookup(&path("/l/s")).await.unwrap().handle, file.handle().into());

    client.set_xattr(&of, "user.a", Some("1".into()), Some(false)).await.unwrap();
    assert_eq!(code(client.set_xattr(&of, "user.a", None, Some(false))).await, ErrorCode::Exists);
    assert_eq!(client.xattr(&path("/l/s"), "user.a").await.unwrap(), "1");
    assert_eq!(client.xattrs(&of).await.unwrap().len(), 1);
    client.set_xattr(&of, "user.a", None, None).await.unwrap();
    assert_eq!(code(client.xattr(&of, "user.a")).await, ErrorCode::NotFound);

    client.remove_all(&path("/l")).await.unwrap();
    assert_eq!(code(client.lookup(&of)).await, ErrorCode::Stale);
}

/// A directory of many entries is listed in pages, complete and in order.
pub async fn many_entries(client: &Client, count: usize) {
    client.mkdir(&path("/many")).await.unwrap();
    let name = |index: usize| format!("entry-with-a-rather-long-name-{index:05}");
    for index in 0..count {
        client.mkdir(&path("/many").join(name(index)).unwrap()).await.unwrap();
    }
    let entries = client.readdir(&path("/many")).await.unwrap();
    let names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, (0..count).map(name).collect::<Vec<_>>());
    let mut pages = client.read_dir(&path("/many")).await.unwrap();
    let mut sizes = Vec::new();
    while let Some(page) = pages.next_page().await.unwrap() {
        sizes.push(page.len());
    }
    assert_eq!(sizes.iter().sum::<usize>(), count);
    assert!(sizes.len() > 1, "{count} entries do not fit one message");
}

pub async fn read<S: Threading>(file: &File<S>, offset: u64, len: usize) -> Vec<u8> {
    let memory = Memory::from(vec![0xEE; len]);
    let got = file.read_at(offset, &memory).await.unwrap();
    let mut bytes = memory.to_vec();
    assert!(bytes[got as usize..].iter().all(|byte| *byte == 0), "memory behind the end is zero");
    bytes.truncate(got as usize);
    bytes
}

/// Moves the same bytes through every layout, small and large, inline and bulk.
pub async fn striping(client: &Client, most_servers: u32) {
    for servers in 1..=most_servers {
        for strip in [4096, 5000, 65536] {
            let name = path(&format!("/s-{servers}-{strip}"));
            let file = client.create(&name, striped(strip, servers)).await.unwrap();
            for (offset, len) in [(0u64, 1usize), (1, 3000), (4000, 200), (3001, 300_000), (299_999, 40_000)] {
                file.write_at(offset, pattern(len, offset)).await.unwrap();
                assert_eq!(
                    read(&file, offset, len).await,
                    pattern(len, offset),
                    "{servers} servers, strips of {strip}"
                );
            }
            assert_eq!(file.size().await.unwrap(), 339_999);
            assert_eq!(read(&file, 339_990, 100).await.len(), 9, "a read ends with the file");
            assert!(read(&file, 339_999, 10).await.is_empty());
            assert!(read(&file, 1 << 40, 10).await.is_empty());
            let datafiles = file.datafiles().await.unwrap();
            assert_eq!(datafiles.iter().map(|datafile| datafile.size).sum::<u64>(), 339_999);
            file.sync().await.unwrap();
        }
    }
    let stats = client.stats().paths;
    for path in [Path::Inline, Path::FastRdma, Path::ServerBased] {
        assert!(Direction::ALL.iter().all(|direction| stats.requests(*direction, path) > 0), "{path}: {stats}");
    }
}

/// Holes, and truncation in both directions.
pub async fn sparse_and_truncate(client: &Client) {
    let file = client.create(&path("/sparse"), striped(4096, 3)).await.unwrap();
    file.write_at(100_000, pattern(10, 1)).await.unwrap();
    assert_eq!(file.size().await.unwrap(), 100_010);
    assert_eq!(read(&file, 0, 100_000).await, vec![0; 100_000]);
    assert_eq!(read(&file, 99_999, 20).await, [&[0], pattern(10, 1).as_slice()].concat());
    for size in [50_000, 50_001, 4096, 0, 1, 12_288, 200_000] {
        file.set_len(size).await.unwrap();
        assert_eq!(file.size().await.unwrap(), size);
    }
    assert_eq!(read(&file, 0, 300_000).await, vec![0; 200_000], "what was cut off does not come back");
    client.truncate(&path("/sparse"), 7).await.unwrap();
    assert_eq!(client.stat(&path("/sparse")).await.unwrap().attr.size, 7);
    file.write_at(10, pattern(5, 2)).await.unwrap();
    assert_eq!(read(&file, 0, 100).await, [&[0; 10], pattern(5, 2).as_slice()].concat());
    assert_eq!(code(file.set_len(u64::MAX)).await, ErrorCode::TooLarge);
    assert_eq!(code(file.write_at(u64::MAX - 3, pattern(10, 1))).await, ErrorCode::TooLarge);
    assert_eq!(code(file.write_list(&[Region::new(0, 5)], pattern(6, 1))).await, ErrorCode::Invalid);
}

/// Space that is reserved and given back, over several strips, and holes that are found.
pub async fn holes_and_space(client: &Client) {
    const STRIP: u64 = 64 << 10;
    let file = client.create(&path("/holes"), striped(STRIP, 3)).await.unwrap();
    let space = async |from: u64, to: u64, how| file.allocate(Region::new(from, to - from), how).await;
    space(0, 100, Allocation::Reserve { grows: false }).await.unwrap();
    assert_eq!((file.size().await.unwrap(), file.seek(0, Sought::Data).await.unwrap()), (0, None));
    let len = 8 * STRIP + 100;
    let mut bytes = pattern(len as usize, 3);
    file.write_at(0, bytes.clone()).await.unwrap();
    for (from, to, how) in [
        (5, STRIP - 5, Allocation::Hole),
        (STRIP + 1, 7 * STRIP + 1, Allocation::Hole),
        (8 * STRIP, 8 * STRIP + 10, Allocation::Zeros { grows: false }),
        (8 * STRIP + 50, 1 << 40, Allocation::Hole),
    ] {
        space(from, to, how).await.unwrap();
        bytes[from as usize..to.min(len) as usize].fill(0);
    }
    assert_eq!(read(&file, 0, len as usize).await, bytes);
    assert_eq!(file.seek(0, Sought::Data).await.unwrap(), Some(0));
    let (hole, data) =
        (file.seek(STRIP, Sought::Hole).await.unwrap(), file.seek(4 * STRIP, Sought::Data).await.unwrap());
    assert!(hole.is_some_and(|hole| hole > STRIP && hole <= 2 * STRIP), "{hole:?}");
    assert!(data.is_some_and(|data| data > 6 * STRIP && data <= 7 * STRIP + 1), "{data:?}");
    space(0, 9 * STRIP, Allocation::Reserve { grows: true }).await.unwrap();
    bytes.resize(9 * STRIP as usize, 0);
    file.sync().await.unwrap();
    assert_eq!((file.size().await.unwrap(), read(&file, 0, 10 * STRIP as usize).await), (9 * STRIP, bytes));
    assert_eq!(file.seek(9 * STRIP, Sought::Hole).await.unwrap(), None);
    assert_eq!(code(file.allocate(Region::new(u64::MAX, 1), Allocation::Hole)).await, ErrorCode::TooLarge);
}

/// One step of a list access: the regions of the file, and where memory is cut.
#[derive(Clone, Debug)]
pub struct Step {
    pub write: bool,
    pub regions: Vec<(u64, u64)>,
    pub cuts: Vec<usize>,
}

/// Lists of all kinds: read or write, regions of the file, and where memory is cut.
pub fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let regions = prop::collection::vec((0..60_000u64, 0..9_000u64), 0..8);
    let step = (any::<bool>(), regions, prop::collection::vec(0..70_000usize, 0..10));
    prop::collection::vec(step.prop_map(|(write, regions, cuts)| Step { write, regions, cuts }), 1..8)
}

/// Runs list accesses against a model. Leaves out regions of a write that overlap an earlier one,
/// because their result is undefined.
pub async fn list_io(file: &File, steps: &[Step]) {
    let mut model: Vec<u8> = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let mut regions: Vec<Region> = Vec::new();
        for (offset, len) in &step.regions {
            let overlaps = |other: &Region| *offset < other.offset + other.len && other.offset < offset + len;
            if !(step.write && regions.iter().any(overlaps)) {
                regions.push(Region::new(*offset, *len));
            }
        }
        let total: usize = regions.iter().map(|region| region.len as usize).sum();
        let bytes = pattern(total, index as u64);
        let memory = Memory::from(if step.write { bytes.clone() } else { vec![0xEE; total] });
        let mut bounds: Vec<usize> = step.cuts.iter().map(|cut| cut % (total + 1)).chain([0, total]).collect();
        bounds.sort_unstable();
        let list: MemList = bounds.windows(2).map(|pair| memory.slice(pair[0], pair[1] - pair[0])).collect();
        let mut at = 0;
        if step.write {
            file.write_list(&regions, list).await.unwrap();
            for region in regions.iter().filter(|region| !region.is_empty()) {
                let (start, end) = (region.offset as usize, (region.offset + region.len) as usize);
                model.resize(model.len().max(end), 0);
                model[start..end].copy_from_slice(&bytes[at..at + region.len as usize]);
                at += region.len as usize;
            }
        } else {
            let got = file.read_list(&regions, list).await.unwrap();
            let found = memory.to_vec();
            let mut within = 0;
            for region in &regions {
                for offset in region.offset..region.offset + region.len {
                    let expected = model.get(offset as usize).copied();
                    within += u64::from(expected.is_some());
                    assert_eq!(found[at], expected.unwrap_or(0), "step {index}, byte {offset}");
                    at += 1;
                }
            }
            assert_eq!(got, within, "bytes before the end of the file");
        }
    }
    let whole = read(file, 0, model.len() + 10).await;
    assert!(whole == model, "the whole file is the model");
}

/// Steps that random choice should not have to find: empty lists, empty regions, many small pieces,
/// and more than one message holds.
pub fn hard_steps() -> Vec<Step> {
    let combs = |write| Step {
        write,
        regions: (0..700).map(|n| (n * 100, 37)).collect(),
        cuts: (0..900).map(|n| n * 29).collect(),
    };
    vec![
        Step { write: true, regions: vec![], cuts: vec![] },
        Step { write: true, regions: vec![(10, 0), (5000, 1), (4, 0)], cuts: vec![0, 0, 1] },
        combs(true),
        combs(false),
        Step { write: true, regions: vec![(300_000, 100_000), (0, 100_000)], cuts: vec![1, 70_000, 130_001] },
        Step { write: false, regions: vec![(250_000, 200_000), (0, 120_000), (0, 120_000)], cuts: vec![3, 5, 222_222] },
    ]
}

/// Checks that a plan agrees with the client's counters.
pub async fn plans(client: &Client) {
    let file = client.create(&path("/planned"), striped(65536, 4)).await.unwrap();
    file.write_at(0, pattern(1, 1)).await.unwrap();
    let memory = MemList::from(Memory::zeroed(1 << 20).unwrap());
    let plan = file.plan(Direction::Write, &[Region::new(0, 1 << 20)], &memory).unwrap();
    let before = client.stats().paths;
    file.write_at(0, memory).await.unwrap();
    let after = client.stats().paths;
    let took = after.since(&before);
    for path in Path::TAKEN {
        let planned = plan.transfers.iter().filter(|transfer| plan.path(transfer).unwrap().0 == path);
        let (requests, bytes) = planned.fold((0, 0), |(requests, bytes), t| (requests + 1, bytes + t.len));
        let found = (took.requests(Direction::Write, path), took.bytes(Direction::Write, path));
        assert_eq!(found, (requests, bytes), "{path}: {plan}{took}");
    }
    assert_eq!(took.bytes(Direction::Write, Path::ServerBased), 1 << 20);
    assert_eq!(plan.to_string().lines().count(), 1 + plan.transfers.len());
}

// ---- tasks that share a client ------------------------------------------------------------------

/// Number of I/O servers of the files below.
pub const IODS: usize = 2;
/// Bytes that a task writes. They are on both servers.
pub const LEN: usize = 200_000;

/// Does with a file what can be done with one.
pub async fn whole_life<S: Threading>(client: &Client<S>, number: u64, round: u64) {
    let dir = path(&format!("/dir{number}"));
    let (first, second) = (dir.join(format!("a{round}")).unwrap(), dir.join(format!("b{round}")).unwrap());
    client.mkdir_all(&dir).await.unwrap();
    let file = client.create(&first, striped(65536, IODS as u32)).await.unwrap();
    let bytes = pattern(LEN, number * 1000 + round);
    file.write_at(0, bytes.clone()).await.unwrap();
    file.sync().await.unwrap();
    client.rename(&first, &second).await.unwrap();
    let names: Vec<_> = client.readdir(&dir).await.unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, [format!("b{round}")]);
    let found = client.open(&second).await.unwrap();
    assert_eq!(found.size().await.unwrap(), LEN as u64);
    assert!(read(&found, 0, LEN).await == bytes);
    client.remove(&second, RemoveKind::File).await.unwrap();
}

/// The work of one task: with files of its own, and with its part of a common one.
pub async fn share<S: Threading>(client: &Client<S>, common: &File<S>, number: u64, rounds: u64) {
    for round in 0..rounds {
        whole_life(client, number, round).await;
        let (at, bytes) = (number * LEN as u64, pattern(LEN, number + round));
        common.write_at(at, bytes.clone()).await.unwrap();
        assert!(read(common, at, LEN).await == bytes);
    }
    common.sync().await.unwrap();
}

/// Checks the common file after so many tasks have ended.
pub async fn was_shared<S: Threading>(common: &File<S>, tasks: u64, rounds: u64) {
    for number in 0..tasks {
        assert!(read(common, number * LEN as u64, LEN).await == pattern(LEN, number + rounds - 1));
    }
}

/// Requests of all kinds, with data that is in the messages. The caller may drop it at any time.
pub async fn small_requests<S: Threading>(client: &Client<S>, common: &File<S>, number: u64, round: u64) {
    const SMALL: usize = 3000;
    client.readdir(&path("/")).await.unwrap();
    assert_eq!(read(common, 0, SMALL).await.len(), SMALL);
    common.write_at(LEN as u64 * (1 + number), pattern(SMALL, number)).await.unwrap();
    common.sync().await.unwrap();
    client.create(&path(&format!("/left{number}-{round}")), striped(65536, IODS as u32)).await.unwrap();
}
