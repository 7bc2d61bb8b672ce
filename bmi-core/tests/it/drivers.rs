//! Who drives the endpoints of a handle.

use std::fs;
use std::time::Duration;

use bmi_core::comm::Body;
use bmi_core::driver::{MonotonicClock, Waiting};
use bmi_core::{Addr, Clock, Config, Engine, Error, Handle, HandleConfig};
use bmi_tcp::{TcpConfig, TcpTransport};
use tokio::runtime::Runtime;

const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a handle over `count` endpoints. A thread that drives has the number of its endpoint in
/// its name, so each test that looks for one has more endpoints than any other test has threads.
fn handle(count: usize, waiting: Waiting) -> Handle {
    let clock = MonotonicClock::new();
    let engine = || {
        let transport = TcpTransport::new(TcpConfig::default()).unwrap();
        Engine::new(Box::new(transport), Config::named("test"), clock.now()).unwrap()
    };
    let engines = (0..count).map(|_| engine()).collect();
    Handle::start(engines, clock, HandleConfig::default().waiting(waiting)).unwrap()
}

/// Returns whether a thread of this process drives the last of `count` endpoints.
fn has_thread(count: usize) -> bool {
    let name = format!("bmi-driver-{}\n", count - 1);
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok()).any(|comm| comm == name)
}

/// Waits until a thread drives them. A thread takes its name after it was started.
fn await_thread(count: usize) {
    while !has_thread(count) {
        std::thread::yield_now();
    }
}

/// Answers one call.
async fn answer(server: &Handle) -> Result<(), Error> {
    let call = server.next_call().await?;
    let (request, options) = (call.request_bytes(), call.within(PATIENCE));
    call.reply(&request, None, options).await
}

async fn ask(client: &Handle, addr: &Addr) -> Result<(), Error> {
    let peer = client.connect(addr, client.within(PATIENCE)).await?;
    let reply = peer.call(b"request", Body::None, peer.within(PATIENCE))?.reply().await?;
    assert_eq!(reply.bytes, "request");
    peer.disconnect(peer.within(PATIENCE)).await
}

#[test]
fn tasks_of_a_runtime_drive_a_handle_that_is_opened_in_it() {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let (server, client) = (handle(23, Waiting::default()), handle(23, Waiting::default()));
        let addr = server.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
        let serving = tokio::spawn(async move {
            answer(&server).await.unwrap();
            server
        });
        ask(&client, &addr).await.unwrap();
        let server = serving.await.unwrap();
        assert!(!has_thread(23), "no thread of its own");
        client.close().await;
        server.close().await;
    });
}

#[test]
fn a_driver_that_polls_without_end_has_a_thread() {
    let runtime = Runtime::new().unwrap();
    let busy = runtime.block_on(async { handle(22, Waiting::Busy) });
    await_thread(22);
    runtime.block_on(busy.close());
}

/// The tasks of a runtime end with it. The handle lives on: without a driver these threads would
/// sleep for ever.
#[test]
fn a_thread_goes_on_when_the_runtime_ends() {
    let runtime = Runtime::new().unwrap();
    let (server, client) = runtime.block_on(async { (handle(2, Waiting::default()), handle(2, Waiting::default())) });
    let addr = server.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    drop(runtime);
    let answering = move || {
        server.block_on(answer(&server)).unwrap();
        server
    };
    let serving = std::thread::Builder::new().spawn(answering).unwrap();
    client.block_on(ask(&client, &addr)).unwrap();
    let server = serving.join().unwrap();
    client.block_on(client.close());
    server.block_on(server.close());
}
