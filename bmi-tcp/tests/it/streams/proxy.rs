//! A stranger in the middle who carries the streams of a connection, each as fast as it likes.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use bmi_core::transport::{ConnId, Event};
use bmi_core::{Addr, Transport};

use crate::common::World;

/// One stream: the socket of the connecting side, and that of the listening side.
pub(crate) struct Link {
    ends: [TcpStream; 2],
    /// Bytes on their way from either end.
    waiting: [Vec<u8>; 2],
    /// Number of bytes that were carried from either end.
    pub(crate) moved: [usize; 2],
    /// It carries nothing now.
    pub(crate) held: bool,
}

impl Link {
    /// Returns true if the connecting side has closed it.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut left = Vec::new();
        self.ends[0].read_to_end(&mut left).is_ok()
    }
}

/// Numbers that a seed decides.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

type Spy = Box<dyn FnMut(usize, &mut Vec<u8>)>;

pub(crate) struct Proxy {
    listener: TcpListener,
    to: u16,
    /// The streams, in the order in which they were dialed.
    pub(crate) links: Vec<Link>,
    /// If present, the streams move at random, in small steps.
    pub(crate) random: Option<Random>,
    /// Sockets after the first one are not carried on.
    only_first: bool,
    /// Sees what is carried, and from which end, and may change it.
    pub(crate) spy: Option<Spy>,
}

impl Proxy {
    /// Carries some bytes.
    pub(crate) fn turn(&mut self) {
        if let Ok((near, _)) = self.listener.accept() {
            let far = TcpStream::connect(("127.0.0.1", self.to)).unwrap();
            let ends = [near, far];
            for end in &ends {
                end.set_nonblocking(true).unwrap();
                end.set_nodelay(true).unwrap();
            }
            let held = self.only_first && !self.links.is_empty();
            self.links.push(Link { ends, waiting: [Vec::new(), Vec::new()], moved: [0; 2], held });
        }
        let one = self.random.as_mut().map(|random| random.below(self.links.len()));
        let step = self.random.as_mut().map_or(256 << 10, |random| 1 + random.below(100_000));
        for (_, link) in self.links.iter_mut().enumerate().filter(|(at, _)| one.is_none_or(|one| one == *at)) {
            for from in [0, 1].into_iter().filter(|_| !link.held) {
                let mut bytes = vec![0; step];
                if link.waiting[from].is_empty() {
                    match link.ends[from].read(&mut bytes) {
                        Ok(0) => link.ends[1 - from].shutdown(Shutdown::Write).unwrap_or_default(),
                        Ok(n) => {
                            bytes.truncate(n);
                            self.spy.iter_mut().for_each(|spy| spy(from, &mut bytes));
                            link.waiting[from].extend(bytes);
                        }
                        Err(_) => {}
                    }
                }
                let sent = link.ends[1 - from].write(&link.waiting[from]).unwrap_or(0);
                link.waiting[from].drain(..sent);
                link.moved[from] += sent;
            }
        }
    }

    /// Cuts a stream at both ends.
    pub(crate) fn kill(&mut self, at: usize) {
        drop(self.links.remove(at));
    }
}

/// Returns a proxy to the listening side of a world, and where it listens.
pub(crate) fn proxy(world: &mut World, only_first: bool) -> (Proxy, Addr) {
    let to = world.b.transport.listen(&Addr::tcp("127.0.0.1", 0)).unwrap().port();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let addr = Addr::tcp("127.0.0.1", listener.local_addr().unwrap().port());
    (Proxy { listener, to, links: Vec::new(), random: None, only_first, spy: None }, addr)
}

/// Connects the two sides of a world through a proxy. Returns it, and their names of the
/// connection.
pub(crate) fn connect(world: &mut World) -> (Proxy, ConnId, ConnId) {
    connect_over(world, false)
}

/// Does the same. The proxy may carry only the first stream.
pub(crate) fn connect_over(world: &mut World, only_first: bool) -> (Proxy, ConnId, ConnId) {
    let (mut proxy, addr) = proxy(world, only_first);
    let (ca, cb) = connect_by(world, &mut proxy, &addr);
    (proxy, ca, cb)
}

/// Connects through a proxy that is there.
pub(crate) fn connect_by(world: &mut World, proxy: &mut Proxy, addr: &Addr) -> (ConnId, ConnId) {
    let deadline = world.later(60);
    let ca = world.a.transport.connect(addr, b"hello", deadline).unwrap();
    let cb = world.until(|world| {
        proxy.turn();
        world.b.take(|event| if let Event::ConnectRequest { conn, .. } = event { Some(*conn) } else { None })
    });
    world.b.transport.accept(cb, b"welcome").unwrap();
    for _ in 0..2 {
        world.until(|world| {
            proxy.turn();
            let established = |event: &Event| matches!(event, Event::Established { .. }).then_some(());
            world.a.take(established).or_else(|| world.b.take(established))
        });
    }
    (ca, cb)
}

/// Polls and carries until nothing has moved for a while.
pub(crate) fn settle(world: &mut World, proxy: &mut Proxy) {
    let moved = |proxy: &Proxy| proxy.links.iter().map(|link| link.moved[0] + link.moved[1]).sum::<usize>();
    let mut idle = 0;
    while idle < 2000 {
        let before = moved(proxy);
        proxy.turn();
        idle = if world.poll() || moved(proxy) > before { 0 } else { idle + 1 };
    }
}
