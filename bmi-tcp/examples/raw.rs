//! Compares the transport with plain sockets. Two busy-polling threads run both, and the program
//! prints the ratios.
//!
//! ```text
//! cargo run --release -p bmi-tcp --example raw [-- rounds [which]]
//! ```
//!
//! Only ratios within one run are meaningful. Each round runs both sides of a comparison in turn,
//! for about ten milliseconds each. The best round of each counts, because on a busy machine the
//! others measure the scheduler. The plain side is as simple as possible: non-blocking reads and
//! writes of the whole message in a loop.
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a measuring program: it reads the wall clock and stops at any error"
)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{ConnId, Event, Payload, WorkId, WorkKind, WorkOptions, WorkStatus, WriteTarget};
use bmi_core::{Access, Addr, Clock, RemoteSlice, Segment, Time, Transport};
use bmi_tcp::{TcpConfig, TcpTransport};

const PINGS: usize = 2_000;
const MESSAGES: usize = 64_000;
const WINDOW: usize = 64;
const BULK: usize = 1 << 20;
const BULK_COUNT: usize = 200;
const BULK_WINDOW: usize = 4;

/// One side of a connection over the transport.
struct Side {
    transport: TcpTransport,
    clock: MonotonicClock,
    conn: ConnId,
    events: Vec<Event>,
    /// Number of completions by kind: send, receive, write, read.
    done: [usize; 4],
    remote: RemoteSlice,
}

impl Side {
    /// Connects two sides. The second runs `peer` on a thread of its own. Its memory of `BULK`
    /// bytes is exposed to the first.
    fn pair(peer: impl FnOnce(Side) + Send + 'static) -> (Side, thread::JoinHandle<()>) {
        let mut listener = TcpTransport::new(TcpConfig::default()).unwrap();
        let addr = listener.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
        let handle = thread::Builder::new().spawn(move || peer(Side::accept(listener))).unwrap();
        let mut transport = TcpTransport::new(TcpConfig::default()).unwrap();
        let clock = MonotonicClock::new();
        let conn = transport.connect(&addr, &[], Time::from_nanos(u64::MAX)).unwrap();
        let remote = RemoteSlice::from_wire(&[0; RemoteSlice::WIRE_LEN]);
        let mut side = Side { transport, clock, conn, events: Vec::new(), done: [0; 4], remote };
        loop {
            side.transport.poll(side.clock.now(), &mut side.events);
            if let Some(event) = side.events.pop() {
                let Event::Established { private, .. } = event else { panic!("{event:?}") };
                side.remote = RemoteSlice::from_wire(private[..].try_into().unwrap());
                return (side, handle);
            }
        }
    }

    fn accept(mut transport: TcpTransport) -> Side {
        let (clock, mut events) = (MonotonicClock::new(), Vec::new());
        loop {
            transport.poll(clock.now(), &mut events);
            if let Some(Event::ConnectRequest { conn, .. }) = events.pop() {
                let memory = bmi_core::Memory::zeroed(BULK).unwrap();
                let segment = transport.register(&memory).unwrap().segment(0, BULK);
                let remote = transport.expose(conn, &segment, Access::READ_WRITE).unwrap();
                for _ in 0..4 * WINDOW {
                    transport.post_recv(conn, WorkId(0), std::slice::from_ref(&segment)).unwrap();
                }
                transport.accept(conn, &remote.to_wire()).unwrap();
                return Side { transport, clock, conn, events, done: [0; 4], remote };
            }
        }
    }

    fn memory(&mut self, len: usize) -> Segment {
        let memory = bmi_core::Memory::zeroed(len).unwrap();
        self.transport.register(&memory).unwrap().segment(0, len)
    }

    /// Polls once and counts completions. Returns false once the peer is gone.
    fn poll(&mut self) -> bool {
        self.transport.poll(self.clock.now(), &mut self.events);
        for event in self.events.drain(..) {
            match event {
                Event::Work(work) if work.status == WorkStatus::Ok => {
                    let kind = match work.kind {
                        WorkKind::Send => 0,
                        WorkKind::Recv => 1,
                        WorkKind::Write => 2,
                        WorkKind::Read => 3,
                    };
                    self.done[kind] += 1;
                }
                Event::Work(_) | Event::Established { .. } => {}
                Event::Disconnected { .. } => return false,
                other => panic!("{other:?}"),
            }
        }
        true
    }

    fn send(&mut self, bytes: &[u8]) {
        let options = WorkOptions::UNSIGNALLED;
        self.transport.post_send(self.conn, WorkId(0), bytes, Payload::EMPTY, options).unwrap();
    }

    fn recv(&mut self, segment: &Segment) {
        self.transport.post_recv(self.conn, WorkId(0), std::slice::from_ref(segment)).unwrap();
    }
}

/// Returns a peer that reposts every receive and answers each `every`th message with one of 4
/// bytes.
fn answerer(every: usize) -> impl FnOnce(Side) + Send + 'static {
    move |mut side: Side| {
        let segment = side.memory(BULK);
        let (mut seen, mut answered) = (0, 0);
        while side.poll() {
            for _ in seen..side.done[1] {
                side.recv(&segment);
            }
            seen = side.done[1];
            while answered < seen / every {
                answered += 1;
                side.send(&[7; 4]);
            }
        }
    }
}

/// Measures the one-way latency of messages of 4 bytes, in ns.
fn latency() -> f64 {
    let (mut side, peer) = Side::pair(answerer(1));
    let segment = side.memory(64);
    let start = Instant::now();
    for ping in 0..PINGS {
        side.recv(&segment);
        side.send(&[1; 4]);
        while side.done[1] <= ping {
            assert!(side.poll());
        }
    }
    let ns = start.elapsed().as_nanos() as f64;
    drop(side);
    peer.join().unwrap();
    ns / (2 * PINGS) as f64
}

/// Measures the number of 64-byte messages in a second, with at most `WINDOW` unanswered. The peer
/// answers each quarter of a window.
fn rate() -> f64 {
    const EVERY: usize = WINDOW / 4;
    let (mut side, peer) = Side::pair(answerer(EVERY));
    let segment = side.memory(64);
    for _ in 0..8 {
        side.recv(&segment);
    }
    let start = Instant::now();
    let (mut sent, mut seen) = (0, 0);
    while seen * EVERY < MESSAGES {
        while sent < MESSAGES && sent - seen * EVERY < WINDOW {
            side.send(&[1; 64]);
            sent += 1;
        }
        assert!(side.poll());
        for _ in seen..side.done[1] {
            side.recv(&segment);
        }
        seen = side.done[1];
    }
    let secs = start.elapsed().as_secs_f64();
    drop(side);
    peer.join().unwrap();
    MESSAGES as f64 / secs
}

/// Measures the bytes in a second of `BULK_COUNT` transfers of `BULK` bytes, `BULK_WINDOW` at a
/// time.
fn bulk(kind: WorkKind) -> f64 {
    let (mut side, peer) = Side::pair(answerer(1));
    let (segment, small) = (side.memory(BULK), side.memory(64));
    for _ in 0..2 * BULK_WINDOW {
        side.recv(&small);
    }
    let target = WriteTarget { remote: side.remote, immediate: Some(1) };
    let (conn, work, options) = (side.conn, WorkId(0), WorkOptions::UNSIGNALLED);
    let list = [segment];
    let counted = if kind == WorkKind::Read { 3 } else { 1 };
    let start = Instant::now();
    let (mut sent, mut seen) = (0, 0);
    while side.done[counted] < BULK_COUNT {
        while sent < BULK_COUNT && sent - side.done[counted] < BULK_WINDOW {
            sent += 1;
            match kind {
                WorkKind::Send => side.transport.post_send(conn, work, &[], Payload::Gather(&list), options),
                WorkKind::Write => side.transport.post_write(conn, work, &[], &list, target, options),
                _ => side.transport.post_read(conn, work, &list, side.remote, WorkOptions::SIGNALLED),
            }
            .unwrap();
        }
        assert!(side.poll());
        for _ in seen..side.done[1] {
            side.recv(&small);
        }
        seen = side.done[1];
    }
    let secs = start.elapsed().as_secs_f64();
    drop(side);
    peer.join().unwrap();
    (BULK_COUNT * BULK) as f64 / secs
}

fn sockets(peer: impl FnOnce(TcpStream) + Send + 'static) -> (TcpStream, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let tune = |socket: TcpStream| {
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let handle = thread::Builder::new().spawn(move || peer(tune(listener.accept().unwrap().0))).unwrap();
    (tune(TcpStream::connect(addr).unwrap()), handle)
}

/// Fills `bytes`. Returns false at the end of the stream.
fn read(socket: &mut TcpStream, bytes: &mut [u8]) -> bool {
    let mut at = 0;
    while at < bytes.len() {
        match socket.read(&mut bytes[at..]) {
            Ok(0) => return false,
            Ok(n) => at += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
    }
    true
}

fn write(socket: &mut TcpStream, bytes: &[u8]) {
    let mut at = 0;
    while at < bytes.len() {
        match socket.write(&bytes[at..]) {
            Ok(n) => at += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn plain_latency() -> f64 {
    let (mut socket, peer) = sockets(|mut socket| {
        let mut bytes = [0; 4];
        while read(&mut socket, &mut bytes) {
            write(&mut socket, &bytes);
        }
    });
    let mut bytes = [0; 4];
    let start = Instant::now();
    for _ in 0..PINGS {
        write(&mut socket, &bytes);
        assert!(read(&mut socket, &mut bytes));
    }
    let ns = start.elapsed().as_nanos() as f64;
    drop(socket);
    peer.join().unwrap();
    ns / (2 * PINGS) as f64
}

/// Measures one write and at least one read for each transfer, with an answer of 4 bytes at the
/// end.
fn plain_bulk() -> f64 {
    let (mut socket, peer) = sockets(|mut socket| {
        let mut bytes = vec![0; BULK];
        for _ in 0..BULK_COUNT {
            assert!(read(&mut socket, &mut bytes));
        }
        write(&mut socket, &[0; 4]);
    });
    let bytes = vec![0; BULK];
    let start = Instant::now();
    for _ in 0..BULK_COUNT {
        write(&mut socket, &bytes);
    }
    assert!(read(&mut socket, &mut [0; 4]));
    let secs = start.elapsed().as_secs_f64();
    peer.join().unwrap();
    (BULK_COUNT * BULK) as f64 / secs
}

/// The values of one measurement, with a name and the reference for comparison. Larger is better.
struct Row {
    name: &'static str,
    unit: f64,
    ours: fn() -> f64,
    plain: Option<fn() -> f64>,
}

const ROWS: [Row; 5] = [
    // Number of ping-pong messages in a second: the inverse of the one-way latency.
    Row { name: "4 B ping-pong, M/s", unit: 1e6, ours: || 1e9 / latency(), plain: Some(|| 1e9 / plain_latency()) },
    Row { name: "64 B, window 64, M/s", unit: 1e6, ours: rate, plain: None },
    Row { name: "1 MiB send, GB/s", unit: 1e9, ours: || bulk(WorkKind::Send), plain: Some(plain_bulk) },
    Row { name: "1 MiB write, GB/s", unit: 1e9, ours: || bulk(WorkKind::Write), plain: Some(plain_bulk) },
    Row { name: "1 MiB read, GB/s", unit: 1e9, ours: || bulk(WorkKind::Read), plain: Some(plain_bulk) },
];

fn main() {
    let mut args = std::env::args().skip(1);
    let rounds: usize = args.next().map_or(20, |text| text.parse().unwrap());
    let only = args.next().unwrap_or_default();
    for Row { name, unit, ours, plain } in ROWS.into_iter().filter(|row| row.name.contains(&only)) {
        let (mut mine, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            mine.push(ours() / unit);
            theirs.extend(plain.map(|plain| plain() / unit));
        }
        let column = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values.last().map_or((f64::NAN, f64::NAN), |best| (*best, values[values.len() / 2]))
        };
        let ((best, median), (plain_best, plain_median)) = (column(&mut mine), column(&mut theirs));
        println!(
            "{name:22} best {best:7.3} plain {plain_best:7.3} ratio {:5.3}   median {median:7.3} plain {plain_median:7.3} ratio {:5.3}",
            best / plain_best,
            median / plain_median
        );
    }
}
