//! A simulated adapter under other addresses. It stands in for a transport of another scheme. So a
//! test can have several transports in one world, and can choose what each address leads to.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bmi_core::transport::ConnId;
use bmi_core::{Addr, Error, ErrorKind, Time, Transport, forward_transport};
use bmi_sim::SimTransport;

/// The address that each address leads to, as one machine sees it.
pub type Names = Arc<Mutex<BTreeMap<Addr, Addr>>>;

/// An adapter whose addresses are translated.
pub struct Alias {
    inner: SimTransport,
    names: Names,
}

impl Alias {
    pub fn new(inner: SimTransport, names: Names) -> Alias {
        Alias { inner, names }
    }

    fn find(&self, addr: &Addr) -> Result<Addr, Error> {
        let nobody = || Error::new(ErrorKind::Refused, "nobody listens there").with_peer(addr);
        self.names.lock().unwrap().get(addr).cloned().ok_or_else(nobody)
    }
}

#[deny(clippy::missing_trait_methods)]
impl Transport for Alias {
    fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        let real = self.find(addr)?;
        self.inner.listen(&real).map(|_| addr.clone())
    }

    fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
        let real = self.find(addr)?;
        self.inner.connect(&real, private, deadline)
    }

    forward_transport!(self => self.inner;
        capabilities, accept, reject, disconnect, register, expose, revoke,
        post_recv, post_alike, post_send, post_write, post_read, write_now, read_now, map_remote, view_remote,
        bulk_ways, retired_memory, release_idle, moved_bytes, poll, poll_inline, charge, next_deadline,
        arm, event_fd, waker);
}
