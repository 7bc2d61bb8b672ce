//! The memory that connections cost: while they are idle, and when they are gone.
//!
//! A test of this must be alone in its process ([`alone`](crate::world::alone)), because it reads
//! how much memory of the process is resident. Time is a number that the test advances.

use std::time::Duration;

use bmi_core::{Addr, AnyTransport, Completion, Config, Engine, Memory, Options, PeerEvent, PeerId, Time, Transport};

/// Messages that one client has in flight: as many as the program may hold in receive slots.
const HELD: usize = 60;
/// What the process allocates once, whatever the number of connections.
const ONCE_BYTES: usize = 4 << 20;

/// What an end of a connection costs, in resident bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The least after many messages at once. With less, nothing would be tested.
    pub busy: usize,
    /// The most after messages that were sent one by one.
    pub chatted: usize,
    /// The most after many messages at once, and some seconds without any.
    pub idle: usize,
    /// The most when the connection has ended.
    pub left: usize,
}

struct World {
    client: Engine,
    server: Engine,
    now: Time,
}

/// Returns the resident bytes of this process.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("statm");
    let pages: usize = pages.split(' ').nth(1).expect("resident pages").parse().expect("a number");
    pages * rustix::param::page_size()
}

/// Returns the number of bytes that adapters have pinned in this process.
fn pinned() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).expect("pinned memory");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

/// Returns all completions.
fn all(end: &mut Engine) -> Vec<Completion> {
    let mut all = Vec::new();
    end.poll_all(&mut all);
    all
}

impl World {
    fn new(transport: &dyn Fn() -> AnyTransport) -> World {
        let end = |name| Engine::new(transport(), Config::named(name), Time::ZERO).expect("endpoint");
        World { client: end("client"), server: end("server"), now: Time::ZERO }
    }

    /// Polls both sides until `done` returns true.
    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Engine, &mut Engine) -> bool) {
        for _ in 0..10_000_000 {
            self.client.poll(self.now);
            self.server.poll(self.now);
            if done(&mut self.client, &mut self.server) {
                return;
            }
        }
        panic!("waited in vain for {what}");
    }

    fn connect(&mut self, addr: &Addr, count: usize) -> Vec<PeerId> {
        let (mut peers, mut seen) = (Vec::new(), 0);
        for _ in 0..count {
            let (peer, _) = self.client.connect(addr, Options::default()).expect("connect");
            peers.push(peer);
            let expected = peers.len();
            self.until("connections", |client, server| {
                while let Some(event) = server.poll_event() {
                    seen += usize::from(matches!(event, PeerEvent::Connected { .. }));
                }
                while client.poll_event().is_some() {}
                all(client);
                seen == expected && client.limits(peer).is_some_and(|limits| limits.fast > 0)
            });
        }
        peers
    }

    /// Sends messages from a client. The server takes them, together, and answers each.
    fn work(&mut self, peer: PeerId) {
        let (small, middle) = (Memory::from(vec![1; 8000]), Memory::from(vec![2; 60_000]));
        for round in 0..3u64 {
            let sends = std::iter::once(&middle).chain(std::iter::repeat_n(&small, HELD));
            for bytes in sends {
                self.client.post_send_unexpected(peer, round, bytes, Options::default()).expect("send");
            }
            let mut messages = Vec::new();
            self.until("messages", |client, server| {
                all(client);
                messages.extend(std::iter::from_fn(|| server.poll_unexpected()));
                messages.len() == HELD + 1
            });
            let bytes = messages.iter().map(|message| message.bytes().len()).sum::<usize>();
            assert_eq!(bytes, 60_000 + HELD * 8000);
            let from = messages[0].peer();
            drop(messages);
            let mut answers = 0;
            for _ in 0..HELD {
                let into = Memory::zeroed(100).expect("memory");
                self.client.post_recv(peer, round, into, Options::default()).expect("receive");
                self.server.post_send(from, round, vec![3; 100], Options::default()).expect("send");
            }
            self.until("answers", |client, server| {
                all(server);
                answers += all(client).iter().filter(|done| done.len == 100).count();
                answers == HELD
            });
        }
    }

    /// Sends messages one by one.
    fn chat(&mut self, peer: PeerId) {
        for tag in 0..150 {
            self.client.post_send_unexpected(peer, tag, vec![1; 8000], Options::default()).expect("send");
            self.until("a message", |client, server| {
                all(client);
                server.poll_unexpected().is_some_and(|message| message.len() == 8000)
            });
        }
    }

    /// Lets time pass.
    fn pass(&mut self, time: Duration, connections: usize) {
        self.now = self.now + time;
        for _ in 0..connections {
            self.client.poll(self.now);
            self.server.poll(self.now);
        }
    }
}

/// Opens many connections to `addr`, both ends of which are in this process, works over them,
/// waits, and closes them, twice. Prints what an end of a connection costs.
///
/// # Panics
/// If it costs more than `bounds` allows, or if the messages touch so little memory that nothing
/// is tested.
pub fn idle_connections_cost_little_and_leave_nothing<T: Transport + Send + 'static>(
    transport: impl Fn() -> T,
    addr: &Addr,
    connections: usize,
    bounds: Bounds,
) {
    let mut world = World::new(&|| Box::new(transport()));
    let addr = world.server.listen(addr).expect("listen");
    let most = |each: usize| 2 * connections * each + ONCE_BYTES;
    // One connection first, so that everything is there that exists once.
    let first = world.connect(&addr, 1)[0];
    world.work(first);
    let before = resident();
    for wave in 0..2 {
        let peers = world.connect(&addr, connections);
        for peer in &peers {
            world.chat(*peer);
        }
        let chatted = resident().saturating_sub(before);
        assert!(chatted < most(bounds.chatted), "wave {wave}: {} bytes after a chat", chatted / (2 * connections));
        for peer in &peers {
            world.work(*peer);
        }
        let busy = resident();
        for _ in 0..4 {
            world.pass(Duration::from_secs(5), connections);
        }
        let (idle, pinned) = (resident().saturating_sub(before), pinned());
        assert!(
            busy - before > 2 * connections * bounds.busy,
            "wave {wave}: {busy} bytes resident, so nothing is tested"
        );
        assert!(
            idle < most(bounds.idle),
            "wave {wave}: {} bytes for an idle end of a connection",
            idle / (2 * connections)
        );
        // What was given back is there again when it is needed.
        for peer in peers.iter().step_by(50) {
            world.work(*peer);
        }
        for peer in &peers {
            world.client.disconnect(*peer, Options::default()).expect("disconnect");
        }
        world.until("the ends", |client, server| {
            while client.poll_event().is_some() {}
            while server.poll_event().is_some() {}
            all(client);
            (client.resource_usage().peers, server.resource_usage().peers) == (1, 1)
        });
        world.pass(Duration::from_secs(5), connections);
        let left = resident().saturating_sub(before);
        assert!(left < most(bounds.left), "wave {wave}: {left} bytes are left of {connections} connections");
        let [chatted, idle, pinned] = [chatted, idle, pinned].map(|bytes| bytes / (2 * connections));
        println!("wave {wave}: {chatted} bytes after a chat, {idle} idle, {pinned} pinned, {left} left of all");
    }
    world.work(first);
}
