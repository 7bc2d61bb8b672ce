//! The description of a backend that the suite needs to run over it.

use std::rc::Rc;
use std::time::Duration;

use bmi_core::{Addr, AnyTransport, Capabilities, Clock, PeerIdentity, Time};

/// A backend under test: a small world of named nodes, all driven by the suite, in one thread.
///
/// Every test uses a new value.
pub trait Backend {
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

    /// Returns who peers of this node's adapters see (C18), written by hand.
    fn identity(&self, node: &str) -> PeerIdentity {
        let _ = node;
        PeerIdentity::Nobody
    }

    /// Creates an adapter on the node of this name. Two calls with one name give two adapters of
    /// that node.
    fn transport(&self, node: &str) -> AnyTransport;

    /// Returns whether its adapters can share a listening address (C17). If not, the behaviours of
    /// [`transport::shards`](crate::transport::shards) do not run.
    fn has_shards(&self) -> bool {
        false
    }

    /// Creates `count` adapters on the node of this name that share their listening addresses
    /// (C17).
    ///
    /// # Panics
    /// If the backend's adapters cannot do that, which is the default.
    fn shards(&self, node: &str, count: usize) -> Vec<AnyTransport> {
        panic!("{} has no {count} adapters for one address on {node}", self.name());
    }

    /// Returns an address that an adapter of the node can listen at. The address is free at each
    /// call (port 0 where the backend supports it).
    fn listen_addr(&self, node: &str) -> Addr;

    /// Returns an address of the node without a listener.
    fn vacant_addr(&self, node: &str) -> Addr;

    /// Returns the clock.
    fn clock(&self) -> Rc<dyn Clock>;

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
