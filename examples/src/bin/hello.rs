//! A client and a server, complete: the client writes a block and reads it back.
//!
//! The README contains this program. The scheme of the address selects the transport:
//!
//! ```text
//! cargo run -p examples --bin hello server tcp://127.0.0.1:7001
//! cargo run -p examples --bin hello client tcp://127.0.0.1:7001
//! ```

use std::sync::Arc;

use bmi::{Bytes, Call, Client, Error, Server};
use tokio::sync::Mutex;

async fn handle(call: Call, block: Arc<Mutex<Bytes>>) -> Result<(), Error> {
    match call.request() {
        b"write" => {
            *block.lock().await = call.data().await?;
            call.reply("written").await
        }
        b"read" => {
            let data = block.lock().await.clone();
            call.reply("read").data(data).await
        }
        _ => call.refuse("unknown request").await,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, role, addr] = &args[..] else { return Err("usage: hello server|client ADDR".into()) };
    if role == "server" {
        let (server, block) = (Server::bind(addr).await?, Arc::default());
        println!("{}", server.addrs()[0]);
        return Ok(server.serve(move |call| handle(call, Arc::clone(&block))).await?);
    }
    let client = Client::new(addr);
    client.call("write").data(b"Hello, block!".to_vec()).await?;
    println!("{:?}", client.call("read").await?.data);
    Ok(())
}
