//! The library's client and server on tokio. What they use of its interface is here and nowhere
//! else in this folder.

use std::sync::{Arc, Mutex};

use bmi::config::HandleConfig;
use bmi::paths::Direction;
use bmi::threading::AnyThread;
use bmi::{Addr, Body, Error, ErrorKind, Handle, Incoming, Memory, Options, Peer};

use super::{Client, Pool, REQUEST, Request, Rounds, Verb};
use crate::case::{MOST_DEPTH, Over, Settings};
use crate::work::library::{PATIENCE, config};
use crate::work::{adapter, produce::produce};

/// Opens a handle. Its driver is a task of the runtime.
fn open(over: Over, name: &str, settings: &Settings) -> Result<Handle, Error> {
    let none = || Error::new(ErrorKind::Invalid, format!("{over} is no transport of the library"));
    let scheme = over.scheme().ok_or_else(none)?;
    bmi::handle(scheme, &adapter::options(settings)?, config(name, settings), 1, HandleConfig::default())
}

/// A connection of a client.
#[derive(Clone)]
pub(super) struct Connection {
    peer: Peer<AnyThread>,
    over: Over,
    /// Its driver runs as long as the handle is there.
    _handle: Handle,
}

/// Connects to a server.
pub(super) async fn connect(
    over: Over,
    to: &Addr,
    connections: u32,
    settings: &Settings,
) -> Result<Vec<Connection>, Error> {
    let handle = open(over, "bmi-perf run", settings)?;
    let mut all = Vec::new();
    for _ in 0..connections {
        let peer = handle.connect(to, handle.within(PATIENCE)).await?;
        all.push(Connection { peer, over, _handle: handle.clone() });
    }
    Ok(all)
}

impl Client for Connection {
    async fn call(&self, request: Request, memory: Memory) -> Result<Memory, Error> {
        let body = match request.verb {
            // Data that is no longer than a request is a reply of its own.
            Verb::Read if request.size > REQUEST as u64 => Body::In((&memory).into()),
            Verb::Write => {
                produce(self.over, &memory.all());
                Body::Out((&memory).into())
            }
            Verb::Begin | Verb::Read | Verb::End => Body::None,
        };
        self.peer.call(&request.encode(), body, Options::default())?.reply().await?;
        Ok(memory)
    }
}

/// Listens, and serves until the runtime ends. Returns where it listens.
pub(super) fn serve(over: Over, at: &Addr, settings: &Settings, rounds: Arc<Rounds>) -> Result<Addr, Error> {
    let handle = open(over, "bmi-perf serve", settings)?;
    let at = handle.listen(at)?;
    let store = Arc::new(Store { over, rounds, pool: Pool(over, Mutex::default()) });
    tokio::spawn(async move {
        let answer = move |call| {
            let store = store.clone();
            async move { store.answer(call).await }
        };
        handle.serve(MOST_DEPTH as usize, answer).await
    });
    Ok(at)
}

struct Store {
    over: Over,
    rounds: Arc<Rounds>,
    pool: Pool,
}

impl Store {
    /// Takes or gives the data of a call. Nothing is stored.
    async fn answer(&self, call: Incoming<AnyThread>) -> Result<(), Error> {
        let (request, options) = (Request::decode(call.request())?, Options::default());
        self.rounds.handle(request.verb).await;
        // The library refuses calls with more data than its longest message has.
        let len = usize::try_from(call.len()).unwrap_or(usize::MAX);
        match call.direction() {
            None => {
                let bytes = [1; REQUEST];
                let len = usize::try_from(request.size).unwrap_or(REQUEST).min(REQUEST);
                call.reply(&bytes[..len], None, options).await
            }
            // A store takes the data from the place where it is.
            Some(Direction::Write) if call.data().is_some() => call.reply(&[], None, options).await,
            Some(Direction::Write) => {
                let memory = self.pool.take(len)?;
                call.fetch(0, &memory, options).await?;
                self.pool.put(memory);
                call.reply(&[], None, options).await
            }
            Some(Direction::Read) => {
                let memory = self.pool.take(len)?;
                produce(self.over, &memory.all());
                call.reply(&[], Some((&memory).into()), options).await?;
                self.pool.put(memory);
                Ok(())
            }
        }
    }
}
