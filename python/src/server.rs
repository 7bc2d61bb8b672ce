//! `bmi.Server`, and its form for `asyncio`: calls are taken from a queue, by threads or by tasks.
//!
//! A handler of `bmi::Server` puts its call into the queue, and waits until Python has answered it.
//! So every thread that takes calls is one of Python's own, and a server's limits stay those of
//! `bmi::Server`: what is in the queue has a place, and ends at the deadline of its call.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bmi::runtime::sleep_until;
use bmi::{Error, ErrorKind, Memory};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Semaphore, oneshot};

use crate::buffer::{self, Lease, Sink, Source};
use crate::error::{Raised, of_handler};
use crate::operation::{self, Home, How, seconds};

/// A server of calls.
#[pyclass(frozen)]
pub(crate) struct Server(Home<Serving>);

struct Serving {
    server: bmi::Server,
    queue: Arc<Queue>,
    /// The tasks of the server. `None` while it is dropped.
    runtime: Option<Runtime>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.queue.count.close();
        // A thread goes on with the endpoints, until these are closed.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// The calls that Python has not taken.
struct Queue {
    calls: Mutex<VecDeque<Arrived>>,
    /// One permit for each. It is closed when no more come.
    count: Semaphore,
}

/// A call, and where its handler's result goes.
struct Arrived {
    call: bmi::Call,
    done: oneshot::Sender<Result<(), Error>>,
}

impl Queue {
    /// The handler of a call.
    async fn handle(self: Arc<Self>, call: bmi::Call) -> Result<(), Error> {
        let (done, ended) = oneshot::channel();
        lock(&self.calls).push_back(Arrived { call, done });
        self.count.add_permits(1);
        let dropped = |_| Err(Error::new(ErrorKind::Abandoned, "the handler ended without a reply"));
        ended.await.unwrap_or_else(dropped)
    }

    /// Waits for a call. Returns `None` after the end.
    async fn next(&self) -> Option<Arrived> {
        loop {
            self.count.acquire().await.ok()?.forget();
            let next = lock(&self.calls).pop_front();
            // A call whose deadline has passed has ended.
            if let Some(arrived) = next.filter(|arrived| !arrived.done.is_closed()) {
                return Some(arrived);
            }
        }
    }
}

impl Serving {
    fn runtime(&self) -> &Handle {
        self.runtime.as_ref().expect("it is taken at the end only").handle()
    }
}

#[pymethods]
impl Server {
    #[new]
    #[pyo3(signature = (addrs, *, max_calls = 1024, max_waiting = 8192, max_data = 16 << 20, max_bytes = 256 << 20,
        protocol = 0))]
    fn new(
        py: Python<'_>,
        addrs: Vec<String>,
        max_calls: usize,
        max_waiting: usize,
        max_data: u64,
        max_bytes: u64,
        protocol: u32,
    ) -> PyResult<Server> {
        let settings = bmi::Server::builder()
            .max_calls(max_calls)
            .max_waiting(max_waiting)
            .max_data(max_data)
            .max_bytes(max_bytes)
            .protocol(protocol);
        // One worker drives the endpoints. A driver that is a task wakes no other thread.
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("bmi-server").enable_all().build()?;
        let bound = py.detach(|| runtime.block_on(settings.bind(addrs)));
        let server = bound.map_err(|error| Raised::from(error).into_exception(py))?;
        let queue = Arc::new(Queue { calls: Mutex::default(), count: Semaphore::new(0) });
        let (serving, handler) = (server.clone(), Arc::clone(&queue));
        runtime.spawn(async move { serving.serve(move |call| Arc::clone(&handler).handle(call)).await });
        Ok(Server(Home::new(Serving { server, queue, runtime: Some(runtime) })))
    }

    /// The addresses at which it accepts connections.
    #[getter]
    fn addrs(&self) -> PyResult<Vec<String>> {
        Ok(self.0.get()?.server.addrs().iter().map(ToString::to_string).collect())
    }

    /// Waits for a call. Returns `None` after the end.
    fn next(&self, py: Python<'_>, how: How<'_>) -> PyResult<Py<PyAny>> {
        let serving = self.0.get()?;
        let (queue, runtime) = (Arc::clone(&serving.queue), serving.runtime().clone());
        let next = async move { Ok(queue.next().await) };
        operation::run(py, how, None, next, |py, arrived| {
            let Some(Arrived { call, done }) = arrived else { return Ok(py.None()) };
            let (request, peer) = (call.request_bytes(), call.peer().map(|peer| peer.to_string()));
            let (data_len, answering) = (call.data_len(), Some((Arc::new(call), done)));
            let call = Call { request, peer, data_len, runtime, answering: Mutex::new(answering) };
            Ok(Py::new(py, call)?.into_any())
        })
    }

    /// Takes no more calls, and waits for those that have begun, so many seconds at most.
    fn shutdown(&self, py: Python<'_>, how: How<'_>, limit: f64) -> PyResult<Py<PyAny>> {
        let serving = self.0.get()?;
        let (server, queue, limit) = (serving.server.clone(), Arc::clone(&serving.queue), seconds(limit)?);
        let ending = in_runtime(serving.runtime().clone(), async move {
            server.shutdown(limit).await;
            queue.count.close();
            Ok(())
        });
        operation::run(py, how, None, ending, |py, ()| Ok(py.None()))
    }
}

/// A call that a client has made.
#[pyclass(frozen)]
pub(crate) struct Call {
    request: bmi::Bytes,
    peer: Option<String>,
    #[pyo3(get)]
    data_len: u64,
    runtime: Handle,
    /// `None` once it was answered.
    answering: Mutex<Option<Answering>>,
}

type Answering = (Arc<bmi::Call>, oneshot::Sender<Result<(), Error>>);

impl Call {
    fn call(&self) -> PyResult<Arc<bmi::Call>> {
        let answering = lock(&self.answering);
        answering.as_ref().map(|(call, _)| Arc::clone(call)).ok_or_else(answered)
    }

    /// Copies the beginning of the data into memory.
    fn fetch(
        &self,
        memory: Memory,
        lease: Option<Lease>,
    ) -> PyResult<impl Future<Output = Result<(), Raised>> + use<>> {
        let call = self.call()?;
        let deadline = call.deadline();
        let fetching = async move {
            match memory.is_empty() {
                // A call without data has nothing to be fetched.
                true => Ok(()),
                false => Ok(call.data_into(memory).await?),
            }
        };
        let fetched = operation::and_return(lease, move || sleep_until(deadline), fetching);
        Ok(in_runtime(self.runtime.clone(), fetched))
    }
}

#[pymethods]
impl Call {
    /// The request.
    #[getter]
    fn request(&self, py: Python<'_>) -> Py<pyo3::types::PyBytes> {
        buffer::copied(py, &self.request)
    }

    /// The address of the client, if it has one.
    #[getter]
    fn peer(&self) -> Option<&str> {
        self.peer.as_deref()
    }

    /// Returns the data that came with the request.
    fn data(&self, py: Python<'_>, how: How<'_>) -> PyResult<Py<PyAny>> {
        let len = usize::try_from(self.data_len).map_err(|_| buffer::too_long())?;
        let (bytes, memory) = buffer::unfilled(py, len)?;
        operation::run(py, how, None, self.fetch(memory, None)?, |_, ()| Ok(bytes.into_any()))
    }

    /// Copies the beginning of the data into a buffer, until that is full.
    fn data_into(&self, py: Python<'_>, how: How<'_>, into: Sink) -> PyResult<Py<PyAny>> {
        let Sink(memory, lease) = into;
        operation::run(py, how, None, self.fetch(memory, Some(lease))?, |py, ()| Ok(py.None()))
    }

    /// Replies.
    fn reply(&self, py: Python<'_>, how: How<'_>, reply: &[u8], data: Option<Source>) -> PyResult<Py<PyAny>> {
        let (call, done) = lock(&self.answering).take().ok_or_else(answered)?;
        let call = match Arc::try_unwrap(call) {
            Ok(call) => call,
            Err(call) => {
                *lock(&self.answering) = Some((call, done));
                return Err(PyRuntimeError::new_err("the call's data is being fetched: wait for that first"));
            }
        };
        let deadline = call.deadline();
        let replying = call.reply(reply);
        let (replying, lease) = match data {
            Some(Source(data, lease)) => (replying.data(data), Some(lease)),
            None => (replying, None),
        };
        let sending = async move {
            let sent = replying.await;
            // Nobody waits for it if the deadline has passed.
            let _ = done.send(sent.clone());
            Ok(sent?)
        };
        let replied = operation::and_return(lease, move || sleep_until(deadline), sending);
        operation::run(py, how, None, in_runtime(self.runtime.clone(), replied), |py, ()| Ok(py.None()))
    }

    /// Ends the call with an error, unless it was answered.
    fn fail(&self, py: Python<'_>, raised: &Bound<'_, PyAny>) {
        let answering = lock(&self.answering).take();
        if let Some((call, done)) = answering {
            let error = of_handler(py, raised);
            py.detach(move || {
                let _ = done.send(Err(error));
                drop(call);
            });
        }
    }
}

/// Reports an exception that nobody handles, by `sys.unraisablehook`.
#[pyfunction]
pub(crate) fn report(py: Python<'_>, raised: Bound<'_, PyAny>) {
    PyErr::from_value(raised).write_unraisable(py, None);
}

fn answered() -> PyErr {
    PyRuntimeError::new_err("the call was answered")
}

/// Polls a future inside of a runtime: what it starts are tasks there.
async fn in_runtime<F: Future>(runtime: Handle, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let _entered = runtime.enter();
        future.as_mut().poll(cx)
    })
    .await
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
