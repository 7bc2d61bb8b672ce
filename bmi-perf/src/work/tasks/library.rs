//! The library's client and server on tokio. What they use of its interface is here and nowhere
//! else in this folder.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bmi::{Addr, Call, Error, ErrorKind, Memory, Server};

use super::{Client, Pool, REQUEST, Request, Rounds, Verb};
use crate::case::{MOST_BYTES, MOST_DEPTH, Over, Settings};
use crate::work::library::config;
use crate::work::{adapter, produce::produce};

/// A round begins when the other side is ready, which may take long.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// A client of the server.
#[derive(Clone)]
pub(super) struct Connection {
    client: bmi::Client,
    over: Over,
}

/// Connects to a server.
pub(super) async fn connect(
    over: Over,
    to: &Addr,
    connections: u32,
    settings: &Settings,
) -> Result<Vec<Connection>, Error> {
    let mut all = Vec::new();
    for _ in 0..connections {
        let builder = bmi::Client::builder().timeout(TIMEOUT).max_calls(MOST_DEPTH as usize).max_reply(MOST_BYTES);
        let client = builder.config(config("bmi-perf run", settings)).options(adapter::options(settings)?).to(to);
        client.connect().await?;
        all.push(Connection { client, over });
    }
    Ok(all)
}

impl Client for Connection {
    async fn call(&self, request: Request, memory: Memory) -> Result<Memory, Error> {
        let call = self.client.call(request.encode());
        let call = match request.verb {
            Verb::Read if request.size > REQUEST as u64 => call.data_into(&memory),
            Verb::Write => {
                produce(self.over, &memory.all());
                call.data(&memory)
            }
            Verb::Begin | Verb::Read | Verb::End => call,
        };
        call.await?;
        Ok(memory)
    }
}

/// Listens, and serves until the runtime ends. Returns where it listens.
pub(super) async fn serve(over: Over, at: &Addr, settings: &Settings, rounds: Arc<Rounds>) -> Result<Addr, Error> {
    if over.scheme().is_none() {
        return Err(Error::new(ErrorKind::Invalid, format!("{over} is no transport of the library")));
    }
    let builder = Server::builder().max_calls(MOST_DEPTH as usize * 2).max_data(MOST_BYTES).max_bytes(u64::MAX);
    let builder = builder.config(config("bmi-perf serve", settings)).options(adapter::options(settings)?);
    let server = builder.bind(at).await?;
    let at = server.addrs()[0].clone();
    let store = Arc::new(Store { over, rounds, pool: Pool(over, Mutex::default()) });
    tokio::spawn(async move {
        let answer = move |call| {
            let store = store.clone();
            async move { store.answer(call).await }
        };
        server.serve(answer).await
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
    async fn answer(&self, call: Call) -> Result<(), Error> {
        let request = Request::decode(call.request())?;
        self.rounds.handle(request.verb).await;
        let len = usize::try_from(call.data_len()).unwrap_or(usize::MAX);
        match request.verb {
            Verb::Begin | Verb::End => call.reply(b"").await,
            Verb::Read if request.size <= REQUEST as u64 => {
                let len = usize::try_from(request.size).unwrap_or(REQUEST);
                call.reply(&[1; REQUEST][..len]).await
            }
            Verb::Write => {
                let memory = self.pool.take(len)?;
                call.data_into(&memory).await?;
                self.pool.put(memory);
                call.reply(b"").await
            }
            Verb::Read => {
                let memory = self.pool.take(usize::try_from(request.size).unwrap_or(usize::MAX))?;
                produce(self.over, &memory.all());
                call.reply(b"").data(&memory).await?;
                self.pool.put(memory);
                Ok(())
            }
        }
    }
}
