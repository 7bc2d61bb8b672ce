//! A client and a server, complete: the client writes a block and reads it back.
//!
//! The README contains this program. The scheme of the address selects the transport:
//!
//! ```text
//! cargo run -p examples --bin hello server tcp://127.0.0.1:7001
//! cargo run -p examples --bin hello client tcp://127.0.0.1:7001
//! ```

use std::{cell::RefCell, time::Duration};

use bmi::driver::{MonotonicClock, event};
use bmi::{Addr, Body, Config, Memory, OpenOptions, serve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, role, addr] = &args[..] else { return Err("usage: hello server|client ADDR".into()) };
    let at: Addr = addr.parse()?;
    let (config, clock) = (Config::named(role).max_message(1 << 20), MonotonicClock::new());
    let endpoint = bmi::endpoint(at.scheme(), &OpenOptions::default(), config, clock)?;
    let soon = || endpoint.within(Duration::from_secs(5));
    event::block_on(endpoint.clone(), async {
        if role == "server" {
            println!("{}", endpoint.listen(&at)?);
            let block = RefCell::new(Memory::zeroed(0)?);
            let serving = serve(&endpoint, 64, async |call| {
                if call.request() == b"write" {
                    let memory = Memory::zeroed(call.len() as usize)?;
                    call.fetch(0, &memory, soon()).await?;
                    block.replace(memory);
                    return call.reply(b"written", None, soon()).await;
                }
                let data = block.borrow().clone();
                if call.len() != data.len() as u64 {
                    return call.reply(b"the block has another length", None, soon()).await;
                }
                call.reply(b"read", Some(data.into()), soon()).await
            });
            match serving.await {}
        }
        let (block, hello) = (Memory::zeroed(13)?, b"Hello, block!".to_vec());
        let peer = endpoint.connect(&at, soon()).await?;
        peer.call(b"write", Body::Out(hello.into()), soon())?.reply().await?;
        let call = peer.call(b"read", Body::In((&block).into()), soon())?;
        println!("{:?}: {:?}", call.reply().await?.bytes, String::from_utf8_lossy(&block.to_vec()));
        Ok(peer.disconnect(soon()).await?)
    })?
}
