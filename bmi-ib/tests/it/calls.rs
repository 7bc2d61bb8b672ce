//! Calls of `bmi::Server` and `bmi::Client` over real verbs. `bmi/tests/it` has the same over other
//! transports, and more. Needs an RDMA device.

use std::future::pending;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bmi::{Bytes, Call, Client, Error, ErrorKind, MemList, Memory, Server};
use rustix::process::{Pid, Signal, kill_process};

/// The environment variable with the address of the other process.
const ADDR: &str = "BMI_IB_TEST_SERVER";
const LIMIT: Duration = Duration::from_secs(60);
/// Deadline of a call that is to end with it.
const SHORT: Duration = Duration::from_millis(500);
/// Around each limit: a message, the memory that a call offers, and long ones.
const LENGTHS: [usize; 10] = [0, 1, 100, 4000, 8192, 8200, 65_536, 65_537, 300_000, 3 << 20];

fn pattern(len: usize) -> Bytes {
    (0..len).map(|at| (at * 7 + len) as u8).collect::<Vec<_>>().into()
}

/// Runs a test on tokio's default runtime.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async { bmi::timeout(2 * LIMIT, test).await.unwrap() });
}

async fn obey(call: Call) -> Result<(), Error> {
    let request = call.request_bytes();
    match &request[..] {
        b"hang" => pending().await,
        b"swap" => {
            let memory = Memory::zeroed(call.data_len() as usize)?;
            let half = memory.len() / 2;
            let (front, back) = (memory.slice(0, half), memory.slice(half, memory.len() - half));
            call.data_into(&memory).await?;
            call.reply(b"").data([back, front].into_iter().collect::<MemList>()).await
        }
        // The length of the reply's data follows.
        [b'r', len @ ..] => {
            let len = u32::from_le_bytes(len.try_into().unwrap());
            call.reply(request).data(pattern(len as usize)).await
        }
        _ => {
            let data = call.data().await?;
            call.reply(request).data(data).await
        }
    }
}

/// Serves at an address, and returns it with the port that was drawn.
async fn serve(addr: &str) -> (Server, String) {
    // The address may be that of a process that was just killed.
    let mut server = Server::bind(addr).await;
    for _ in 0..500 {
        if server.is_ok() {
            break;
        }
        bmi::sleep(Duration::from_millis(10)).await;
        server = Server::bind(addr).await;
    }
    let server = server.unwrap();
    let (addr, serving) = (server.addrs()[0].to_string(), server.clone());
    bmi::spawn(async move { serving.serve(obey).await });
    (server, addr)
}

async fn local() -> (Server, Client) {
    let (server, addr) = serve("ib:///127.0.0.1:0").await;
    (server, Client::builder().timeout(LIMIT).to(addr))
}

/// Another process that serves. It is killed when this is dropped.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Other {
    /// Starts this program again as a server, and returns it with its address.
    fn start(addr: &str) -> (Other, String) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "calls::child_that_serves", "--ignored", "--nocapture"]).env(ADDR, addr);
        let mut other = Other(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(other.0.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
        let addr = lines.find_map(|line| Some(line.strip_prefix("serving at ")?.to_owned())).unwrap();
        (other, addr)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

#[test]
#[ignore = "a part of another test, in a process of its own"]
fn child_that_serves() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (_server, addr) = serve(&std::env::var(ADDR).unwrap()).await;
        println!("\nserving at {addr}");
        pending::<()>().await;
    });
}

#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn data_of_every_length_goes_both_ways() {
    run(async {
        let (server, client) = local().await;
        for len in LENGTHS {
            let reply = client.call(b"back").data(pattern(len)).await.unwrap();
            assert_eq!((&reply.bytes[..], reply.data_len), (&b"back"[..], len as u64));
            assert!(reply.data == pattern(len), "{len} bytes there and back");
            let reply = client.call([&b"r"[..], &(len as u32).to_le_bytes()].concat()).await.unwrap();
            assert!(reply.data == pattern(len), "{len} bytes of which the client knew nothing");
        }
        client.close().await;
        server.shutdown(LIMIT).await;
    });
}

#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn memory_of_the_program_is_used_on_both_sides() {
    run(async {
        let (server, client) = local().await;
        for len in [1000, 40_001, 400_000] {
            let (from, into) = (Memory::from(pattern(len)), Memory::zeroed(len + 7).unwrap());
            let reply = client.call(b"swap").data(&from).data_into(&into).await.unwrap();
            assert_eq!((reply.data_len, reply.data.len()), (len as u64, 0));
            let data = pattern(len);
            assert!(into.slice(0, len).to_vec() == [&data[len / 2..], &data[..len / 2]].concat(), "{len}");
            assert_eq!(into.slice(len, 7).to_vec(), [0; 7]);
        }
        client.close().await;
        server.shutdown(LIMIT).await;
    });
}

#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn several_calls_are_in_flight() {
    run(async {
        let (server, client) = local().await;
        let call = |number: usize| {
            let (client, data) = (client.clone(), pattern(LENGTHS[number % LENGTHS.len()]));
            async move { (client.call(b"x").data(data.clone()).await, data) }
        };
        let calls: Vec<_> = (0..60).map(|number| bmi::spawn(call(number))).collect();
        for call in calls {
            let (reply, data) = call.await.unwrap();
            assert!(reply.unwrap().data == data);
        }
        client.close().await;
        server.shutdown(LIMIT).await;
    });
}

#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_call_ends_by_its_deadline_and_leaves_the_connection() {
    run(async {
        let (server, client) = local().await;
        client.connect().await.unwrap();
        for _ in 0..3 {
            let error = client.call(b"hang").timeout(SHORT).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        }
        assert_eq!(client.links()[0].1, bmi::rpc::LinkState::Connected);
        assert!(client.call(b"x").data(pattern(300_000)).await.unwrap().data == pattern(300_000));
        client.close().await;
        server.shutdown(LIMIT).await;
    });
}

/// Calls end when their server is killed, and by their deadlines while it is stopped.
#[test]
#[ignore = "needs an RDMA device: cargo xtask rxe"]
fn a_killed_server_is_lost_and_the_next_one_found() {
    run(async {
        let (mut server, addr) = Other::start("ib:///127.0.0.1:0");
        let client = Client::builder().timeout(LIMIT).to(&addr);
        client.connect().await.unwrap();
        for _ in 0..2 {
            let hangs = client.call(b"hang");
            let hangs = bmi::spawn(async move { hangs.await });
            // Behind the other one on the same connection.
            assert!(client.call(b"x").data(pattern(300_000)).await.unwrap().data == pattern(300_000));
            drop(server);
            let error = hangs.await.unwrap().unwrap_err();
            assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::PeerLost, true), "{error}");
            server = Other::start(&addr).0;
            let reply = client.call(b"x").data(pattern(300_000)).idempotent().await.unwrap();
            assert!(reply.data == pattern(300_000));
        }
        server.signal(Signal::STOP);
        for _ in 0..2 {
            let error = client.call(b"hang").timeout(SHORT).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        }
        server.signal(Signal::CONT);
        assert_eq!(client.call(b"x").idempotent().await.unwrap().bytes, "x");
        client.close().await;
    });
}
