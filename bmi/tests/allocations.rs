//! What a call allocates in the steady state, at the client and at the server. A program has one
//! allocator, so these tests have a program of their own.
//!
//! Each side has a thread with a runtime of one thread, and allocations are counted by thread.
//!
//! | a call without data, at the client | at the server |
//! |---|---|
//! | the request, behind a place for its head | the head of the call, and what is kept of the request |
//! | the future of the call | the descriptor of the memory for the reply: two lists |
//! | the message, and the owner of its memory | the handler's future; the call, shared with what runs it |
//! | the descriptor of the memory for the reply: three lists | the reply, behind a place for its head |
//! | | the future of the reply |
//! | | the message, and the owner of its memory |
//!
//! Data in messages adds a copy on each side, with its owner. A handler that waits adds its task.

use std::sync::mpsc;

use bmi::{Bytes, Call, Client, Error, Memory, Server};
use bmi_conformance::allocation::{Counting, allocations};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls before the steady state, and calls that are counted.
const BEFORE: usize = 300;
const CALLS: usize = 200;

/// What the data of a call is.
#[derive(Clone, Copy, Debug)]
enum Case {
    /// There is none.
    Without,
    /// It is returned with the message: so many bytes.
    Echo(usize),
    /// It goes into memory of the program: so many bytes.
    Read(usize),
    /// It comes from memory of the program, and goes into that of the server.
    Write(usize),
}

fn on_a_thread<T: Send + 'static>(of: impl FnOnce(tokio::runtime::Runtime) -> T + Send + 'static) -> T {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let thread = std::thread::Builder::new().spawn(move || of(runtime())).expect("a thread");
    thread.join().expect("it ends well")
}

/// Returns the allocations of a call at the client and at the server.
fn of_a_call(addr: &str, case: Case) -> [usize; 2] {
    let (addr, (tell, told)) = (addr.to_owned(), mpsc::channel());
    let serving = std::thread::Builder::new().spawn(move || on_a_thread(|runtime| runtime.block_on(serve(addr, tell))));
    let server = told.recv().expect("it listens");
    let counts = on_a_thread(move |runtime| {
        runtime.block_on(async {
            let client = Client::new(&server.addrs()[0]);
            let counts = count(&client, case).await;
            client.close().await;
            server.shutdown(std::time::Duration::ZERO).await;
            counts
        })
    });
    serving.expect("a thread").join().expect("it ends well");
    counts
}

async fn serve(addr: String, tell: mpsc::Sender<Server>) {
    let server = Server::bind(addr).await.expect("a server");
    tell.send(server.clone()).expect("it is awaited");
    let memory = Memory::shareable(1 << 20).expect("memory");
    server.serve(move |call| answer(call, memory.clone())).await.expect("it serves");
}

async fn answer(call: Call, memory: Memory) -> Result<(), Error> {
    let len = call.request().get(1..9).map_or(0, |len| u64::from_le_bytes(len.try_into().expect("eight")));
    match call.request()[0] {
        b'w' => {
            call.data_into(memory.slice(0, call.data_len() as usize)).await?;
            call.reply(b"").await
        }
        b'r' => call.reply(b"").data(memory.slice(0, len as usize)).await,
        b'e' => {
            let data = call.data().await?;
            call.reply(b"").data(data).await
        }
        b'c' => call.reply(allocations().to_le_bytes()).await,
        _ => call.reply([1; 64]).await,
    }
}

async fn count(client: &Client, case: Case) -> [usize; 2] {
    let memory = Memory::shareable(1 << 20).expect("memory");
    let data = Bytes::from(vec![1; 1 << 20]);
    let mut request = [0; 64];
    let (verb, len) = match case {
        Case::Without => (b'-', 0),
        Case::Echo(len) => (b'e', len),
        Case::Read(len) => (b'r', len),
        Case::Write(len) => (b'w', len),
    };
    request[0] = verb;
    request[1..9].copy_from_slice(&len.to_le_bytes());
    let once = async || {
        let call = client.call(request);
        let call = match case {
            Case::Without => call,
            Case::Echo(len) => call.data(data.slice(0..len)),
            Case::Read(len) => call.data_into(memory.slice(0, len)),
            Case::Write(len) => call.data(memory.slice(0, len)),
        };
        call.await.expect("a reply");
    };
    let at_server = async || {
        let reply = client.call(b"c").await.expect("a reply");
        usize::from_le_bytes(reply.bytes[..].try_into().expect("a number"))
    };
    for _ in 0..BEFORE {
        once().await;
    }
    // How much a call of this kind adds to what it counts.
    let of_the_count = at_server().await.abs_diff(at_server().await);
    let [server, client] = [at_server().await, allocations()];
    for _ in 0..CALLS {
        once().await;
    }
    let client = allocations() - client;
    [client, at_server().await - server - of_the_count]
}

/// The bounds are what a call takes today. They may only shrink.
#[test]
fn a_call_allocates_what_its_tasks_need() {
    let folder = tempfile::tempdir().expect("a folder");
    for (case, most) in [
        (Case::Without, [8, 11]),
        (Case::Echo(1000), [8, 17]),
        (Case::Read(1 << 16), [8, 11]),
        (Case::Write(1 << 16), [6, 10]),
        (Case::Read(1 << 20), [8, 11]),
        (Case::Write(1 << 20), [8, 11]),
    ] {
        let socket = format!("shm://{}/sockets/{case:?}", folder.path().display());
        for addr in ["tcp://127.0.0.1:0", &socket] {
            let counts = of_a_call(addr, case);
            println!("{addr} {case:?}: {counts:?} in {CALLS} calls");
            for (count, most) in counts.into_iter().zip(most) {
                // Tables grow now and then. A call allocates something, so this counts.
                assert!((CALLS..=CALLS * most + CALLS / 10).contains(&count), "{addr} {case:?}: {counts:?}");
            }
        }
    }
}
