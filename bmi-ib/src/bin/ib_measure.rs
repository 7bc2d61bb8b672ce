//! Measures the cost of the backend above the verbs, for comparison with `perftest` on the same
//! machine:
//!
//! ```text
//! ib_measure SERIES SIZE OPERATIONS     one number, perftest's unit and name: `ib_measure ib_send_lat 64 5000`
//! ib_measure all                        all series and sizes, a JSON line each
//! ib_measure registration               cost of registering: one buffer of 400 kB, 100 of 4 kB ([PVFS-IB §5])
//! ```
//!
//! Latency is half a round trip for sends and writes, and a whole read for reads. It is the median
//! in µs, without the cost of reading the clock (perftest reads a register instead). Bandwidth is
//! in MiB/s. There are two adapters on the first device, with one thread each. Speeds on Soft-RoCE
//! say nothing about a hardware adapter, but ratios do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bmi_core::driver::MonotonicClock;
use bmi_core::transport::{ConnId, Event, Payload, PostError, WorkId, WorkKind, WorkOptions, WorkStatus};
use bmi_core::{Access, Addr, Clock, Memory, RemoteSlice, Segment, Time, Transport};
use bmi_ib::{IbConfig, IbTransport};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SERIES: [&str; 6] = ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_send_bw", "ib_write_bw", "ib_read_bw"];
const SIZES: [(usize, usize); 4] = [(64, 5000), (4 << 10, 3000), (64 << 10, 500), (1 << 20, 40)];
/// Requests that a bandwidth series keeps outstanding.
const WINDOW: u64 = 64;
/// Messages after which the receiver reports its progress.
const CREDIT: u64 = 32;
/// Polls per reading of the clock. That is enough for deadlines of milliseconds. In an emulated
/// machine reading the clock is a system call.
const CLOCK_EVERY: u32 = 16;
const WARM_UP: usize = 20;

/// One adapter, its connection, its buffer, and the peer's. Outgoing bytes are in the first half of
/// the buffer; incoming bytes go to the second.
struct End {
    transport: IbTransport,
    clock: MonotonicClock,
    events: Vec<Event>,
    conn: ConnId,
    memory: Memory,
    list: [Segment; 1],
    landing: [Segment; 1],
    remote: RemoteSlice,
    received: u64,
    ended: u64,
    now: Time,
    polls: u32,
}

impl End {
    fn new(mut transport: IbTransport, conn: ConnId, size: usize, clock: MonotonicClock) -> Result<End> {
        let memory = Memory::zeroed(2 * size)?;
        let region = transport.register(&memory)?;
        let (list, landing) = ([region.segment(0, size)], [region.segment(size, size)]);
        let remote = transport.expose(conn, &landing[0], Access::READ_WRITE)?;
        let (events, now) = (Vec::with_capacity(64), clock.now());
        let mut end =
            End { transport, clock, events, conn, memory, list, landing, remote, received: 0, ended: 0, now, polls: 0 };
        for _ in 0..2 * WINDOW {
            end.receive()?;
        }
        Ok(end)
    }

    fn receive(&mut self) -> Result<()> {
        self.transport.post_recv(self.conn, WorkId(0), &self.landing).map_err(refused)
    }

    fn poll(&mut self) -> Result<()> {
        if self.polls.is_multiple_of(CLOCK_EVERY) {
            self.now = self.clock.now();
        }
        self.polls += 1;
        self.transport.poll(self.now, &mut self.events);
        while let Some(event) = self.events.pop() {
            match event {
                // The end of the connection follows and gives the reason.
                Event::Work(done) if done.status != WorkStatus::Ok => {}
                Event::Disconnected { reason, .. } => return Err(reason.into()),
                Event::Work(done) if done.kind == WorkKind::Recv => {
                    self.received += 1;
                    self.receive()?;
                }
                Event::Work(_) => self.ended += 1,
                other => return Err(format!("{other:?}").into()),
            }
        }
        Ok(())
    }

    fn post(&mut self, series: &str, options: WorkOptions) -> Result<bool> {
        let (conn, work) = (self.conn, WorkId(0));
        let posted = if series.contains("send") {
            self.transport.post_send(conn, work, &[], Payload::Gather(&self.list), options)
        } else if series.contains("write") {
            self.transport.post_write(conn, work, &[], &self.list, self.remote.into(), options)
        } else {
            self.transport.post_read(conn, work, &self.list, self.remote, options)
        };
        match posted {
            Ok(()) => Ok(true),
            Err(PostError::QueueFull) => Ok(false),
            Err(error) => Err(refused(error)),
        }
    }

    fn last_byte(&self) -> u8 {
        let mut byte = [0];
        self.memory.copy_to(self.memory.len() - 1, &mut byte);
        byte[0]
    }
}

fn refused(error: PostError) -> Box<dyn std::error::Error + Send + Sync> {
    format!("{error:?}").into()
}

/// Creates two connected ends that know each other's buffer.
fn pair(size: usize) -> Result<(End, End)> {
    let clock = MonotonicClock::new();
    let (mut a, mut b) = (IbTransport::new(IbConfig::default())?, IbTransport::new(IbConfig::default())?);
    let addr = b.listen(&Addr::ib(None, "127.0.0.1", 0))?;
    let near = a.connect(&addr, b"", clock.now() + std::time::Duration::from_secs(5))?;
    let (mut far, mut established, mut events) = (None, 0, Vec::new());
    while established < 2 {
        a.poll(clock.now(), &mut events);
        b.poll(clock.now(), &mut events);
        for event in events.drain(..) {
            match event {
                Event::ConnectRequest { conn, .. } => {
                    b.accept(conn, b"")?;
                    far = Some(conn);
                }
                Event::Established { .. } => established += 1,
                other => return Err(format!("{other:?}").into()),
            }
        }
    }
    let far = far.ok_or("no request")?;
    let (mut a, mut b) = (End::new(a, near, size, clock)?, End::new(b, far, size, clock)?);
    std::mem::swap(&mut a.remote, &mut b.remote);
    Ok((a, b))
}

/// Runs `other` with `b` in its own thread until `measure` is done with `a`.
fn beside<R>(
    mut a: End,
    mut b: End,
    mut other: impl FnMut(&mut End) -> Result<()> + Send + 'static,
    measure: impl FnOnce(&mut End) -> Result<R>,
) -> Result<R> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let thread = std::thread::Builder::new().name("peer".to_owned()).spawn(move || -> Result<End> {
        while !stopped.load(Ordering::Relaxed) {
            other(&mut b)?;
        }
        Ok(b)
    })?;
    let result = measure(&mut a);
    stop.store(true, Ordering::Relaxed);
    // Both adapters live until here, so that neither sees the other's end.
    let peer = thread.join().map_err(|_| "the peer's thread panicked")?;
    match (result, peer) {
        (Ok(result), Ok(_)) => Ok(result),
        (Ok(_), Err(there)) => Err(there),
        (Err(here), Ok(_)) => Err(here),
        (Err(here), Err(there)) => Err(format!("{here}; at the peer: {there}").into()),
    }
}

fn median(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |ns| *ns as f64 / 1000.0)
}

/// Returns the cost of reading the clock in ns. An interval between two readings contains it once.
fn reading(clock: MonotonicClock) -> u64 {
    const READINGS: usize = 1000;
    let mut costs: Vec<u64> = (0..READINGS)
        .map(|_| {
            let begin = clock.now();
            clock.now().since(begin).as_nanos() as u64
        })
        .collect();
    costs.sort_unstable();
    costs[READINGS / 2]
}

fn latency(series: &'static str, size: usize, operations: usize) -> Result<f64> {
    let (mut a, b) = pair(size)?;
    let clock = a.clock;
    let reading = reading(clock);
    let since = move |begin: Time| (clock.now().since(begin).as_nanos() as u64).saturating_sub(reading);
    if series == "ib_read_lat" {
        let mut times = Vec::with_capacity(operations);
        for turn in 0..operations + WARM_UP {
            let begin = clock.now();
            a.post(series, WorkOptions::SIGNALLED)?;
            while a.ended <= turn as u64 {
                a.poll()?;
            }
            times.push(since(begin));
        }
        drop(b);
        return Ok(median(times.split_off(WARM_UP)));
    }
    // The last byte of a write is the number of the turn, as in perftest.
    let writes = series == "ib_write_lat";
    let mut turn = 0u64;
    let answer = move |b: &mut End| -> Result<()> {
        let there = |b: &End| if writes { b.last_byte() == (turn + 1) as u8 } else { b.received > turn };
        if there(b) {
            turn += 1;
            if writes {
                b.memory.copy_from(size - 1, &[turn as u8]);
            }
            while !b.post(series, WorkOptions::UNSIGNALLED)? {
                b.poll()?;
            }
        }
        b.poll()
    };
    beside(a, b, answer, move |a| {
        let mut times = Vec::with_capacity(operations);
        for turn in 0..(operations + WARM_UP) as u64 {
            let begin = clock.now();
            if writes {
                a.memory.copy_from(size - 1, &[(turn + 1) as u8]);
            }
            while !a.post(series, WorkOptions::UNSIGNALLED)? {
                a.poll()?;
            }
            while if writes { a.last_byte() != (turn + 1) as u8 } else { a.received <= turn } {
                a.poll()?;
            }
            times.push(since(begin) / 2);
        }
        Ok(median(times.split_off(WARM_UP)))
    })
}

fn bandwidth(series: &'static str, size: usize, operations: usize) -> Result<f64> {
    let (a, b) = pair(size)?;
    let clock = a.clock;
    let mut told = 0;
    let answer = move |b: &mut End| -> Result<()> {
        b.poll()?;
        while b.received >= told + CREDIT {
            let posted = b.transport.post_send(b.conn, WorkId(1), &[], Payload::EMPTY, WorkOptions::UNSIGNALLED);
            if posted == Err(PostError::QueueFull) {
                break;
            }
            posted.map_err(refused)?;
            told += CREDIT;
        }
        Ok(())
    };
    let sends = series == "ib_send_bw";
    beside(a, b, answer, move |a| {
        let (mut posted, total) = (0u64, operations as u64);
        let begin = clock.now();
        while a.ended < total {
            while posted < total
                && posted < a.ended + WINDOW
                && (!sends || posted < a.received * CREDIT + 2 * WINDOW)
                && a.post(series, WorkOptions::SIGNALLED)?
            {
                posted += 1;
            }
            a.poll()?;
        }
        let seconds = clock.now().since(begin).as_secs_f64();
        Ok((size as f64 * total as f64) / f64::from(1 << 20) / seconds)
    })
}

fn measure(series: &str, size: usize, operations: usize) -> Result<f64> {
    let series = SERIES.into_iter().find(|known| *known == series).ok_or_else(|| format!("series are {SERIES:?}"))?;
    if size == 0 || operations == 0 {
        return Err("size and operations are more than 0".into());
    }
    if series.ends_with("lat") { latency(series, size, operations) } else { bandwidth(series, size, operations) }
}

/// Measures registering and deregistering, by exposing on a connection. Prints the mean in µs for
/// the whole set of buffers.
fn registration() -> Result<()> {
    const ROUNDS: u32 = 50;
    let (mut a, _b) = pair(64)?;
    for (count, size) in [(1, 400_000), (100, 4_000)] {
        let regions = (0..count)
            .map(|_| Ok(a.transport.register(&Memory::zeroed(size)?)?.segment(0, size)))
            .collect::<Result<Vec<_>>>()?;
        let begin = a.clock.now();
        for _ in 0..ROUNDS {
            let mut keys = Vec::with_capacity(count);
            for segment in &regions {
                keys.push(a.transport.expose(a.conn, segment, Access::READ)?.key);
            }
            keys.into_iter().for_each(|key| a.transport.revoke(a.conn, key));
        }
        let us = a.clock.now().since(begin).as_secs_f64() * 1e6 / f64::from(ROUNDS);
        println!("{{\"registration\":{{\"buffers\":{count},\"bytes\":{size},\"us\":{us:.1}}}}}");
    }
    Ok(())
}

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ib_measure: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["registration"] => registration(),
        ["all"] => {
            for series in SERIES {
                for (size, operations) in SIZES {
                    let value = measure(series, size, operations)?;
                    println!("{{\"series\":\"{series}\",\"bytes\":{size},\"value\":{value:.2}}}");
                }
            }
            Ok(())
        }
        [series, size, operations] => {
            println!("{:.3}", measure(series, size.parse()?, operations.parse()?)?);
            Ok(())
        }
        _ => Err("usage: ib_measure SERIES SIZE OPERATIONS | all | registration".into()),
    }
}
