//! Servers with several event loops, over real transports: clients whose connections are on
//! different loops use the same files.

use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::Duration;

use bmi::Scheme;
use fs_client::Client;
use fs_server::embedded::{ClusterOptions, EmbeddedCluster};

use crate::support::bodies::{self, in_own_process, options, path, pattern, striped, with_client};
use crate::support::cluster::Cluster;

/// Returns how often the threads of this process with this name have waited.
fn waits(name: &str) -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let of = |task: std::path::PathBuf| {
        // A thread may end meanwhile.
        let is_one = fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
        let status = is_one.then(|| fs::read_to_string(task.join("status")).ok()).flatten()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().to_owned();
        line.parse::<u64>().ok()
    };
    tasks.filter_map(of).sum()
}

/// The number of clients is a multiple of the number of loops, so each loop has as many.
fn clients_on_several_loops(scheme: Scheme) {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 12;
    /// Bytes that a client writes in a round: an inline write, or a transfer in several units.
    const LENGTHS: [usize; 3] = [1000, 70_000, 1_500_000];
    let dir = tempfile::tempdir().unwrap();
    let all = ClusterOptions { balance: false, threads: 3, ..ClusterOptions::with_iods(2) };
    let cluster = ClusterOptions { over: vec![scheme], ..all };
    let mut servers = EmbeddedCluster::start(dir.path().join("data"), cluster).unwrap();
    let manager = servers.manager().clone();
    with_client(scheme, &manager, options(), async |client| {
        client.create(&path("/same"), striped(65536, 2)).await.unwrap();
        bodies::striping(&client, 2).await;
    });
    let part = |client: usize| (client * 2_000_000) as u64;
    let bytes = |client: usize, round: usize| pattern(LENGTHS[(client + round) % 3], (client * 100 + round) as u64);
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let manager = &manager;
            let work = async move |client: Client| {
                let same = client.open(&path("/same")).await.unwrap();
                let own = client.create(&path(&format!("/own{number}")), striped(4096, 2)).await.unwrap();
                for round in 0..ROUNDS {
                    let bytes = bytes(number, round);
                    same.write_at(part(number), bytes.clone()).await.unwrap();
                    assert!(bodies::read(&same, part(number), bytes.len()).await == bytes, "{number} {round}");
                    own.write_at(0, bytes.clone()).await.unwrap();
                    own.set_len(500 + round as u64).await.unwrap();
                    assert!(bodies::read(&own, 0, bytes.len()).await == bytes[..500 + round], "{number} {round}");
                }
                same.sync().await.unwrap();
            };
            scope.spawn(move || with_client(scheme, manager, options(), work));
        }
    });
    for name in ["manager-loop1", "manager-loop2", "iod0-loop1", "iod0-loop2", "iod1-loop1", "iod1-loop2"] {
        assert!(waits(name) >= ROUNDS as u64, "{name} has served nobody");
    }
    // What was written over one loop is read over another, also after a restart.
    let check = || {
        with_client(scheme, &manager, options(), async |client| {
            let same = client.open(&path("/same")).await.unwrap();
            for number in 0..CLIENTS {
                let bytes = bytes(number, ROUNDS - 1);
                assert!(bodies::read(&same, part(number), bytes.len()).await == bytes, "{number}");
            }
        });
    };
    check();
    servers.stop_iod(0).unwrap();
    servers.start_iod(0).unwrap();
    check();
    servers.stop().unwrap();
}

#[test]
fn clients_on_several_loops_use_the_same_files_over_tcp() {
    let name = "transports::loops::clients_on_several_loops_use_the_same_files_over_tcp";
    in_own_process(name, || clients_on_several_loops(Scheme::Tcp));
}

#[test]
fn clients_on_several_loops_use_the_same_files_over_shared_memory() {
    let name = "transports::loops::clients_on_several_loops_use_the_same_files_over_shared_memory";
    in_own_process(name, || clients_on_several_loops(Scheme::Shm));
}

/// Waits until a command has read this many bytes.
#[expect(clippy::disallowed_methods, reason = "waits for another process")]
fn moves(child: &mut Child, bytes: u64) {
    loop {
        assert_eq!(child.try_wait().unwrap(), None, "it goes on without end");
        let text = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap();
        let read = text.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse::<u64>().unwrap();
        if read >= bytes {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Servers are processes that listen over both transports. Commands are killed in the middle, and
/// others go on. At the end the servers stop cleanly.
#[test]
fn killed_commands_stop_nobody() {
    let addrs = |tcp: &str, number: usize, dir: &std::path::Path| {
        format!("[{tcp:?}, {:?}]", format!("shm://{}/sockets/{number}", dir.display()))
    };
    let mut cluster = Cluster::start_with(1, addrs);
    cluster.kill_server(1);
    cluster.start_server_with(1, &["--threads", "2"]);
    let honest = pattern(9_000_000, 7);
    fs::write(cluster.path("f"), &honest).unwrap();
    // It has no bytes on a disk, and no command comes to its end.
    fs::File::create(cluster.path("endless")).unwrap().set_len(1 << 40).unwrap();
    for round in 0..4 {
        let over = ["tcp", "shm"][round % 2];
        let (name, copy, killed) = (format!("/f{round}"), format!("copy{round}"), format!("/killed{round}"));
        let spawn = |args: &[&str]| cluster.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut all: Vec<_> = (0..3).map(|_| spawn(&["--over", over, "put", "endless", &killed])).collect();
        let mut put = spawn(&["--over", over, "put", "f", &name]);
        for child in &mut all {
            moves(child, 4 << 20);
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(put.wait().unwrap().success(), "{round}");
        cluster.ok(&["get", &name, &copy]);
        assert!(fs::read(cluster.path(&copy)).unwrap() == honest, "{round}");
    }
    let stopped = cluster.pvfsd(&["stop", "--timeout", "30s"]);
    assert!(stopped.status.success(), "{}", String::from_utf8_lossy(&stopped.stderr));
    for child in cluster.servers.iter_mut().flatten() {
        assert!(child.wait().unwrap().success(), "a server that is stopped ends without an error");
    }
    let log = fs::read_to_string(cluster.path("log-1")).unwrap();
    assert!(!log.contains("panicked") && !log.contains(" ERROR "), "{log}");
}
