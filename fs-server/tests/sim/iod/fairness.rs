//! Sharing: what each of many clients gets, how long small requests wait for large ones, and how
//! much memory this takes.

use bmi::Time;
use bmi_sim::{Profile, Rng, SimConfig};
use fs_proto::IodRequest;
use fs_server::iod::IodSettings;

use super::server::{BEGIN, Server, file};
use super::*;

/// Returns the time that a unit of `len` bytes takes at the disk: the longer one of a write and a
/// read.
fn at_disk(profile: &Profile, len: u64) -> Duration {
    let read = profile.disk.read_latency_ns + len * profile.disk.read_ps_per_byte / 1000;
    let write = profile.disk.write_latency_ns + len * profile.disk.write_ps_per_byte / 1000;
    Duration::from_nanos(read.max(write))
}

/// Returns the time that a unit of `len` bytes keeps an adapter busy.
fn at_adapter(profile: &Profile, len: u64) -> Duration {
    let ps = (len + profile.wire_header_bytes) * profile.adapter_ps_per_byte;
    Duration::from_nanos(profile.adapter_message_ns + ps / 1000)
}

/// Returns Jain's fairness index: 1 if all values are equal, 1/n if one has everything.
fn jain(values: &[u64]) -> f64 {
    let sum: f64 = values.iter().map(|value| *value as f64).sum();
    let squares: f64 = values.iter().map(|value| (*value as f64).powi(2)).sum();
    sum * sum / (values.len() as f64 * squares)
}

/// Starts a client that always has `outstanding` transfers of `len` bytes in progress. All of them
/// use the same memory and datafile.
fn busy_client(server: &Server, index: u64, outstanding: usize, len: u64, reads: bool) {
    let node = server.world.node(&format!("busy{index}"));
    let (client, addr) = (Client::new(&node, index.into()).forcing(Path::ServerBased), server.addr.clone());
    node.spawn(async move {
        let iod = client.connect(&addr).await;
        client.endpoint.sleep_until(BEGIN).await;
        let regions = regions(&[(0, len)]);
        let memory = MemList::from(vec![index as u8; len as usize]);
        let one = async || loop {
            if reads {
                client.read(iod, file(index), &regions).await.unwrap();
            } else {
                client.write(iod, file(index), &regions, &memory).await.unwrap();
            }
        };
        futures_util::future::join_all((0..outstanding).map(|_| one())).await;
    });
}

/// Writes, reads and pings of at most a page, one after the other, until `end`. Returns how long
/// the slowest of each took.
async fn small_requests(client: &Client, iod: PeerId, end: Time) -> [Duration; 3] {
    let (file, page) = (DatafileHandle(1), regions(&[(0, 4096)]));
    let bytes = Memory::from(pattern(4096, 1));
    let mut slowest = [Duration::ZERO; 3];
    while client.endpoint.now() < end {
        let write = IodRequest::Write { datafile: file, regions: page.clone(), sync: false };
        let read = IodRequest::Read { datafile: file, regions: page.clone() };
        let page = || MemList::from(&bytes);
        let requests = [(write, Body::Out(page())), (read, Body::In(page())), (IodRequest::Ping, Body::None)];
        for (slowest, (request, body)) in slowest.iter_mut().zip(requests) {
            let started = client.endpoint.now();
            client.iod_with(iod, request, body).await.unwrap();
            *slowest = (*slowest).max(client.endpoint.now().since(started));
        }
        // Avoids running in step with the units.
        client.endpoint.sleep(Duration::from_micros(37)).await;
    }
    slowest
}

/// Returns the slowest small requests on an idle server.
fn unhindered() -> [Duration; 3] {
    let server = Server::start(SimConfig::seeded(20), IodSettings::default());
    let client = Client::new(&server.world.node("small"), 1).forcing(Path::Inline);
    server.world.block_on(async {
        let iod = client.connect(&server.addr).await;
        small_requests(&client, iod, client.endpoint.now() + Duration::from_millis(1)).await
    })
}

/// Returns the longest wait of a small request, in a server whose units have `unit` bytes. At the
/// disk it waits for one unit in progress; units without a turn are not at the disk. At the
/// server's adapter it waits for the two units that have a turn at the network, on their way in or
/// out. At the processor it waits for the posting and completion of these. A client's own adapter
/// and processor have nothing else to do.
fn worst_wait(profile: &Profile, unit: u64) -> Duration {
    let processor = Duration::from_nanos(3 * (profile.cpu_post_ns + profile.cpu_completion_ns));
    at_disk(profile, unit) + 2 * at_adapter(profile, unit) + processor
}

#[test]
fn a_hundred_clients_get_the_same_and_small_requests_wait_for_one_unit_at_most() {
    let (idle, profile) = (unhindered(), Profile::default());
    for reads in [false, true] {
        let server = Server::start(SimConfig::seeded(21), IodSettings::default());
        // Every fourth client has four times as many transfers in progress, and every other one has
        // longer requests.
        for index in 0..100 {
            let outstanding = if index % 4 == 0 { 4 } else { 1 };
            busy_client(&server, index, outstanding, if index % 2 == 0 { 1 << 20 } else { 256 << 10 }, reads);
        }
        let client = Client::new(&server.world.node("small"), 1).forcing(Path::Inline);
        let (addr, after) = (server.addr.clone(), |ms| BEGIN + Duration::from_millis(ms));
        let small = server.world.node("small").spawn(async move {
            let iod = client.connect(&addr).await;
            client.endpoint.sleep_until(BEGIN).await;
            let first = small_requests(&client, iod, after(50)).await;
            (first, small_requests(&client, iod, after(400)).await)
        });
        let mut before = vec![0; 100];
        for moment in [50, 100, 200, 300, 400] {
            server.world.run_until(after(moment));
            let now: Vec<u64> = (0..100).map(|index| server.store.moved(file(index))).collect();
            let since: Vec<u64> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
            let (index, index_since) = (jain(&now), jain(&since));
            assert!(index > 0.95 && index_since > 0.95, "{index} after {moment} ms, {index_since} since the last look");
            before = now;
        }
        let (first, then) = server.world.block_on(async { small.await.unwrap() });
        // Units have the full size while only the first few clients are there. Later they have the
        // size of a share among 101 clients: a quarter of it.
        for (slowest, unit) in [(first, 512 << 10), (then, 128 << 10)] {
            for (loaded, idle) in slowest.into_iter().zip(idle) {
                let (wait, bound) = (loaded.saturating_sub(idle), worst_wait(&profile, unit));
                assert!(wait <= bound, "{wait:?} behind units of {unit} bytes, which take {bound:?}");
            }
        }
        let busy = server.world.node("iod").disk().busy_ns() as f64 / 400e6;
        assert!(busy > 0.99, "the disk was busy for {busy} of the time");
    }
}

#[test]
fn a_greedy_client_costs_others_a_bounded_number_of_units() {
    let profile = Profile::default();
    let server = Server::start(SimConfig::seeded(22), IodSettings::default());
    busy_client(&server, 0, 64, 4 << 20, false);
    // Transfers of less than the smallest buffer, and of one unit, among 64 of eight units each.
    for (id, len, bound) in [
        // Its pull waits behind two units at the network, and its write behind one at the disk. In
        // that time a full unit of its own could have passed.
        (1, 32 << 10, worst_wait(&profile, 512 << 10)),
        // Two units. Each waits behind two at the network. At the disk it waits behind the one in
        // progress and at most one more, whose turn had come.
        (2, 128 << 10, 2 * (2 * at_disk(&profile, 512 << 10) + 2 * at_adapter(&profile, 512 << 10))),
    ] {
        let client = Client::new(&server.world.node(&format!("modest{id}")), id.into()).forcing(Path::ServerBased);
        let addr = server.addr.clone();
        let task = server.world.node(&format!("modest{id}")).spawn(async move {
            let iod = client.connect(&addr).await;
            client.endpoint.sleep_until(BEGIN).await;
            let (whole, memory) = (regions(&[(0, len)]), MemList::from(pattern(len as usize, id)));
            let mut slowest = Duration::ZERO;
            for round in 0..200 {
                let started = client.endpoint.now();
                client.write(iod, DatafileHandle(round), &whole, &memory).await.unwrap();
                slowest = slowest.max(client.endpoint.now().since(started));
                client.endpoint.sleep(Duration::from_micros(100)).await;
            }
            slowest
        });
        let slowest = server.world.block_on(async { task.await.unwrap() });
        let alone = at_disk(&profile, len) + 2 * at_adapter(&profile, len) + Duration::from_micros(30);
        assert!(slowest <= alone + bound, "{slowest:?} for {len} bytes, of which {alone:?} is its own time");
    }
    let counters = server.zones.counters();
    // Half of 28 MiB for the greedy client, two of the smallest buffers for the other.
    assert!(counters.most_leased <= (14 << 20) + (128 << 10), "{counters:?}");
}

#[test]
fn a_hundred_megabytes_need_a_few_units_of_buffer() {
    let server = Server::start(SimConfig::seeded(23), IodSettings::default());
    let client = Client::new(&server.world.node("client"), 1);
    server.world.block_on(async {
        let iod = client.connect(&server.addr).await;
        const LEN: u64 = 100_000_000;
        let (whole, block) = (regions(&[(0, LEN)]), Memory::from(pattern(1_000_000, 4)));
        let list: MemList = (0..100).map(|_| block.all()).collect();
        let (disk, started) = (server.world.node("iod").disk(), client.endpoint.now());
        client.write(iod, file(1), &whole, &list).await.unwrap();
        let took = client.endpoint.now().since(started).as_nanos() as f64;
        assert!(disk.busy_ns() as f64 > 0.99 * took, "the network's part is hidden behind the disk's");
        assert_eq!(server.store.moved(file(1)), LEN);
        assert!(client.read(iod, file(1), &whole).await.unwrap() == list.to_vec());
        let counters = server.zones.counters();
        assert_eq!((counters.most_leased, counters.leased, counters.made), (3 << 19, 0, 3), "three units of 512 KiB");
    });
}

#[test]
fn buffers_that_nobody_needs_any_more_go_back_to_the_system() {
    let server = Server::start(SimConfig::seeded(24), IodSettings::default());
    let clients: Vec<_> = (0..30).map(|id| Client::new(&server.world.node(&format!("c{id}")), id)).collect();
    server.world.block_on(async {
        let writes = clients.iter().zip(0..).map(async |(client, index)| {
            let iod = client.connect(&server.addr).await;
            let len = 1 << 20;
            client.write(iod, file(index), &regions(&[(0, len)]), &vec![1; len as usize].into()).await.unwrap();
        });
        futures_util::future::join_all(writes).await;
        let (grown, idle) = (server.zones.counters(), clients[0].endpoint.now());
        assert!(grown.bytes > 8 << 20, "{grown:?}");
        clients[0].endpoint.sleep(Duration::from_secs(11)).await;
        let shrunk = server.zones.counters();
        assert_eq!(shrunk.bytes, 4 << 20, "what is kept, from {idle:?}: {shrunk:?}");
    });
}

/// Clients whose links are down keep their buffers until they are given up, but their turns at the
/// network only for a moment.
#[test]
fn clients_that_come_to_a_halt_do_not_halt_the_others() {
    let config =
        SimConfig { profile: Profile { detection_ns: 5_000_000_000, ..Profile::default() }, ..SimConfig::seeded(25) };
    let server = Server::start(config, IodSettings::default());
    for index in 0..5 {
        busy_client(&server, index, 4, 4 << 20, index % 2 == 0);
    }
    server.world.run_until(BEGIN + Duration::from_millis(5));
    for index in 0..5 {
        server.world.partition(&server.world.node("iod"), &server.world.node(&format!("busy{index}")));
    }
    let client = Client::new(&server.world.node("client"), 99);
    server.world.block_on(async {
        let iod = client.connect(&server.addr).await;
        let (len, started) = (4 << 20, client.endpoint.now());
        let bytes = pattern(len as usize, 6);
        client.write(iod, file(99), &regions(&[(0, len)]), &bytes.clone().into()).await.unwrap();
        assert_eq!(client.read(iod, file(99), &regions(&[(0, len)])).await.unwrap(), bytes);
        let took = client.endpoint.now().since(started);
        assert!(took < Duration::from_millis(500), "{took:?}, and the dead ones are given up after 5 s");
    });
}

/// Clients that die in the middle of their calls, over every path, while registrations fail. At the
/// end every buffer is back and no resources are held.
#[test]
fn random_deaths_and_failed_registrations_leak_nothing() {
    for seed in 0..6 {
        let server = Server::start(SimConfig::seeded(seed), IodSettings { unit: 256 << 10, buffers: 16, depth: 3 });
        // A generator that is independent of the run.
        let mut rng = Rng::new(seed ^ 0x646f_6f6d);
        let mut random = |below: u64| rng.below(below);
        let clients: Vec<_> = (0..12u64).map(|index| server.world.node(&format!("doomed{index}"))).collect();
        for (node, index) in clients.iter().zip(0..) {
            let client = Client::new(node, u128::from(index)).forcing(Path::TAKEN[random(4) as usize]);
            let (addr, len) = (server.addr.clone(), 1 + random(3 << 20));
            node.spawn(async move {
                let iod = client.connect(&addr).await;
                let (whole, memory) = (regions(&[(0, len)]), MemList::from(vec![1; len as usize]));
                // Some fail because the server lacks resources; some never end.
                let one = async || loop {
                    let written = client.write(iod, file(index), &whole, &memory).await;
                    let read = client.read(iod, file(index), &whole).await;
                    if written.is_err() && read.is_err() {
                        client.endpoint.sleep(Duration::from_micros(50)).await;
                    }
                };
                futures_util::future::join_all((0..3).map(|_| one())).await;
            });
        }
        for node in &clients {
            server.world.run_for(Duration::from_micros(200 + random(2000)));
            let failing = random(6) as usize;
            server.world.node("iod").fail_registrations(failing);
            node.kill();
        }
        server.world.node("iod").fail_registrations(0);
        assert!(server.zones.counters().takes > 50, "{:?}", server.zones.counters());
        server.world.run_for(Duration::from_secs(70));
        assert_eq!(server.zones.counters().leased, 0, "seed {seed}");
        assert_eq!(server.endpoint.resource_usage(), server.idle, "seed {seed}");
    }
}
