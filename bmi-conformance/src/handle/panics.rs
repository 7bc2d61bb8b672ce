//! Panics in a task, in a waker and in an owner of memory.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use bmi_core::comm::Body;
use bmi_core::{Error, ErrorKind, Memory, Options};

use super::bed::{Backend, LIMIT, Pair, any_call, futures_block_on, serve, start_thread, wait_until};
use crate::Rng;

/// A task that panics in the middle of operations harms no other.
pub fn a_panic_harms_no_other(backend: &Backend) {
    let pair = Pair::new(backend, 1, 1);
    let servers = serve(&pair.server, 2);
    let peer = pair.connect();
    let to_server = peer.clone();
    let panicking = thread::Builder::new().name("a thread that panics on purpose".into());
    let panicked = panicking.spawn(move || {
        let _call = to_server.call(&[1], Body::None, to_server.within(LIMIT)).expect("a call");
        let memory = Memory::zeroed(10).expect("memory");
        let _receive = to_server.recv(3, &memory, Options::default());
        // Nothing is printed: the hook prints only for `panic!`.
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(panicked.expect("a thread").join().is_err());
    // A waker that panics does so on the thread of the driver.
    struct Panics(AtomicUsize);
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
    let waker = Arc::new(Panics(AtomicUsize::new(0)));
    let mut sleep = Box::pin({
        let client = pair.client.clone();
        async move { client.sleep(Duration::from_millis(5)).await }
    });
    let polled = sleep.as_mut().poll(&mut std::task::Context::from_waker(&Arc::clone(&waker).into()));
    assert!(polled.is_pending());
    // Others that wait for the same time are woken with it.
    let sleeper = pair.client.clone();
    let until = pair.client.now() + Duration::from_millis(5);
    let other = start_thread(move || futures_block_on(sleeper.sleep_until(until)));
    wait_until(|| waker.0.load(Ordering::SeqCst) > 0, "wake-ups");
    other.join().expect("a sleep ends").expect("there is room");
    drop(sleep);
    let mut rng = Rng::new(1);
    for _ in 0..20 {
        pair.client.block_on(any_call(&peer, &mut rng)).expect("the others go on");
    }
    pair.end();
    assert!(servers.into_iter().all(|server| server.join().is_ok()));
}

/// The owner of a message's bytes panics when it is dropped, in the middle of the endpoint's work.
/// Operations that ended at the same time did not end.
pub fn an_owner_of_memory_that_panics_harms_no_other(backend: &Backend) {
    struct Owner(Vec<u8>);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Owner {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }
    let pair = Pair::new(backend, 1, 1);
    let (server, from) = pair.connect_both();
    let client = &pair.client;
    // Nobody receives them, so they wait.
    let owned = |len| Memory::from(bytes::Bytes::from_owner(Owner(vec![0; len])));
    let sends: Vec<_> = (0..3).map(|tag| server.send(tag, owned(1 << 20), Options::default())).collect();
    let memory = Memory::zeroed(100).expect("memory");
    let receives: Vec<_> = (0..3).map(|tag| server.recv(tag, &memory, Options::default())).collect();
    let (end, ended) = mpsc::channel();
    let waiter = start_thread(move || {
        for receive in receives {
            end.send(futures_block_on(receive).is_err()).expect("the test");
        }
    });
    from.cut(Error::new(ErrorKind::Cancelled, "on purpose"));
    for _ in 0..3 {
        assert!(ended.recv_timeout(LIMIT).expect("the receives end"));
    }
    waiter.join().expect("the waiter");
    for send in sends {
        assert!(client.block_on(send).is_err());
    }
    let again = pair.connect();
    assert_ne!(again.id(), server.id());
    pair.end();
}
