//! Requests of several clients for the same unit: each byte is in its place, the disk is used once,
//! and nobody waits for long for one who does not come.

use bmi::Time;
use bmi_sim::SimConfig;
use fs_proto::limits::MAX_JOINED;
use fs_proto::{Datatype, Distribution, FileView, Joined, ViewPart};
use fs_server::iod::IodSettings;
use futures_util::future::{join, join_all};

use super::server::{BEGIN, Server, file};
use super::*;

/// A unit that some clients have elements of.
#[derive(Clone, Copy)]
struct Shared {
    operation: u64,
    /// Clients that the requests name.
    clients: u64,
    /// Bytes of an element, and elements of each client.
    element: u64,
    count: u64,
    /// Bytes between the elements of all clients and the next ones.
    gap: u64,
    /// Where the unit begins in the datafile.
    at: u64,
}

impl Shared {
    fn stride(&self) -> u64 {
        self.clients * self.element + self.gap
    }

    fn unit(&self) -> Region {
        Region::new(self.at, self.stride() * self.count)
    }

    fn joined(&self) -> Joined {
        Joined::new((7, self.operation), self.clients as u32, self.unit()).unwrap()
    }

    fn part(&self, client: u64) -> ViewPart {
        let element = Datatype::bytes(self.element).unwrap();
        let filetype = Datatype::resized(0, self.stride() as i64, &element).unwrap();
        let view = FileView::new(self.at + client * self.element, Datatype::BYTE, filetype).unwrap();
        let len = self.element * self.count;
        ViewPart::new(view, Distribution::simple_stripe(1 << 20, 1).unwrap(), 0, (0, len), len).unwrap()
    }

    /// Returns the bytes of a client.
    fn bytes(&self, client: u64) -> Vec<u8> {
        pattern((self.element * self.count) as usize, client)
    }

    /// Returns the unit with the bytes of some clients, and 9 elsewhere.
    fn filled(&self, clients: impl IntoIterator<Item = u64>) -> Vec<u8> {
        let mut unit = vec![9; self.unit().len as usize];
        for client in clients {
            for (index, element) in self.bytes(client).chunks(self.element as usize).enumerate() {
                let at = (index as u64 * self.stride() + client * self.element) as usize;
                unit[at..at + element.len()].copy_from_slice(element);
            }
        }
        unit
    }
}

const SMALL: Shared = Shared { operation: 1, clients: 3, element: 4, count: 300, gap: 8, at: 5000 };
const LARGE: Shared = Shared { operation: 1, clients: 3, element: 8, count: 40_000, gap: 0, at: 3 << 20 };

/// Starts a server, and connects a client for each number.
fn start(clients: u64) -> (Server, Vec<(Client, PeerId)>) {
    let server = Server::start(SimConfig::seeded(8), IodSettings::default());
    let connect = async |index: u64| {
        let client = Client::new(&server.world.node(&format!("client{index}")), index.into());
        let iod = client.connect(&server.addr).await;
        (client, iod)
    };
    let clients = server.world.block_on(join_all((0..clients).map(connect)));
    (server, clients)
}

async fn write((client, iod): &(Client, PeerId), shared: &Shared, number: u64) -> Result<Time, FsError> {
    let (part, joined) = (shared.part(number), Some(shared.joined()));
    let request = IodRequest::WriteView { datafile: file(1), part, joined };
    client.iod_with(*iod, request, Body::Out(MemList::from(shared.bytes(number)))).await?;
    Ok(client.endpoint.now())
}

async fn read((client, iod): &(Client, PeerId), shared: &Shared, number: u64) -> Result<Vec<u8>, FsError> {
    let (part, joined) = (shared.part(number), Some(shared.joined()));
    let memory = Memory::from(vec![1; part.total() as usize]);
    let request = IodRequest::ReadView { datafile: file(1), part, joined };
    client.iod_with(*iod, request, Body::In(MemList::from(&memory))).await?;
    Ok(memory.to_vec())
}

/// Fills the unit with 9.
async fn prepare((client, iod): &(Client, PeerId), shared: &Shared) {
    let unit = regions(&[(shared.unit().offset, shared.unit().len)]);
    client.write(*iod, file(1), &unit, &MemList::from(vec![9; unit.total() as usize])).await.unwrap();
}

async fn whole((client, iod): &(Client, PeerId), shared: &Shared) -> Vec<u8> {
    client.read(*iod, file(1), &regions(&[(shared.unit().offset, shared.unit().len)])).await.unwrap()
}

#[test]
fn the_disk_is_used_once_for_all_clients() {
    let inside = Some(Path::ServerBased);
    for (shared, path) in [(SMALL, Some(Path::Inline)), (SMALL, inside), (LARGE, None), (LARGE, inside)] {
        let (server, clients) = start(3);
        server.world.block_on(async {
            clients.iter().for_each(|(client, _)| client.forced.set(path));
            prepare(&clients[0], &shared).await;
            let before = server.store.accesses.get();
            let all = clients.iter().zip(0..).map(|(client, number)| write(client, &shared, number));
            join_all(all).await.into_iter().for_each(|written| assert!(written.is_ok(), "{written:?}"));
            // With gaps, the runs go to the disk in one request, too. A long unit is written while
            // its bytes still come.
            let steps = shared.unit().len.div_ceil(256 << 10);
            let accesses = server.store.accesses.get() - before;
            assert!((steps.min(2)..=steps).contains(&accesses), "{accesses} accesses, {path:?}");
            assert!(whole(&clients[0], &shared).await == shared.filled(0..3), "{path:?}");
            let before = server.store.accesses.get();
            let all = clients.iter().zip(0..).map(|(client, number)| read(client, &shared, number));
            for (number, bytes) in (0..).zip(join_all(all).await) {
                assert!(bytes.unwrap() == shared.bytes(number), "{path:?}");
            }
            assert_eq!(server.store.accesses.get() - before, steps, "{path:?}");
        });
    }
}

/// Replays a defect: of a request that comes twice, as after a reconnect, one was taken for that of
/// another client. What the front of the unit had then was written ahead, and what the other client
/// brought for it was acknowledged and never written.
#[test]
fn a_request_that_comes_twice_stands_for_no_other() {
    let shared = Shared { clients: 2, count: 60_000, ..LARGE };
    // The other client has few bytes, at the front, so it is done before the first one.
    let few = Shared { count: 10, ..shared };
    for delay in 10..40 {
        let (server, clients) = start(3);
        server.world.block_on(async {
            prepare(&clients[0], &shared).await;
            let late = async {
                let (client, iod) = &clients[1];
                client.endpoint.sleep(Duration::from_micros(10 * delay)).await;
                let (part, joined) = (few.part(1), Some(shared.joined()));
                let request = IodRequest::WriteView { datafile: file(1), part, joined };
                client.iod_with(*iod, request, Body::Out(MemList::from(few.bytes(1)))).await
            };
            let twice = join(write(&clients[0], &shared, 0), write(&clients[2], &shared, 0));
            let ((one, again), other) = join(twice, late).await;
            assert!(one.is_ok() && again.is_ok() && other.is_ok());
            let (mut expected, front) = (shared.filled([0]), few.filled(0..2));
            expected[..front.len()].copy_from_slice(&front);
            assert!(whole(&clients[0], &shared).await == expected, "{delay}");
        });
    }
}

/// The first units wait a while for the client that does not come, later ones hardly.
#[test]
fn a_laggard_does_not_stop_the_others() {
    let (server, clients) = start(3);
    server.world.block_on(async {
        let units: Vec<Shared> = (0..12).map(|at| Shared { at: at << 16, ..SMALL }).collect();
        let mut waits = Vec::new();
        for unit in &units {
            prepare(&clients[0], unit).await;
            let begun = clients[0].0.endpoint.now();
            let (first, second) = join(write(&clients[0], unit, 0), write(&clients[1], unit, 1)).await;
            waits.push(first.unwrap().max(second.unwrap()).since(begun));
            assert!(whole(&clients[0], unit).await == unit.filled(0..2));
        }
        let ms = Duration::from_millis;
        assert!(waits[0] >= ms(50) && waits[0] < ms(60) && waits[11] < ms(3), "{waits:?}");
        let begun = clients[2].0.endpoint.now();
        for unit in &units {
            write(&clients[2], unit, 2).await.unwrap();
            assert!(whole(&clients[2], unit).await == unit.filled(0..3));
        }
        assert!(clients[2].0.endpoint.now().since(begun) < ms(10), "it is not waited for again");
        // Another operation has the patience of the beginning.
        let other = Shared { operation: 2, ..SMALL };
        let begun = clients[0].0.endpoint.now();
        assert!(write(&clients[0], &other, 0).await.unwrap().since(begun) >= ms(50));
    });
}

/// Clients that die at any moment: the others end in time, and each byte is an old or a new one.
#[test]
fn a_client_that_dies_harms_nobody() {
    for step in 0..30u64 {
        let (server, clients) = start(2);
        let node = server.world.node("mortal");
        let mortal = Client::new(&node, 9);
        server.world.block_on(async {
            prepare(&clients[0], &LARGE).await;
            let mine = (mortal.clone(), mortal.connect(&server.addr).await);
            clients[0].0.endpoint.sleep_until(BEGIN).await;
            node.spawn(async move { write(&mine, &LARGE, 2).await });
            let begun = clients[0].0.endpoint.now();
            let killed = async {
                clients[0].0.endpoint.sleep(Duration::from_micros(step * 20)).await;
                node.kill();
            };
            let written = join(write(&clients[0], &LARGE, 0), write(&clients[1], &LARGE, 1));
            let ((first, second), ()) = join(written, killed).await;
            let ended = first.unwrap().max(second.unwrap());
            assert!(ended.since(begun) < Duration::from_millis(70), "step {step}: {:?}", ended.since(begun));
            let (unit, with, without) = (whole(&clients[0], &LARGE).await, LARGE.filled(0..3), LARGE.filled(0..2));
            let good = |at: usize| unit[at] == with[at] || unit[at] == without[at];
            assert_eq!((0..unit.len()).find(|at| !good(*at)), None, "step {step}");
        });
    }
}

/// Units beyond the buffers are no units, so nobody waits. Those whose clients never came give
/// their buffers back.
#[test]
fn buffers_are_bounded_and_come_back() {
    let (server, clients) = start(2);
    server.world.block_on(async {
        let unit = |at: u64| Shared { at: at << 16, clients: 2, ..SMALL };
        for round in 0..3 {
            let begun = clients[0].0.endpoint.now();
            let units: Vec<Shared> = (0..20).map(|at| Shared { operation: round, ..unit(at) }).collect();
            let all = units.iter().map(|unit| write(&clients[0], unit, 0));
            let ends: Vec<Duration> = join_all(all).await.into_iter().map(|end| end.unwrap().since(begun)).collect();
            let alone = ends.iter().filter(|end| **end < Duration::from_millis(20)).count();
            assert_eq!(alone, 4, "round {round}: {ends:?}");
            for unit in &units {
                // Nobody else reads it, so it stays for a while.
                read(&clients[0], unit, 0).await.unwrap();
            }
            clients[0].0.endpoint.sleep(Duration::from_secs(3)).await;
        }
    });
}

#[test]
fn what_is_not_in_the_unit_is_refused() {
    let (server, clients) = start(2);
    server.world.block_on(async {
        prepare(&clients[0], &SMALL).await;
        let (client, iod) = &clients[0];
        let cut = Region::new(SMALL.at, SMALL.unit().len - SMALL.gap - 9);
        let joined = Some(Joined::new((7, 1), 1, cut).unwrap());
        let write_it = IodRequest::WriteView { datafile: file(1), part: SMALL.part(2), joined };
        let written = client.iod_with(*iod, write_it, Body::Out(MemList::from(SMALL.bytes(2)))).await;
        let error = written.unwrap_err();
        assert!(error.code == ErrorCode::Invalid && error.detail.contains("not in the unit"), "{error}");
        let read_it = IodRequest::ReadView { datafile: file(1), part: SMALL.part(2), joined };
        let into = MemList::from(vec![0; SMALL.bytes(2).len()]);
        assert_eq!(client.iod_with(*iod, read_it, Body::In(into)).await.unwrap_err().code, ErrorCode::Invalid);
        // Two that do not mean the same.
        let other = Shared { gap: 9, operation: 2, ..SMALL };
        let (first, second) =
            join(write(&clients[0], &Shared { operation: 2, ..SMALL }, 0), write(&clients[1], &other, 1)).await;
        assert!(first.is_ok() != second.is_ok(), "the one that comes first says what the unit is");
        let error = first.and(second).unwrap_err();
        assert!(error.detail.contains("in the same operation"), "{error}");
        assert!(Joined::new((1, 1), 2, Region::new(0, MAX_JOINED + 1)).is_err());
    });
}
