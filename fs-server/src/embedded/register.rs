//! Registers the store of an I/O server with the manager, which knows the server's previous store.
//!
//! **Why.** A directory records which server it belongs to (`store/identity.rs`), but not whether
//! it is the one with the data. The mount point of a disk that is not mounted is an empty
//! directory, and every store begins as an empty directory. So the manager remembers the store of
//! each I/O server.
//!
//! **How.** The server begins to serve, and meanwhile asks until it has an answer. The manager need
//! not be running yet. While it is not, no client learns of any file. If the manager rejects the
//! store, the server stops and reports the reason.

use std::time::Duration;

use bmi_core::comm::{Body, Caller};
use bmi_core::{Addr, AsyncEndpoint, Transport};
use fs_proto::{ErrorCode, FsError, ManagerRequest, Request, RequestBody, RequestId, codec};

/// Time limit of one attempt.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after the first failed attempt.
const SHORTEST: Duration = Duration::from_millis(50);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(5);

/// Asks the manager until it answers. Returns its error if it rejects the store; never returns if
/// it accepts it. `client` is a number that no other client has.
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

/// Returns the manager's answer, or the reason why there is none.
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
    // An error means that the connection has ended already.
    let _ = endpoint.disconnect(peer, endpoint.within(PATIENCE)).await;
    result
}
