//! A replica: serves the blocks of one store.

use std::convert::Infallible;
use std::time::Duration;

use bmi::{Endpoint, Error, ErrorKind, Incoming, MemList, Memory, serve};
use futures_util::lock::Mutex;

use super::wire::{Held, Kind, Request};
use super::{Block, Blocks, MAX_BLOCK};

/// Number of calls that are served at a time. Each may hold a block in memory.
const MAX_CALLS: usize = 16;
/// Time that a client has to take part in moving the data of its call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Serves calls, and never returns. Drop it to stop.
pub async fn run(endpoint: &Endpoint, blocks: impl Blocks) -> Infallible {
    let blocks = Mutex::new(blocks);
    serve(endpoint, MAX_CALLS, async |call| answer(&blocks, call).await).await
}

async fn answer(blocks: &Mutex<impl Blocks>, call: Incoming) -> Result<(), Error> {
    let options = call.within(PATIENCE);
    match handle(blocks, &call).await {
        Ok((held, data)) => call.reply(&held.encode(), data, options).await,
        Err(error) => {
            // The client needs an answer too. `serve` logs the error.
            call.reply(b"", None, options).await?;
            Err(error)
        }
    }
}

/// Does what the request asks for. Returns what is held then, and the data of the reply.
async fn handle(blocks: &Mutex<impl Blocks>, call: &Incoming) -> Result<(Held, Option<MemList>), Error> {
    let request = Request::decode(call.request())?;
    if request.kind == Kind::Write {
        if call.len() > MAX_BLOCK {
            return Err(Error::new(ErrorKind::TooLarge, format!("a block of {} bytes", call.len())));
        }
        let memory = Memory::zeroed(call.len() as usize)?;
        call.fetch(0, &memory, call.within(PATIENCE)).await?;
        // The lock is held until the block is written. So an older block never replaces a newer
        // one.
        let mut blocks = blocks.lock().await;
        let held = Block::held(blocks.get(request.key).await?.as_ref());
        if held.version >= request.version {
            return Ok((held, None));
        }
        let block = Block { version: request.version, bytes: memory.into_bytes() };
        let held = Block::held(Some(&block));
        blocks.put(request.key, block).await?;
        return Ok((held, None));
    }
    let block = blocks.lock().await.get(request.key).await?;
    let held = Block::held(block.as_ref());
    let Some(block) = block.filter(|_| request.kind == Kind::Read && held.version == request.version) else {
        return Ok((held, None));
    };
    Ok((held, Some(block.bytes.into())))
}
