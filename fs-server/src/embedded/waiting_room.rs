//! What an I/O server does while the manager has not confirmed its store: it tells everybody to
//! wait.

use std::pin::Pin;

use async_trait::async_trait;
use bmi_core::comm::Incoming;
use bmi_core::{AsyncEndpoint, Transport};
use fs_proto::{ErrorCode, FsError, Request};

use crate::service::{Answer, Context, Handler, Limits, Standing, serve_all};

/// Serves nothing.
pub(super) struct WaitingRoom {
    standing: Standing,
}

impl WaitingRoom {
    pub(super) fn new(iod: u32) -> WaitingRoom {
        let why = format!("the manager has not confirmed the store of iod {iod} yet");
        WaitingRoom { standing: Standing::waiting(why) }
    }

    /// Answers until `work` ends, and returns its result; `None` if `stop` ends first.
    pub(super) async fn until<T: Transport, R>(
        &self,
        fronts: &[(AsyncEndpoint<T>, &WaitingRoom)],
        limits: Limits,
        work: impl Future<Output = R>,
        stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Option<R> {
        let mut result = None;
        let over = async {
            tokio::select! {
                done = work => result = Some(done),
                () = stop => {}
            }
        };
        serve_all(fronts, &self.standing, limits, over).await;
        result
    }
}

#[async_trait(?Send)]
impl<T: Transport> Handler<T> for WaitingRoom {
    async fn handle(&self, _context: &Context, _request: Request, _call: &Incoming<T>) -> Answer {
        Answer::error(FsError::new(ErrorCode::Busy, "this server does not serve yet"))
    }

    async fn background(&self) {
        std::future::pending().await
    }
}
