//! A simulated adapter under other addresses. It stands in for a transport of another scheme. So a
//! test can have several transports in one world, and can choose what each address leads to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::task::Waker;

use bmi_core::mem::RemotePages;
use bmi_core::transport::{
    Armed, BulkWay, ConnId, Event, HostWork, InlineReceiver, Payload, PostError, WorkId, WorkOptions, WriteTarget,
};
use bmi_core::{
    Access, Addr, Capabilities, Error, ErrorKind, MemSlice, Memory, MemoryRegion, RemoteKey, RemoteSlice, Segment,
    Time, Transport,
};
use bmi_sim::SimTransport;

/// The address that each address leads to, as one machine sees it.
pub type Names = Rc<RefCell<BTreeMap<Addr, Addr>>>;

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
        self.names.borrow().get(addr).cloned().ok_or_else(nobody)
    }
}

impl Transport for Alias {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
        let real = self.find(addr)?;
        self.inner.listen(&real).map(|_| addr.clone())
    }

    fn connect(&mut self, addr: &Addr, private: &[u8], deadline: Time) -> Result<ConnId, Error> {
        let real = self.find(addr)?;
        self.inner.connect(&real, private, deadline)
    }

    fn accept(&mut self, conn: ConnId, private: &[u8]) -> Result<(), Error> {
        self.inner.accept(conn, private)
    }

    fn reject(&mut self, conn: ConnId, private: &[u8]) {
        self.inner.reject(conn, private);
    }

    fn disconnect(&mut self, conn: ConnId, deadline: Time) {
        self.inner.disconnect(conn, deadline);
    }

    fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        self.inner.register(memory)
    }

    fn expose(&mut self, conn: ConnId, segment: &Segment, access: Access) -> Result<RemoteSlice, Error> {
        self.inner.expose(conn, segment, access)
    }

    fn revoke(&mut self, conn: ConnId, key: RemoteKey) {
        self.inner.revoke(conn, key);
    }

    fn post_recv(&mut self, conn: ConnId, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        self.inner.post_recv(conn, work, segments)
    }

    fn post_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.inner.post_send(conn, work, head, payload, options)
    }

    fn post_write(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        target: WriteTarget,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.inner.post_write(conn, work, head, segments, target, options)
    }

    fn post_read(
        &mut self,
        conn: ConnId,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.inner.post_read(conn, work, segments, remote, options)
    }

    fn poll(&mut self, now: Time, events: &mut Vec<Event>) -> bool {
        self.inner.poll(now, events)
    }

    fn poll_inline(&mut self, now: Time, events: &mut Vec<Event>, receiver: &mut dyn InlineReceiver) -> bool {
        self.inner.poll_inline(now, events, receiver)
    }

    fn write_now(&mut self, conn: ConnId, from: &[MemSlice], remote: RemoteSlice) -> bool {
        self.inner.write_now(conn, from, remote)
    }

    fn read_now(&mut self, conn: ConnId, into: &[MemSlice], remote: RemoteSlice) -> bool {
        self.inner.read_now(conn, into, remote)
    }

    fn bulk_ways(&mut self, conn: ConnId) -> Vec<BulkWay> {
        self.inner.bulk_ways(conn)
    }

    fn map_remote(&mut self, conn: ConnId, remote: RemoteSlice, access: Access) -> Option<RemotePages> {
        self.inner.map_remote(conn, remote, access)
    }

    fn charge(&mut self, work: HostWork) {
        self.inner.charge(work);
    }

    fn next_deadline(&self) -> Option<Time> {
        self.inner.next_deadline()
    }

    fn arm(&mut self, waker: &Waker) -> Armed {
        self.inner.arm(waker)
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.event_fd()
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }
}
