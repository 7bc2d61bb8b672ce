//! Puts: a draft is written, synced and published.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bmi::threading::AnyThread;
use bmi::{MemList, Memory};
use fs_proto::{ErrorCode, FileHandle, ManagerRequest, Replace};
use futures_util::FutureExt;
use futures_util::future::{Either, select};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, MultipartUpload, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
    UpdateVersion, UploadPart,
};

use super::read::{CHUNK, WINDOW, read};
use super::{MOST_TRIES, PvfsStore, etag, failed, generic, is_missing, is_replaced, missing, refused};
use crate::error::Error;
use crate::file::sync_files;
use crate::names::{Draft, Publish};
use crate::path::FsPath;

/// Most files that the bytes of a put are written to, because servers were lost.
const MOST_DRAFTS: usize = 3;

/// A file without a name that is to become an object. If it is dropped before it was published, the
/// next put removes it.
struct Upload {
    store: PvfsStore,
    target: FsPath,
    draft: Draft<AnyThread>,
    published: AtomicBool,
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !*self.published.get_mut() {
            self.store.0.left.with(|left| left.push(self.draft.file().handle()));
        }
    }
}

impl Upload {
    async fn write(&self, offset: u64, payload: PutPayload) -> Result<(), Error> {
        let pieces = payload.into_iter().filter(|bytes| !bytes.is_empty());
        let memory: MemList = pieces.map(|bytes| Memory::from(bytes).all()).collect();
        if memory.is_empty() {
            return Ok(());
        }
        let write = self.draft.file().write_at(offset, memory);
        // The manager removes the drafts of a client that it does not hear of.
        match select(std::pin::pin!(write), std::pin::pin!(self.store.client().stay_connected())).await {
            Either::Left((written, _)) => written,
            Either::Right(((), write)) => write.await,
        }
    }

    /// Flushes what was written.
    async fn sync(&self) -> Result<(), Error> {
        let failures = sync_files(self.store.client(), &[self.draft.file()], false).await.remove(0);
        if failures.is_empty() {
            Ok(())
        } else {
            Err(Error::combined(failures).during(format!("sync {}", self.target)))
        }
    }

    /// Publishes what was synced.
    async fn publish(&self, size: u64, replace: Replace) -> Result<PutResult, Error> {
        let how = Publish { inherit: true, size: Some(size), replace, ..Publish::default() };
        let mut published = self.draft.publish(how).await;
        if is_missing(&published) && !matches!(replace, Replace::File(_)) {
            // The directory was there when the draft was created.
            self.store.make_parents(&self.target).await?;
            published = self.draft.publish(how).await;
        }
        published?;
        self.published.store(true, Ordering::Relaxed);
        let e_tag = Some(etag(self.draft.file().handle()));
        Ok(PutResult { e_tag, version: None, extensions: Default::default() })
    }
}

impl PvfsStore {
    async fn begin(&self, location: &Path) -> Result<Upload, Error> {
        self.remove_left().await;
        let target = self.path(location)?;
        let mut draft = self.client().draft(&target, self.0.create).await;
        if is_missing(&draft) {
            self.make_parents(&target).await?;
            draft = self.client().draft(&target, self.0.create).await;
        }
        Ok(Upload { store: self.clone(), target, draft: draft?, published: AtomicBool::new(false) })
    }

    /// Removes files without a name that nobody will publish.
    async fn remove_left(&self) {
        while let Some(file) = self.0.left.with(Vec::pop) {
            if let Err(error) = self.client().ask_done(ManagerRequest::Abandon { file }).await {
                tracing::debug!(%error, "the manager removes the file later");
            }
        }
    }

    /// Ends an upload, by its failure too.
    async fn end<R>(&self, upload: Upload, result: Result<R, Error>) -> Result<R, Error> {
        drop(upload);
        self.remove_left().await;
        result
    }

    pub(super) async fn put(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        refuse_attributes(&options.attributes)?;
        let replace = match &options.mode {
            PutMode::Overwrite => Replace::Anything,
            PutMode::Create => Replace::Nothing,
            PutMode::Update(version) => Replace::File(expected(location, version)?),
        };
        let size = payload.content_length() as u64;
        let put = async {
            for tried in 1.. {
                let upload = self.begin(location).await?;
                let written = async {
                    upload.write(0, payload.clone()).await?;
                    upload.sync().await
                };
                match written.await {
                    Ok(()) => {
                        let published = upload.publish(size, replace).await;
                        return self.end(upload, published).await;
                    }
                    // A server was lost. Others are found for the next one.
                    Err(error) if error.is_worth_another_file() && tried < MOST_DRAFTS => drop(upload),
                    Err(error) => return self.end(upload, Err(error)).await,
                }
            }
            unreachable!("the last try returns")
        };
        put.await.map_err(|error| match (replace, error.code()) {
            (Replace::File(_), ErrorCode::Exists | ErrorCode::NotFound | ErrorCode::NotDirectory) => {
                changed(location, error)
            }
            _ => failed(location, error),
        })
    }

    pub(super) async fn begin_parts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        refuse_attributes(&options.attributes)?;
        let upload = self.begin(location).await.map_err(|error| failed(location, error))?;
        let (location, upload) = (location.clone(), Some(Arc::new(upload)));
        Ok(Box::new(Parts { store: self.clone(), location, upload, len: 0, written: Arc::default() }))
    }

    pub(super) async fn copy_object(&self, from: &Path, to: &Path, replace: Replace) -> Result<()> {
        for tried in 1.. {
            let (source, meta) = match self.open(from).await {
                Err(error) if error.code() == ErrorCode::Stale && tried < MOST_TRIES => continue,
                opened => opened.map_err(|error| missing(from, error))?,
            };
            let upload = self.begin(to).await.map_err(|error| failed(to, error))?;
            let offsets = stream::iter((0..meta.size).step_by(CHUNK as usize)).map(Ok);
            let copied = offsets.try_for_each_concurrent(WINDOW, async |start| {
                let part = read(&source, start..meta.size.min(start.saturating_add(CHUNK))).await?;
                upload.write(start, part.into()).await
            });
            let copied = copied.await;
            if is_replaced(&copied) && tried < MOST_TRIES {
                continue;
            }
            let copy = async {
                copied?;
                upload.sync().await?;
                upload.publish(meta.size, replace).await
            };
            let copied = copy.await;
            return self.end(upload, copied).await.map(drop).map_err(|error| failed(to, error));
        }
        unreachable!("the last try returns")
    }
}

/// An upload in parts. A part has its place when it is handed over, so parts may be written in any
/// order.
struct Parts {
    store: PvfsStore,
    location: Path,
    /// `None` when it was completed or aborted.
    upload: Option<Arc<Upload>>,
    /// Bytes of all parts.
    len: u64,
    /// Bytes of the parts that were written.
    written: Arc<AtomicU64>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "upload of {} to {}, {} bytes", self.location, self.store, self.len)
    }
}

impl Parts {
    fn take(&mut self) -> Result<Arc<Upload>> {
        self.upload.take().ok_or_else(|| generic(format!("the upload of {} has ended", self.location)))
    }
}

#[async_trait]
impl MultipartUpload for Parts {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let (offset, len) = (self.len, payload.content_length() as u64);
        self.len += len;
        let (upload, written) = (self.upload.clone(), self.written.clone());
        let location = self.location.clone();
        async move {
            let upload = upload.ok_or_else(|| generic(format!("the upload of {location} has ended")))?;
            upload.write(offset, payload).await.map_err(|error| failed(&location, error))?;
            written.fetch_add(len, Ordering::Relaxed);
            Ok(())
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let upload = self.take()?;
        let complete = async {
            if self.written.load(Ordering::Relaxed) != self.len {
                return Err(Error::new(ErrorCode::Invalid, "a part was not written"));
            }
            upload.sync().await?;
            upload.publish(self.len, Replace::Anything).await
        };
        let result = complete.await.map_err(|error| failed(&self.location, error));
        drop(upload);
        self.store.remove_left().await;
        result
    }

    async fn abort(&mut self) -> Result<()> {
        drop(self.upload.take());
        self.store.remove_left().await;
        Ok(())
    }
}

/// Returns the file that an update is to replace.
fn expected(location: &Path, version: &UpdateVersion) -> Result<FileHandle> {
    let Some(tag) = &version.e_tag else { return Err(generic("an update needs an ETag")) };
    let number = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
    let file = number.and_then(|number| u64::from_str_radix(number, 16).ok()).map(FileHandle);
    file.filter(|file| etag(*file) == *tag).ok_or_else(|| changed(location, format!("{tag} is no ETag of this store")))
}

/// The object is another one than the caller has seen.
fn changed(location: &Path, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Precondition { path: location.to_string(), source: source.into() }
}

fn refuse_attributes(attributes: &Attributes) -> Result<()> {
    if attributes.is_empty() { Ok(()) } else { Err(refused("attributes of objects")) }
}
