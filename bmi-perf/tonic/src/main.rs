//! Calls over tonic, from tasks on tokio's default runtime: what `bmi-perf` measures with
//! `--test tokio-read,tokio-write`, for `--peers tonic`.
//!
//! **Work.** As in `bmi-perf/src/work/tasks`: a request has 64 bytes. A read is answered with data
//! of the size; a write brings it, and its reply is empty. So many tasks as the depth call on one
//! connection, each again when its reply is there.
//!
//! **How.** Messages are bytes: nothing is generated, and nothing is encoded but the length. tonic
//! copies a message once where it is sent, into memory of its size. Windows and frames have the
//! lengths that were the fastest.
//!
//! **Use.** `bmi-perf-tonic read|write PORT SIZE DEPTH MILLISECONDS` serves; with an address behind
//! that, it calls. It prints the calls per second, and what a call takes of the client and of the
//! server: microseconds of processor time, and context switches.

use std::convert::Infallible;
use std::fs;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::UnaryService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Length of a request in bytes.
const REQUEST: usize = 64;
/// Length of what tonic writes in front of a message.
const FRONT: usize = 5;
/// The longest frame. With tonic's 16 KiB, calls of 1 MiB were slower by a quarter. Longer frames
/// than this made no difference.
const FRAME: u32 = 1 << 20;
/// Bytes that may be under way on a stream and on a connection. From 1 MiB to 8 MiB it made no
/// difference. With 1 GiB, 32 calls of 1 MiB at a time were slower by a quarter.
const WINDOW: u32 = 4 << 20;
/// The part of the time that is spent before anything is measured.
const WARM_UP: u32 = 4;
/// A server whose client does not come ends after this.
const LIMIT: Duration = Duration::from_secs(60);

/// What a request asks for, in its first byte.
const READ: u8 = 0;
const WRITE: u8 = 1;
/// What the server has used.
const USED: u8 = 2;
/// The same, and the end of the server.
const END: u8 = 3;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A message that is sent: two parts, so that nobody puts them together before.
struct Message(Bytes, Bytes);

/// Messages as they are. The length is that of the longest.
#[derive(Clone, Copy)]
struct Plain(usize);

impl Codec for Plain {
    type Encode = Message;
    type Decode = Bytes;
    type Encoder = Plain;
    type Decoder = Plain;

    fn encoder(&mut self) -> Plain {
        *self
    }

    fn decoder(&mut self) -> Plain {
        *self
    }
}

impl Encoder for Plain {
    type Item = Message;
    type Error = Status;

    fn encode(&mut self, Message(front, data): Message, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(front);
        to.put(data);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(self.0 + FRONT, self.0 + FRONT)
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(self.0 + FRONT, self.0 + FRONT)
    }
}

/// What both sides were told.
#[derive(Clone)]
struct Case {
    is_write: bool,
    port: u16,
    depth: usize,
    time: Duration,
    data: Bytes,
}

impl Case {
    fn parse(args: &[String]) -> Option<Case> {
        let [test, port, size, depth, time] = args else { return None };
        Some(Case {
            is_write: ["read", "write"].iter().position(|one| one == test)? == 1,
            port: port.parse().ok()?,
            depth: depth.parse().ok()?,
            time: Duration::from_millis(time.parse().ok()?),
            data: vec![1; size.parse().ok()?].into(),
        })
    }

    /// Returns the codec of a request or of a reply. Those with data are longer.
    fn codec(&self, has_data: bool) -> Plain {
        Plain(REQUEST + if has_data { self.data.len() } else { 0 })
    }
}

/// What a process has used: microseconds of processor time, and context switches.
#[derive(Clone, Copy)]
struct Used([u64; 2]);

impl Used {
    fn here() -> Used {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let statuses = threads.map(|thread| fs::read_to_string(thread.path().join("status")).unwrap_or_default());
        let of = |status: String| -> u64 {
            let counts = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
            counts.filter_map(|(_, number)| number.trim().parse::<u64>().ok()).sum()
        };
        // This clock counts up from zero.
        Used([time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000, statuses.map(of).sum()])
    }

    /// Returns what was used since for one of so many calls.
    fn since(self, before: Used, count: f64) -> [f64; 2] {
        [0, 1].map(|at| (self.0[at] - before.0[at]) as f64 / count)
    }
}

#[derive(Clone)]
struct Store {
    case: Case,
    end: Arc<Notify>,
}

impl UnaryService<Bytes> for Store {
    type Response = Message;
    type Future = Ready<Result<Response<Message>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let request = request.into_inner();
        let verb = if request.len() < REQUEST { None } else { request.first() };
        let data = match verb {
            Some(&READ) => self.case.data.clone(),
            Some(&WRITE) => Bytes::new(),
            Some(&(verb @ USED | verb @ END)) => {
                if verb == END {
                    self.end.notify_one();
                }
                Used::here().0.map(u64::to_le_bytes).concat().into()
            }
            _ => return ready(Err(Status::invalid_argument("no request of this program"))),
        };
        ready(Ok(Response::new(Message(Bytes::new(), data))))
    }
}

impl Service<http::Request<Body>> for Store {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let store = self.clone();
        Box::pin(async move {
            let codec = store.case.codec(!store.case.is_write);
            let grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(usize::MAX);
            Ok(tonic::server::Grpc::unary(&mut { grpc }, store, request).await)
        })
    }
}

#[expect(clippy::disallowed_methods, reason = "a program that ends by itself")]
async fn serve(case: Case) -> Outcome<()> {
    let (at, end) = (SocketAddr::from((Ipv4Addr::LOCALHOST, case.port)), Arc::new(Notify::new()));
    let server = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .tcp_nodelay(true);
    let until = end.clone();
    let ended = async move { until.notified().await };
    let serving = { server }.serve_with_shutdown(at, Store { case, end }, ended);
    Ok(tokio::time::timeout(LIMIT, serving).await??)
}

/// A connection, for a task.
struct Connection {
    grpc: tonic::client::Grpc<Channel>,
    case: Case,
    request: Bytes,
}

impl Connection {
    fn new(channel: &Channel, case: &Case) -> Connection {
        let grpc = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
        let request = vec![if case.is_write { WRITE } else { READ }; REQUEST].into();
        Connection { grpc, case: case.clone(), request }
    }

    async fn send(&mut self, request: Bytes, data: Bytes) -> Outcome<Bytes> {
        self.grpc.ready().await?;
        let codec = self.case.codec(self.case.is_write);
        let path = PathAndQuery::from_static("/bmi.Perf/Call");
        Ok(self.grpc.unary(Request::new(Message(request, data)), path, codec).await?.into_inner())
    }

    async fn call(&mut self) -> Outcome<()> {
        let data = if self.case.is_write { self.case.data.clone() } else { Bytes::new() };
        let wanted = if self.case.is_write { 0 } else { self.case.data.len() };
        let reply = self.send(self.request.clone(), data).await?;
        if reply.len() == wanted { Ok(()) } else { Err("a reply of another length".into()) }
    }

    /// Returns what the server has used.
    async fn used(&mut self, verb: u8) -> Outcome<Used> {
        let mut reply = self.send(vec![verb; REQUEST].into(), Bytes::new()).await?;
        Ok(Used([reply.try_get_u64_le()?, reply.try_get_u64_le()?]))
    }
}

/// Calls from all tasks for so long. Returns the number of calls, and the seconds that they took.
#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
async fn calls(channel: &Channel, case: &Case, time: Duration) -> Outcome<(f64, f64)> {
    let (begin, mut tasks) = (Instant::now(), JoinSet::new());
    for _ in 0..case.depth {
        let mut connection = Connection::new(channel, case);
        tasks.spawn(async move {
            let mut count = 0;
            while begin.elapsed() < time {
                connection.call().await?;
                count += 1;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(count)
        });
    }
    let mut sum = 0;
    while let Some(count) = tasks.join_next().await {
        sum += count??;
    }
    Ok((f64::from(sum), begin.elapsed().as_secs_f64()))
}

async fn measure(case: Case, host: &str) -> Outcome<()> {
    let endpoint = Endpoint::from_shared(format!("http://{host}:{}", case.port))?
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .tcp_nodelay(true);
    let channel = endpoint.connect().await?;
    let mut connection = Connection::new(&channel, &case);
    calls(&channel, &case, case.time / WARM_UP).await?;
    let (server, client) = (connection.used(USED).await?, Used::here());
    let (count, seconds) = calls(&channel, &case, case.time).await?;
    let [client_us, client_switches] = Used::here().since(client, count);
    let [server_us, server_switches] = connection.used(END).await?.since(server, count);
    let rate = count / seconds;
    println!("{rate:.1} calls/s {client_us:.3} {server_us:.3} us {client_switches:.3} {server_switches:.3} switches");
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (given, host) = args.split_at(args.len().min(5));
    let case = Case::parse(given).ok_or("read|write PORT SIZE DEPTH MILLISECONDS [ADDRESS]")?;
    match host {
        [] => serve(case).await,
        [host, ..] => measure(case, host).await,
    }
}
