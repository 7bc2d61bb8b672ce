//! A key-value server and its clients as tasks of tokio's default runtime, on several threads.
//!
//! ```text
//! cargo run -p examples --bin on_a_runtime
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bmi::{Call, Client, Error, ErrorKind, Server};

const CLIENTS: u8 = 8;

type Table = Arc<Mutex<BTreeMap<u8, u8>>>;

/// Answers one call: `[key]` reads a value, `[key, value]` stores one.
async fn answer(call: Call, table: Table) -> Result<(), Error> {
    let found = {
        let mut table = table.lock().unwrap_or_else(PoisonError::into_inner);
        match *call.request() {
            [key] => table.get(&key).copied(),
            [key, value] => table.insert(key, value),
            _ => return Err(Error::new(ErrorKind::Invalid, "a key, or a key and a value")),
        }
    };
    call.reply(found.as_slice()).await
}

/// Stores a value, and reads it back.
async fn use_it(client: Client, key: u8) -> Result<u8, Error> {
    client.call([key, key * 2]).await?;
    let reply = client.call([key]).await?;
    reply.bytes.first().copied().ok_or_else(|| Error::new(ErrorKind::Invalid, "the value is gone"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::bind("tcp://127.0.0.1:0").await?;
    let (table, running) = (Table::default(), server.clone());
    let serving = tokio::spawn(async move { running.serve(move |call| answer(call, Arc::clone(&table))).await });

    let client = Client::new(&server.addrs()[0]);
    let clients: Vec<_> = (0..CLIENTS).map(|key| tokio::spawn(use_it(client.clone(), key))).collect();
    for (key, client) in (0..CLIENTS).zip(clients) {
        let value = client.await??;
        println!("{key} -> {value}");
        assert_eq!(value, key * 2);
    }
    client.close().await;
    server.shutdown(Duration::from_secs(5)).await;
    serving.await??;
    Ok(())
}
