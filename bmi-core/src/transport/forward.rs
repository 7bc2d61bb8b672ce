//! `forward_transport!`, which writes the methods of a transport that wraps another one.

/// Writes methods of [`Transport`](crate::transport::Transport) that forward to another transport.
///
/// Use it inside an `impl` block. First comes the expression of the inner transport, then the names
/// of the methods to forward, or `..` for all of them. Put `#[deny(clippy::missing_trait_methods)]`
/// on the `impl`. Some methods of the trait have a default. A wrapper that neither forwards nor
/// implements one of these would hide a capability of the inner transport.
///
/// ```
/// use bmi_core::{Addr, Error, Transport, forward_transport};
///
/// /// Counts the addresses that it listens at.
/// struct Counted<T> {
///     inner: T,
///     listening: usize,
/// }
///
/// #[deny(clippy::missing_trait_methods)]
/// impl<T: Transport> Transport for Counted<T> {
///     fn listen(&mut self, addr: &Addr) -> Result<Addr, Error> {
///         self.listening += 1;
///         self.inner.listen(addr)
///     }
///
///     forward_transport!(self => self.inner;
///         capabilities, connect, accept, reject, disconnect, register, expose, revoke,
///         post_recv, post_alike, post_send, post_write, post_read, write_now, read_now, map_remote, view_remote,
///         bulk_ways, retired_memory, release_idle, moved_bytes, poll, poll_inline, charge, next_deadline,
///         arm, event_fd, waker);
/// }
/// ```
#[macro_export]
macro_rules! forward_transport {
    ($self:ident => $inner:expr; ..) => {
        $crate::forward_transport!($self => $inner;
            capabilities, listen, connect, accept, reject, disconnect, register, expose, revoke,
            post_recv, post_alike, post_send, post_write, post_read, write_now, read_now, map_remote, view_remote,
            bulk_ways, retired_memory, release_idle, moved_bytes, poll, poll_inline, charge, next_deadline,
            arm, event_fd, waker);
    };
    ($self:ident => $inner:expr; $($method:ident),+ $(,)?) => {
        $($crate::forward_transport!(@$method $self, $inner);)+
    };
    (@capabilities $self:ident, $inner:expr) => {
        fn capabilities(&$self) -> &$crate::Capabilities {
            $inner.capabilities()
        }
    };
    (@listen $self:ident, $inner:expr) => {
        fn listen(&mut $self, addr: &$crate::Addr) -> Result<$crate::Addr, $crate::Error> {
            $inner.listen(addr)
        }
    };
    (@connect $self:ident, $inner:expr) => {
        fn connect(
            &mut $self,
            addr: &$crate::Addr,
            private: &[u8],
            deadline: $crate::Time,
        ) -> Result<$crate::transport::ConnId, $crate::Error> {
            $inner.connect(addr, private, deadline)
        }
    };
    (@accept $self:ident, $inner:expr) => {
        fn accept(&mut $self, conn: $crate::transport::ConnId, private: &[u8]) -> Result<(), $crate::Error> {
            $inner.accept(conn, private)
        }
    };
    (@reject $self:ident, $inner:expr) => {
        fn reject(&mut $self, conn: $crate::transport::ConnId, private: &[u8]) {
            $inner.reject(conn, private);
        }
    };
    (@disconnect $self:ident, $inner:expr) => {
        fn disconnect(&mut $self, conn: $crate::transport::ConnId, deadline: $crate::Time) {
            $inner.disconnect(conn, deadline);
        }
    };
    (@register $self:ident, $inner:expr) => {
        fn register(&mut $self, memory: &$crate::Memory) -> Result<$crate::MemoryRegion, $crate::Error> {
            $inner.register(memory)
        }
    };
    (@expose $self:ident, $inner:expr) => {
        fn expose(
            &mut $self,
            conn: $crate::transport::ConnId,
            segment: &$crate::Segment,
            access: $crate::Access,
        ) -> Result<$crate::RemoteSlice, $crate::Error> {
            $inner.expose(conn, segment, access)
        }
    };
    (@revoke $self:ident, $inner:expr) => {
        fn revoke(&mut $self, conn: $crate::transport::ConnId, key: $crate::RemoteKey) {
            $inner.revoke(conn, key);
        }
    };
    (@post_recv $self:ident, $inner:expr) => {
        fn post_recv(
            &mut $self,
            conn: $crate::transport::ConnId,
            work: $crate::transport::WorkId,
            segments: &[$crate::Segment],
        ) -> Result<(), $crate::transport::PostError> {
            $inner.post_recv(conn, work, segments)
        }
    };
    (@post_alike $self:ident, $inner:expr) => {
        fn post_alike(
            &mut $self,
            conn: $crate::transport::ConnId,
            work: $crate::transport::WorkId,
            segments: &[$crate::Segment],
        ) -> Result<(), $crate::transport::PostError> {
            $inner.post_alike(conn, work, segments)
        }
    };
    (@post_send $self:ident, $inner:expr) => {
        fn post_send(
            &mut $self,
            conn: $crate::transport::ConnId,
            work: $crate::transport::WorkId,
            head: &[u8],
            payload: $crate::transport::Payload<'_>,
            options: $crate::transport::WorkOptions,
        ) -> Result<(), $crate::transport::PostError> {
            $inner.post_send(conn, work, head, payload, options)
        }
    };
    (@post_write $self:ident, $inner:expr) => {
        fn post_write(
            &mut $self,
            conn: $crate::transport::ConnId,
            work: $crate::transport::WorkId,
            head: &[u8],
            segments: &[$crate::Segment],
            target: $crate::transport::WriteTarget,
            options: $crate::transport::WorkOptions,
        ) -> Result<(), $crate::transport::PostError> {
            $inner.post_write(conn, work, head, segments, target, options)
        }
    };
    (@post_read $self:ident, $inner:expr) => {
        fn post_read(
            &mut $self,
            conn: $crate::transport::ConnId,
            work: $crate::transport::WorkId,
            segments: &[$crate::Segment],
            remote: $crate::RemoteSlice,
            options: $crate::transport::WorkOptions,
        ) -> Result<(), $crate::transport::PostError> {
            $inner.post_read(conn, work, segments, remote, options)
        }
    };
    (@write_now $self:ident, $inner:expr) => {
        fn write_now(
            &mut $self,
            conn: $crate::transport::ConnId,
            from: &[$crate::MemSlice],
            remote: $crate::RemoteSlice,
        ) -> bool {
            $inner.write_now(conn, from, remote)
        }
    };
    (@read_now $self:ident, $inner:expr) => {
        fn read_now(
            &mut $self,
            conn: $crate::transport::ConnId,
            into: &[$crate::MemSlice],
            remote: $crate::RemoteSlice,
        ) -> bool {
            $inner.read_now(conn, into, remote)
        }
    };
    (@map_remote $self:ident, $inner:expr) => {
        fn map_remote(
            &mut $self,
            conn: $crate::transport::ConnId,
            remote: $crate::RemoteSlice,
            access: $crate::Access,
        ) -> Option<$crate::mem::RemotePages> {
            $inner.map_remote(conn, remote, access)
        }
    };
    (@view_remote $self:ident, $inner:expr) => {
        fn view_remote(
            &mut $self,
            conn: $crate::transport::ConnId,
            remote: $crate::RemoteSlice,
        ) -> Option<$crate::mem::RemoteView> {
            $inner.view_remote(conn, remote)
        }
    };
    (@bulk_ways $self:ident, $inner:expr) => {
        fn bulk_ways(&mut $self, conn: $crate::transport::ConnId) -> Vec<$crate::transport::BulkWay> {
            $inner.bulk_ways(conn)
        }
    };
    (@retired_memory $self:ident, $inner:expr) => {
        fn retired_memory(&$self) -> $crate::transport::RetiredMemory {
            $inner.retired_memory()
        }
    };
    (@moved_bytes $self:ident, $inner:expr) => {
        fn moved_bytes(&$self, conn: $crate::transport::ConnId) -> u64 {
            $inner.moved_bytes(conn)
        }
    };
    (@release_idle $self:ident, $inner:expr) => {
        fn release_idle(&mut $self, conn: $crate::transport::ConnId) -> $crate::transport::IdleMemory {
            $inner.release_idle(conn)
        }
    };
    (@poll $self:ident, $inner:expr) => {
        fn poll(&mut $self, now: $crate::Time, events: &mut Vec<$crate::transport::Event>) -> bool {
            $inner.poll(now, events)
        }
    };
    (@poll_inline $self:ident, $inner:expr) => {
        fn poll_inline(
            &mut $self,
            now: $crate::Time,
            events: &mut Vec<$crate::transport::Event>,
            receiver: &mut dyn $crate::transport::InlineReceiver,
        ) -> bool {
            $inner.poll_inline(now, events, receiver)
        }
    };
    (@charge $self:ident, $inner:expr) => {
        fn charge(&mut $self, work: $crate::transport::HostWork) {
            $inner.charge(work);
        }
    };
    (@next_deadline $self:ident, $inner:expr) => {
        fn next_deadline(&$self) -> Option<$crate::Time> {
            $inner.next_deadline()
        }
    };
    (@arm $self:ident, $inner:expr) => {
        fn arm(&mut $self, waker: &std::task::Waker) -> $crate::transport::Armed {
            $inner.arm(waker)
        }
    };
    (@event_fd $self:ident, $inner:expr) => {
        fn event_fd(&$self) -> Option<std::os::fd::BorrowedFd<'_>> {
            $inner.event_fd()
        }
    };
    (@waker $self:ident, $inner:expr) => {
        fn waker(&$self) -> std::task::Waker {
            $inner.waker()
        }
    };
}
