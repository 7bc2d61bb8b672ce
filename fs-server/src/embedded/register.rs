//! Which store an I/O server has: told to the manager, who knows which one it had before.
//!
//! **Why.** A directory says itself which server's it is (`store/identity.rs`), but not whether it
//! is the one with the data: the mount point of a disk that is not mounted is an empty directory,
//! and an empty directory is what every store begins with. The manager remembers each I/O server's
//! store.
//!
//! **How.** The server begins to serve and asks beside that, until it has an answer: the manager
//! need not be there yet, and while it is not, no client learns of any file. If the answer is no,
//! the server stops and says why.

use std::time::Duration;

use bmi_core::comm::{Body, Caller};
use bmi_core::{Addr, AsyncEndpoint, Transport};
use fs_proto::{ErrorCode, FsError, ManagerRequest, Request, RequestBody, RequestId, codec};

/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long to wait after the first attempt that failed.
const SHORTEST: Duration = Duration::from_millis(50);
/// How long to wait at most.
const LONGEST: Duration = Duration::from_secs(5);

/// Asks until there is an answer. Ends if that is no; if it is yes, never. `client` is a number
/// that no other client has.
pub(super) async fn register<T: Transport>(
    endpoint: &AsyncEndpoint<T>,
    manager: &Addr,
    request: ManagerRequest,
    client: u128,
) -> FsError {
    let mut pause = SHORTEST;
    for seq in 1.. {
        match ask(endpoint, manager, RequestId { client, seq }, request.clone()).await {
            Ok(Ok(())) => break,
            Ok(Err(error)) if error.code == ErrorCode::Invalid => return error.with_server(manager),
            Ok(Err(error)) | Err(error) => tracing::debug!(%manager, %error, "not registered yet"),
        }
        endpoint.sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
    std::future::pending().await
}

/// The manager's answer, or why there is none.
async fn ask<T: Transport>(
    endpoint: &AsyncEndpoint<T>,
    manager: &Addr,
    id: RequestId,
    request: ManagerRequest,
) -> Result<Result<(), FsError>, FsError> {
    let body = RequestBody::Manager(request);
    let request = Request { id, unanswered: id.seq, timeout_ms: PATIENCE.as_millis() as u32, body };
    let peer = endpoint.connect(&manager.without_device(), endpoint.within(PATIENCE)).await?;
    let exchange = async {
        let (bytes, options) = (codec::encode_request(&request), endpoint.within(PATIENCE));
        let reply =
            Caller::new(endpoint.clone()).call(peer, id.seq, &bytes, Body::None, None, options)?.reply().await?;
        match codec::decode_reply(&reply.bytes) {
            Ok(reply) => Ok(reply.result.map(|_| ())),
            Err(error) => Err(FsError::new(ErrorCode::Protocol, error.to_string())),
        }
    };
    let result = exchange.await;
    // It may be gone already, which is as good.
    let _ = endpoint.disconnect(peer, endpoint.within(PATIENCE)).await;
    result
}
