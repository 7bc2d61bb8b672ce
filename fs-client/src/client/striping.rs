//! Where the bytes of an open file are, and what makes a small file larger.

use bmi::threading::Threading;
use fs_proto::{Distribution, ErrorCode, FileHandle, Layout, ManagerRequest};

use super::handle::Client;
use crate::error::{Error, ServerName};

/// Where the bytes of a file are. It changes once at most: when a small file grows.
#[derive(Debug)]
pub(crate) struct Striping {
    pub(crate) layout: Layout,
    /// That of the layout.
    pub(crate) distribution: Distribution,
    /// In the order of the layout.
    pub(crate) servers: Vec<ServerName>,
}

impl<S: Threading> Client<S> {
    /// Finds the servers of a layout.
    pub(crate) async fn striping(&self, layout: Layout) -> Result<Striping, Error> {
        let known = |layout: &Layout| {
            let iods = self.inner().connections.iods();
            let servers = layout.datafiles().iter().map(|(iod, _)| iods.get(*iod as usize).cloned());
            servers.collect::<Option<Vec<ServerName>>>()
        };
        let servers = match known(&layout) {
            Some(servers) => servers,
            None => {
                // The file is on a server that joined later.
                while let Err(error) = self.refresh().await {
                    if !self.insists(&error).await {
                        return Err(error);
                    }
                }
                let unknown =
                    || Error::new(ErrorCode::Protocol, "the file lies on a server that the manager does not know");
                known(&layout).ok_or_else(unknown)?
            }
        };
        Ok(Striping { distribution: layout.distribution(), layout, servers })
    }

    /// Has the manager give a small file all its datafiles. Returns its layout.
    pub(crate) async fn grow(&self, file: FileHandle) -> Result<Layout, Error> {
        let avoid = self.inner().connections.avoided();
        let (entry, _) = self.ask_opened(ManagerRequest::Grow { file, avoid }).await?;
        entry.layout.ok_or_else(|| Error::new(ErrorCode::Protocol, "the manager let a file grow that has no layout"))
    }
}
