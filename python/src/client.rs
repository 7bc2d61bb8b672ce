//! `bmi.Client`, and its form for `asyncio`.

use std::time::Duration;

use bmi::rpc::Reply;
use pyo3::prelude::*;

use crate::buffer::{self, Sink, Source};
use crate::operation::{self, Home, How, seconds};

/// A client of a service.
#[pyclass(frozen, subclass)]
pub(crate) struct Client {
    client: Home<bmi::Client>,
    /// Time for a call that does not set its own.
    timeout: Duration,
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (addrs, *, timeout = 10.0, max_calls = 1024, max_reply = 16 << 20, max_bytes = 256 << 20,
        offer = 64 << 10, spread = false, protocol = 0))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        addrs: Vec<String>,
        timeout: f64,
        max_calls: usize,
        max_reply: u64,
        max_bytes: u64,
        offer: usize,
        spread: bool,
        protocol: u32,
    ) -> PyResult<Client> {
        let timeout = seconds(timeout)?;
        let mut settings = bmi::Client::builder()
            .timeout(timeout)
            .max_calls(max_calls)
            .max_reply(max_reply)
            .max_bytes(max_bytes)
            .offer(offer)
            .protocol(protocol);
        if spread {
            settings = settings.spread();
        }
        Ok(Client { client: Home::new(settings.to(addrs)), timeout })
    }

    /// Makes a call. Returns the reply's bytes, its data, and the length of that.
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn call(
        &self,
        py: Python<'_>,
        how: How<'_>,
        request: &[u8],
        data: Option<Source>,
        into: Option<Sink>,
        timeout: Option<f64>,
        idempotent: bool,
    ) -> PyResult<Py<PyAny>> {
        let client = self.client.get()?;
        let timeout = timeout.map_or(Ok(self.timeout), seconds)?;
        let mut call = client.call(request).timeout(timeout);
        let mut leases = Vec::new();
        if let Some(Source(data, lease)) = data {
            call = call.data(data);
            leases.push(lease);
        }
        if let Some(Sink(memory, lease)) = into {
            call = call.data_into(memory);
            leases.push(lease);
        }
        if idempotent {
            call = call.idempotent();
        }
        let call = call.into_future();
        let handle = handle(py, client)?;
        let sleeper = handle.clone();
        let limit = move || async move { sleeper.sleep(timeout).await };
        let made = operation::and_return(leases, limit, async { Ok(call.await?) });
        operation::run(py, how, Some(&handle), made, |py, reply: Reply| {
            let (bytes, data) = (buffer::copied(py, &reply.bytes), buffer::copied(py, &reply.data));
            Ok((bytes, data, reply.data_len).into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Connects, if no connection is up.
    fn connect(&self, py: Python<'_>, how: How<'_>) -> PyResult<Py<PyAny>> {
        let client = self.client.get()?.clone();
        let handle = handle(py, &client)?;
        operation::run(py, how, Some(&handle), async move { Ok(client.connect().await?) }, |py, ()| Ok(py.None()))
    }

    /// Ends all connections and all calls in flight.
    fn close(&self, py: Python<'_>, how: How<'_>) -> PyResult<Py<PyAny>> {
        let client = self.client.get()?.clone();
        let closing = async move {
            client.close().await;
            Ok(())
        };
        operation::run(py, how, None, closing, |py, ()| Ok(py.None()))
    }
}

fn handle(py: Python<'_>, client: &bmi::Client) -> PyResult<bmi::Handle> {
    client.handle().map_err(|error| crate::error::Raised::from(error).into_exception(py))
}
