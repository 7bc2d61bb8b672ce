//! `forward_transport!`, which writes the methods of a transport that wraps another one.

/// Writes methods of [`Transport`](crate::transport::Transport) that forward to another transport.
///
/// Use it inside an `impl` block. First comes the expression of the inner transport, then what to
/// forward: all methods (`..`), all `except` those that the wrapper writes itself, or only those
/// that are named. Put `#[deny(clippy::missing_trait_methods)]` on the `impl`. Some methods of the
/// trait have a default. A wrapper that neither forwards nor implements one of these would hide a
/// capability of the inner transport.
///
/// An adapter whose parts have methods of the same names, which are not of the trait, forwards to
/// `self`: the compiler prefers a type's own methods.
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
///     forward_transport!(self => self.inner; except listen);
/// }
/// ```
#[macro_export]
macro_rules! forward_transport {
    ($self:ident => $inner:expr; ..) => {
        $crate::forward_transport!(@all [] $self, $inner);
    };
    ($self:ident => $inner:expr; except $($own:ident),+ $(,)?) => {
        $crate::forward_transport!(@all [$($own)+] $self, $inner);
    };
    ($self:ident => $inner:expr; $($method:ident),+ $(,)?) => {
        $($crate::forward_transport!(@$method $self, $inner);)+
    };
    (@all $own:tt $self:ident, $inner:expr) => {
        $crate::forward_transport!(@each $own $self, $inner;
            capabilities listen connect accept reject disconnect register expose revoke
            post_recv post_alike post_send post_write post_read write_now read_now map_remote view_remote
            bulk_ways retired_memory release_idle moved_bytes poll poll_inline flush charge spread next_deadline
            arm event_fd bed waker);
    };
    (@each $own:tt $self:ident, $inner:expr; $($method:ident)+) => {
        $($crate::forward_transport!(@unless $method $own $self, $inner);)+
    };
    // Writes a method unless it is in the list of those that the wrapper writes.
    (@unless $method:ident [] $self:ident, $inner:expr) => {
        $crate::forward_transport!(@$method $self, $inner);
    };
    (@unless $method:ident [$first:ident $($rest:ident)*] $self:ident, $inner:expr) => {
        $crate::forward_transport!(@same $method $first [$($rest)*] $self, $inner);
    };
    (@same capabilities capabilities $($any:tt)*) => {};
    (@same listen listen $($any:tt)*) => {};
    (@same connect connect $($any:tt)*) => {};
    (@same accept accept $($any:tt)*) => {};
    (@same reject reject $($any:tt)*) => {};
    (@same disconnect disconnect $($any:tt)*) => {};
    (@same register register $($any:tt)*) => {};
    (@same expose expose $($any:tt)*) => {};
    (@same revoke revoke $($any:tt)*) => {};
    (@same post_recv post_recv $($any:tt)*) => {};
    (@same post_alike post_alike $($any:tt)*) => {};
    (@same post_send post_send $($any:tt)*) => {};
    (@same post_write post_write $($any:tt)*) => {};
    (@same post_read post_read $($any:tt)*) => {};
    (@same write_now write_now $($any:tt)*) => {};
    (@same read_now read_now $($any:tt)*) => {};
    (@same map_remote map_remote $($any:tt)*) => {};
    (@same view_remote view_remote $($any:tt)*) => {};
    (@same bulk_ways bulk_ways $($any:tt)*) => {};
    (@same retired_memory retired_memory $($any:tt)*) => {};
    (@same release_idle release_idle $($any:tt)*) => {};
    (@same moved_bytes moved_bytes $($any:tt)*) => {};
    (@same poll poll $($any:tt)*) => {};
    (@same poll_inline poll_inline $($any:tt)*) => {};
    (@same flush flush $($any:tt)*) => {};
    (@same charge charge $($any:tt)*) => {};
    (@same spread spread $($any:tt)*) => {};
    (@same next_deadline next_deadline $($any:tt)*) => {};
    (@same arm arm $($any:tt)*) => {};
    (@same event_fd event_fd $($any:tt)*) => {};
    (@same bed bed $($any:tt)*) => {};
    (@same waker waker $($any:tt)*) => {};
    (@same $method:ident $other:ident $rest:tt $self:ident, $inner:expr) => {
        $crate::forward_transport!(@unless $method $rest $self, $inner);
    };
    (@by_ref $self:ident, $inner:expr, $method:ident($($arg:ident: $type:ty),*) $(-> $returns:ty)?) => {
        fn $method(&$self $(, $arg: $type)*) $(-> $returns)? {
            $inner.$method($($arg),*)
        }
    };
    (@by_mut $self:ident, $inner:expr, $method:ident($($arg:ident: $type:ty),*) $(-> $returns:ty)?) => {
        fn $method(&mut $self $(, $arg: $type)*) $(-> $returns)? {
            $inner.$method($($arg),*)
        }
    };
    (@capabilities $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_ref $self, $inner, capabilities() -> &$crate::Capabilities);
    };
    (@listen $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner,
            listen(addr: &$crate::Addr) -> Result<$crate::Addr, $crate::Error>);
    };
    (@connect $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, connect(
            addr: &$crate::Addr, private: &[u8], deadline: $crate::Time
        ) -> Result<$crate::transport::ConnId, $crate::Error>);
    };
    (@accept $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner,
            accept(conn: $crate::transport::ConnId, private: &[u8]) -> Result<(), $crate::Error>);
    };
    (@reject $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, reject(conn: $crate::transport::ConnId, private: &[u8]));
    };
    (@disconnect $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner,
            disconnect(conn: $crate::transport::ConnId, deadline: $crate::Time));
    };
    (@register $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner,
            register(memory: &$crate::Memory) -> Result<$crate::MemoryRegion, $crate::Error>);
    };
    (@expose $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, expose(
            conn: $crate::transport::ConnId, segment: &$crate::Segment, access: $crate::Access
        ) -> Result<$crate::RemoteSlice, $crate::Error>);
    };
    (@revoke $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner,
            revoke(conn: $crate::transport::ConnId, key: $crate::RemoteKey));
    };
    (@post_recv $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, post_recv(
            conn: $crate::transport::ConnId, work: $crate::transport::WorkId, segments: &[$crate::Segment]
        ) -> Result<(), $crate::transport::PostError>);
    };
    (@post_alike $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, post_alike(
            conn: $crate::transport::ConnId, work: $crate::transport::WorkId, segments: &[$crate::Segment]
        ) -> Result<(), $crate::transport::PostError>);
    };
    (@post_send $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, post_send(
            conn: $crate::transport::ConnId, work: $crate::transport::WorkId, head: &[u8],
            payload: $crate::transport::Payload<'_>, options: $crate::transport::WorkOptions
        ) -> Result<(), $crate::transport::PostError>);
    };
    (@post_write $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, post_write(
            conn: $crate::transport::ConnId, work: $crate::transport::WorkId, head: &[u8],
            segments: &[$crate::Segment], target: $crate::transport::WriteTarget,
            options: $crate::transport::WorkOptions
        ) -> Result<(), $crate::transport::PostError>);
    };
    (@post_read $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, post_read(
            conn: $crate::transport::ConnId, work: $crate::transport::WorkId, segments: &[$crate::Segment],
            remote: $crate::RemoteSlice, options: $crate::transport::WorkOptions
        ) -> Result<(), $crate::transport::PostError>);
    };
    (@write_now $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner,
            write_now(conn: $crate::transport::ConnId, from: &[$crate::MemSlice], remote: $crate::RemoteSlice) -> bool);
    };
    (@read_now $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner,
            read_now(conn: $crate::transport::ConnId, into: &[$crate::MemSlice], remote: $crate::RemoteSlice) -> bool);
    };
    (@map_remote $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, map_remote(
            conn: $crate::transport::ConnId, remote: $crate::RemoteSlice, access: $crate::Access
        ) -> Option<$crate::mem::RemotePages>);
    };
    (@view_remote $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, view_remote(
            conn: $crate::transport::ConnId, remote: $crate::RemoteSlice
        ) -> Option<$crate::mem::RemoteView>);
    };
    (@bulk_ways $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner,
            bulk_ways(conn: $crate::transport::ConnId) -> Vec<$crate::transport::BulkWay>);
    };
    (@retired_memory $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_ref $self, $inner, retired_memory() -> $crate::transport::RetiredMemory);
    };
    (@release_idle $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner,
            release_idle(conn: $crate::transport::ConnId) -> $crate::transport::IdleMemory);
    };
    (@moved_bytes $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_ref $self, $inner, moved_bytes(conn: $crate::transport::ConnId) -> u64);
    };
    (@poll $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner,
            poll(now: $crate::Time, events: &mut Vec<$crate::transport::Event>) -> bool);
    };
    (@poll_inline $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, poll_inline(
            now: $crate::Time, events: &mut Vec<$crate::transport::Event>,
            receiver: &mut dyn $crate::transport::InlineReceiver
        ) -> bool);
    };
    (@flush $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner,
            flush(now: $crate::Time, events: &mut Vec<$crate::transport::Event>) -> bool);
    };
    (@charge $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, charge(work: $crate::transport::HostWork));
    };
    (@spread $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, spread(members: usize));
    };
    (@next_deadline $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_ref $self, $inner, next_deadline() -> Option<$crate::Time>);
    };
    (@arm $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_mut $self, $inner, arm(waker: &std::task::Waker) -> $crate::transport::Armed);
    };
    (@event_fd $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_ref $self, $inner, event_fd() -> Option<std::os::fd::BorrowedFd<'_>>);
    };
    (@bed $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_ref $self, $inner,
            bed() -> Result<Option<Box<dyn $crate::transport::Bed>>, $crate::Error>);
    };
    (@waker $self:ident, $inner:expr) => {
        $crate::forward_transport!(@by_ref $self, $inner, waker() -> std::task::Waker);
    };
}
