//! Requests that change nothing: they are answered from the metadata as of the last commit.

use std::rc::Rc;

use bmi_core::{Addr, Transport};
use fs_proto::limits::MAX_ENTRIES;
use fs_proto::{ClusterInfo, Entry, ErrorCode, FsError, IodInfo, ManagerReply, ManagerRequest};
use redb::ReadTransaction;

use super::{Fault, Manager, namespace};
use crate::service::Session;

impl<T: Transport> Manager<T> {
    /// Answers a request that changes nothing. The reply has `room` bytes.
    pub(super) async fn look(
        &self,
        client: u128,
        request: &ManagerRequest,
        room: usize,
    ) -> Result<ManagerReply, FsError> {
        Ok(match request {
            ManagerRequest::Ping => ManagerReply::Done,
            ManagerRequest::Lookup { place } => {
                ManagerReply::Entry(self.find(client, |read| namespace::view(read)?.lookup(place)).await?)
            }
            ManagerRequest::Getattr { handle } => {
                ManagerReply::Entry(self.find(client, |read| namespace::view(read)?.getattr(*handle)).await?)
            }
            ManagerRequest::Readdir { dir, after, max } => {
                let max = (*max as usize).min(MAX_ENTRIES);
                let page = self.read(|read| namespace::view(read)?.readdir(*dir, after, max, room));
                let (entries, more) = page.await?;
                ManagerReply::Entries { entries, more }
            }
            ManagerRequest::Statfs => {
                let stat = self.read(namespace::stat).await?;
                ManagerReply::Stat(fs_proto::ManagerStat { prepared: self.pools.borrow().total(), ..stat })
            }
            ManagerRequest::Cluster { first } => ManagerReply::Cluster(self.cluster(*first as usize, room)),
            other => return Err(FsError::new(ErrorCode::Invalid, format!("{} changes something", other.name()))),
        })
    }

    /// Finds an object for a client. The client learns where it is.
    async fn find(
        &self,
        client: u128,
        find: impl Fn(&ReadTransaction) -> Result<Entry, Fault>,
    ) -> Result<Entry, FsError> {
        loop {
            let commits = self.database.ended();
            let entry = self.read(&find).await?;
            if self.seen(&entry, client, commits).await {
                return Ok(entry);
            }
        }
    }

    /// Returns a page of a backup.
    pub(super) async fn backup(&self, session: &Rc<Session>, page: u64, room: usize) -> Result<ManagerReply, FsError> {
        let view = self.database.view().await.map_err(|fault| self.settle(fault))?;
        let page = self.snapshots.borrow_mut().page(&view, session, page, room, self.endpoint.now());
        page.map_err(|fault| self.settle(fault))
    }

    /// Returns the I/O servers from `first` on, as many as fit into a reply of `room` bytes.
    fn cluster(&self, first: usize, room: usize) -> ClusterInfo {
        let (members, now, mut left) = (self.members.borrow(), self.endpoint.now(), room);
        let iods = self.settings.iods.iter().enumerate().skip(first).take_while(|(index, addr)| {
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
