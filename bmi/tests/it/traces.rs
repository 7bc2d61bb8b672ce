//! Which calls belong together, over several programs; and what `tracing` says of them.

use std::io::Write;
use std::sync::{Arc, Mutex};

use bmi::rpc::Trace;
use bmi::{Call, Client, Error, Server};
use bmi_sim::World;

use crate::bed::{Bed, everywhere, start};

/// Replies with the trace of its call, and that in which it runs.
async fn tell(call: Call) -> Result<(), Error> {
    let text = |trace: Option<Trace>| trace.map_or("none".to_owned(), |trace| trace.to_string());
    let reply = format!("{} {}", text(call.trace()), text(Trace::current()));
    call.reply(reply).await
}

fn traces(reply: &[u8]) -> Vec<Trace> {
    let text = std::str::from_utf8(reply).expect("text");
    text.split(' ').map(|trace| trace.parse().expect("a trace")).collect()
}

#[test]
fn a_trace_goes_through_all_calls_that_a_call_causes() {
    everywhere(async |bed: &Bed| {
        let (behind, addr) = bed.serve(tell).await;
        let back = Client::new(addr);
        let caller = back.clone();
        let front = Server::bind(bed.addr()).await.expect("a server");
        let (front, addr) = start(front, move |call: Call| {
            let back = caller.clone();
            async move {
                let reply = back.call(b"tell").await?;
                call.reply(reply.bytes).await
            }
        });
        let client = Client::new(addr);
        assert_eq!(client.call(b"").await.expect("a reply").bytes, "none none");
        let trace = Trace::new();
        let [of_front, of_behind] =
            traces(&trace.scope(async { client.call(b"").await }).await.expect("a reply").bytes)[..]
        else {
            panic!("two traces")
        };
        assert!([of_front, of_behind].iter().all(|seen| (seen.id, seen.flags) == (trace.id, trace.flags)));
        assert!(trace.span != of_front.span && of_front.span != of_behind.span, "each handler is a span");
        assert_eq!(Trace::current(), None);
        // A stream carries it too.
        let stream = trace.scope(async { client.call(b"").stream().await }).await.expect("a stream");
        assert_eq!(traces(&stream.finish().await.expect("a reply").bytes)[0].id, trace.id);
        for client in [client, back] {
            client.close().await;
        }
        for server in [front, behind] {
            server.shutdown(std::time::Duration::from_secs(1)).await;
        }
    });
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// With `tracing` on, both sides have a span of a call. A call without a trace begins one, except
/// in a world, where a log changes nothing.
#[test]
fn both_sides_of_a_call_are_spans() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter("bmi::calls=debug")
        .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let (none, reply) = tracing::subscriber::with_default(subscriber, || {
        let world = World::new(1);
        let at = world.node("server");
        at.spawn(async {
            let server = Server::bind("tcp://0.0.0.0:7001").await.expect("a server");
            server.serve(tell).await.expect("it serves");
        });
        let call = async {
            let client = Client::new("tcp://server:7001");
            let none = client.call(b"").await.expect("a reply").bytes;
            log.0.lock().expect("no panic").clear();
            let reply = Trace::new().scope(async { client.call(b"").await }).await.expect("a reply");
            client.close().await;
            (none, reply)
        };
        world.block_on(world.node("client").run(call))
    });
    assert_eq!(none, "none none");
    let [sent, own] = traces(&reply.bytes)[..] else { panic!("two traces") };
    let log = String::from_utf8(log.0.lock().expect("no panic").clone()).expect("text");
    let line = |name: &str| log.lines().find(|line| line.contains(name)).expect("a span").to_owned();
    let (call, handle) = (line("call{"), line("handle{"));
    assert!(call.contains(&format!("trace={sent}")), "{call}");
    assert!(handle.contains(&format!("trace={own}")) && handle.contains("peer="), "{handle}");
    assert!(handle.contains(&format!("parent={:016x}", sent.span)), "{handle}");
}

#[test]
fn a_call_begins_a_trace_if_somebody_listens() {
    let subscriber = tracing_subscriber::fmt().with_env_filter("bmi::calls=debug").with_writer(std::io::sink).finish();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tracing::subscriber::with_default(subscriber, || {
        runtime.block_on(async {
            let server = Server::bind("tcp://127.0.0.1:0").await.expect("a server");
            let (server, addr) = start(server, tell);
            let client = Client::new(addr);
            let [sent, own] = traces(&client.call(b"").await.expect("a reply").bytes)[..] else { panic!("two traces") };
            assert!(sent.id == own.id && sent.span != own.span);
            client.close().await;
            server.shutdown(std::time::Duration::from_secs(1)).await;
        });
    });
}
