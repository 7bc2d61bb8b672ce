//! A task: a thread with a client for each lane, which does what it is told, one phase after the
//! other.
//!
//! **Invariants**
//! 1. A task that is stopped drops what it is doing, and answers at once.
//! 2. Its endpoints are driven between the phases too, so connections stay.

mod copies;
mod flight;
mod io;
mod lane;
mod meta;
pub(super) mod partner;
mod pattern;

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use crate::{Caller, Client, ClientOptions, ErrorCode, FsPath, ServerName, TransportChoice};
use bmi::{Addr, Endpoint, driver};
use futures_util::future::{Either, select};
use tokio::sync::{mpsc as orders, watch};

use self::lane::{Lane, text};
use super::job::{Job, Order, Part, Phase, Work};
use crate::program;

/// What a task says when its clients are connected: by transport, the schemes over which it reaches
/// servers; and the servers, with what they serve.
pub(super) type Started = (Vec<Vec<String>>, Vec<(String, String)>);

/// The ends of a task's channels.
pub(super) struct Ends {
    pub(super) orders: orders::UnboundedReceiver<Order>,
    pub(super) started: mpsc::Sender<Result<Started, String>>,
    pub(super) answers: mpsc::Sender<Result<Part, String>>,
    pub(super) stop: watch::Receiver<bool>,
}

/// A task in its thread.
pub(super) struct Task {
    pub(super) job: Arc<Job>,
    /// Its number among the tasks of all hosts.
    pub(super) rank: u32,
    pub(super) dir: FsPath,
    lanes: Vec<Lane>,
}

/// Answers when a task ends, so that nobody waits for a task that panicked.
struct LastWords(mpsc::Sender<Result<Part, String>>);

impl Drop for LastWords {
    fn drop(&mut self) {
        let _ = self.0.send(Err("a task ended".to_owned()));
    }
}

/// Runs a task until there are no more orders. The body of its thread.
pub(super) fn run(job: Arc<Job>, rank: u32, ends: Ends) {
    let (started, _last) = (ends.started.clone(), LastWords(ends.answers.clone()));
    // If nobody takes the answer, the crew has ended.
    if let Err(error) = try_run(job, rank, ends) {
        let _ = started.send(Err(error));
    }
}

fn try_run(job: Arc<Job>, rank: u32, ends: Ends) -> Result<(), String> {
    let choices = job.choices()?;
    let mut opened = Vec::with_capacity(job.lanes());
    for cluster in &job.clusters {
        let manager: Addr = cluster.manager.parse().map_err(|error: bmi::Error| error.to_string())?;
        for over in &choices {
            opened.push((program::open(&manager, *over).map_err(|stop| stop.1)?, manager.clone(), *over));
        }
    }
    let driven: Vec<Endpoint> = opened.iter().flat_map(|(endpoints, ..)| endpoints.endpoints().cloned()).collect();
    let busy = job.busy;
    let work = async move {
        let mut lanes = Vec::with_capacity(opened.len());
        for (endpoints, manager, over) in opened {
            let options = options(&job, over)?;
            let client = Client::connect_over(endpoints, manager, options).await.map_err(text)?;
            let memory = client.memory(job.memory()).map_err(|error| error.to_string())?;
            lanes.push(Lane { client, files: None, memory, local: None });
        }
        let dir = job.dir()?;
        Task { job, rank, dir, lanes }.serve(ends).await;
        Ok(())
    };
    if busy {
        driver::busy::block_on(&driven, work)
    } else {
        driver::event::block_on_all(&driven, work).map_err(|error| error.to_string())?
    }
}

fn options(job: &Job, over: TransportChoice) -> Result<ClientOptions, String> {
    Ok(ClientOptions {
        timeout: Duration::from_millis(job.timeout_ms.max(1)),
        retry_for: Duration::from_millis(job.retry_ms),
        caller: Caller::of_process(),
        over,
        host: bmi::backend::host_id(),
        ..ClientOptions::new(program::random_id().map_err(|stop| stop.1)?)
    })
}

impl Task {
    /// Says that it is ready, then does what it is told.
    async fn serve(mut self, mut ends: Ends) {
        let started = self.started().await;
        if ends.started.send(started).is_err() {
            return;
        }
        while let Some(order) = ends.orders.recv().await {
            let answer = self.obey(order, &mut ends.stop).await;
            if ends.answers.send(answer).is_err() {
                return;
            }
        }
    }

    /// Connects all servers, so that no phase has to, and learns how they are reached.
    async fn started(&self) -> Result<Started, String> {
        let (mut labels, mut servers) = (Vec::new(), Vec::new());
        for lane in &self.lanes {
            let mut schemes = BTreeSet::new();
            for (server, route) in lane.client.routes().await {
                schemes.insert(route.map_err(text)?.addr.scheme().to_string());
                let named = (server.addr.to_string(), serves(&server));
                if !servers.contains(&named) {
                    servers.push(named);
                }
            }
            labels.push(schemes.into_iter().collect());
        }
        Ok((labels, servers))
    }

    async fn obey(&mut self, order: Order, stop: &mut watch::Receiver<bool>) -> Result<Part, String> {
        let stopped = pin!(stop.wait_for(|stop| *stop));
        let work = pin!(self.phase(order));
        match select(work, stopped).await {
            Either::Left((part, _)) => part,
            Either::Right(_) => Ok(Part { stopped: true, ..Part::default() }),
        }
    }

    async fn phase(&mut self, order: Order) -> Result<Part, String> {
        let Task { job, rank, dir, lanes } = self;
        let lane = lanes.get_mut(order.lane).ok_or("there is no such transport")?;
        let work = *job.works.get(order.work).ok_or("there is no such work")?;
        let first = *rank == 0;
        match (order.phase, work) {
            (Phase::Begin, _) if first => lane.client.mkdir(dir).await.map(|_| Part::default()).map_err(text),
            (Phase::End, _) if first => end(lane, dir).await,
            (Phase::Begin | Phase::End, _) => Ok(Part::default()),
            (phase, Work::Io(io)) => io::Writer { lane, io, job, rank: *rank, dir }.phase(phase).await,
            (phase, Work::Meta(meta)) => meta::Namer { lane, meta, job, rank: *rank, dir }.phase(phase).await,
            (phase, Work::Copy(copy)) => copies::Porter { lane, copy, job, rank: *rank, dir }.phase(phase).await,
        }
    }
}

async fn end(lane: &mut Lane, dir: &FsPath) -> Result<Part, String> {
    match lane.client.remove_all(dir).await {
        Ok(()) => Ok(Part::default()),
        // It was never made.
        Err(error) if error.code() == ErrorCode::NotFound => Ok(Part::default()),
        Err(error) => Err(text(error)),
    }
}

fn serves(server: &ServerName) -> String {
    server.iod.map_or_else(|| "manager".to_owned(), |number| format!("iod {number}"))
}
