//! What a server does while it does not serve yet: it tells everybody to wait.

use async_trait::async_trait;
use bmi_core::AsyncEndpoint;
use bmi_core::comm::Incoming;
use fs_proto::{ErrorCode, FsError, Request};

use crate::service::{Answer, Context, Handler, Limits, Standing, serve_until};

/// Serves nothing.
pub(super) struct WaitingRoom {
    standing: Standing,
}

impl WaitingRoom {
    /// Creates the handler that tells everybody `why` it does not serve.
    pub(super) fn new(why: impl Into<String>) -> WaitingRoom {
        WaitingRoom { standing: Standing::waiting(why) }
    }

    /// Returns why an I/O server does not serve whose store the manager has not confirmed.
    pub(super) fn why_iod(iod: u32) -> String {
        format!("the manager has not confirmed the store of iod {iod} yet")
    }

    /// Answers until `work` ends, and returns its result; `None` if `stop` ends first.
    pub(super) async fn until<R>(
        &self,
        fronts: &[(AsyncEndpoint, &WaitingRoom)],
        limits: Limits,
        work: impl Future<Output = R>,
        stop: impl Future<Output = ()>,
    ) -> Option<R> {
        serve_until(fronts, &self.standing, limits, work, stop).await
    }
}

#[async_trait(?Send)]
impl Handler for WaitingRoom {
    async fn handle(&self, _context: &Context, _request: Request, _call: &Incoming) -> Answer {
        Answer::error(FsError::new(ErrorCode::Busy, "this server does not serve yet"))
    }

    async fn background(&self) {
        std::future::pending().await
    }
}
