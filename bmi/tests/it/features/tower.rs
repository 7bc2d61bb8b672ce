//! Clients and servers as `tower::Service`.

use std::future::Ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bmi::rpc::Reply;
use bmi::rpc::tower::{Request, handler};
use bmi::{Client, Error, ErrorKind};
use tokio::sync::Semaphore;
use tower::retry::{Policy, Retry};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::bed::{Bed, LIMIT, everywhere, outside};

async fn echo(request: Request) -> Result<Reply, Error> {
    Ok(Reply { bytes: request.bytes, data: request.data, ..Reply::default() })
}

/// Repeats what has failed as `Busy`, a few times.
#[derive(Clone)]
struct IfBusy(u32);

impl Policy<Request, Reply, Error> for IfBusy {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut Request, result: &mut Result<Reply, Error>) -> Option<Ready<()>> {
        let busy = matches!(result, Err(error) if error.kind() == ErrorKind::Busy);
        self.0 = self.0.checked_sub(1).filter(|_| busy)?;
        Some(std::future::ready(()))
    }

    fn clone_request(&mut self, request: &Request) -> Option<Request> {
        Some(request.clone())
    }
}

#[test]
fn services_answer_services_through_layers() {
    everywhere(async |bed: &Bed| {
        let tries = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&tries);
        let service = service_fn(move |request: Request| {
            let busy = counted.fetch_add(1, Ordering::Relaxed) < 2;
            async move {
                assert!(request.timeout.is_some_and(|left| left < LIMIT), "{request:?}");
                if busy { Err(Error::new(ErrorKind::Busy, "not yet")) } else { echo(request).await }
            }
        });
        let (server, addr) = bed.serve(handler(ServiceBuilder::new().concurrency_limit(2).service(service))).await;
        let client = Client::new(addr);
        let layered = ServiceBuilder::new().concurrency_limit(4).service(client.clone());
        let request = Request::new("x").data(vec![7; 100_000]).timeout(LIMIT);
        let error = layered.clone().oneshot(request.clone()).await.expect_err("the first");
        assert_eq!((error.kind(), error.detail()), (ErrorKind::Busy, "not yet"));
        let reply = Retry::new(IfBusy(1), layered).oneshot(request).await.expect("a reply");
        assert_eq!((&reply.bytes[..], reply.data), (&b"x"[..], vec![7; 100_000].into()));
        assert_eq!(tries.load(Ordering::Relaxed), 3);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A client is a service, so it can be what a server answers by.
#[test]
fn a_server_passes_calls_on() {
    everywhere(async |bed: &Bed| {
        let (behind, addr) = bed.serve(handler(service_fn(echo))).await;
        let passes_on = Client::new(addr);
        let (server, addr) = bed.serve(handler(passes_on.clone())).await;
        let client = Client::new(addr);
        let reply = client.call(b"x").data(vec![1; 70_000]).await.expect("a reply");
        assert_eq!((&reply.bytes[..], reply.data.len()), (&b"x"[..], 70_000));
        behind.shutdown(Duration::from_secs(1)).await;
        let error = client.call(b"x").timeout(Duration::from_millis(100)).await.expect_err("nobody is there");
        assert!(error.is_retryable(), "{error}");
        passes_on.close().await;
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// A service that is ready as often as there are permits.
#[derive(Clone)]
struct Gate {
    permits: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    called: Arc<AtomicUsize>,
    is_ready: bool,
}

impl Service<Request> for Gate {
    type Response = Reply;
    type Error = Error;
    type Future = Ready<Result<Reply, Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let Ok(permit) = self.permits.try_acquire() {
            permit.forget();
            self.is_ready = true;
            return Poll::Ready(Ok(()));
        }
        self.waiting.add_permits(1);
        let (permits, waker) = (Arc::clone(&self.permits), cx.waker().clone());
        bmi::spawn(async move {
            // The permit is there for the poll that follows.
            drop(permits.acquire().await);
            waker.wake();
        });
        Poll::Pending
    }

    fn call(&mut self, request: Request) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "it was asked first, and it is called once");
        self.called.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(Reply { bytes: request.bytes, ..Reply::default() }))
    }
}

#[test]
fn a_service_that_is_not_ready_is_waited_for_until_the_deadline() {
    everywhere(async |bed: &Bed| {
        let (permits, waiting) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let called = Arc::new(AtomicUsize::new(0));
        let gate = Gate {
            permits: Arc::clone(&permits),
            waiting: Arc::clone(&waiting),
            called: Arc::clone(&called),
            is_ready: false,
        };
        let (server, addr) = bed.serve(handler(gate)).await;
        let client = Client::new(addr);
        let error = client.call(b"x").timeout(Duration::from_millis(100)).await.expect_err("never ready");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        assert_eq!(called.load(Ordering::Relaxed), 0);
        waiting.forget_permits(usize::MAX);
        let call = client.call(b"x").timeout(LIMIT);
        let call = bmi::spawn(async move { call.await });
        waiting.acquire().await.expect("never closed").forget();
        permits.add_permits(1);
        assert_eq!(call.await.expect("a task").expect("a reply").bytes, "x");
        assert_eq!(called.load(Ordering::Relaxed), 1);
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// What is no error of this library arrives as its text. Its sources are searched for one that is.
#[test]
fn errors_of_services_reach_the_client() {
    #[derive(Debug)]
    struct Wrapped(Error);
    impl std::fmt::Display for Wrapped {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("wrapped")
        }
    }
    impl std::error::Error for Wrapped {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }
    everywhere(async |bed: &Bed| {
        let fails = service_fn(async |request: Request| -> Result<Reply, BoxError> {
            match &request.bytes[..] {
                b"wrapped" => Err(Wrapped(Error::new(ErrorKind::Exhausted, "no room")).into()),
                _ => Err("of another library".into()),
            }
        });
        let (server, addr) = bed.serve(handler(fails)).await;
        let client = Client::new(addr);
        for (request, kind, text) in
            [("wrapped", ErrorKind::Exhausted, "no room"), ("other", ErrorKind::Io, "of another library")]
        {
            let error = client.call(request).await.expect_err("it fails");
            assert_eq!((error.kind(), error.detail()), (kind, text));
        }
        client.close().await;
        server.shutdown(Duration::from_secs(1)).await;
    });
}

/// The layers that shed load and keep time, on both sides.
#[test]
fn load_is_shed_and_time_is_kept() {
    outside(async |bed: &Bed| {
        let entered = Arc::new(Semaphore::new(0));
        let enters = Arc::clone(&entered);
        let stuck = service_fn(move |_: Request| {
            enters.add_permits(1);
            std::future::pending::<Result<Reply, Error>>()
        });
        let busy = |error: BoxError| Error::new(ErrorKind::Busy, error.to_string());
        let shedding = ServiceBuilder::new().map_err(busy).load_shed().concurrency_limit(1).service(stuck);
        let (server, addr) = bed.serve(handler(shedding)).await;
        let client = Client::new(&addr);
        let first = client.call(b"1").timeout(LIMIT);
        let first = bmi::spawn(async move { first.await });
        entered.acquire().await.expect("never closed").forget();
        let error = client.call(b"2").await.expect_err("one is in progress");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(error.detail().contains("overloaded"), "{error}");
        let in_time = ServiceBuilder::new().timeout(LIMIT).service(client.clone());
        let error = in_time.oneshot(Request::new("3")).await.expect_err("one is in progress");
        assert_eq!(error.downcast::<Error>().expect("the client's").kind(), ErrorKind::Busy);
        let nobody = ServiceBuilder::new().timeout(Duration::from_millis(50)).service(Client::new("tcp://127.0.0.1:1"));
        let error = nobody.oneshot(Request::new("4")).await.expect_err("nobody is there");
        assert!(error.is::<tower::timeout::error::Elapsed>(), "{error}");
        server.shutdown(Duration::ZERO).await;
        let ended = first.await.expect("a task").expect_err("its handler was dropped");
        assert_eq!(ended.kind(), ErrorKind::Abandoned, "{ended}");
        client.close().await;
    });
}
