//! The description of a backend that the suite needs to run over it.

use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Addr, Capabilities, Clock, Time, Transport};

/// A backend under test: a small world of named nodes, all driven by the suite, in one thread.
///
/// Every test uses a new value.
pub trait Backend {
    /// The backend's adapter.
    type Transport: Transport + 'static;
    /// The backend's clock.
    type Clock: Clock + Clone + 'static;

    /// Returns its name, for messages.
    fn name(&self) -> String;

    /// Returns the expected capability set, written by hand. A flag that changes in the backend
    /// then fails every test, instead of skipping some.
    fn expected_capabilities(&self) -> Capabilities;

    /// Returns whether its adapters have inline receives (C16). Like the capabilities it is written
    /// by hand: if it returns true and no message is shown, tests fail.
    fn has_inline_receives(&self) -> bool {
        false
    }

    /// Creates an adapter on the node of this name. Two calls with one name give two adapters of
    /// that node.
    fn transport(&self, node: &str) -> Self::Transport;

    /// Creates `count` adapters on the node of this name that share their listening addresses
    /// (C17).
    ///
    /// # Panics
    /// If the backend's adapters cannot do that. It does not instantiate
    /// [`shard_suite!`](crate::shard_suite) then. This is the default.
    fn shards(&self, node: &str, count: usize) -> Vec<Self::Transport> {
        panic!("{} has no {count} adapters for one address on {node}", self.name());
    }

    /// Returns an address that an adapter of the node can listen at. The address is free at each
    /// call (port 0 where the backend supports it).
    fn listen_addr(&self, node: &str) -> Addr;

    /// Returns an address of the node without a listener.
    fn vacant_addr(&self, node: &str) -> Addr;

    /// Returns the clock.
    fn clock(&self) -> Self::Clock;

    /// Lets time pass; called when no adapter has anything to do at this instant. It returns when
    /// something happens, at the latest at `until`. If `until` is `None` and nothing is about to
    /// happen, it returns after about a millisecond. Where time passes without help, it yields the
    /// processor.
    fn pass(&self, until: Option<Time>);

    /// Returns how long, on the backend's clock, the suite waits for an event before it fails. Only
    /// failing tests take that long.
    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }

    /// Returns how many cases of each property are tried.
    fn property_cases(&self) -> u32 {
        16
    }

    /// Returns the current time.
    fn now(&self) -> Time {
        self.clock().now()
    }
}

/// Any backend, without its types. The suite runs over this one type. So it is compiled once, in
/// this crate, and not again in the tests of each backend.
pub(crate) struct AnyBackend<'a>(&'a dyn Erased);

impl<'a> AnyBackend<'a> {
    pub(crate) fn new<K: Backend>(backend: &'a K) -> AnyBackend<'a> {
        AnyBackend(backend)
    }
}

/// The clock of [`AnyBackend`].
#[derive(Clone)]
pub(crate) struct AnyClock(Rc<dyn Clock>);

impl Clock for AnyClock {
    fn now(&self) -> Time {
        self.0.now()
    }
}

/// [`Backend`] without its types.
trait Erased {
    fn name(&self) -> String;
    fn expected_capabilities(&self) -> Capabilities;
    fn has_inline_receives(&self) -> bool;
    fn transport(&self, node: &str) -> Box<dyn Transport>;
    fn shards(&self, node: &str, count: usize) -> Vec<Box<dyn Transport>>;
    fn listen_addr(&self, node: &str) -> Addr;
    fn vacant_addr(&self, node: &str) -> Addr;
    fn clock(&self) -> AnyClock;
    fn pass(&self, until: Option<Time>);
    fn patience(&self) -> Duration;
    fn property_cases(&self) -> u32;
    fn now(&self) -> Time;
}

impl<K: Backend> Erased for K {
    fn name(&self) -> String {
        Backend::name(self)
    }

    fn expected_capabilities(&self) -> Capabilities {
        Backend::expected_capabilities(self)
    }

    fn has_inline_receives(&self) -> bool {
        Backend::has_inline_receives(self)
    }

    fn transport(&self, node: &str) -> Box<dyn Transport> {
        Box::new(Backend::transport(self, node))
    }

    fn shards(&self, node: &str, count: usize) -> Vec<Box<dyn Transport>> {
        let boxed = |transport| -> Box<dyn Transport> { Box::new(transport) };
        Backend::shards(self, node, count).into_iter().map(boxed).collect()
    }

    fn listen_addr(&self, node: &str) -> Addr {
        Backend::listen_addr(self, node)
    }

    fn vacant_addr(&self, node: &str) -> Addr {
        Backend::vacant_addr(self, node)
    }

    fn clock(&self) -> AnyClock {
        AnyClock(Rc::new(Backend::clock(self)))
    }

    fn pass(&self, until: Option<Time>) {
        Backend::pass(self, until);
    }

    fn patience(&self) -> Duration {
        Backend::patience(self)
    }

    fn property_cases(&self) -> u32 {
        Backend::property_cases(self)
    }

    fn now(&self) -> Time {
        Backend::now(self)
    }
}

impl Backend for AnyBackend<'_> {
    type Transport = Box<dyn Transport>;
    type Clock = AnyClock;

    fn name(&self) -> String {
        self.0.name()
    }

    fn expected_capabilities(&self) -> Capabilities {
        self.0.expected_capabilities()
    }

    fn has_inline_receives(&self) -> bool {
        self.0.has_inline_receives()
    }

    fn transport(&self, node: &str) -> Box<dyn Transport> {
        self.0.transport(node)
    }

    fn shards(&self, node: &str, count: usize) -> Vec<Box<dyn Transport>> {
        self.0.shards(node, count)
    }

    fn listen_addr(&self, node: &str) -> Addr {
        self.0.listen_addr(node)
    }

    fn vacant_addr(&self, node: &str) -> Addr {
        self.0.vacant_addr(node)
    }

    fn clock(&self) -> AnyClock {
        self.0.clock()
    }

    fn pass(&self, until: Option<Time>) {
        self.0.pass(until);
    }

    fn patience(&self) -> Duration {
        self.0.patience()
    }

    fn property_cases(&self) -> u32 {
        self.0.property_cases()
    }

    fn now(&self) -> Time {
        self.0.now()
    }
}
