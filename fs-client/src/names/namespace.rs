//! The namespace: directories, names, attributes.
//!
//! **Invariants**
//! 1. Every request has the client's time limit, unless the client is
//!    [hard](crate::ClientOptions::hard). In an operation of several requests, each request has the
//!    whole limit.
//! 2. A request that changes the namespace is executed once, even if the connection is lost before
//!    the reply.
//! 3. The manager is never in the data path. It knows the sizes of files only while nobody writes
//!    them ([`Content`](fs_proto::Content)). Others come from the I/O servers.

use std::time::Duration;

use bmi::threading::{OneThread, Threading};
use fs_proto::limits::{MAX_ENTRIES, MAX_LISTED};
use fs_proto::{
    Access, Attr, BString, Caller, DirEntry, DirHandle, Entry, ErrorCode, Existing, Extent, Handle, Kind, Layout,
    ListEntry, ManagerReply, ManagerRequest, PendingTruncate, RemoveKind, Replace, SetAttr,
};
use futures_util::future::join_all;

use super::draft::Draft;
use super::held::Held;
use crate::client::{Client, CreateOptions, OpenFileOptions, Stat, Unfinished};
use crate::error::{Error, Failure};
use crate::file::File;
use crate::path::FsPath;

/// How often [`Client::stay_connected`] sends something: several times in the ten minutes after
/// which the manager removes files without a name.
const STAY_CONNECTED: Duration = Duration::from_secs(60);

impl<S: Threading> Client<S> {
    /// Creates a directory. Its parent must exist.
    ///
    /// # Errors
    /// `Exists`, `NotFound` for the parent, and those of every request.
    pub async fn mkdir(&self, path: &FsPath) -> Result<DirHandle, Error> {
        let entry = self.mkdir_for(path, 0o755, self.owner()).await?;
        entry.handle.dir().ok_or_else(|| self.odd(ManagerReply::Done.into()))
    }

    /// Creates a directory like [`Client::mkdir`], with a mode and for an owner: user and group.
    ///
    /// # Errors
    /// Those of [`Client::mkdir`].
    pub async fn mkdir_for(&self, path: &FsPath, mode: u32, (uid, gid): (u32, u32)) -> Result<Entry, Error> {
        let request = ManagerRequest::Mkdir { place: path.place(), mode, uid, gid };
        self.ask_entry(request).await.map_err(|error| error.during(format!("mkdir {path}")))
    }

    /// Returns user and group of what this client creates.
    pub(crate) fn owner(&self) -> (u32, u32) {
        let Caller { uid, gid, .. } = *self.caller();
        (uid, gid)
    }

    /// Creates a directory and all its missing parents.
    ///
    /// # Errors
    /// `NotDirectory` if one of them exists as a file, and those of every request.
    pub async fn mkdir_all(&self, path: &FsPath) -> Result<(), Error> {
        let mut missing = vec![path.clone()];
        while let Some(path) = missing.last().cloned() {
            match self.mkdir(&path).await {
                Ok(_) => {}
                Err(error) if error.code() == ErrorCode::NotFound && !path.is_root() => {
                    missing.extend(path.parent());
                    continue;
                }
                Err(error) if error.code() == ErrorCode::Exists || path.is_root() => {
                    if self.lookup(&path).await?.attr.kind != Kind::Dir {
                        let text = format!("{path} is a file");
                        return Err(Error::new(ErrorCode::NotDirectory, text).during(format!("mkdir {path}")));
                    }
                    tracing::trace!(%error, "there already");
                }
                Err(error) => return Err(error),
            }
            missing.pop();
        }
        Ok(())
    }

    /// Creates a file and opens it.
    ///
    /// # Errors
    /// `Exists` if it exists and `options` are exclusive, `IsDirectory`, `NotFound` for the parent
    /// directory, `Invalid` for an impossible layout, and those of every request.
    pub async fn create(&self, path: &FsPath, options: CreateOptions) -> Result<File<S>, Error> {
        let existing = if options.exclusive { Existing::Refuse } else { Existing::Open };
        Ok(self.create_as(path, options, existing, false).await?.0)
    }

    /// Creates a file where nothing is, and opens and holds it ([`Client::hold`]), in one request.
    /// Also returns it as it is at the manager.
    ///
    /// If the future is dropped, or the manager does not answer in time, the file may be there, and
    /// is held as long as this client lives: only the answer says which one it is.
    ///
    /// # Errors
    /// As [`Client::create`], and `Busy` as [`Client::hold`].
    pub async fn create_held(&self, path: &FsPath, options: CreateOptions) -> Result<(Held<S>, File<S>, Entry), Error> {
        let (file, entry, is_counted) = self.create_as(path, options, Existing::Refuse, true).await?;
        let held = Held::of(self, file.handle());
        if !is_counted {
            self.hold(&FsPath::of(file.handle())).await?;
        }
        Ok((held, file, entry))
    }

    /// Creates a file without a name. When it is complete, [`Draft::publish`] gives it the name
    /// `path` and replaces a file that is there, in one step. Until then nobody else sees it, and
    /// an existing file stays as it is. If `options` request no strip size or no number of servers,
    /// those of the existing file are used, as far as enough servers are up. `exclusive` has no
    /// effect.
    ///
    /// The file is removed if this client has no connection to the manager for ten minutes. A
    /// program that writes for longer without other requests runs [`Client::stay_connected`]
    /// beside.
    ///
    /// # Errors
    /// `IsDirectory`, `NotFound` for the parent directory, `Invalid` for an impossible layout, and
    /// those of every request.
    pub async fn draft(&self, path: &FsPath, options: CreateOptions) -> Result<Draft<S>, Error> {
        Ok(Draft::new(self.create_as(path, options, Existing::Replace, false).await?.0))
    }

    /// Creates a file and opens it. Also returns it as it is at the manager, and whether a hold of
    /// it is surely counted there.
    async fn create_as(
        &self,
        path: &FsPath,
        options: CreateOptions,
        existing: Existing,
        hold: bool,
    ) -> Result<(File<S>, Entry, bool), Error> {
        let CreateOptions { strip_size, servers, mode, hints, owner, small, .. } = options;
        let (uid, gid) = owner.unwrap_or(self.owner());
        let place = path.place();
        let avoid = self.inner().connections.avoided();
        let request =
            ManagerRequest::Create { place, mode, uid, gid, strip_size, servers, avoid, existing, hold, small };
        let during = |error: Error| error.during(format!("create {path}"));
        let start = self.inner().connections.start_of(self.manager());
        let creating = (existing != Existing::Open).then(|| self.inner().files.creating());
        let (entry, access) = self.ask_opened(request).await.map_err(during)?;
        let file = self.file_with(path, entry.clone(), access).await.map_err(during)?.hinting(hints);
        // A manager that was started meanwhile remembers the answer, and no hold.
        let is_same = self.inner().connections.start_of(self.manager()) == start;
        let is_counted = creating.is_none_or(|creating| creating.created(file.handle(), hold)) && is_same;
        Ok((file, entry, is_counted))
    }

    /// Keeps a connection to the manager, so that it keeps the files without a name. Never returns.
    pub async fn stay_connected(&self) {
        loop {
            self.endpoint().sleep(STAY_CONNECTED).await;
            if let Err(error) = self.ask_manager(ManagerRequest::Ping).await {
                tracing::debug!(%error, "the manager does not answer");
            }
        }
    }

    /// Opens a file, for whatever the caller may do with it.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `Permission` if that is nothing, and those of every request.
    pub async fn open(&self, path: &FsPath) -> Result<File<S>, Error> {
        self.open_with(path, OpenFileOptions::default()).await
    }

    /// Opens a file like [`Client::open`], with options.
    ///
    /// # Errors
    /// As [`Client::open`].
    pub async fn open_with(&self, path: &FsPath, options: OpenFileOptions) -> Result<File<S>, Error> {
        let during = |error: Error| error.during(format!("open {path}"));
        let request = match path.handle() {
            Some(handle) => ManagerRequest::Getattr { handle, open: true },
            None => ManagerRequest::Lookup { place: path.place(), open: true },
        };
        let (entry, access) = self.ask_opened(request).await.map_err(during)?;
        Ok(self.file_with(path, entry, access).await.map_err(during)?.hinting(options.hints))
    }

    /// Returns the manager's information about a path. The size of a file is not filled in; see
    /// [`Client::stat`].
    ///
    /// # Errors
    /// `NotFound`, and those of every request.
    pub async fn lookup(&self, path: &FsPath) -> Result<Entry, Error> {
        let request = match path.handle() {
            Some(handle) => ManagerRequest::Getattr { handle, open: false },
            None => ManagerRequest::Lookup { place: path.place(), open: false },
        };
        self.ask_entry(request).await.map_err(|error| error.during(format!("lookup {path}")))
    }

    /// Returns the attributes of a path, with a file's size and datafiles.
    ///
    /// # Errors
    /// `NotFound`, and those of every request.
    pub async fn stat(&self, path: &FsPath) -> Result<Stat, Error> {
        let during = |error: Error| error.during(format!("stat {path}"));
        let entry = self.lookup(path).await.map_err(during)?;
        self.stat_of(path, entry).await.map_err(during)
    }

    /// Returns the attributes by handle, with a file's size and datafiles. `name` is used in
    /// messages.
    ///
    /// # Errors
    /// `Stale` or `NotFound` if the object was removed, and those of every request.
    pub async fn getattr(&self, name: &FsPath, handle: Handle) -> Result<Stat, Error> {
        let during = |error: Error| error.during(format!("stat {name}"));
        let entry = self.ask_entry(ManagerRequest::Getattr { handle, open: false }).await.map_err(during)?;
        self.stat_of(name, entry).await.map_err(during)
    }

    /// Returns the attributes of what `entry` describes, with a file's size and datafiles. `path`
    /// is used in messages.
    ///
    /// # Errors
    /// Those of every request.
    pub async fn stat_of(&self, path: &FsPath, entry: Entry) -> Result<Stat, Error> {
        if entry.layout.is_none() {
            return Ok(Stat {
                handle: entry.handle,
                attr: entry.attr,
                target: entry.target,
                distribution: None,
                datafiles: Vec::new(),
                unfinished: Vec::new(),
            });
        }
        let file = self.file(path, entry.clone()).await?;
        let mut pending = Vec::new();
        let datafiles = match file.datafiles().await {
            Ok(datafiles) => datafiles,
            Err(error) => {
                // A change of its size may be why a server does not answer.
                pending = self.pending_truncates(file.handle()).await.unwrap_or_default();
                if pending.is_empty() {
                    return Err(error);
                }
                file.datafiles_with(&pending).await?
            }
        };
        let sizes: Vec<u64> = datafiles.iter().map(|datafile| datafile.size).collect();
        file.check_lengths(&sizes.iter().copied().map(Some).collect::<Vec<_>>()).await?;
        let written_ns = datafiles.iter().map(|datafile| datafile.mtime_ns).max().unwrap_or(0);
        let attr = entry.attr_with(Extent { size: file.distribution().file_size(&sizes), written_ns });
        let unfinished = pending.into_iter().map(|PendingTruncate { iod, size, error, .. }| {
            let server = self.inner().connections.iods().get(iod as usize).cloned();
            let error = error.as_ref().map(ToString::to_string);
            Unfinished { server: server.unwrap_or_else(|| self.manager().clone()), size, error }
        });
        let (distribution, unfinished) = (Some(*file.distribution()), unfinished.collect());
        Ok(Stat { handle: entry.handle, attr, target: None, distribution, datafiles, unfinished })
    }

    /// Returns the attributes of what entries describe, with the sizes of files. I/O servers are
    /// asked only for files that may be being written, and each of them once for all of these, as
    /// far as they fit into a request.
    pub async fn attributes(&self, entries: &[Entry]) -> Vec<Result<Attr, Error>> {
        let found = self.attributes_by(entries, None).await.into_iter().zip(entries);
        let found = found.map(async |(found, entry)| match found {
            Some(attr) => Ok(attr),
            // By itself, to find out why.
            None => Box::pin(self.stat_of(&FsPath::of(entry.handle), entry.clone())).await.map(|stat| stat.attr),
        });
        join_all(found).await
    }

    /// Returns the attributes of what entries describe, like [`Client::attributes`], of all that
    /// servers answer `within` a time.
    pub async fn attributes_within(&self, entries: &[Entry], within: Duration) -> Vec<Option<Attr>> {
        self.attributes_by(entries, Some(within)).await
    }

    async fn attributes_by(&self, entries: &[Entry], within: Option<Duration>) -> Vec<Option<Attr>> {
        let unknown = entries.iter().filter(|entry| entry.known_attr().is_none());
        let layouts: Vec<&Layout> = unknown.filter_map(|entry| entry.layout.as_ref()).collect();
        let mut extents = self.extents(&layouts, within).await.into_iter();
        let mut asked = |entry: &Entry| extents.next().flatten().map(|extent| entry.attr_with(extent));
        entries.iter().map(|entry| entry.known_attr().or_else(|| asked(entry))).collect()
    }

    /// Returns the handle of what is at a path.
    pub(crate) async fn handle_of(&self, path: &FsPath) -> Result<Handle, Error> {
        match path.handle() {
            Some(handle) => Ok(handle),
            None => Ok(self.lookup(path).await?.handle),
        }
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// `NotFound`, and those of every request.
    pub async fn setattr(&self, path: &FsPath, set: SetAttr) -> Result<Entry, Error> {
        let during = |error: Error| error.during(format!("setattr {path}"));
        let handle = self.handle_of(path).await.map_err(during)?;
        self.ask_entry(ManagerRequest::Setattr { handle, set }).await.map_err(during)
    }

    /// Sets the length of a file to `size` bytes.
    ///
    /// # Errors
    /// As [`File::set_len`].
    pub async fn truncate(&self, path: &FsPath, size: u64) -> Result<(), Error> {
        self.open(path).await?.set_len(size).await
    }

    /// Moves a name. A file or an empty directory at `to` is replaced.
    ///
    /// # Errors
    /// `NotFound`, `NotEmpty`, `IsDirectory`, `NotDirectory`, and those of every request.
    pub async fn rename(&self, from: &FsPath, to: &FsPath) -> Result<(), Error> {
        self.rename_over(from, to, Replace::Anything).await
    }

    /// Moves a name, like [`Client::rename`], if at `to` is what `replace` requires.
    ///
    /// # Errors
    /// `Exists` or `NotFound` if something else is there; those of [`Client::rename`].
    pub async fn rename_over(&self, from: &FsPath, to: &FsPath, replace: Replace) -> Result<(), Error> {
        let request = ManagerRequest::Rename { from: from.place(), to: to.place(), replace };
        self.ask_done(request).await.map_err(|error| error.during(format!("rename {from} to {to}")))
    }

    /// Removes a file or an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotEmpty`, `IsDirectory` or `NotDirectory` depending on `kind`, and those of
    /// every request.
    pub async fn remove(&self, path: &FsPath, kind: RemoveKind) -> Result<(), Error> {
        let request = ManagerRequest::Remove { place: path.place(), kind };
        self.ask_done(request).await.map_err(|error| error.during(format!("remove {path}")))
    }

    /// Returns all entries of a directory, sorted by name.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, and those of every request.
    pub async fn readdir(&self, path: &FsPath) -> Result<Vec<DirEntry>, Error> {
        let dir = self.read_dir(path).await?.dir;
        self.readdir_of(path, dir).await
    }

    pub(super) async fn readdir_of(&self, path: &FsPath, dir: DirHandle) -> Result<Vec<DirEntry>, Error> {
        let mut pages = self.pages(path, dir);
        let mut all = Vec::new();
        while let Some(page) = pages.next_page().await? {
            all.extend(page);
        }
        Ok(all)
    }

    /// Lists a directory page by page.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, and those of every request.
    pub async fn read_dir(&self, path: &FsPath) -> Result<ReadDir<S>, Error> {
        let during = |error: Error| error.during(format!("readdir {path}"));
        let handle = self.handle_of(path).await.map_err(during)?;
        let not_dir = || during(Error::new(ErrorCode::NotDirectory, format!("{path} is {handle}")));
        Ok(self.pages(path, handle.dir().ok_or_else(not_dir)?))
    }

    pub(crate) fn pages(&self, path: &FsPath, dir: DirHandle) -> ReadDir<S> {
        ReadDir { client: self.clone(), path: path.clone(), dir, after: Some(BString::default()) }
    }

    /// Opens the file that the manager's `entry` describes, for what its mode allows. `path` is
    /// used in messages.
    ///
    /// # Errors
    /// `IsDirectory`, `Invalid` for a symbolic link, and those of every request.
    pub async fn file(&self, path: &FsPath, entry: Entry) -> Result<File<S>, Error> {
        let access = entry.attr.access(self.caller());
        // Who may run a program may have it read.
        let access = if access.has(Access::SEARCH) { access.and(Access::READ) } else { access };
        self.file_with(path, entry, access).await
    }

    async fn file_with(&self, path: &FsPath, entry: Entry, access: Access) -> Result<File<S>, Error> {
        let (Handle::File(handle), Some(layout)) = (entry.handle, entry.layout) else {
            let code = if entry.attr.kind == Kind::Dir { ErrorCode::IsDirectory } else { ErrorCode::Invalid };
            return Err(Error::new(code, format!("{path} is {}", entry.handle)));
        };
        let striping = self.striping(layout).await?;
        Ok(File::new(self.clone(), path.clone(), handle, striping, (entry.content, access)))
    }
}

/// A directory listing in progress.
pub struct ReadDir<S: Threading = OneThread> {
    client: Client<S>,
    path: FsPath,
    dir: DirHandle,
    /// The last name of the previous page; `None` at the end.
    after: Option<BString>,
}

impl<S: Threading> ReadDir<S> {
    /// Returns the next page, or `None` at the end. After an error, or if it was dropped, the same
    /// page can be asked for again.
    ///
    /// # Errors
    /// `Stale` or `NotFound` if the directory was removed, and those of every request.
    pub async fn next_page(&mut self) -> Result<Option<Vec<DirEntry>>, Error> {
        let Some(after) = self.after.clone() else { return Ok(None) };
        let reply = self.page(&after, MAX_ENTRIES, false).await?;
        let ManagerReply::Entries { entries, more } = reply else { return Err(self.client.odd(reply.into())) };
        self.turn(&after, more, &entries, |entry| &entry.name)?;
        Ok((!entries.is_empty()).then_some(entries))
    }

    /// Returns the next page like [`ReadDir::next_page`], with all that the manager knows about the
    /// objects.
    ///
    /// # Errors
    /// As [`ReadDir::next_page`].
    pub async fn next_listing(&mut self) -> Result<Option<Vec<ListEntry>>, Error> {
        let Some(after) = self.after.clone() else { return Ok(None) };
        let reply = self.page(&after, MAX_LISTED, true).await?;
        let ManagerReply::Listing { entries, more } = reply else { return Err(self.client.odd(reply.into())) };
        self.turn(&after, more, &entries, |entry| &entry.name)?;
        Ok((!entries.is_empty()).then_some(entries))
    }

    /// Goes on behind a name, whether it is there or not.
    pub fn seek(&mut self, name: BString) {
        self.after = Some(name);
    }

    async fn page(&self, after: &BString, max: usize, attributes: bool) -> Result<ManagerReply, Error> {
        let request = ManagerRequest::Readdir { dir: self.dir, after: after.clone(), max: max as u32, attributes };
        let reply = self.client.ask_manager(request).await;
        reply.map_err(|error| error.during(format!("readdir {}", self.path)))
    }

    /// Goes on behind a page.
    fn turn<E>(&mut self, after: &BString, more: bool, entries: &[E], name: fn(&E) -> &BString) -> Result<(), Error> {
        // A server could say "more" and send nothing, or resend earlier entries. Without this check
        // the client would ask again endlessly.
        let before = entries.first().is_some_and(|first| name(first) <= after);
        if before || !entries.is_sorted_by(|one, next| name(one) < name(next)) {
            let error = Failure::at(
                self.client.manager().clone(),
                ErrorCode::Protocol,
                "a page of a directory out of its order",
            );
            return Err(Error::from(error).during(format!("readdir {}", self.path)));
        }
        self.after = entries.last().filter(|_| more).map(|entry| name(entry).clone());
        Ok(())
    }
}
