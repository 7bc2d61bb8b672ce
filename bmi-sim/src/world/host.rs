//! A node as the place that a program runs at: what [`bmi_core::runtime`] finds in a world.
//!
//! **Addresses.** A program says the addresses of the real world. Here a host name is the name of a
//! node, and a loopback or unspecified address is the node itself. A path of shared memory is a
//! port of the node, made of the path.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use bmi_core::runtime::Host;
use bmi_core::{Addr, Config, Error, ErrorKind, Handle, HandleConfig, Scheme, Time};
use send_wrapper::SendWrapper;

use super::time::Sleep;
use crate::model::{Node, Shared, Sim};

/// The ports of paths begin here, so that they differ from those that programs name.
const FIRST_PORT_OF_PATHS: u64 = 1 << 15;

/// Returns what finds the place of the running task: its node, or the world between the nodes.
pub(super) fn finder(shared: &Rc<Shared>) -> Rc<dyn Fn() -> Option<Arc<dyn Host>>> {
    let shared = Rc::downgrade(shared);
    Rc::new(move || {
        let shared = shared.upgrade()?;
        let (at, sim) = (shared.at.get(), Sim(shared));
        Some(match at {
            Some(id) => Arc::new(Place(SendWrapper::new(Node { sim, id }))),
            None => Arc::new(Between(SendWrapper::new(sim))),
        })
    })
}

impl Node {
    /// Runs a future as code of a program on this node, as if it were one of its tasks: what it
    /// spawns runs here, and it has the node's time and address. It belongs to whoever polls it, so
    /// the death of the node does not end it.
    pub async fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|cx| {
            let outer = self.sim.0.at.replace(Some(self.id));
            let polled = future.as_mut().poll(cx);
            self.sim.0.at.set(outer);
            polled
        })
        .await
    }
}

/// A node. It is used on the thread of its world only.
struct Place(SendWrapper<Node>);

impl Host for Place {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(task);
    }

    fn now(&self) -> Time {
        self.0.now()
    }

    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(OnThread(SendWrapper::new(self.0.sim.sleep_until(at))))
    }

    fn random(&self) -> u64 {
        self.0.sim.random()
    }

    fn open(&self, config: &Config) -> Result<Handle, Error> {
        self.0.handle(config, 1, HandleConfig::default())
    }

    fn locate(&self, addr: &Addr) -> Result<Addr, Error> {
        let here = |port| Ok(self.0.addr(port));
        match addr.scheme() {
            Scheme::Shm => here(port_of(addr)),
            _ if is_here(addr.host()) => here(addr.port()),
            _ => self.0.sim.locate(addr),
        }
    }
}

/// No node: the code of a test, which has time and tasks, and no address.
struct Between(SendWrapper<Sim>);

impl Host for Between {
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.0.spawn(task);
    }

    fn now(&self) -> Time {
        self.0.now()
    }

    fn sleep_until(&self, at: Time) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(OnThread(SendWrapper::new(self.0.sleep_until(at))))
    }

    fn random(&self) -> u64 {
        self.0.random()
    }

    fn open(&self, _: &Config) -> Result<Handle, Error> {
        let text = "this code runs in a world, at none of its nodes: node.spawn, node.run or world.boot run it at one";
        Err(Error::new(ErrorKind::Invalid, text))
    }

    fn locate(&self, addr: &Addr) -> Result<Addr, Error> {
        self.0.locate(addr)
    }
}

impl Sim {
    fn random(&self) -> u64 {
        self.0.with(|core| core.programs.next_u64())
    }

    fn locate(&self, addr: &Addr) -> Result<Addr, Error> {
        match self.find_node(addr.host()) {
            Some(node) => Ok(node.addr(addr.port())),
            None => {
                let text = format!("the world has no node called {:?}, which {addr} needs", addr.host());
                Err(Error::new(ErrorKind::Refused, text))
            }
        }
    }
}

/// Returns true for the addresses by which a program means its own host.
fn is_here(host: &str) -> bool {
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || literal.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback() || ip.is_unspecified())
}

/// Returns the port for a path: a hash of it, which is the same in every run.
///
/// **Source.** FNV-1a (Fowler, Noll, Vo 1991).
fn port_of(addr: &Addr) -> u16 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = addr.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    u16::try_from(FIRST_PORT_OF_PATHS + hash % FIRST_PORT_OF_PATHS).expect("below 2^16")
}

/// A wait that is polled on the thread of its world only.
struct OnThread(SendWrapper<Sleep>);

impl Future for OnThread {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut *self.0).poll(cx)
    }
}
