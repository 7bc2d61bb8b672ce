//! Tests the file system over verbs. Servers and clients are separate processes, and all data that
//! is read back is compared byte for byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::scenario::{PROGRAM_LIMIT, Running, Scene};
use super::{DEVICE, await_some};

/// The port of the manager. The I/O servers have the following ports.
const PORT: u16 = 7100;
const IODS: usize = 2;

/// A cluster of processes, with a directory of its own.
pub(crate) struct Cluster<'a> {
    scene: &'a Scene<'a>,
    folder: PathBuf,
    manager: String,
    /// The manager, then the I/O servers.
    servers: Vec<Running>,
}

impl<'a> Cluster<'a> {
    /// Returns the servers that another machine has started at `host`.
    pub(crate) fn of_another(scene: &'a Scene<'a>, host: &str) -> Cluster<'a> {
        Cluster { scene, folder: PathBuf::new(), manager: address(host, 0), servers: Vec::new() }
    }

    /// Starts all servers, and returns when they serve at `host`.
    pub(crate) fn start(scene: &'a Scene<'a>, host: &str) -> Result<Cluster<'a>, String> {
        Cluster::with_service(scene, host, "normal")
    }

    /// As [`Cluster::start`], with a service of the I/O servers.
    fn with_service(scene: &'a Scene<'a>, host: &str, service: &str) -> Result<Cluster<'a>, String> {
        let folder = PathBuf::from("/tmp/cluster");
        let _ = fs::remove_dir_all(&folder);
        let address = |index: usize| address(host, index);
        let iods: Vec<String> = (1..=IODS).map(address).collect();
        let config = format!(
            "[cluster]\nmanager = {:?}\niods = {iods:?}\n[storage]\nmanager = {:?}\niod = {:?}\n\
             [cache]\nservice = {service:?}\nmemory = \"8M\"\ndir = {folder:?}\n",
            address(0),
            folder.join("manager"),
            format!("{}/iod{{index}}", folder.display()),
        );
        fs::create_dir_all(&folder)
            .and_then(|()| fs::write(folder.join("pvfs.toml"), config))
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        let config = folder.join("pvfs.toml").display().to_string();
        scene.ok(&["pvfsd", "--config", &config, "format"])?;
        let mut cluster = Cluster { scene, folder, manager: address(0), servers: Vec::new() };
        for index in 0..=IODS {
            let server = cluster.server(index)?;
            cluster.servers.push(server);
        }
        Ok(cluster)
    }

    /// Starts a server, and returns when it serves.
    fn server(&self, index: usize) -> Result<Running, String> {
        let config = self.folder.join("pvfs.toml").display().to_string();
        let number = index.saturating_sub(1).to_string();
        let role: &[&str] = if index == 0 { &["manager"] } else { &["iod", &number] };
        let server = self.scene.start(&[&["pvfsd", "--config", &config], role].concat())?;
        server.await_output("\nserving")?;
        Ok(server)
    }

    /// Runs a command that must succeed.
    pub(crate) fn ok(&self, words: &[&str]) -> Result<String, String> {
        self.scene.ok(&[&["pvfs", "-q", "--manager", &self.manager], words].concat()).map_err(|why| self.explain(&why))
    }

    /// Starts a command.
    fn begin(&self, words: &[&str]) -> Result<Running, String> {
        self.scene.start(&[&["pvfs", "-q", "--manager", &self.manager], words].concat())
    }

    /// Returns what went wrong, with the output of the servers.
    pub(crate) fn explain(&self, why: &str) -> String {
        self.servers
            .iter()
            .fold(why.to_owned(), |text, server| format!("{text}\n`{}` said:\n{}", server.words, server.output()))
    }

    /// Stores a file and reads it back.
    pub(crate) fn there_and_back(&self, name: &str, len: usize) -> Result<(), String> {
        let (from, back) = (format!("/tmp/{name}"), format!("/tmp/{name}.back"));
        write(Path::new(&from), len)?;
        self.ok(&["put", &from, &format!("/{name}")])?;
        self.ok(&["get", &format!("/{name}"), &back])?;
        same(Path::new(&from), Path::new(&back))?;
        for path in [from, back] {
            fs::remove_file(&path).map_err(|error| format!("{path}: {error}"))?;
        }
        Ok(())
    }
}

fn address(host: &str, index: usize) -> String {
    format!("ib://{DEVICE}/{host}:{}", usize::from(PORT) + index)
}

/// Writes a file in which every eight bytes depend on their offset and on the file's path.
fn write(path: &Path, len: usize) -> Result<(), String> {
    let seed = path.to_string_lossy().bytes().fold(0u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let words = len.div_ceil(8) as u64;
    let bytes: Vec<u8> =
        (0..words).flat_map(|word| (seed ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()).take(len).collect();
    fs::write(path, bytes).map_err(|error| format!("{}: {error}", path.display()))
}

fn same(a: &Path, b: &Path) -> Result<(), String> {
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let (left, right) = (read(a)?, read(b)?);
    if left == right {
        return Ok(());
    }
    let first = left.iter().zip(&right).position(|(left, right)| left != right);
    Err(format!(
        "{} and {} differ: {} and {} bytes, first at {first:?}",
        a.display(),
        b.display(),
        left.len(),
        right.len()
    ))
}

/// The files that are stored: sizes for each path that data can take, and sizes next to its limits.
const TREE: &[(&str, usize)] = &[
    ("empty", 0),
    ("inline", 100),
    ("deep/strip", 65_536),
    ("deep/strip-and-one", 65_537),
    ("deep/er/odd", 777_777),
    ("deep/er/large", 8 << 20),
];

pub(crate) fn tree(scene: &Scene<'_>) -> Result<(), String> {
    tree_with(scene, "normal")
}

/// Reads are sent from the cache, and writes arrive there. It is smaller than the files.
pub(crate) fn cached_tree(scene: &Scene<'_>) -> Result<(), String> {
    tree_with(scene, "unifier")
}

fn tree_with(scene: &Scene<'_>, service: &str) -> Result<(), String> {
    let cluster = Cluster::with_service(scene, "127.0.0.1", service)?;
    let source = Path::new("/tmp/source");
    // A run that failed may have left something.
    for folder in ["/tmp/source", "/tmp/copy"] {
        let _ = fs::remove_dir_all(folder);
    }
    for (name, len) in TREE {
        let path = source.join(name);
        fs::create_dir_all(path.parent().unwrap_or(source)).map_err(|error| error.to_string())?;
        write(&path, *len)?;
    }
    cluster.ok(&["put", "-r", "/tmp/source", "/"])?;
    cluster.ok(&["get", "-r", "/source", "/tmp/copy"])?;
    for (name, _) in TREE {
        same(&source.join(name), &Path::new("/tmp/copy").join(name))?;
    }
    cluster.ok(&["rm", "-r", "/source"])?;
    let left = cluster.ok(&["ls", "/"])?;
    for folder in ["/tmp/source", "/tmp/copy"] {
        let _ = fs::remove_dir_all(folder);
    }
    if left.trim().is_empty() { Ok(()) } else { Err(format!("after removing all there is: {left}")) }
}

pub(crate) fn several_clients(scene: &Scene<'_>) -> Result<(), String> {
    const CLIENTS: usize = 4;
    let cluster = Cluster::start(scene, "127.0.0.1")?;
    let name = |client: usize| format!("/tmp/client-{client}");
    for client in 0..CLIENTS {
        write(Path::new(&name(client)), 1_000_000 + client)?;
    }
    for words in [["put", "", "/"], ["get", "/", ""]] {
        let running: Result<Vec<Running>, String> = (0..CLIENTS)
            .map(|client| match words {
                ["put", ..] => cluster.begin(&["put", &name(client), &format!("/{client}")]),
                _ => cluster.begin(&["get", &format!("/{client}"), &format!("{}.back", name(client))]),
            })
            .collect();
        for client in running? {
            let words = client.words.clone();
            let finished = client.finish(PROGRAM_LIMIT);
            if finished.status != 0 {
                return Err(cluster.explain(&format!("{words}: status {}\n{}", finished.status, finished.output)));
            }
        }
    }
    (0..CLIENTS).try_for_each(|client| {
        let (from, back) = (name(client), format!("{}.back", name(client)));
        same(Path::new(&from), Path::new(&back))
            .and_then(|()| [from, back].iter().try_for_each(fs::remove_file).map_err(|error| error.to_string()))
    })
}

/// Kills a server during a put. The put is still running, because it reads from a pipe that is not
/// closed.
pub(crate) fn killed_server(scene: &Scene<'_>) -> Result<(), String> {
    let mut cluster = Cluster::start(scene, "127.0.0.1")?;
    let pipe = "/tmp/pipe";
    scene.ok(&["mkfifo", pipe])?;
    // The pipe is opened for reading and writing. So the command is blocked neither when it starts
    // nor when it has read everything.
    let mut feed = fs::File::options().read(true).write(true).open(pipe).map_err(|error| error.to_string())?;
    let put = cluster.begin(&["put", pipe, "/torn", "--timeout", "5s"])?;
    // More than one block, so that the servers have a part of it.
    let fed = std::thread::Builder::new().name("feed".into()).spawn(move || {
        let block = vec![7; 1 << 20];
        for _ in 0..64 {
            std::io::Write::write_all(&mut feed, &block)?;
        }
        Ok::<_, std::io::Error>(feed)
    });
    let fed = fed.map_err(|error| error.to_string())?;
    let stored = cluster.folder.join("iod0");
    // The directory has a label and records before it has data. If the server were killed then, the
    // file would be created without it, and the put would not fail.
    await_some("data at the server", || (size(&stored) > 1 << 20).then_some(()))?;
    cluster.servers.remove(1).kill()?;
    let finished = put.finish(PROGRAM_LIMIT);
    // The command no longer reads, so the feed would wait without end. Read the rest, so that it
    // ends.
    let _ = scene.finish(&["timeout", "2", "cat", pipe]);
    drop(fed);
    if finished.status != 1 {
        return Err(format!("the put ended with status {}, not 1\n{}", finished.status, finished.output));
    }
    let server = cluster.server(1)?;
    cluster.servers.insert(1, server);
    cluster.there_and_back("after", 1_000_000)
}

/// Returns the bytes of all files below a directory.
fn size(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

/// Kills clients with SIGKILL at odd moments of large transfers in both directions. The servers
/// must go on serving others.
pub(crate) fn killed_clients(scene: &Scene<'_>) -> Result<(), String> {
    let cluster = Cluster::start(scene, "127.0.0.1")?;
    let (from, back) = ("/tmp/victim", "/tmp/victim.back");
    write(Path::new(from), 16 << 20)?;
    cluster.ok(&["put", from, "/whole"])?;
    for round in 0..6u64 {
        let name = format!("/part-{round}");
        let victim = if round % 2 == 0 {
            cluster.begin(&["put", from, &name])
        } else {
            cluster.begin(&["get", "/whole", back])
        }?;
        pause(Duration::from_millis(60 + 50 * round));
        victim.kill()?;
    }
    let _ = fs::remove_file(back);
    cluster.ok(&["get", "/whole", back])?;
    same(Path::new(from), Path::new(back))?;
    cluster.there_and_back("after", 1_000_000)?;
    [from, back].iter().try_for_each(fs::remove_file).map_err(|error| error.to_string())
}

#[expect(clippy::disallowed_methods, reason = "a moment at which a process is killed; any will do")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
