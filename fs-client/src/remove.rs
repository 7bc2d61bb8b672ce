//! Removes trees, with many requests in flight.
//!
//! **How.** Directories are listed page by page, several at the same time, and their files are
//! removed as they are found. Directories are removed from the bottom up: one is removed when
//! everything below it is gone.

use std::cell::RefCell;

use bmi_core::Transport;
use fs_proto::{ErrorCode, Handle, RemoveKind};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;

use crate::client::Client;
use crate::error::Error;
use crate::path::FsPath;

/// Most requests in progress at the same time. The manager commits up to 128 changes at once.
const IN_FLIGHT: usize = 128;

/// What a removal has in common.
struct Removal {
    in_flight: Semaphore,
    first: RefCell<Option<Error>>,
}

impl<T: Transport + 'static> Client<T> {
    /// Removes a file, or a directory with everything below it. After an error it goes on with the
    /// rest.
    ///
    /// # Errors
    /// The first of [`Client::remove`] and [`Client::readdir`]. What others have removed meanwhile is
    /// not an error, except `path` itself.
    pub async fn remove_all(&self, path: &FsPath) -> Result<(), Error> {
        let Handle::Dir(_) = self.lookup(path).await?.handle else {
            return self.remove(path, RemoveKind::Any).await;
        };
        let removal = Removal { in_flight: Semaphore::new(IN_FLIGHT), first: RefCell::default() };
        self.remove_tree(path.clone(), &removal).await;
        removal.first.into_inner().map_or(Ok(()), Err)
    }

    /// Removes a directory with everything below it. Errors are noted.
    fn remove_tree<'a>(&'a self, path: FsPath, removal: &'a Removal) -> LocalBoxFuture<'a, ()> {
        Box::pin(async move {
            if let Err(error) = self.remove_below(&path, removal).await {
                removal.note(error);
            }
            self.remove_one(path, RemoveKind::Dir, removal).await;
        })
    }

    async fn remove_below(&self, path: &FsPath, removal: &Removal) -> Result<(), Error> {
        let mut pages = match self.read_dir(path).await {
            Err(error) if error.code() == ErrorCode::NotFound => return Ok(()),
            pages => pages?,
        };
        let mut trees = FuturesUnordered::new();
        loop {
            let page = {
                let _permit = removal.in_flight.acquire().await;
                pages.next_page().await?
            };
            let Some(page) = page else { break };
            let mut files = Vec::new();
            for entry in page {
                let child = path.join(&entry.name)?;
                match entry.handle {
                    Handle::File(_) => files.push(child),
                    Handle::Dir(_) => trees.push(self.remove_tree(child, removal)),
                }
            }
            let remove = |file| self.remove_one(file, RemoveKind::File, removal);
            stream::iter(files).for_each_concurrent(IN_FLIGHT, remove).await;
        }
        while trees.next().await.is_some() {}
        Ok(())
    }

    async fn remove_one(&self, path: FsPath, kind: RemoveKind, removal: &Removal) {
        let _permit = removal.in_flight.acquire().await;
        match self.remove(&path, kind).await {
            Err(error) if error.code() != ErrorCode::NotFound => removal.note(error),
            _ => {}
        }
    }
}

impl Removal {
    fn note(&self, error: Error) {
        self.first.borrow_mut().get_or_insert(error);
    }
}
