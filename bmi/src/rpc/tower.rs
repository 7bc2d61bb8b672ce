//! Clients and servers as `tower::Service` (feature `tower`), for the layers of `tower`.
//!
//! A [`Client`] is a service. Any service of the same kind answers the calls of a server, as a
//! [`handler`]: also a client, whose server then does.
//!
//! ```
//! use std::time::Duration;
//!
//! use bmi::rpc::{Reply, tower::{Request, handler}};
//! use bmi::{Client, Error, Server};
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let echo = service_fn(async |request: Request| {
//!     Ok::<_, Error>(Reply { bytes: request.bytes, data: request.data, ..Reply::default() })
//! });
//! let echo = ServiceBuilder::new().concurrency_limit(16).service(echo);
//! let server = Server::bind("tcp://127.0.0.1:0").await?;
//! let client = Client::new(&server.addrs()[0]);
//! tokio::spawn(async move { server.serve(handler(echo)).await });
//!
//! let mut client = ServiceBuilder::new().timeout(Duration::from_secs(2)).service(client);
//! let reply = client.ready().await?.call(Request::new("hello").data("world").idempotent()).await?;
//! assert_eq!((&reply.bytes[..], &reply.data[..]), (&b"hello"[..], &b"world"[..]));
//! # Ok(())
//! # }
//! ```
//!
//! **Back-pressure.** The service of a server is asked whether it is ready before the data of a
//! call is fetched. A call whose service is never ready ends at its deadline. A client is always
//! ready. Calls beyond its limit wait for their turn, until their deadlines. To refuse them
//! instead, put `LoadShed` before `ConcurrencyLimit`.
//!
//! **Errors.** Those of a client are [`Error`]s, which a layer may have put into a box. A service's
//! error reaches the client of a server as it is if an [`Error`] is in it or among its sources.
//! Any other becomes [`ErrorKind::Io`] with its text. To say more, for instance
//! [`ErrorKind::Busy`] for what `LoadShed` refuses, use `ServiceExt::map_err`.
//!
//! The layers of `tower` that keep time (`Timeout`, `RateLimit`) use tokio's clock, so they do not
//! work in a simulated world. [`Request::timeout`] does.

use std::error::Error as StdError;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bmi_core::runtime::Instant;
use tower_service::Service;

use super::{Call, Client, Reply};
use crate::{Bytes, Error, ErrorKind};

/// A call as a value: what a client is asked to make, and what a server has been asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The request.
    pub bytes: Bytes,
    /// The data that goes with it.
    pub data: Bytes,
    /// The time for the call. `None`: that of the client. At a server, the time that is left.
    pub timeout: Option<Duration>,
    /// The client may make the call twice; see [`Request::idempotent`](super::Request::idempotent).
    /// A server does not know.
    pub idempotent: bool,
}

impl Request {
    /// Makes a request without data.
    pub fn new(bytes: impl Into<Bytes>) -> Request {
        Request { bytes: bytes.into(), ..Request::default() }
    }

    /// Adds data.
    #[must_use]
    pub fn data(self, data: impl Into<Bytes>) -> Request {
        Request { data: data.into(), ..self }
    }

    /// Sets the time for the call.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Request {
        Request { timeout: Some(timeout), ..self }
    }

    /// Says that the server may do twice what this call asks for, and it does no harm.
    #[must_use]
    pub fn idempotent(self) -> Request {
        Request { idempotent: true, ..self }
    }
}

impl Service<Request> for Client {
    type Response = Reply;
    type Error = Error;
    type Future = <super::Request as IntoFuture>::IntoFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let mut call = Client::call(self, &request.bytes);
        if !request.data.is_empty() {
            call = call.data(request.data);
        }
        if let Some(timeout) = request.timeout {
            call = call.timeout(timeout);
        }
        if request.idempotent {
            call = call.idempotent();
        }
        call.into_future()
    }
}

/// Returns a handler that answers each call by a clone of a service. Give it to
/// [`Server::serve`](super::Server::serve).
pub fn handler<S>(service: S) -> impl Fn(Call) -> Handling + Send + Sync + 'static
where
    S: Service<Request, Response = Reply> + Clone + Send + 'static,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
    S::Future: Send,
{
    // Many services may go to another thread, and are not for several at a time.
    let service = Mutex::new(service);
    move |call| {
        let service = service.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(answer(service, call))
    }
}

/// The handling of a call by a service.
pub type Handling = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

async fn answer<S>(mut service: S, call: Call) -> Result<(), Error>
where
    S: Service<Request, Response = Reply>,
    S::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    poll_fn(|cx| service.poll_ready(cx)).await.map_err(|error| translated(error.into()))?;
    let (bytes, data) = (call.request_bytes(), call.data().await?);
    let timeout = Some(call.deadline() - Instant::now());
    let request = Request { bytes, data, timeout, idempotent: false };
    let Reply { bytes, data, .. } = service.call(request).await.map_err(|error| translated(error.into()))?;
    call.reply(bytes).data(data).await
}

/// Returns the error that a client is told.
fn translated(error: Box<dyn StdError + Send + Sync>) -> Error {
    let mut source: Option<&(dyn StdError + 'static)> = Some(&*error);
    while let Some(error) = source {
        if let Some(own) = error.downcast_ref::<Error>() {
            return own.clone();
        }
        source = error.source();
    }
    Error::new(ErrorKind::Io, error.to_string())
}
