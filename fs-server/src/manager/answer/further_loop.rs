//! The further event loops of a manager, each on a thread of its own.
//!
//! **Why.** One event loop uses one processor. Changes need only one: they are made one group at a
//! time, and wait for the disk. So the first loop has the state of the manager and makes the
//! changes. Each further loop receives the requests of its own connections, answers those that only
//! look something up ([`Lookups`]), and passes the others on.
//!
//! **Protocol**
//!
//! ```text
//!   further loop   Lookup, Getattr, Readdir, Ping ──> answered here
//!                  everything else ── Errand ──┐                     ┌──> replies
//!   first loop                                 └──> Manager::answer ─┘ encoded reply
//! ```
//!
//! **Invariants**
//! 1. An errand is answered like a request of the first loop's own connections, in the order of its
//!    arrival there. A loop's errands are bounded by its requests in progress. Beside them there is
//!    only the news that stops the manager.
//! 2. The data of a connection (`Session`) is shared by both loops. Its endpoint is used only on
//!    the connection's own loop.
//! 3. An errand has the deadline of its request: all loops of a server have one clock.
//! 4. The first loop stops last, so that it answers what the others wait for. If it ends before
//!    that, by a panic for instance, they tell their clients that the manager is stopping.
//!
//! **Tests**: `tests/sim/manager/loops.rs`, and `tests/it/transports/loops.rs` of the client with
//! real threads.

use std::cell::RefCell;
use std::future::pending;
use std::sync::Arc;

use async_trait::async_trait;
use bmi::Incoming;
use fs_proto::limits::REPLY_ROOM;
use fs_proto::{ErrorCode, FsError, Hello, Identity, ManagerReply, ManagerRequest, ReplyBody, Request, RequestBody};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::clients::Clients;
use super::mint::Mint;
use crate::manager::Manager;
use crate::manager::commit::Lookups;
use crate::service::{Answer, Context, Handler};

/// Work of a further loop for the first one.
#[expect(clippy::large_enum_variant, reason = "almost all are requests")]
enum Errand {
    Request {
        context: Context,
        request: Request,
        reply: oneshot::Sender<Vec<u8>>,
    },
    /// A refused Hello has shown that the manager has gone back in time, and how.
    GoneBack(String),
}

/// The errands of all further loops.
pub(in crate::manager) struct Errands {
    sender: mpsc::UnboundedSender<Errand>,
    /// Taken by the loop that does them.
    receiver: RefCell<Option<mpsc::UnboundedReceiver<Errand>>>,
}

impl Default for Errands {
    fn default() -> Errands {
        let (sender, receiver) = mpsc::unbounded_channel();
        Errands { sender, receiver: RefCell::new(Some(receiver)) }
    }
}

/// A manager's part of one further event loop. A clone is for another loop.
#[derive(Clone)]
pub(crate) struct ManagerLoop {
    lookups: Arc<Lookups>,
    clients: Arc<Clients>,
    errands: mpsc::UnboundedSender<Errand>,
    mint: Option<Arc<Mint>>,
}

impl Manager {
    /// Returns the manager's part of a further event loop.
    pub(crate) fn further_loop(&self) -> ManagerLoop {
        let (lookups, clients) = (self.lookups.clone(), self.clients.clone());
        ManagerLoop { lookups, clients, errands: self.errands.sender.clone(), mint: self.mint.clone() }
    }

    /// Does the errands of the further loops, in an endless loop.
    pub(in crate::manager) async fn run_errands(&self) {
        let Some(mut errands) = self.errands.receiver.take() else { return pending().await };
        let mut requests = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                Some(()) = requests.next() => {}
                Some(errand) = errands.recv() => match errand {
                    Errand::GoneBack(how) => self.fail(&self.gone_back(&how)),
                    Errand::Request { context, request, reply } => requests.push(async move {
                        let answer = self.answer(&context, request).await;
                        // The receiver is gone if its loop has stopped.
                        let _ = reply.send(answer.into_bytes());
                    }),
                },
            }
        }
    }
}

impl ManagerLoop {
    /// Answers a request that only looks something up, if that is possible on this loop.
    fn look(&self, context: &Context, request: &Request) -> Option<Answer> {
        let RequestBody::Manager(body) = &request.body else { return None };
        let client = request.id.client;
        let reply = match body {
            ManagerRequest::Ping => Ok(ManagerReply::Done),
            ManagerRequest::Lookup { .. } | ManagerRequest::Getattr { .. } | ManagerRequest::Readdir { .. } => {
                let room = context.room.saturating_sub(REPLY_ROOM);
                self.lookups.look(&context.caller(request), client, body, room)?
            }
            _ => return None,
        };
        self.clients.uses(client, context.session());
        let complete = |reply| match &self.mint {
            Some(mint) => mint.complete(context.party(), reply),
            None => reply,
        };
        Some(Answer::from(reply.map(complete).map(ReplyBody::Manager)))
    }
}

#[async_trait(?Send)]
impl Handler for ManagerLoop {
    async fn handle(&self, context: &Context, request: Request, call: &Incoming) -> Answer {
        if let Err(error) = self.lookups.check_party(context.party()) {
            return Answer::error(error);
        }
        if let Some(answer) = self.look(context, &request) {
            return answer;
        }
        let (reply, answer) = oneshot::channel();
        // If this fails, so does the receiver.
        let _ = self.errands.send(Errand::Request { context: context.clone(), request, reply });
        let answer = match answer.await {
            Ok(bytes) => Answer::Encoded(bytes),
            Err(_) => Answer::error(FsError::new(ErrorCode::Unreachable, "the manager is stopping")),
        };
        context.keep_while_drafting(call);
        answer
    }

    fn refused(&self, hello: &Hello, identity: &Identity) {
        if let Some(how) = crate::manager::how_gone_back(hello, identity) {
            // If this fails, the manager stops anyway.
            let _ = self.errands.send(Errand::GoneBack(how));
        }
    }
}
