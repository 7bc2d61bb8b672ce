//! An open file: what it is, and what is known about it here.

use std::sync::Arc;

use bmi::threading::{AnyThread, OneThread, Threading};
use fs_proto::{CacheHints, DatafileHandle, Distribution, FileHandle, Layout};

use super::advice::Advice;
use super::unsynced::Unsynced;
use crate::client::Client;
use crate::error::ServerName;
use crate::locked::Locked;
use crate::path::FsPath;
use crate::shared::ViewCache;

/// Size of a request without its lists, in bytes: version, ids, time limit, kind, handle and
/// lengths, each at its longest.
pub(super) const REQUEST_ROOM: usize = 128;

/// An open file. A clone is another handle to it. A file need not be closed.
pub struct File<S: Threading = OneThread> {
    pub(super) client: Client<S>,
    pub(super) inner: Arc<OpenFile<S>>,
}

/// An open file that any thread can use, if the transport is `Send`.
pub type SharedFile = File<AnyThread>;

pub(super) struct OpenFile<S: Threading> {
    client: Client<S>,
    path: FsPath,
    handle: FileHandle,
    pub(super) layout: Layout,
    pub(super) servers: Vec<ServerName>,
    /// By datafile: what was written and not synced since.
    pub(super) unsynced: Unsynced,
    /// By datafile: its size after the last write through this handle.
    pub(super) written_sizes: Locked<Vec<u64>>,
    pub(super) advice: Advice,
    views: ViewCache,
}

impl<S: Threading> Drop for OpenFile<S> {
    fn drop(&mut self) {
        self.client.closed(self.handle);
    }
}

impl<S: Threading> Clone for File<S> {
    fn clone(&self) -> File<S> {
        File { client: self.client.clone(), inner: self.inner.clone() }
    }
}

impl<S: Threading> File<S> {
    /// Creates a file. `servers` are those of the layout, in its order.
    pub(crate) fn new(
        client: Client<S>,
        path: FsPath,
        handle: FileHandle,
        layout: Layout,
        servers: Vec<ServerName>,
        recorded_size: Option<u64>,
    ) -> File<S> {
        let unsynced = Unsynced::new(servers.len());
        let written_sizes = Locked::new(vec![0; servers.len()]);
        client.opened(handle, recorded_size);
        let advice = Advice::new(servers.len());
        let views = ViewCache::default();
        let own = client.clone();
        let inner = OpenFile { client: own, path, handle, layout, servers, unsynced, written_sizes, advice, views };
        File { client, inner: Arc::new(inner) }
    }

    /// Gives hints, which the servers are told with the first access to each.
    pub(crate) fn hinting(self, hints: CacheHints) -> File<S> {
        if hints != CacheHints::default() {
            self.inner.advice.set(hints);
        }
        self
    }

    pub(crate) fn client(&self) -> &Client<S> {
        &self.client
    }

    pub(crate) fn advice(&self) -> &Advice {
        &self.inner.advice
    }

    pub(crate) fn views(&self) -> &ViewCache {
        &self.inner.views
    }

    /// Returns the path that the file was opened by.
    pub fn path(&self) -> &FsPath {
        &self.inner.path
    }

    /// Returns the file's handle.
    pub fn handle(&self) -> FileHandle {
        self.inner.handle
    }

    /// Returns the distribution of the file.
    pub fn distribution(&self) -> &Distribution {
        self.inner.layout.distribution()
    }

    /// Returns the servers that the file is striped over, in the order of the distribution.
    pub fn servers(&self) -> &[ServerName] {
        &self.inner.servers
    }

    /// Returns the record of what was written and not synced.
    pub(crate) fn unsynced(&self) -> &Unsynced {
        &self.inner.unsynced
    }

    /// Returns the handles of the datafiles, in the order of the distribution.
    pub(super) fn datafile_handles(&self) -> impl Iterator<Item = DatafileHandle> {
        self.inner.layout.datafiles().iter().map(|(_, handle)| *handle)
    }

    /// Returns the handle of a datafile, by its place in the distribution.
    pub(super) fn datafile_handle(&self, datafile: usize) -> DatafileHandle {
        self.inner.layout.datafiles()[datafile].1
    }
}
