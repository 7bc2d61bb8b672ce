//! What a server does while it does not serve yet: it tells everybody to wait.

use async_trait::async_trait;
use bmi::{Endpoint, Incoming};
use fs_proto::{ErrorCode, FsError, Request};

use crate::service::{Answer, Context, Handler, Limits, Standing, serve_until};

/// Serves nothing.
struct WaitingRoom;

#[async_trait(?Send)]
impl Handler for WaitingRoom {
    async fn handle(&self, _context: &Context, _request: Request, _call: &Incoming) -> Answer {
        Answer::error(FsError::new(ErrorCode::Busy, "this server does not serve yet"))
    }
}

/// Tells everybody `why` the server does not serve, until `work` ends, and returns its result;
/// `None` if `stop` ends first.
pub(super) async fn wait_until<R>(
    why: &str,
    endpoints: &[Endpoint],
    limits: Limits,
    work: impl Future<Output = R>,
    stop: impl Future<Output = ()>,
) -> Option<R> {
    serve_until(endpoints, &WaitingRoom, &Standing::waiting(why), limits, work, stop).await
}

/// Returns why an I/O server does not serve whose store the manager has not confirmed.
pub(super) fn why_iod(iod: u32) -> String {
    format!("the manager has not confirmed the store of iod {iod} yet")
}
