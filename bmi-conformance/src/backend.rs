//! What a backend says about itself so that the suite can run over it.

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

    /// The capability set, written down by hand: a flag that flips in the backend fails every test rather than skip some.
    fn expected_capabilities(&self) -> Capabilities;

    /// Whether its adapters show messages to a taker (C16). Written down by hand as the capabilities are: if one that says so shows nothing, tests fail.
    fn shows_messages(&self) -> bool {
        false
    }

    /// A new adapter on the node of this name. Called twice with one name it gives two adapters of that node.
    fn transport(&self, node: &str) -> Self::Transport;

    /// An address that an adapter of the node can listen at, free at each call (port 0 where the backend has that).
    fn listen_addr(&self, node: &str) -> Addr;

    /// An address of the node that nobody listens at.
    fn vacant_addr(&self, node: &str) -> Addr;

    /// The clock.
    fn clock(&self) -> Self::Clock;

    /// Called when no adapter has anything to do at this instant: lets time pass until something happens, at most until
    /// `until`, and by about a millisecond at most if that is `None` and nothing is about to happen. Where time passes by itself, gives
    /// others the processor.
    fn pass(&self, until: Option<Time>);

    /// How long, on the backend's clock, the suite waits for anything before it fails. Only failing tests take that long.
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

impl<K: Backend> Backend for &K {
    type Transport = K::Transport;
    type Clock = K::Clock;

    fn name(&self) -> String {
        (**self).name()
    }

    fn expected_capabilities(&self) -> Capabilities {
        (**self).expected_capabilities()
    }

    fn shows_messages(&self) -> bool {
        (**self).shows_messages()
    }

    fn transport(&self, node: &str) -> K::Transport {
        (**self).transport(node)
    }

    fn listen_addr(&self, node: &str) -> Addr {
        (**self).listen_addr(node)
    }

    fn vacant_addr(&self, node: &str) -> Addr {
        (**self).vacant_addr(node)
    }

    fn clock(&self) -> K::Clock {
        (**self).clock()
    }

    fn pass(&self, until: Option<Time>) {
        (**self).pass(until);
    }

    fn patience(&self) -> Duration {
        (**self).patience()
    }

    fn property_cases(&self) -> u32 {
        (**self).property_cases()
    }
}
