//! What a backend says about itself so that the suite can run over it.

use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Addr, Capabilities, Clock, Time, Transport};

/// A backend under test: a small world of named nodes, all driven by the suite, in one thread.
///
/// A new value is made for every test.
pub trait Backend {
    /// Its adapter.
    type Transport: Transport + 'static;
    /// Its clock.
    type Clock: Clock + Clone + 'static;

    /// Its name, for messages.
    fn name(&self) -> String;

    /// The capability set, written down by hand: a flag that flips in the backend fails every test
    /// rather than skip some.
    fn expected_capabilities(&self) -> Capabilities;

    /// Whether its adapters show messages to a receiver (C16). Written down by hand as the
    /// capabilities are: if one that says so shows nothing, tests fail.
    fn has_inline_receives(&self) -> bool {
        false
    }

    /// A new adapter on the node of this name. Called twice with one name it gives two adapters of
    /// that node.
    fn transport(&self, node: &str) -> Self::Transport;

    /// An address that an adapter of the node can listen at, free at each call (port 0 where the
    /// backend has that).
    fn listen_addr(&self, node: &str) -> Addr;

    /// An address of the node that nobody listens at.
    fn vacant_addr(&self, node: &str) -> Addr;

    /// The clock.
    fn clock(&self) -> Self::Clock;

    /// Called when no adapter has anything to do at this instant: lets time pass until something
    /// happens, at most until `until`, and by about a millisecond at most if that is `None` and
    /// nothing is about to happen. Where time passes by itself, gives others the processor.
    fn pass(&self, until: Option<Time>);

    /// How long, on the backend's clock, the suite waits for anything before it fails. Only failing
    /// tests take that long.
    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }

    /// How many cases of each property are tried.
    fn property_cases(&self) -> u32 {
        16
    }

    /// The time now.
    fn now(&self) -> Time {
        self.clock().now()
    }
}

/// Any backend, without its types. The suite runs over this one type, so that it is compiled once,
/// in this crate, and not again in the tests of each backend.
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
