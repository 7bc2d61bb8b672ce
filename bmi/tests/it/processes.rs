//! Servers and clients in processes of their own, which are killed, stopped and started again.
//!
//! A test runs in a process of its own too, because it counts what that process holds. It starts
//! this program again, as a server or as a client.

use std::future::pending;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bmi::rpc::{Reply, Request};
use bmi::runtime::Task;
use bmi::{Call, Client, Error, ErrorKind, Server};
use bmi_conformance::world::alone;
use rustix::process::Signal;
use testbed::process::Process;

use crate::bed::{LIMIT, start};

/// What the other process does: `server` or `client`, and the address.
const PART: &str = "BMI_TEST_PART";
/// Length of long data. It does not fit the buffers of a connection.
const LONG: usize = 8 << 20;
/// Deadline of a call that is to end with it.
const SHORT: Duration = Duration::from_millis(200);

/// A transport, and where its servers listen.
struct Rig {
    addr: String,
    folder: tempfile::TempDir,
}

impl Rig {
    /// Starts this program again for a part of the test. Returns the process and the address at
    /// which it is ready.
    fn start(part: &str, addr: &str) -> (Process, String) {
        // The arguments of this process name the test.
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(std::env::args().skip(1)).env(PART, format!("{part} {addr}"));
        let is_ready = |line: &str| line.starts_with("ready ");
        let (process, lines) = Process::start_until(&mut command, is_ready).expect("this program runs again");
        let addr = lines.last().and_then(|line| line.strip_prefix("ready ")).expect("it is ready").to_owned();
        (process, addr)
    }

    /// Returns the descriptors, the mappings of shared memory and the names in the folder of
    /// sockets.
    fn held(&self) -> [usize; 3] {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("this process");
        let count = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
        let mappings = maps.lines().filter(|line| line.contains("memfd:")).count();
        [count("/proc/self/fd".into()), mappings, count(self.folder.path().join("sockets"))]
    }

    /// Waits until this process holds no more than it did.
    async fn holds_no_more_than(&self, before: [usize; 3]) {
        eventually(|| self.held().iter().zip(before).all(|(now, before)| *now <= before)).await;
    }
}

/// Runs a test over TCP and over shared memory, or another process's part of it.
fn over_each<F: AsyncFn(&Rig)>(test: F) {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    if let Ok(part) = std::env::var(PART) {
        let (role, addr) = part.split_once(' ').expect("a role and an address");
        return runtime.block_on(async { if role == "server" { serve(addr).await } else { call(addr).await } });
    }
    if !alone(&test) {
        return;
    }
    // A port that is free for a moment is taken by nobody else at an address of one's own.
    let [.., high, low] = std::process::id().to_be_bytes();
    for scheme in ["tcp", "shm"] {
        let folder = tempfile::tempdir().expect("a folder");
        let addr = match scheme {
            "tcp" => format!("tcp://127.{high}.{low}.1:0"),
            _ => format!("shm://{}/sockets/server", folder.path().display()),
        };
        let rig = Rig { addr, folder };
        runtime.block_on(async { bmi::timeout(2 * LIMIT, test(&rig)).await.expect("it ends") });
    }
}

async fn eventually(holds: impl Fn() -> bool) {
    while !holds() {
        bmi::sleep(Duration::from_millis(1)).await;
    }
}

/// The server's part: does what requests say until it is killed.
async fn serve(addr: &str) {
    // The address is that of a server that was killed.
    let mut server = Server::bind(addr).await;
    for _ in 0..500 {
        if server.is_ok() {
            break;
        }
        bmi::sleep(Duration::from_millis(10)).await;
        server = Server::bind(addr).await;
    }
    let server = server.expect("a server");
    let begun = Arc::new(AtomicU64::new(0));
    let (server, addr) = start(server, move |call| obey(call, Arc::clone(&begun)));
    println!("\nready {addr}");
    pending::<()>().await;
    drop(server);
}

#[expect(clippy::disallowed_methods, reason = "a handler that blocks its thread is what is tested")]
async fn obey(call: Call, begun: Arc<AtomicU64>) -> Result<(), Error> {
    match call.request() {
        b"hang" => {
            begun.fetch_add(1, Ordering::SeqCst);
            pending().await
        }
        // Returns how many calls hang.
        b"begun" => call.reply(begun.load(Ordering::SeqCst).to_le_bytes()).await,
        b"block" => {
            std::thread::sleep(SHORT / 10);
            call.reply(b"late").data(vec![1; 1000]).await
        }
        _ => crate::bed::echo(call).await,
    }
}

/// The client's part: calls with data until it is killed.
async fn call(addr: &str) {
    let client = Client::new(addr);
    client.connect().await.expect("a server");
    println!("\nready {addr}");
    let calls = (0..6).map(|_| async {
        loop {
            // The server may refuse it, or hang.
            let _ = client.call(b"victim").data(vec![6; 60_000]).timeout(LIMIT).await;
        }
    });
    futures_util::future::join_all(calls).await;
}

/// Stops a process, and waits until each of its threads is stopped.
async fn stop(process: &Process) {
    process.signal(Signal::STOP);
    let is_stopped = |thread: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).expect("a thread");
        stat.rsplit_once(')').expect("a name").1.starts_with(" T")
    };
    let threads = || std::fs::read_dir(format!("/proc/{}/task", process.id())).expect("a process").flatten();
    eventually(|| threads().all(is_stopped)).await;
}

/// Makes a call that is begun at once.
fn begin(call: Request) -> Task<Result<Reply, Error>> {
    bmi::spawn(async move { call.await })
}

#[test]
fn calls_end_when_their_server_is_killed_and_later_ones_reach_the_next() {
    over_each(async |rig: &Rig| {
        let (mut server, addr) = Rig::start("server", &rig.addr);
        let client = Client::builder().max_bytes(LONG as u64).to(&addr);
        let mut before = None;
        for _ in 0..4 {
            let hang = [(); 3].map(|()| begin(client.call(b"hang").timeout(LIMIT)));
            loop {
                let reply = client.call(b"begun").await.expect("a reply");
                if reply.bytes[..] == 3_u64.to_le_bytes() {
                    break;
                }
            }
            // Somewhere between its beginning and its end, in either direction.
            let moved = begin(client.call(b"echo").data(vec![7; LONG]).timeout(LIMIT));
            server.kill().expect("it runs");
            for call in hang {
                let error = call.await.expect("a task").expect_err("no reply");
                assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::PeerLost, true), "{error}");
            }
            let waits = begin(client.call(b"again").timeout(LIMIT).idempotent());
            server = Rig::start("server", &addr).0;
            assert_eq!(waits.await.expect("a task").expect("a reply").bytes, "again");
            // If it was not sent, it was made again.
            if let Err(error) = moved.await.expect("a task") {
                assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
            }
            let reply = client.call(b"echo").data(vec![7; LONG]).await.expect("a reply");
            assert!(reply.data == vec![7; LONG]);
            match before {
                None => before = Some(rig.held()),
                Some(before) => rig.holds_no_more_than(before).await,
            }
        }
        client.close().await;
    });
}

#[test]
fn calls_end_by_their_deadlines_while_a_server_is_stopped() {
    over_each(async |rig: &Rig| {
        let (server, addr) = Rig::start("server", &rig.addr);
        let (client, patient) = (Client::new(&addr), Client::new(&addr));
        client.call(b"1").data(vec![1; LONG]).await.expect("a reply");
        patient.call(b"1").data(vec![1; LONG]).await.expect("a reply");
        let before = rig.held();
        stop(&server).await;
        let waits = [0, 1000, LONG].map(|len| begin(patient.call(b"echo").data(vec![2; len]).timeout(LIMIT)));
        for len in [0, 1000, LONG, 0, 0] {
            let error = client.call(b"echo").data(vec![3; len]).timeout(SHORT).await.expect_err("it is stopped");
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TimedOut, true), "{error}");
        }
        let error = Client::new(&addr).call(b"echo").timeout(SHORT).await.expect_err("it is stopped");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        server.signal(Signal::CONT);
        for (call, len) in waits.into_iter().zip([0, 1000, LONG]) {
            assert!(call.await.expect("a task").expect("a reply").data == vec![2; len]);
        }
        let reply = client.call(b"echo").data(vec![4; LONG]).timeout(LIMIT).idempotent().await;
        assert!(reply.expect("a reply").data == vec![4; LONG]);
        rig.holds_no_more_than(before).await;
    });
}

/// Handlers block the threads of their server, so that most replies come too late or not at all.
#[test]
fn three_hundred_late_replies_leave_a_server_that_answers() {
    over_each(async |rig: &Rig| {
        let (_server, addr) = Rig::start("server", &rig.addr);
        let client = Client::new(&addr);
        client.call(b"1").await.expect("a reply");
        let before = rig.held();
        let calls: Vec<_> = (0..300).map(|_| begin(client.call(b"block").timeout(SHORT))).collect();
        let mut late = 0;
        for call in calls {
            match call.await.expect("a task") {
                Ok(reply) => assert_eq!((&reply.bytes[..], reply.data.len()), (&b"late"[..], 1000)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
                    late += 1;
                }
            }
        }
        assert!(late > 0, "two threads sleep for 20 ms at each call");
        let reply = client.call(b"echo").data(vec![4; LONG]).timeout(LIMIT).idempotent().await;
        assert!(reply.expect("a reply").data == vec![4; LONG]);
        rig.holds_no_more_than(before).await;
    });
}

/// Is counted until it is dropped.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(number: &Arc<AtomicUsize>) -> Counted {
        number.fetch_add(1, Ordering::SeqCst);
        Counted(Arc::clone(number))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn what_a_killed_client_had_at_its_server_comes_back() {
    const MOST_BYTES: usize = 200_000;
    over_each(async |rig: &Rig| {
        let [running, waiting, gone] = [(); 3].map(|()| Arc::new(AtomicUsize::new(0)));
        let (runs, waits, sees) = (Arc::clone(&running), Arc::clone(&waiting), Arc::clone(&gone));
        let handler = move |call: Call| {
            let runs = Counted::new(&runs);
            let (waits, sees) = (Arc::clone(&waits), Arc::clone(&sees));
            async move {
                let _runs = runs;
                if call.request() != b"victim" {
                    return crate::bed::echo(call).await;
                }
                let _data = call.data().await?;
                let _waits = Counted::new(&waits);
                call.client_gone().await;
                sees.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        };
        let server = Server::builder().max_calls(4).max_bytes(MOST_BYTES as u64);
        let (server, addr) = start(server.bind(&rig.addr).await.expect("a server"), handler);
        let client = Client::new(&addr);
        client.call(b"1").data(vec![1; MOST_BYTES]).await.expect("a reply");
        let before = rig.held();
        for round in 1..=4 {
            let (mut victim, _) = Rig::start("client", &addr);
            // One client has three of four places. The other calls wait.
            eventually(|| waiting.load(Ordering::SeqCst) == 3).await;
            victim.kill().expect("it runs");
            // Those whose data could not come any more have seen no client.
            eventually(|| gone.load(Ordering::SeqCst) >= 3 * round).await;
            eventually(|| running.load(Ordering::SeqCst) == 0).await;
            // It needs all bytes that there are.
            let reply = client.call(b"1").data(vec![round as u8; MOST_BYTES]).timeout(LIMIT).await;
            assert!(reply.expect("a reply").data == vec![round as u8; MOST_BYTES]);
            drop(victim);
            rig.holds_no_more_than(before).await;
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A client that is stopped, and takes no replies, is nobody else's trouble.
#[test]
fn a_stopped_client_does_not_stop_others() {
    over_each(async |rig: &Rig| {
        let answered = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&answered);
        let handler = move |call: Call| {
            let count = Arc::clone(&count);
            async move {
                let (request, data) = (call.request_bytes(), call.data().await?);
                call.reply(request).data([&data[..]; 20].concat()).await?;
                count.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        };
        let (server, addr) = start(Server::bind(&rig.addr).await.expect("a server"), handler);
        let (victim, _) = Rig::start("client", &addr);
        eventually(|| answered.load(Ordering::SeqCst) >= 20).await;
        stop(&victim).await;
        let client = Client::new(&addr);
        for _ in 0..20 {
            let reply = client.call(b"x").data(vec![5; 100_000]).timeout(LIMIT).await.expect("a reply");
            assert_eq!(reply.data.len(), 2_000_000);
        }
        let then = answered.load(Ordering::SeqCst);
        victim.signal(Signal::CONT);
        eventually(|| answered.load(Ordering::SeqCst) >= then + 20).await;
        drop(victim);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}
