//! A simulated adapter that can also complete pulls and pushes when they are posted, as an adapter
//! over shared memory does. It also counts the messages that inline receives take.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use bmi_core::transport::{
    ConnId, Event, InlineMessage, InlineReceiver, Payload, PostError, WorkId, WorkOptions, WriteTarget,
};
use bmi_core::{Access, Error, MemList, MemSlice, RemoteKey, RemoteSlice, Segment, Time, Transport, forward_transport};
use bmi_sim::SimTransport;
use send_wrapper::SendWrapper;

/// Longest transfer that completes when it is posted, in bytes.
pub const MOST: usize = 64 << 10;

/// What both adapters of a world share.
#[derive(Default)]
pub struct Shared {
    /// The exposed memory: where it starts for the peer, where it is, and who may do what.
    exposed: RefCell<Vec<(RemoteSlice, MemSlice, Access)>>,
    /// Work was posted that may not have taken effect.
    pub waits: Cell<bool>,
    /// Number of messages that inline receives took.
    pub taken: Cell<u64>,
}

/// The adapter.
pub struct Immediate {
    pub inner: SimTransport,
    pub shared: SendWrapper<Rc<Shared>>,
}

impl Immediate {
    /// Returns the exposed memory itself, if the peer may access it in this way now.
    fn reach(&self, remote: RemoteSlice, allowed: fn(&Access) -> bool) -> Option<MemSlice> {
        let exposed = self.shared.exposed.borrow();
        let (start, memory, _) =
            exposed.iter().find(|(start, _, access)| start.key == remote.key && allowed(access))?;
        let offset = usize::try_from(remote.addr.checked_sub(start.addr)?).ok()?;
        let len = usize::try_from(remote.len).ok()?;
        let within = !self.shared.waits.get() && offset.checked_add(len)? <= memory.len() && len <= MOST;
        within.then(|| memory.slice(offset, len))
    }
}

/// Counts what another receiver takes.
struct Counting<'a>(&'a mut dyn InlineReceiver, &'a Cell<u64>);

impl InlineReceiver for Counting<'_> {
    fn take(&mut self, conn: ConnId, message: InlineMessage<'_>) -> bool {
        let taken = self.0.take(conn, message);
        self.1.set(self.1.get() + u64::from(taken));
        taken
    }
}

#[deny(clippy::missing_trait_methods)]
impl Transport for Immediate {
    fn expose(&mut self, conn: ConnId, segment: &Segment, access: Access) -> Result<RemoteSlice, Error> {
        let remote = self.inner.expose(conn, segment, access)?;
        self.shared.exposed.borrow_mut().push((remote, segment.to_slice(), access));
        Ok(remote)
    }

    fn revoke(&mut self, conn: ConnId, key: RemoteKey) {
        self.shared.exposed.borrow_mut().retain(|(remote, ..)| remote.key != key);
        self.inner.revoke(conn, key);
    }

    fn post_send(
        &mut self,
        conn: ConnId,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        self.shared.waits.set(true);
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
        self.shared.waits.set(true);
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
        self.shared.waits.set(true);
        self.inner.post_read(conn, work, segments, remote, options)
    }

    fn write_now(&mut self, _conn: ConnId, from: &[MemSlice], remote: RemoteSlice) -> bool {
        let from: MemList = from.iter().cloned().collect();
        let target = self.reach(remote, |access| access.remote_write).filter(|target| from.len() <= target.len());
        target.map(|target| target.slice(0, from.len()).copy_from(&from.to_vec())).is_some()
    }

    fn read_now(&mut self, _conn: ConnId, into: &[MemSlice], remote: RemoteSlice) -> bool {
        let into: MemList = into.iter().cloned().collect();
        let source = self.reach(remote, |access| access.remote_read);
        let source = source.filter(|source| into.len() <= source.len() && !into.is_read_only());
        source.map(|source| into.copy_from(0, &source.slice(0, into.len()).to_vec())).is_some()
    }

    fn poll_inline(&mut self, now: Time, events: &mut Vec<Event>, receiver: &mut dyn InlineReceiver) -> bool {
        self.inner.poll_inline(now, events, &mut Counting(receiver, &self.shared.taken))
    }

    forward_transport!(self => self.inner;
        except expose, revoke, post_send, post_write, post_read, write_now, read_now, poll_inline);
}
