//! One test for each figure of [PVFS-IB] about the mechanism: the real calls of the communication
//! manager on the paper's machines, in virtual time. Nothing of the model was fitted to these
//! figures. The tests assert their shape. `--nocapture` shows the numbers.

use std::rc::Rc;
use std::time::Duration;

use bmi_core::comm::{Body, Direction, Incoming, Path};
use bmi_core::{Config, Endpoint, Memory, Options, Peer};
use bmi_sim::{Node, Profile, SimConfig, World};

const LONG: Duration = Duration::from_secs(60);

fn testbed() -> SimConfig {
    SimConfig { profile: Profile::vapi_2003().on_ramfs(), ..SimConfig::default() }
}

/// Answers calls as an I/O server with its files in memory. Data that came with a request goes to
/// the file directly. Other data is moved in units between the client and two registered buffers of
/// the server, while the file processes the other buffer.
async fn serve(node: Node, endpoint: Endpoint, unit: usize) {
    let buffers = [0, 1].map(|_| Memory::zeroed(unit).unwrap());
    let _regions = buffers.each_ref().map(|memory| endpoint.with(|engine| engine.register(memory)).unwrap());
    loop {
        let incoming = Incoming::new(endpoint.next_unexpected().await).unwrap();
        let options = endpoint.within(LONG);
        match incoming.direction() {
            Some(Direction::Write) => {
                let incoming = Rc::new(incoming);
                take(&node, &incoming, &buffers, options).await;
                Rc::into_inner(incoming).unwrap().reply(b"ok", None, options).await.unwrap();
            }
            Some(Direction::Read) if incoming.replies_with_data() => {
                let len = incoming.len() as usize;
                node.disk().read(incoming.len()).await.unwrap();
                incoming.reply(b"ok", Some(buffers[0].slice(0, len).into()), options).await.unwrap();
            }
            Some(Direction::Read) => {
                let incoming = Rc::new(incoming);
                give(&node, &incoming, &buffers, options).await;
                Rc::into_inner(incoming).unwrap().reply(b"ok", None, options).await.unwrap();
            }
            None => incoming.reply(b"", None, options).await.unwrap(),
        }
    }
}

async fn take(node: &Node, incoming: &Rc<Incoming>, buffers: &[Memory; 2], options: Options) {
    let len = incoming.len() as usize;
    if incoming.data().is_some() {
        return node.disk().write(len as u64).await.unwrap();
    }
    let unit = buffers[0].len();
    let fetch = |at: usize| {
        let (incoming, into) = (incoming.clone(), buffers[at / unit % 2].slice(0, unit.min(len - at)));
        node.spawn(async move { incoming.fetch(at as u64, into, options).await.unwrap() })
    };
    // Two units are in flight from the start. A buffer is reused when the file has taken its
    // contents.
    let mut fetches: std::collections::VecDeque<_> = (0..len).step_by(unit).take(2).map(fetch).collect();
    let mut next = 2 * unit;
    for at in (0..len).step_by(unit) {
        fetches.pop_front().unwrap().await.unwrap();
        node.disk().write(unit.min(len - at) as u64).await.unwrap();
        if next < len {
            fetches.push_back(fetch(next));
            next += unit;
        }
    }
}

async fn give(node: &Node, incoming: &Rc<Incoming>, buffers: &[Memory; 2], options: Options) {
    let len = incoming.len() as usize;
    let unit = buffers[0].len();
    let mut stores = std::collections::VecDeque::new();
    for at in (0..len).step_by(unit) {
        if stores.len() == 2 {
            let store: bmi_sim::JoinHandle<()> = stores.pop_front().unwrap();
            store.await.unwrap();
        }
        node.disk().read(unit.min(len - at) as u64).await.unwrap();
        let (incoming, from) = (incoming.clone(), buffers[at / unit % 2].slice(0, unit.min(len - at)));
        stores.push_back(node.spawn(async move { incoming.store(at as u64, from, options).await.unwrap() }));
    }
    for store in stores {
        store.await.unwrap();
    }
}

/// Runs a client against a server. Returns the client's result.
fn run<R: 'static, F: Future<Output = R> + 'static>(
    config: Config,
    unit: usize,
    client: impl FnOnce(Node, Peer) -> F + 'static,
) -> R {
    let world = World::with(testbed());
    let (server, here) = (world.node("server"), world.node("client"));
    // The paper's server and its clients are programs with one thread.
    server.limit_cores(1);
    here.limit_cores(1);
    let s = server.endpoint(config.clone()).unwrap();
    let c = here.endpoint(config).unwrap();
    let addr = s.listen(&server.addr(0)).unwrap();
    server.spawn(serve(server.clone(), s, unit));
    let node = here.clone();
    let task = here.spawn(async move {
        let peer = c.connect(&addr, Options::default()).await.unwrap();
        // Buffers are registered and slots are described.
        node.sleep(Duration::from_millis(100)).await;
        client(node, peer).await
    });
    world.block_on(task).unwrap()
}

/// Returns the access times of one scheme, in µs, for all sizes of Figure 11.
fn scheme(direction: Direction, path: Path, hit: bool) -> Vec<f64> {
    // Messages that are long enough for the whole figure, so that inline stays inline at every
    // size.
    let config = Config::default().eager_limit(72 << 10).fast_slot_bytes(72 << 10).credit_messages(12);
    run(config, 64 << 10, move |node, peer| async move {
        let mut times = Vec::new();
        for size in sizes() {
            let mut took = Duration::ZERO;
            // The first call does one-time work.
            for _ in 0..2 {
                let memory = Memory::zeroed(size).unwrap();
                let region = hit.then(|| peer.endpoint().with(|engine| engine.register(&memory)).unwrap());
                node.sleep(Duration::from_millis(10)).await;
                let body = match direction {
                    Direction::Write => Body::Out(memory.all().into()),
                    Direction::Read => Body::In(memory.all().into()),
                };
                let start = node.now();
                let call = peer.call(b"request", body, peer.within(LONG).path(path)).unwrap();
                let choice = call.choice().unwrap();
                assert_eq!((choice.path, choice.missed), (path, None), "{size} bytes");
                call.reply().await.unwrap();
                took = node.now() - start;
                drop(region);
            }
            times.push(took.as_secs_f64() * 1e6);
        }
        times
    })
}

/// Returns the sizes of Figure 11, 128 B to 64 KiB.
fn sizes() -> impl Iterator<Item = usize> {
    (7..=16).map(|power| 1 << power)
}

/// [PVFS-IB, Figure 11, §6.5]: "In both cases, the Fast RDMA scheme offers the best performance".
/// Inline and fast RDMA are ahead of server-based for small transfers. Server-based without a hit
/// is the worst by far, "due to the prohibitively costly memory registration".
#[test]
fn figure_11_small_transfers() {
    for direction in Direction::ALL {
        let [inline, fast, server] = [Path::Inline, Path::FastRdma, Path::ServerBased]
            .map(|path| [false, true].map(|hit| scheme(direction, path, hit)));
        println!("{direction}, µs  inline 0 %  100 %   fast 0 %  100 %   server-based 0 %  100 %");
        for (at, size) in sizes().enumerate() {
            let row = |scheme: &[Vec<f64>; 2]| format!("{:8.1} {:8.1}", scheme[0][at], scheme[1][at]);
            println!("{size:>8}  {}  {}  {}", row(&inline), row(&fast), row(&server));
            for hit in 0..2 {
                assert!(fast[hit][at] < inline[hit][at], "{direction} of {size}: fast RDMA is the best, hit {hit}");
                assert!(fast[hit][at] < server[hit][at], "{direction} of {size}: fast RDMA is the best, hit {hit}");
            }
            // Short pieces are copied in any case.
            assert!(size <= 1 << 10 || fast[1][at] < fast[0][at], "{direction} of {size}: a hit saves the copy");
            if size <= 4 << 10 {
                assert!(inline[1][at] < server[1][at], "{direction} of {size}: inline is ahead of server-based");
                assert!(inline[0][at] < 1.25 * fast[0][at], "{direction} of {size}: no material difference");
                assert!(server[0][at] > 3.0 * server[1][at], "{direction} of {size}: the worst by far");
            }
            let others = [&fast[0], &fast[1], &server[1]];
            assert!(others.iter().all(|other| other[at] < server[0][at]), "{direction} of {size}: the worst");
            // With 64 KiB the two copies of inline cost as much as registering.
            assert!(size > 32 << 10 || inline[0][at] < server[0][at], "{direction} of {size}: the worst");
        }
    }
}

/// Returns the times of 32 MiB with each transfer unit of Figure 12, in ms.
fn pipelined(direction: Direction) -> Vec<f64> {
    const LEN: usize = 32 << 20;
    units()
        .map(|unit| {
            run(Config::default(), unit, move |node, peer| async move {
                let memory = Memory::zeroed(LEN).unwrap();
                let _region = peer.endpoint().with(|engine| engine.register(&memory)).unwrap();
                node.sleep(Duration::from_millis(100)).await;
                let body = match direction {
                    Direction::Write => Body::Out(memory.all().into()),
                    Direction::Read => Body::In(memory.all().into()),
                };
                let start = node.now();
                let call = peer.call(b"request", body, peer.within(LONG)).unwrap();
                assert_eq!(call.choice().unwrap().path, Path::ServerBased);
                call.reply().await.unwrap();
                (node.now() - start).as_secs_f64() * 1e3
            })
        })
        .collect()
}

fn units() -> impl Iterator<Item = usize> {
    (16..=25).map(|power| 1 << power)
}

/// [PVFS-IB, Figure 12, §6.6]: "a transfer size smaller than about 2 MB is sufficient to
/// allow complete overlap between I/O access and communication. There is a slight degradation when
/// the transfer size is very small".
#[test]
fn figure_12_transfer_units() {
    for direction in Direction::ALL {
        let times = pipelined(direction);
        for (unit, time) in units().zip(&times) {
            println!("{direction}, units of {:>5} KiB: {time:6.2} ms, {:5.0} MB/s", unit >> 10, 32e3 / time);
        }
        let best = times.iter().copied().fold(f64::INFINITY, f64::min);
        let of = |unit: usize| times[units().position(|known| known == unit).unwrap()];
        // Only the first unit remains, which nothing overlaps.
        for unit in [128 << 10, 256 << 10, 512 << 10, 1 << 20] {
            assert!(of(unit) < 1.05 * best, "{direction}: overlap is complete with units of {unit}");
        }
        assert!(of(2 << 20) < 1.1 * best, "{direction}: and about so with 2 MiB");
        assert!(of(8 << 20) > 1.3 * best && of(32 << 20) > 1.5 * best, "{direction}: long units do not overlap");
        let tiny = of(64 << 10);
        assert!(tiny > best && tiny < 1.1 * best, "{direction}: a slight loss when very small");
        assert!(
            times[4..].windows(2).all(|pair| pair[0] <= pair[1]),
            "{direction}: the longer the slower, beyond 1 MiB"
        );
    }
}
