//! Fetches files.
//!
//! **Why one more attempt.** A file that is replaced while it is fetched is gone: its servers
//! remove its bytes. The fetch fails then, and nothing of it becomes visible. The new file is
//! fetched instead, once.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bmi::threading::Threading;
use fs_proto::{ErrorCode, SetAttr};
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::blocks::Block;
use super::landing::Landing;
use super::{Copied, Copier, Progress, attributes};
use crate::error::Error;
use crate::file::File;
use crate::local;
use crate::path::FsPath;

/// A file that was opened for reading, as it was then.
pub(super) struct Remote<S: Threading> {
    pub(super) file: File<S>,
    /// In bytes.
    pub(super) size: u64,
    pub(super) attr: SetAttr,
}

impl<S: Threading> Copier<S> {
    /// Fetches one file to the local `target`. An existing file is replaced once the new one is
    /// complete. A target that is not a regular file, such as a pipe, gets its bytes in order.
    ///
    /// # Errors
    /// `Io` naming the local file; those of [`crate::Client::open`] and [`File::read_at`]; `Stale`
    /// if the file was replaced meanwhile, twice.
    pub async fn get_file(&self, source: &FsPath, target: &Path) -> Result<Copied, Error> {
        match self.get_once(source, target).await {
            Err(error) if error.code() == ErrorCode::Stale && is_file_or_absent(target) => {
                tracing::debug!(%source, %error, "fetched once more");
                self.get_once(source, target).await
            }
            result => result,
        }
    }

    async fn get_once(&self, source: &FsPath, target: &Path) -> Result<Copied, Error> {
        let local = |error: io::Error| Error::local(target.display(), &error);
        let remote = self.open(source).await?;
        if self.resume && is_fetched(target, &remote) {
            return Ok(Copied { skipped: 1, ..Copied::default() });
        }
        let (path, size) = (target.to_owned(), remote.size);
        let mode = remote.attr.mode.unwrap_or_default() & 0o777;
        let landing = self.io.run(move || Landing::open(&path, mode)).await.map_err(local)?;
        if !landing.is_file() {
            return self.get_open(source, &remote, landing.file().clone(), &target.display().to_string()).await;
        }
        let name = source;
        (self.progress)(Progress::File { name, bytes: size });
        let file = landing.file().clone();
        let fetched = self
            .in_lanes(|offset| {
                let (remote, file) = (&remote, file.clone());
                async move {
                    if offset >= size {
                        return Ok(None);
                    }
                    let block = self.blocks.take().await?;
                    let len = self.read(remote, offset, &block).await?;
                    if len > 0 {
                        let slice = block.slice(len);
                        self.io.run(move || local::write_at(&file, offset, &slice)).await.map_err(local)?;
                        (self.progress)(Progress::Bytes(len as u64));
                    }
                    block.recycle();
                    Ok((len > 0).then_some((len as u64, false)))
                }
            })
            .await;
        let bytes = fetched?;
        check_whole(source, bytes, size)?;
        let attr = match self.archive {
            true => remote.attr,
            false => SetAttr { mtime_ns: remote.attr.mtime_ns, ..SetAttr::default() },
        };
        self.io.run(move || landing.settle(&attr)).await.map_err(local)?;
        (self.progress)(Progress::Done { name });
        Ok(Copied { files: 1, bytes, ..Copied::default() })
    }

    /// Opens a file for reading.
    pub(super) async fn open(&self, source: &FsPath) -> Result<Remote<S>, Error> {
        let during = |error: Error| error.during(format!("open {source}"));
        let entry = self.client.lookup(source).await.map_err(during)?;
        let attr = match entry.known_attr() {
            Some(attr) => attr,
            None => self.client.stat_of(source, entry.clone()).await.map_err(during)?.attr,
        };
        let file = self.client.file(source, entry).await.map_err(during)?.hinting(self.hints);
        Ok(Remote { file, size: attr.size, attr: attributes::of_remote(&attr) })
    }

    /// Writes one file to `output`, for instance a pipe, in order.
    ///
    /// # Errors
    /// As [`Copier::get_file`].
    pub async fn get_stream(&self, source: &FsPath, output: fs::File) -> Result<Copied, Error> {
        let remote = self.open(source).await?;
        self.get_open(source, &remote, Arc::new(output), "standard output").await
    }

    /// Writes a file to `output`, in order. Errors name it `to`.
    async fn get_open(
        &self,
        source: &FsPath,
        remote: &Remote<S>,
        output: Arc<fs::File>,
        to: &str,
    ) -> Result<Copied, Error> {
        let local = |error: io::Error| Error::local(to, &error);
        let (name, size) = (source, remote.size);
        (self.progress)(Progress::File { name, bytes: size });
        let block_size = self.blocks.block_size as u64;
        let offsets = (0..size.div_ceil(block_size)).map(|index| index * block_size);
        let fetch = async |offset: u64| {
            let block = self.blocks.take().await?;
            let len = self.read(remote, offset, &block).await?;
            Ok::<_, Error>((block, len))
        };
        // Blocks are fetched in order. The oldest one gets its memory first, so later ones cannot
        // block it.
        let mut blocks = stream::iter(offsets).map(fetch).buffered(self.lanes);
        let mut bytes = 0;
        while let Some((block, len)) = blocks.try_next().await? {
            let (slice, output) = (block.slice(len), output.clone());
            self.io.run(move || local::write_stream(&*output, &slice)).await.map_err(local)?;
            block.recycle();
            (self.progress)(Progress::Bytes(len as u64));
            bytes += len as u64;
        }
        check_whole(source, bytes, size)?;
        (self.progress)(Progress::Done { name });
        Ok(Copied { files: 1, bytes, ..Copied::default() })
    }

    async fn read(&self, remote: &Remote<S>, offset: u64, block: &Block<'_, S>) -> Result<usize, Error> {
        let want = usize::try_from(remote.size - offset).unwrap_or(usize::MAX).min(self.blocks.block_size);
        let len = remote.file.read_at(offset, block.slice(want)).await?;
        Ok(usize::try_from(len).unwrap_or(want).min(want))
    }
}

/// Returns true if a fetch to `target` has no effect before it is complete.
fn is_file_or_absent(target: &Path) -> bool {
    fs::metadata(target).map_or(true, |metadata| metadata.is_file())
}

/// Returns true if the local file has the size and the modification time of the remote one.
fn is_fetched<S: Threading>(target: &Path, remote: &Remote<S>) -> bool {
    fs::metadata(target).is_ok_and(|metadata| {
        let mtime_ns = attributes::of_local(&metadata).mtime_ns;
        metadata.is_file() && metadata.len() == remote.size && mtime_ns == remote.attr.mtime_ns
    })
}

/// Checks that a fetched file has the size that it had when the fetch began.
fn check_whole(source: &FsPath, bytes: u64, size: u64) -> Result<(), Error> {
    if bytes == size {
        return Ok(());
    }
    let text = format!("{source} had {size} bytes, and {bytes} of them were read: it was changed meanwhile");
    Err(Error::new(ErrorCode::Stale, text).during(format!("read of {source}")))
}
