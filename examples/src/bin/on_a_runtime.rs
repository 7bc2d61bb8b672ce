//! A key-value server and its clients as tasks of tokio's default runtime, on several threads.
//!
//! Shows a [`bmi::Handle`]: it is `Clone + Send + Sync`, and its futures are `Send`. So tasks use
//! it as they use a socket of tokio. Tasks of the same runtime drive the transport.
//!
//! ```text
//! cargo run -p examples --bin on_a_runtime
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bmi::config::HandleConfig;
use bmi::threading::AnyThread;
use bmi::{Addr, Body, Config, Error, ErrorKind, Handle, OpenOptions, Scheme};

/// The deadline of each operation.
const PATIENCE: Duration = Duration::from_secs(10);
const CLIENTS: u8 = 8;
/// Most calls that are handled at a time.
const CALLS: usize = 64;

type Table = Arc<Mutex<BTreeMap<u8, u8>>>;

fn open(name: &str) -> Result<Handle, Error> {
    bmi::handle(Scheme::Tcp, &OpenOptions::default(), Config::named(name), 1, HandleConfig::default())
}

/// Answers one call: `[key]` reads a value, `[key, value]` stores one.
async fn answer(call: bmi::Incoming<AnyThread>, table: Table) -> Result<(), Error> {
    let reply = {
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        match *call.request() {
            [key] => table.get(&key).copied().into_iter().collect(),
            [key, value] => table.insert(key, value).into_iter().collect(),
            _ => Vec::new(),
        }
    };
    let options = call.within(PATIENCE);
    call.reply(&reply, None, options).await
}

/// Serves until the handle is closed. Each call has a task of its own, which any worker may run.
async fn serve(server: Handle) -> Result<(), Error> {
    let table = Table::default();
    server.serve(CALLS, move |call| answer(call, Arc::clone(&table))).await
}

/// Stores a value, and reads it back.
async fn use_it(client: Handle, addr: Addr, key: u8) -> Result<u8, Error> {
    let peer = client.connect(&addr, client.within(PATIENCE)).await?;
    let call = peer.call(&[key, key * 2], Body::None, client.within(PATIENCE))?;
    call.reply().await?;
    let call = peer.call(&[key], Body::None, client.within(PATIENCE))?;
    let value = call.reply().await?.bytes;
    value.first().copied().ok_or_else(|| Error::new(ErrorKind::Invalid, "the value is gone"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (server, client) = (open("server")?, open("client")?);
    let addr = server.listen(&Addr::tcp("127.0.0.1", 0))?;
    let serving = tokio::spawn(serve(server.clone()));

    let clients: Vec<_> = (0..CLIENTS).map(|key| tokio::spawn(use_it(client.clone(), addr.clone(), key))).collect();
    for (key, client) in (0..CLIENTS).zip(clients) {
        let value = client.await??;
        println!("{key} -> {value}");
        assert_eq!(value, key * 2);
    }
    // Connections end after what was posted on them.
    client.close().await;
    server.close().await;
    serving.await??;
    Ok(())
}
