//! Stores a tree through one client and reads it back through another. The same code runs over
//! every transport.
//!
//! **What is timed.** To store a file is to create and write it. To read a file is to open and read
//! it. The local disk and checksums are not timed; directories, sizes and listings are checked
//! outside the timed sections. Only one operation runs at a time, so latency and processor time are
//! those of the operation.

use std::collections::BTreeSet;
use std::time::Duration;

use bmi::Memory;
use fs_client::{Client, CreateOptions, ErrorCode, FsPath, Handle};

use crate::progress::Progress;
use crate::tally::{CLASSES, Tally, class_of};
use crate::tree::Tree;

/// The most bytes of a file that are in memory at a time, and so in one read or write.
const PIECE: u64 = 64 << 20;

/// Any error that ends a run.
pub(crate) type Failed = Box<dyn std::error::Error>;

/// Operations by size class.
pub(crate) type Tallies = [Tally; CLASSES.len()];

/// Returns the path of the tree's file `name` in the store.
fn place(name: &str) -> Result<FsPath, fs_client::Error> {
    format!("/{name}").parse()
}

/// Allocates the memory from which all pieces are stored, or into which they are read, one after
/// the other. It is registered and shared only once, as in a program that is written for speed.
fn buffer(client: &Client, tree: &Tree) -> Result<Memory, bmi::Error> {
    let longest = tree.files.iter().map(|file| file.len).max().unwrap_or(0);
    client.memory(longest.clamp(1, PIECE) as usize)
}

/// Creates the directories and stores the files. Returns the tallies, and the checksum of each file
/// as it was read from the tree.
///
/// # Errors
/// If a file cannot be read or stored.
pub(crate) async fn store(
    client: &Client,
    cpu: &dyn Fn() -> Duration,
    tree: &Tree,
    progress: &Progress,
) -> Result<(Tallies, Vec<u32>), Failed> {
    for folder in &tree.folders {
        client.mkdir_all(&place(folder)?).await?;
    }
    let (mut tallies, mut sums) = (Tallies::default(), Vec::new());
    let buffer = buffer(client, tree)?;
    for file in &tree.files {
        let (path, source) = (place(&file.path)?, file.open()?);
        let mut sum = crc32fast::Hasher::new();
        let mut meter = Meter::new(client, cpu);
        let stored = meter.time(client.create(&path, CreateOptions::default())).await?;
        let mut offset = 0;
        while offset < file.len {
            let bytes = source
                .read(offset, PIECE.min(file.len - offset) as usize)
                .map_err(|error| format!("{}: {error}", file.path))?;
            sum.update(&bytes);
            let len = bytes.len() as u64;
            let piece = buffer.slice(0, bytes.len());
            piece.copy_from(&bytes);
            meter.time(stored.write_at(offset, piece)).await?;
            offset += len;
            progress.advance(len);
        }
        meter.add_to(&mut tallies[class_of(file.len)], file.len);
        sums.push(sum.finalize());
    }
    Ok((tallies, sums))
}

/// Reads everything back and compares it. Returns the tallies, and a line for each difference.
///
/// # Errors
/// If the store does not answer.
pub(crate) async fn read_back(
    client: &Client,
    cpu: &dyn Fn() -> Duration,
    tree: &Tree,
    sums: &[u32],
    progress: &Progress,
) -> Result<(Tallies, Vec<String>), Failed> {
    let mut tallies = Tallies::default();
    let mut wrong = compare_names(client, tree).await?;
    let buffer = buffer(client, tree)?;
    for (file, expected) in tree.files.iter().zip(sums) {
        let path = place(&file.path)?;
        let size = match client.stat(&path).await {
            // The comparison of names has reported it.
            Err(error) if error.code() == ErrorCode::NotFound => continue,
            stat => stat?.attr.size,
        };
        if size != file.len {
            wrong.push(format!("{path}: {size} bytes instead of {}", file.len));
        }
        let mut sum = crc32fast::Hasher::new();
        let mut meter = Meter::new(client, cpu);
        let stored = meter.time(client.open(&path)).await?;
        let mut offset = 0;
        while offset < file.len {
            let piece = buffer.slice(0, PIECE.min(file.len - offset) as usize);
            let len = meter.time(stored.read_at(offset, &piece)).await?;
            if len != piece.len() as u64 {
                wrong.push(format!("{path}: {len} bytes at {offset} instead of {}", piece.len()));
            }
            offset += piece.len() as u64;
            progress.advance(piece.len() as u64);
            sum.update(&piece.to_vec());
        }
        meter.add_to(&mut tallies[class_of(file.len)], file.len);
        let sum = sum.finalize();
        if sum != *expected {
            wrong.push(format!("{path}: checksum {sum:08x} instead of {expected:08x}"));
        }
    }
    Ok((tallies, wrong))
}

/// Compares the store's listing with the tree. Nothing may be missing, and nothing else may be
/// there.
async fn compare_names(client: &Client, tree: &Tree) -> Result<Vec<String>, Failed> {
    let mut found = BTreeSet::new();
    let mut folders = vec![FsPath::root()];
    while let Some(folder) = folders.pop() {
        for entry in client.readdir(&folder).await? {
            let path = folder.join(&entry.name)?;
            if matches!(entry.handle, Handle::Dir(_)) {
                folders.push(path.clone());
            }
            found.insert(path.to_string());
        }
    }
    let files = tree.files.iter().map(|file| &file.path);
    let expected: BTreeSet<String> = tree.folders.iter().chain(files).map(|path| format!("/{path}")).collect();
    let missing = expected.difference(&found).map(|path| format!("{path}: not in the listing"));
    let more = found.difference(&expected).map(|path| format!("{path}: in the listing, but was not stored"));
    Ok(missing.chain(more).collect())
}

/// Time, processor time and paths of one operation, which may consist of several calls.
struct Meter<'a> {
    client: &'a Client,
    cpu: &'a dyn Fn() -> Duration,
    before: fs_client::PathCounters,
    time: Duration,
    cpu_time: Duration,
}

impl<'a> Meter<'a> {
    fn new(client: &'a Client, cpu: &'a dyn Fn() -> Duration) -> Meter<'a> {
        let zero = Duration::ZERO;
        Meter { client, cpu, before: client.stats().paths, time: zero, cpu_time: zero }
    }

    /// Runs a call and measures its time. The clock is that of the endpoint: the machine's or the
    /// simulator's.
    async fn time<R>(&mut self, call: impl Future<Output = R>) -> R {
        let (begin, cpu_begin) = (self.client.endpoint().now(), (self.cpu)());
        let result = call.await;
        self.cpu_time += (self.cpu)().saturating_sub(cpu_begin);
        self.time += self.client.endpoint().now().since(begin);
        result
    }

    fn add_to(self, tally: &mut Tally, bytes: u64) {
        tally.add(bytes, self.time, self.cpu_time, self.before, self.client.stats().paths);
    }
}

#[cfg(test)]
mod tests {
    use bmi::Config;
    use bmi_sim::World;
    use fs_client::{ClientOptions, RemoveKind};
    use fs_server::embedded::{ClusterOptions, SimCluster};

    use super::*;

    /// Stores a small tree in a simulated cluster, lets `spoil` change the store, reads the tree
    /// back, and returns the differences.
    fn differences(spoil: impl AsyncFnOnce(&Client)) -> Vec<String> {
        let mut tree = Tree::default();
        tree.add_made(3, 1000);
        tree.add_made(2, 300 << 10);
        tree.add_made(1, 0);
        let world = World::new(1);
        let cluster = SimCluster::start(&world, ClusterOptions::default()).unwrap();
        let endpoint = world.node("client").endpoint(Config::named("client")).unwrap();
        let quiet = Progress::new(0, true);
        let cpu = || Duration::ZERO;
        world.block_on(async {
            let client = Client::connect(endpoint, cluster.manager(), ClientOptions::new(1)).await.unwrap();
            let (put, sums) = store(&client, &cpu, &tree, &quiet).await.unwrap();
            spoil(&client).await;
            let (get, wrong) = read_back(&client, &cpu, &tree, &sums, &quiet).await.unwrap();
            let operations =
                |tallies: &Tallies, class: usize| tallies[class].line("", "", "").map(|line| line.operations);
            assert_eq!((operations(&put, 0), operations(&put, 1), operations(&put, 2)), (Some(4), None, Some(2)));
            assert_eq!(operations(&get, 2), Some(2));
            wrong
        })
    }

    #[test]
    fn an_undisturbed_store_has_no_differences() {
        assert_eq!(differences(async |_| {}), Vec::<String>::new());
    }

    #[test]
    fn a_changed_byte_is_found() {
        let wrong = differences(async |client| {
            let file = client.open(&place("made-300KiB/1").unwrap()).await.unwrap();
            file.write_at(200_000, vec![0]).await.unwrap();
        });
        assert!(matches!(wrong.as_slice(), [one] if one.starts_with("/made-300KiB/1: checksum")), "{wrong:?}");
    }

    #[test]
    fn a_missing_file_is_found() {
        let wrong = differences(async |client| {
            client.remove(&place("made-0B/0").unwrap(), RemoveKind::File).await.unwrap();
        });
        assert_eq!(wrong, ["/made-0B/0: not in the listing"]);
    }

    #[test]
    fn a_changed_length_and_another_name_are_found() {
        let wrong = differences(async |client| {
            client.truncate(&place("made-1000B/2").unwrap(), 999).await.unwrap();
            client.create(&place("made-0B/more").unwrap(), CreateOptions::default()).await.unwrap();
        });
        let expected = [
            "/made-0B/more: in the listing",
            "/made-1000B/2: 999 bytes",
            "/made-1000B/2: 999 bytes at 0",
            "/made-1000B/2: checksum",
        ];
        assert_eq!(wrong.len(), expected.len(), "{wrong:?}");
        for (line, begin) in wrong.iter().zip(expected) {
            assert!(line.starts_with(begin), "{line}");
        }
    }
}
