//! Drivers over a transport without an event fd: they sleep until its waker is called (C11).

use std::future::{Future, poll_fn};
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::pin;
use std::task::Waker;
use std::thread;
use std::time::Duration;

use bmi_core::driver::{MonotonicClock, Waiting, event, thread as on_thread};
use bmi_core::transport::{Armed, Bed};
use bmi_core::{
    Addr, Capabilities, Clock, Config, Endpoint, Engine, Error, ErrorKind, Memory, Options, PeerEvent, Posted,
    Transport, forward_transport,
};
use bmi_tcp::{TcpConfig, TcpTransport};
use rustix::event::{PollFd, PollFlags, Timespec};

const PATIENCE: Duration = Duration::from_secs(20);

/// TCP without its event fd. Each time that it is armed, a thread watches the fd and calls the
/// waker.
struct WithoutFd {
    inner: TcpTransport,
    capabilities: Capabilities,
}

impl WithoutFd {
    fn new() -> WithoutFd {
        let inner = TcpTransport::new(TcpConfig::default()).expect("a transport");
        let mut capabilities = inner.capabilities().clone();
        capabilities.event_fd = false;
        WithoutFd { inner, capabilities }
    }
}

#[deny(clippy::missing_trait_methods)]
impl Transport for WithoutFd {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn arm(&mut self, waker: &Waker) -> Armed {
        let armed = self.inner.arm(waker);
        if armed == Armed::Waiting {
            let fd = self.inner.event_fd().expect("TCP has one").try_clone_to_owned().expect("a descriptor");
            let waker = waker.clone();
            let watch = move || {
                let timeout = Timespec::try_from(PATIENCE).expect("some seconds");
                let _ = rustix::event::poll(&mut [PollFd::new(&fd.as_fd(), PollFlags::IN)], Some(&timeout));
                waker.wake();
            };
            thread::Builder::new().name("watch".into()).spawn(watch).expect("a thread");
        }
        armed
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    forward_transport!(self => self.inner; except capabilities, arm, event_fd, bed);

    fn bed(&self) -> Result<Option<Box<dyn Bed>>, Error> {
        Ok(None)
    }
}

fn endpoint(name: &str) -> Endpoint {
    let clock = MonotonicClock::new();
    let engine = Engine::new(Box::new(WithoutFd::new()), Config::named(name), clock.now());
    Endpoint::new(engine.expect("an engine"), clock)
}

/// Sends back the first message. The end of the connection waits until it has left.
async fn echo(endpoint: &Endpoint) -> Result<(), Error> {
    let message = endpoint.next_unexpected().await;
    let soon = endpoint.within(PATIENCE);
    message.peer().send(message.tag(), message.bytes().to_vec(), soon).await?;
    message.peer().disconnect(soon).await
}

#[test]
fn tokio_and_a_thread_sleep_until_the_waker_is_called() {
    let server = endpoint("server");
    let addr = server.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let client = thread::Builder::new().spawn(move || {
        let client = endpoint("client");
        let work = async {
            let soon = client.within(PATIENCE);
            let peer = client.connect(&addr, soon).await?;
            let buffer = Memory::zeroed(8)?;
            let reply = peer.recv(3, &buffer, soon);
            peer.send_unexpected(3, b"hello".to_vec(), soon).await?;
            reply.await.map(|reply| buffer.slice(0, reply.len as usize).to_vec())
        };
        on_thread::block_on(&client, Waiting::Event, work).unwrap()
    });
    event::block_on(server.clone(), echo(&server)).unwrap().unwrap();
    assert_eq!(client.unwrap().join().unwrap().unwrap(), b"hello");
}

/// A future that woke itself in each turn kept the thread from looking for what had arrived.
#[test]
fn a_future_that_is_always_ready_hides_no_arrival() {
    let server = endpoint("server");
    let addr = server.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let client = thread::Builder::new().spawn(move || {
        let client = endpoint("client");
        let work = async {
            let soon = client.within(PATIENCE);
            let peer = client.connect(&addr, soon).await?;
            peer.send_unexpected(3, b"hello".to_vec(), soon).await?;
            peer.recv(3, vec![0; 8], soon).await
        };
        on_thread::block_on(&client, Waiting::Event, work).unwrap()
    });
    let impatient = async {
        let mut echoed = pin!(echo(&server));
        let late = server.now() + PATIENCE;
        poll_fn(|cx| {
            cx.waker().wake_by_ref();
            assert!(server.now() < late, "nothing has arrived");
            echoed.as_mut().poll(cx)
        })
        .await
    };
    on_thread::block_on(&server, Waiting::Event, impatient).unwrap().unwrap();
    assert!(client.unwrap().join().unwrap().is_ok());
}

#[test]
fn a_blocked_wait_ends_by_the_waker_or_by_its_deadline() {
    let clock = MonotonicClock::new();
    let open = |name| Engine::new(Box::new(WithoutFd::new()), Config::named(name), clock.now()).unwrap();
    let (mut client, mut server) = (open("client"), open("server"));
    let addr = server.listen(&Addr::tcp("127.0.0.1", 0)).unwrap();
    let serving = thread::Builder::new().spawn(move || {
        let end = clock.now() + PATIENCE;
        let message = server.wait_until(&clock, end, Engine::poll_unexpected).unwrap();
        assert_eq!(message.bytes(), b"hello");
        server.wait_until(&clock, end, |server| match server.poll_event()? {
            PeerEvent::Lost { reason, .. } => Some(reason),
            PeerEvent::Connected { .. } => None,
        })
    });
    let end = clock.now() + PATIENCE;
    let (peer, op) = client.connect(&addr, Options::by(end)).unwrap();
    client.wait(op, &clock, end).unwrap();
    let error = client.wait(op, &clock, end).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "collected already: {error}");
    if let Posted::Pending(op) = client.post_send_unexpected(peer, 3, b"hello".to_vec(), Options::by(end)).unwrap() {
        client.wait(op, &clock, end).unwrap();
    }
    // Nothing will come: the wait ends, the receive goes on.
    let Posted::Pending(receive) = client.post_recv(peer, 9, vec![0; 8], Options::default()).unwrap() else {
        panic!("a receive without a message ended");
    };
    let error = client.wait(receive, &clock, clock.now() + Duration::from_millis(20)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let closing = client.disconnect(peer, Options::by(end)).unwrap();
    client.wait(closing, &clock, end).unwrap();
    assert_eq!(client.wait(receive, &clock, end).unwrap_err().kind(), ErrorKind::Cancelled);
    assert!(serving.unwrap().join().unwrap().is_ok());
}
