//! Listings: the directories below a prefix, one after the other, and the entries of their files.

use bmi::threading::AnyThread;
use bstr::ByteSlice;
use fs_proto::{ErrorCode, FileHandle, Handle};
use futures_util::future::ready;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ListResult, ObjectMeta, Result};

use super::{IN_FLIGHT, PvfsStore, failed};
use crate::error::Error;
use crate::names::ReadDir;

/// What is left of a listing.
struct Walk {
    store: PvfsStore,
    /// Only what is behind it is listed.
    offset: Option<Path>,
    /// Directories that were not listed yet.
    todo: Vec<Path>,
    /// The directory that is being listed.
    pages: Option<(Path, ReadDir<AnyThread>)>,
}

impl Walk {
    /// Returns the files of the next page; `None` at the end.
    async fn next(&mut self) -> Result<Option<Vec<(Path, FileHandle)>>> {
        loop {
            let Some((dir, pages)) = &mut self.pages else {
                let Some(dir) = self.todo.pop() else { return Ok(None) };
                let pages = async { self.store.client().read_dir(&self.store.path(&dir)?).await };
                self.pages = unless_gone(pages.await).map_err(|error| failed(&dir, error))?.map(|pages| (dir, pages));
                continue;
            };
            let page = unless_gone(pages.next_page().await).map_err(|error| failed(dir, error))?;
            let Some(page) = page.flatten() else {
                self.pages = None;
                continue;
            };
            let mut files = Vec::new();
            for entry in page {
                // No object can have a name that is no text.
                let Ok(name) = entry.name.to_str() else { continue };
                let path = below(dir, name)?;
                match entry.handle {
                    Handle::Dir(_) => self.todo.push(path),
                    Handle::File(file) => files.push((path, file)),
                    // No object, and nothing here creates one.
                    Handle::Symlink(_) => {}
                }
            }
            if let Some(offset) = &self.offset {
                files.retain(|(path, _)| path > offset);
                // All below a directory before the offset is so too, if the offset is not in it.
                let inside = |dir: &Path| offset.as_ref().starts_with(&format!("{dir}/"));
                self.todo.retain(|dir| format!("{dir}/").as_str() > offset.as_ref() || inside(dir));
            }
            return Ok(Some(files));
        }
    }

    /// As [`Walk::next`], with what is left then.
    async fn step(mut self) -> Result<Option<(Vec<(Path, FileHandle)>, Walk)>> {
        Ok(self.next().await?.map(|files| (files, self)))
    }
}

impl PvfsStore {
    /// Lists all objects below a prefix, those behind `offset` only.
    pub(super) fn walk(&self, prefix: Option<&Path>, offset: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let todo = vec![prefix.cloned().unwrap_or_default()];
        let walk = Walk { store: self.clone(), offset: offset.cloned(), todo, pages: None };
        let store = self.clone();
        stream::try_unfold(walk, Walk::step)
            .map_ok(|files| stream::iter(files).map(Ok))
            .try_flatten()
            .map_ok(move |(path, file)| store.clone().entry(path, file))
            .try_buffered(IN_FLIGHT)
            .try_filter_map(|meta| ready(Ok(meta)))
            .boxed()
    }

    /// Lists the objects and the directories of a directory.
    pub(super) async fn list_directory(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let (todo, offset) = (vec![prefix.cloned().unwrap_or_default()], None);
        let mut walk = Walk { store: self.clone(), offset, todo, pages: None };
        let (mut objects, mut common_prefixes) = (Vec::new(), Vec::new());
        while let Some(files) = walk.next().await? {
            common_prefixes.append(&mut walk.todo);
            let metas = stream::iter(files).map(|(path, file)| self.clone().entry(path, file)).buffered(IN_FLIGHT);
            objects.extend(metas.try_filter_map(|meta| ready(Ok(meta))).try_collect::<Vec<_>>().await?);
        }
        Ok(ListResult { common_prefixes, objects, extensions: Default::default() })
    }

    /// Returns what is known of a file of a listing; `None` if it is gone.
    async fn entry(self, path: Path, file: FileHandle) -> Result<Option<ObjectMeta>> {
        let meta = async { self.meta(path.clone(), file, self.client().look_again(file).await?).await };
        unless_gone(meta.await).map_err(|error| failed(&path, error))
    }
}

/// Returns the path of an entry of a directory.
fn below(dir: &Path, name: &str) -> Result<Path> {
    Ok(if dir.as_ref().is_empty() { Path::parse(name)? } else { Path::parse(format!("{dir}/{name}"))? })
}

/// What is not there, or is no directory, has nothing to list.
fn unless_gone<V>(result: Result<V, Error>) -> Result<Option<V>, Error> {
    match result {
        Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::NotDirectory | ErrorCode::Stale) => {
            Ok(None)
        }
        result => result.map(Some),
    }
}
