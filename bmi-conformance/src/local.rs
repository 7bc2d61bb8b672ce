//! A ready-made [`Backend`] for backends whose adapters are all in this process. Their descriptions
//! differ in a few values only.

use std::rc::Rc;

use bmi_core::driver::MonotonicClock;
use bmi_core::{Addr, AnyTransport, Capabilities, Clock, OneSided, PeerIdentity, Registration, Time, Transport};

use crate::backend::Backend;

/// The capabilities of an adapter without hardware on a real system, written by hand. A backend
/// states how its own differ.
pub fn software_capabilities() -> Capabilities {
    let mut expected = Capabilities::minimal();
    expected.one_sided = OneSided::Emulated;
    expected.rdma_read = true;
    expected.write_with_immediate = true;
    expected.registration = Registration::Free;
    expected.max_segments = 1024;
    expected.max_head = 256;
    expected.max_inline = (8 << 10) + 256;
    expected.max_work_len = 1 << 40;
    expected.send_queue_depth = 1024;
    expected.recv_queue_depth = 4096;
    expected.max_outstanding_reads = 64;
    expected.service_levels = 1;
    expected.event_fd = true;
    expected
}

/// Adapters of this process, driven by the wall clock.
///
/// ```text
/// fn plain() -> Local {
///     let make = || TcpTransport::new(TcpConfig::default()).expect("the system has a descriptor");
///     Local::new("tcp", pinned(), make, |_| Addr::tcp("127.0.0.1", 0), Addr::tcp("127.0.0.1", 1))
/// }
/// ```
pub struct Local {
    name: &'static str,
    expected: Capabilities,
    make: Box<dyn Fn() -> AnyTransport>,
    shards: Option<Box<dyn Fn(usize) -> Vec<AnyTransport>>>,
    listen: Box<dyn Fn(&str) -> Addr>,
    vacant: Addr,
    cases: u32,
    shows: bool,
    identity: PeerIdentity,
    clock: MonotonicClock,
}

impl Local {
    /// Creates a backend whose adapters `make` creates, all alike. For `expected`, `listen` and
    /// `vacant` see [`Backend::expected_capabilities`], [`Backend::listen_addr`] and
    /// [`Backend::vacant_addr`]. Tries 8 cases of each property.
    pub fn new<T: Transport + Send + 'static>(
        name: &'static str,
        expected: Capabilities,
        make: impl Fn() -> T + 'static,
        listen: impl Fn(&str) -> Addr + 'static,
        vacant: Addr,
    ) -> Local {
        let (make, listen) = (Box::new(move || -> AnyTransport { Box::new(make()) }), Box::new(listen));
        Local {
            name,
            expected,
            make,
            shards: None,
            listen,
            vacant,
            cases: 8,
            shows: false,
            identity: PeerIdentity::Nobody,
            clock: MonotonicClock::new(),
        }
    }

    /// Sets the number of cases of each property.
    #[must_use]
    pub fn with_cases(mut self, cases: u32) -> Local {
        self.cases = cases;
        self
    }

    /// Declares that its adapters can share a listening address: see [`Backend::shards`]. `make`
    /// creates a group of as many adapters.
    #[must_use]
    pub fn with_shards<T: Transport + Send + 'static>(mut self, make: impl Fn(usize) -> Vec<T> + 'static) -> Local {
        let boxed = |transport| -> AnyTransport { Box::new(transport) };
        self.shards = Some(Box::new(move |count| make(count).into_iter().map(boxed).collect()));
        self
    }

    /// Declares that its adapters have inline receives: see [`Backend::has_inline_receives`].
    #[must_use]
    pub fn with_inline_receives(mut self) -> Local {
        self.shows = true;
        self
    }

    /// Declares who the peers of its adapters see: see [`Backend::identity`].
    #[must_use]
    pub fn with_identity(mut self, identity: PeerIdentity) -> Local {
        self.identity = identity;
        self
    }
}

impl Backend for Local {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn expected_capabilities(&self) -> Capabilities {
        self.expected.clone()
    }

    fn has_inline_receives(&self) -> bool {
        self.shows
    }

    fn identity(&self, _node: &str) -> PeerIdentity {
        self.identity.clone()
    }

    fn has_shards(&self) -> bool {
        self.shards.is_some()
    }

    fn transport(&self, _node: &str) -> AnyTransport {
        (self.make)()
    }

    fn shards(&self, node: &str, count: usize) -> Vec<AnyTransport> {
        match &self.shards {
            Some(make) => make(count),
            None => panic!("{} has no {count} adapters for one address on {node}", self.name),
        }
    }

    fn listen_addr(&self, node: &str) -> Addr {
        (self.listen)(node)
    }

    fn vacant_addr(&self, _node: &str) -> Addr {
        self.vacant.clone()
    }

    fn clock(&self) -> Rc<dyn Clock> {
        Rc::new(self.clock)
    }

    fn pass(&self, _until: Option<Time>) {
        std::thread::yield_now();
    }

    fn property_cases(&self) -> u32 {
        self.cases
    }
}
