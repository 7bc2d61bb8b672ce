//! Removes the datafiles of removed files from their I/O servers.
//!
//! **Why here.** `remove` ends when the name is gone, in one transaction that also lists the
//! datafiles as orphans. The manager tells the I/O servers afterwards. So no datafile is left
//! behind if a client dies in between, or if the manager or an I/O server is down for a while.
//!
//! **How.** There is one loop for each I/O server. It reads a page of the server's orphans,
//! connects if necessary, sends a removal for each, and deletes the confirmed ones from the list.
//! Removal is idempotent, so a crash between confirmation and deletion from the list does no harm.
//! After a failure the loop waits, twice as long each time, up to [`LONGEST`].

use std::time::Duration;

use bmi_core::comm::{Body, Caller};
use bmi_core::mutated;
use bmi_core::{PeerId, Transport};
use fs_proto::{DatafileHandle, ErrorCode, FsError, IodRequest, Request, RequestBody, RequestId, codec};
use futures_util::future::join_all;

use super::namespace::{self, Change};
use super::{Fault, Manager};

/// Removals in progress at one server. The number is less than the credits of a connection.
const PAGE: usize = 32;
/// Time limit of one removal.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after the first failure.
const SHORTEST: Duration = Duration::from_millis(100);
/// Longest pause.
const LONGEST: Duration = Duration::from_secs(30);

impl<T: Transport> Manager<T> {
    /// Runs the loops of all I/O servers. Never returns.
    pub(super) async fn tend_orphans(&self) {
        join_all((0..self.settings.iods.len()).map(|iod| self.tend(iod))).await;
    }

    async fn tend(&self, iod: usize) {
        let caller = Caller::new(self.towards(&self.settings.iods[iod]).clone());
        let mut peer: Option<PeerId> = None;
        let mut pause = SHORTEST;
        let mut seq = 0;
        loop {
            // Registered before the list is read, so that no orphan added in between is missed.
            let news = self.orphaned.notified();
            tokio::pin!(news);
            news.as_mut().enable();
            match self.remove_page(&caller, iod, &mut peer, &mut seq).await {
                Ok(true) => pause = SHORTEST,
                Ok(false) => {
                    pause = SHORTEST;
                    news.await;
                }
                Err(error) => {
                    tracing::warn!(%error, iod, pause_ms = pause.as_millis() as u64, "orphans stay for now");
                    self.endpoint.sleep(pause).await;
                    pause = (pause * 2).min(LONGEST);
                }
            }
        }
    }

    /// Removes some of a server's orphans. Returns whether there were any.
    async fn remove_page(
        &self,
        caller: &Caller<T>,
        iod: usize,
        peer: &mut Option<PeerId>,
        seq: &mut u64,
    ) -> Result<bool, FsError> {
        let endpoint = caller.endpoint();
        let page = self.store.read().map_err(Fault::from).and_then(|read| namespace::orphans(&read, iod as u32, PAGE));
        let page = page.map_err(|fault| self.settle(fault))?;
        if page.is_empty() {
            return Ok(false);
        }
        let connected = match *peer {
            Some(connected) if endpoint.limits(connected).is_some() => connected,
            _ => {
                let addr = &self.settings.iods[iod].without_device();
                let connected = endpoint.connect(addr, endpoint.within(PATIENCE)).await?;
                *peer = Some(connected);
                connected
            }
        };
        let removals = page.iter().map(|datafile| {
            *seq += 1;
            remove_one(caller, connected, *seq, *datafile)
        });
        let results = join_all(removals).await;
        let (mut removed, mut failure) = (Vec::new(), None);
        for (datafile, result) in page.into_iter().zip(results) {
            match result {
                Ok(()) => removed.push(datafile),
                Err(_) if mutated("manager/orphan-forgotten-before-it-is-removed") => removed.push(datafile),
                Err(error) => failure = Some(error),
            }
        }
        self.strike_off(iod as u32, &removed).map_err(|fault| self.settle(fault))?;
        match failure {
            None => Ok(true),
            Some(error) => {
                // Reconnect after any failure. If the server was restarted, the old connection is
                // of no use.
                *peer = None;
                let _ = endpoint.disconnect(connected, endpoint.within(PATIENCE)).await;
                Err(error.with_server(&self.settings.iods[iod]))
            }
        }
    }

    fn strike_off(&self, iod: u32, removed: &[DatafileHandle]) -> Result<(), Fault> {
        if removed.is_empty() {
            return Ok(());
        }
        let transaction = self.store.write()?;
        Change::open(&transaction, (self.wall)())?.forget(iod, removed)?;
        transaction.commit()?;
        Ok(())
    }
}

/// Tells an I/O server to remove one datafile.
async fn remove_one<T: Transport>(
    caller: &Caller<T>,
    peer: PeerId,
    seq: u64,
    datafile: DatafileHandle,
) -> Result<(), FsError> {
    let request = Request {
        // An I/O server ignores the id, because removal is idempotent.
        id: RequestId { client: 0, seq },
        unanswered: seq,
        timeout_ms: PATIENCE.as_millis() as u32,
        body: RequestBody::Iod(IodRequest::Remove { datafile }),
    };
    let (bytes, options) = (codec::encode_request(&request), caller.endpoint().within(PATIENCE));
    let reply = caller.call(peer, seq, &bytes, Body::None, None, options)?.reply().await?;
    match codec::decode_reply(&reply.bytes) {
        Ok(reply) => reply.result.map(|_| ()),
        Err(error) => Err(FsError::new(ErrorCode::Protocol, error.to_string())),
    }
}
