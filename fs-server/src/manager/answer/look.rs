//! Requests that change nothing: they are answered from the metadata as of the last commit.

use std::sync::Arc;

use bmi::Addr;
use bmi::hooks::step;
use fs_proto::{Caller, ClusterInfo, FileHandle, FsError, IodInfo, ManagerReply, ManagerRequest, ManagerStat, Name};
use redb::WriteTransaction;

use crate::manager::Manager;
use crate::manager::backup::What;
use crate::manager::commit::lookups::{self, Asker};
use crate::manager::tables::{Change, names};
use crate::metrics::{UP, Values, of_manager};
use crate::service::Session;

impl Manager {
    /// Answers a request that changes nothing. The reply has `room` bytes.
    pub(in crate::manager) async fn look(
        &self,
        caller: &Caller,
        client: u128,
        request: &ManagerRequest,
        room: usize,
    ) -> Result<ManagerReply, FsError> {
        match request {
            ManagerRequest::Hold { file } => return self.hold(caller, client, *file, room).await,
            ManagerRequest::Release { files } => return self.release(client, files).await,
            ManagerRequest::Ping => return Ok(ManagerReply::Done),
            ManagerRequest::Revoked => {
                let all = self.lookups.revoked().into_iter().map(|(name, since)| (Name(name), since));
                return Ok(ManagerReply::Revoked(all.collect()));
            }
            ManagerRequest::Cluster { first } => return Ok(ManagerReply::Cluster(self.cluster(*first as usize, room))),
            _ => {}
        }
        // This also opens the database again, if it has failed.
        let reply = self.read(|read| {
            let asker = Asker { caller, client, holds: &self.lookups.holds };
            lookups::answer(read, &asker, request, room)
        });
        let reply = reply.await?;
        Ok(match reply {
            ManagerReply::Stat(stat) => {
                ManagerReply::Stat(ManagerStat { prepared: self.pools.borrow().total(), ..stat })
            }
            reply => reply,
        })
    }

    /// Notes that a client has a file open, and returns the file as it is.
    async fn hold(
        &self,
        caller: &Caller,
        client: u128,
        file: FileHandle,
        room: usize,
    ) -> Result<ManagerReply, FsError> {
        self.lookups.hold(file, client).await?;
        // From now on its files stay for some time when its connection is lost.
        self.clients.owns_nameless(client, self.endpoint.now());
        let getattr = ManagerRequest::Getattr { handle: file.into(), open: true };
        let held = async {
            let found = Box::pin(self.look(caller, client, &getattr, room)).await?;
            let mut is_nameless = false;
            if let ManagerReply::Opened { entry, access, .. } = &found {
                is_nameless = entry.attr.nlink == 0;
                self.lookups.holds.grant(file.0, client, *access);
            }
            if is_nameless || !self.lookups.holds.knows(client) {
                let (now_ns, holds) = ((self.wall)(), self.lookups.holds.clone());
                let hold = move |transaction: &WriteTransaction| Change::open(transaction, now_ns)?.hold(client, file);
                let learn = move |()| {
                    holds.learn(client);
                    Ok(())
                };
                self.transact_then(hold, learn).await?;
            }
            Ok(found)
        };
        let held = held.await;
        if held.is_err() {
            // It may have lost its last name meanwhile, and be kept for this client.
            self.release(client, &[file]).await?;
        }
        held
    }

    /// Notes that a client has closed files, and removes those that have no name and that nobody
    /// else holds.
    async fn release(&self, client: u128, files: &[FileHandle]) -> Result<ManagerReply, FsError> {
        self.lookups.release(files, client).await;
        let owned = self.read(|read| names::owned(read, client, files)).await?;
        // One at a time: each may have a datafile on every I/O server, which is work for the loop.
        for file in owned {
            let now_ns = (self.wall)();
            let abandon =
                move |transaction: &WriteTransaction| Change::open(transaction, now_ns)?.abandon(client, file);
            self.transact_then(abandon, |()| Ok(())).await?;
            self.maintenance.notify_waiters();
        }
        Ok(ManagerReply::Done)
    }

    /// Returns what is sampled of the manager.
    pub(in crate::manager) async fn values(&self) -> Values {
        let stat = self.look(&Caller::ROOT, 0, &ManagerRequest::Statfs, 0).await;
        let mut values = if let Ok(ManagerReply::Stat(stat)) = stat { of_manager(&stat) } else { Vec::new() };
        let (members, now) = (self.members.borrow(), self.endpoint.now());
        values.push((UP, (0..self.iods()).filter(|iod| members.is_up(*iod, now)).count() as u64));
        values
    }

    /// Returns a page of a backup, or for a check.
    pub(in crate::manager) async fn snapshot(
        &self,
        session: &Arc<Session>,
        what: What,
        page: u64,
        room: usize,
    ) -> Result<ManagerReply, FsError> {
        let view = self.database.view().await.map_err(|fault| self.settle(fault))?;
        let page = self.snapshots.borrow_mut().page(&view, session, (what, page), room, self.endpoint.now());
        page.map_err(|fault| self.settle(fault))
    }

    /// Returns the I/O servers from `first` on, as many as fit into a reply of `room` bytes.
    fn cluster(&self, first: usize, room: usize) -> ClusterInfo {
        let (members, now, mut left) = (self.members.borrow(), self.endpoint.now(), room);
        let iods = self.settings.iods.iter().enumerate().skip(first).take_while(|(index, addr)| {
            step();
            // Beside the text: lengths, the number of the store, and whether the server is up.
            let needed = addr.to_string().len() + 24;
            let fits = needed <= left || *index == first;
            left = left.saturating_sub(needed);
            fits
        });
        let info = |(index, addr): (usize, &Addr)| {
            let iod = index as u32;
            IodInfo { addr: addr.clone(), store: members.store(iod), up: members.is_up(iod, now) }
        };
        ClusterInfo { iods: iods.map(info).collect(), total: self.iods(), strip_size: self.settings.strip_size }
    }
}
