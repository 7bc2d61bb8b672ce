//! The client's part through a handle, which any thread may use: [`bmi::Handle`].
//!
//! **Why beside an endpoint.** A program with several threads pays for the lock of the endpoint,
//! and for waking whoever waits. The server's side uses an endpoint on one thread, so a row tells
//! what the handle costs the client.
//!
//! **How.** Each connection is used by a thread of its own, or by a task of a runtime, and a thread
//! or a task of that runtime drives the handle. A round opens a handle and connects; its time
//! begins later. The threads that measure are not known, so its cost is that of the process.

use std::sync::Arc;

use bmi::config::HandleConfig;
use bmi::{Addr, Error, ErrorKind, Handle, Scheme};
use futures_util::future::try_join_all;
use tokio::runtime::{Builder, Runtime};

use super::{Link, adapter, all, config, connect, links};
use crate::case::{Case, Interface, Settings};
use crate::measured::Measured;
use crate::stop::Stop;

/// Threads of the runtime.
const WORKERS: usize = 2;

/// What a client's thread needs for a round.
pub(in crate::work) struct Shared {
    pub(in crate::work) scheme: Scheme,
    pub(in crate::work) to: Addr,
    pub(in crate::work) connections: u32,
    pub(in crate::work) settings: Settings,
}

impl Shared {
    /// Runs the client's part: `count` messages on each connection.
    pub(in crate::work) fn measure(&self, case: &Case, count: u64, stop: &Arc<Stop>) -> Result<Measured, Error> {
        let how = HandleConfig::default().waiting(case.waiting.driver());
        let options = adapter::options(&self.settings)?;
        let runtime = match case.station.interface {
            Interface::Tokio => Some(Builder::new_multi_thread().worker_threads(WORKERS).enable_all().build()?),
            _ => None,
        };
        let open = || bmi::handle(self.scheme, &options, config("bmi-perf run", &self.settings), 1, how);
        let handle = {
            // Its driver is a task of the runtime then.
            let _inside = runtime.as_ref().map(Runtime::enter);
            open()?
        };
        let none = || Error::new(ErrorKind::Invalid, "a handle without an endpoint");
        let endpoint = handle.endpoints().next().ok_or_else(none)?;
        let peers = handle.block_on(stop.unless(connect(&self.to, endpoint, self.connections)))?;
        let links: Vec<AnyLink> = links(&peers, case, count).collect();
        let measured = match &runtime {
            Some(runtime) => in_tasks(runtime, links, stop),
            None => on_threads(&handle, links, stop),
        }?;
        let leave = peers.iter().map(|peer| peer.disconnect(peer.within(super::PATIENCE)));
        handle.block_on(all(leave))?;
        handle.block_on(handle.close());
        Ok(measured.into_iter().fold(Measured::default(), Measured::beside))
    }
}

/// A connection of a handle.
type AnyLink = Link<bmi::threading::AnyThread>;

fn on_threads(handle: &Handle, links: Vec<AnyLink>, stop: &Stop) -> Result<Vec<Measured>, Error> {
    let run = &|link: AnyLink| handle.block_on(stop.unless(link.measure()));
    std::thread::scope(|scope| {
        let mut links = links.into_iter();
        // This thread has the last one.
        let last = links.next_back();
        let others: Vec<_> =
            links.map(|link| std::thread::Builder::new().spawn_scoped(scope, move || run(link))).collect();
        let mut measured: Vec<Result<Measured, Error>> = last.into_iter().map(run).collect();
        let failed = |_| Error::new(ErrorKind::Io, "a thread of the client failed");
        for other in others {
            measured.push(other?.join().map_err(failed)?);
        }
        measured.into_iter().collect()
    })
}

fn in_tasks(runtime: &Runtime, links: Vec<AnyLink>, stop: &Arc<Stop>) -> Result<Vec<Measured>, Error> {
    let tasks: Vec<_> = links
        .into_iter()
        .map(|link| {
            let stop = stop.clone();
            runtime.spawn(async move { stop.unless(link.measure()).await })
        })
        .collect();
    let failed = |_| Error::new(ErrorKind::Io, "a task of the client failed");
    runtime.block_on(try_join_all(tasks)).map_err(failed)?.into_iter().collect()
}
