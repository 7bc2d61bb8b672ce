//! The registration of I/O servers: whether a store is the right one, and whether this manager has
//! gone back in time.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use bmi::hooks::mutated;
use fs_proto::{COUNT_BITS, DatafileHandle, ErrorCode, FsError, ManagerReply, Registration, Role, Sender, Start};
use redb::WriteTransaction;
use tokio::sync::Notify;

use super::members::{Members, Recorded, Verdict};
use crate::manager::tables::{Change, Pools};
use crate::manager::{Manager, ManagerIdentity};
use crate::service::Context;

/// What is to be done with a registration.
enum Judged {
    /// The store is not ready. The server is told which of its starts is recorded.
    Early(Option<Start>),
    Ready(Recorded, Verdict),
}

/// Whether a registration is being recorded. One is recorded at a time, and meanwhile no other one
/// is answered, unless its start is recorded already. A server that was told an older record than
/// the one that is about to be would later count as one that has gone back in time.
#[derive(Debug, Default)]
pub(in crate::manager) struct Registering {
    busy: Cell<bool>,
    done: Notify,
}

/// A registration that is being recorded, until it is dropped.
struct Recording(Rc<Registering>);

impl Recording {
    fn begin(registering: &Rc<Registering>) -> Recording {
        registering.busy.set(true);
        Recording(registering.clone())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.0.busy.set(false);
        self.0.done.notify_waiters();
    }
}

impl Manager {
    /// Registers the store of an I/O server.
    pub(in crate::manager) async fn register(
        &self,
        context: &Context,
        registration: &Registration,
    ) -> Result<ManagerReply, FsError> {
        let ManagerIdentity { cluster, start: own, .. } = self.identity;
        let Registration { iod, start, .. } = *registration;
        loop {
            let judged = self.judge(context, registration)?;
            if let Judged::Ready(recorded, Verdict::Known) = judged {
                self.admit(context, iod, recorded);
                let (recorded, tickets) = (Some(start), self.ticket_news().map(Box::new));
                return Ok(ManagerReply::Registered { cluster, start: own, recorded, tickets });
            }
            let done = self.registering.done.notified();
            let next = match judged {
                _ if self.registering.busy.get() => None,
                Judged::Early(recorded) => {
                    return Ok(ManagerReply::Registered { cluster, start: own, recorded, tickets: None });
                }
                Judged::Ready(recorded, verdict) => Some((recorded, verdict == Verdict::Replaced)),
            };
            let recorded = async {
                match next {
                    Some((recorded, replaced)) => self.record(iod, recorded, replaced).await,
                    None => {
                        done.await;
                        Ok(())
                    }
                }
            };
            // Then it is judged again: it is recorded, or another one was.
            self.until(context.deadline, recorded).await?;
        }
    }

    /// Judges a registration.
    fn judge(&self, context: &Context, registration: &Registration) -> Result<Judged, FsError> {
        let Registration { iod, store, start, manager, highest, ready, .. } = *registration;
        let invalid = |text: String| FsError::new(ErrorCode::Invalid, text);
        let sender = context.hello().map(|hello| hello.sender);
        if !matches!(sender, Some(Sender::Server(Role::Iod(sender), _)) if sender == iod) {
            return Err(invalid(format!("the registration of iod {iod} came over a connection of somebody else")));
        }
        let verdict = self.members.borrow().judge(registration);
        let is_recorded = self.members.borrow().store(iod).is_none_or(|recorded| Some(recorded) == store);
        // Only the store that the server has is believed about the past.
        if is_recorded && let Err(why) = self.check_own_time(iod, manager, highest) {
            let error = self.gone_back(&why);
            self.fail(&error);
            return Err(error);
        }
        let verdict = verdict?;
        if !self.members.borrow_mut().is_current(iod, context.session(), ready) {
            // It was sent by an earlier start of the server, and has come late.
            return Err(FsError::new(ErrorCode::Busy, format!("iod {iod} has a newer connection")));
        }
        let known = self.members.borrow().recorded(iod).map(|recorded| recorded.start);
        let Some(recorded) = store.map(|store| Recorded { store, start }).filter(|_| ready) else {
            return Ok(Judged::Early(known));
        };
        if manager != Some(self.identity.start) {
            // The manager was started anew in between. The server asks again.
            let text = format!("iod {iod} does not know this start of the manager yet");
            return Err(FsError::new(ErrorCode::Busy, text));
        }
        Ok(Judged::Ready(recorded, verdict))
    }

    /// Records a registration. It is noted when it is durable, whether its request still waits or
    /// not.
    async fn record(&self, iod: u32, recorded: Recorded, replaced: bool) -> Result<(), FsError> {
        let now_ns = (self.wall)();
        let record = move |transaction: &WriteTransaction| {
            let mut change = Change::open(transaction, now_ns)?;
            if replaced {
                Pools::forget(transaction, iod)?;
                change.forget_all(iod)?;
            }
            change.iod_started()?;
            Members::record(transaction, iod, recorded)
        };
        let recording = Recording::begin(&self.registering);
        let (members, pools) = (self.members.clone(), self.pools.clone());
        let note = move |()| {
            members.borrow_mut().note(iod, recorded);
            if replaced {
                tracing::warn!(iod, %recorded.store, "the store of an I/O server was replaced");
                pools.borrow_mut().clear(iod);
            }
            drop(recording);
            Ok(())
        };
        self.transact_then(record, note).await
    }

    /// Notes that an I/O server is up.
    fn admit(&self, context: &Context, iod: u32, recorded: Recorded) {
        let mut members = self.members.borrow_mut();
        members.note(iod, recorded);
        let is_new = members.admit(iod, Arc::downgrade(context.session()), self.endpoint.now());
        drop(members);
        if is_new {
            tracing::info!(iod, store = %recorded.store, start = recorded.start.epoch, "an I/O server is up");
            self.maintenance.notify_waiters();
            self.retry_deferred();
        }
    }

    /// Checks that this database is no older than what an I/O server has seen: a start of the
    /// manager, and a handle. Otherwise returns the reason.
    pub(in crate::manager) fn check_own_time(
        &self,
        iod: u32,
        manager: Option<Start>,
        highest: DatafileHandle,
    ) -> Result<(), String> {
        if let Some(seen) = manager
            && seen.epoch > self.asked
            && self.starts.get(&seen.epoch) != Some(&seen.instance)
            && !mutated("manager/unknown-start-not-noticed")
        {
            return Err(format!("iod {iod} has seen its start {}, which it does not know", seen.epoch));
        }
        let (epoch, count) = (highest.0 >> COUNT_BITS, highest.0 & ((1 << COUNT_BITS) - 1));
        // Handles of this epoch were assigned since.
        let is_ours = epoch == self.identity.start.epoch;
        if !is_ours && count >= self.assigned && !mutated("manager/higher-handle-not-noticed") {
            return Err(format!("iod {iod} has datafiles up to number {count}, and {} were assigned", self.assigned));
        }
        Ok(())
    }

    /// Returns the error of a manager that has gone back in time. An I/O server goes on
    /// after it: the right manager may come back.
    pub(in crate::manager) fn gone_back(&self, how: &str) -> FsError {
        let text = format!(
            "the manager's metadata (store {}) has gone back in time: {how}. Was it restored from a copy? Use the newest \
             one, or run `pvfsd manager --restored`",
            self.identity.store
        );
        FsError::new(ErrorCode::OutOfDate, text)
    }
}
