//! The cluster as a store of objects: [`PvfsStore`] implements [`ObjectStore`] of the crate
//! `object_store`.
//!
//! **Why.** Query engines, table formats and log stores are written against that trait. It asks for
//! little of a file system, and for what few have: a put that replaces an object as a whole, and
//! that is refused if somebody else was faster.
//!
//! **Invariants**
//! 1. An object is a file that was published, so nobody sees a part of a put.
//! 2. The ETag is the handle of the file: each publication has another one, and handles never come
//!    back. A condition is decided by the manager, in the change that publishes.
//! 3. A file that was written in place since has no ETag, and matches none: its recorded size was
//!    withdrawn before the first byte was written.
//! 4. What a get has returned is of one publication, unless the file is written in place meanwhile.
//!
//! `read` has gets, `write` puts and uploads in parts, `list` the listings.
//!
//! **Tests.** `tests/it/transports/objects.rs` runs the integration tests of `object_store`.

mod list;
mod read;
mod write;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use fs_proto::{ErrorCode, FileHandle, RemoveKind, Replace};
use futures_util::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, RenameTargetMode, Result,
};

use crate::client::{CreateOptions, SharedClient};
use crate::error::Error;
use crate::locked::Locked;
use crate::path::FsPath;

/// Most requests of one listing or removal in progress at the same time.
const IN_FLIGHT: usize = 64;
/// Most times that an operation begins again because the object was replaced meanwhile.
const MOST_TRIES: usize = 10;

/// A store of objects in a directory of the cluster. A clone is another handle to the same store.
///
/// - *A put* is written to a file without a name, synced, and published. It creates missing
///   directories. Nothing of a put that fails is left, and what is there stays as it was.
/// - *ETags* change with each put, copy and multipart upload, and move with a rename. A file that
///   another program has written in place, or is writing for the first time, has none, until it is
///   replaced. So [`PutMode::Update`](object_store::PutMode) refuses to replace it. (The program
///   that created a file can give it back its ETag: by [`File::record_size`](crate::File), after it
///   has written to it once more, as long as nobody else has looked at the file.)
/// - *Conditions* of puts, copies and renames are decided by the manager with the change itself.
/// - *A get* of more than 8 MiB fails if the object is replaced before its last part was read. It
///   never mixes two puts. A file that is written in place is read as it is.
/// - *Paths* are those below the directory, byte for byte. A name has at most 255 bytes and a path
///   4096.
/// - *Directories* are no objects, but common prefixes, empty ones too, as in
///   [`LocalFileSystem`](https://docs.rs/object_store/latest/object_store/local/). Deletes leave
///   them.
/// - *Attributes and versions* are not stored: they are refused. Tags are ignored.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use bmi::config::HandleConfig;
/// use bmi::{Addr, Config, OpenOptions};
/// use fs_client::{ClientOptions, FsPath, PvfsStore, SharedClient};
/// use object_store::{ObjectStore, ObjectStoreExt, PutMode, path::Path};
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let manager: Addr = "tcp://localhost:7000".parse()?;
/// let (options, settings) = (OpenOptions::default(), HandleConfig::default());
/// let handle = bmi::handle(manager.scheme(), &options, Config::named("example"), 1, settings)?;
/// let client = SharedClient::connect_through(handle, manager, ClientOptions::new(0x5eed)).await?;
/// let root: FsPath = "/tables".parse()?;
/// let store: Arc<dyn ObjectStore> = Arc::new(PvfsStore::new(client, root));
///
/// let path = Path::from("orders/_log/17.json");
/// let first = store.put_opts(&path, "{}".into(), PutMode::Create.into()).await?;
/// // Fails with `Precondition` if somebody has put the object meanwhile.
/// store.put_opts(&path, "[]".into(), PutMode::Update(first.into()).into()).await?;
/// assert_eq!(store.get(&path).await?.bytes().await?, "[]");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PvfsStore(Arc<Inner>);

struct Inner {
    client: SharedClient,
    root: FsPath,
    create: CreateOptions,
    /// Files without a name that nobody will publish. The next put removes them.
    left: Locked<Vec<FileHandle>>,
}

impl PvfsStore {
    /// Creates a store of what is below the directory `root`. The first put creates it.
    pub fn new(client: SharedClient, root: FsPath) -> PvfsStore {
        PvfsStore::with_options(client, root, CreateOptions::default())
    }

    /// Creates a store like [`PvfsStore::new`], whose files are created with `create`.
    pub fn with_options(client: SharedClient, root: FsPath, create: CreateOptions) -> PvfsStore {
        PvfsStore(Arc::new(Inner { client, root, create, left: Locked::default() }))
    }

    /// Returns the client.
    pub fn client(&self) -> &SharedClient {
        &self.0.client
    }

    /// Returns the path of an object, or of a prefix.
    fn path(&self, location: &Path) -> Result<FsPath, Error> {
        format!("{}/{location}", self.0.root).parse()
    }

    /// Creates the directories that lead to `path`.
    async fn make_parents(&self, path: &FsPath) -> Result<(), Error> {
        match path.parent() {
            Some(parent) => self.client().mkdir_all(&parent).await,
            None => Ok(()),
        }
    }
}

impl fmt::Display for PvfsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PvfsStore({}{})", self.client().manager().addr, self.0.root)
    }
}

impl fmt::Debug for PvfsStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[async_trait]
impl ObjectStore for PvfsStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.put(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.begin_parts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.get(location, &options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.read_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let delete = move |location: Result<Path>| {
            let store = store.clone();
            async move {
                let location = location?;
                let removed = async { store.client().remove(&store.path(&location)?, RemoveKind::File).await };
                removed.await.map_err(|error| missing(&location, error))?;
                Ok(location)
            }
        };
        locations.map(delete).buffered(IN_FLIGHT).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.walk(prefix, None)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.walk(prefix, Some(offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.list_directory(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let replace = match options.mode {
            CopyMode::Overwrite => Replace::Anything,
            CopyMode::Create => Replace::Nothing,
        };
        self.copy_object(from, to, replace).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        let replace = match options.target_mode {
            RenameTargetMode::Overwrite => Replace::Anything,
            RenameTargetMode::Create => Replace::Nothing,
        };
        let rename = async {
            // A directory is no object.
            self.find(from).await?;
            let (source, target) = (self.path(from)?, self.path(to)?);
            let renamed = self.client().rename_over(&source, &target, replace).await;
            if !is_missing(&renamed) {
                return renamed;
            }
            self.make_parents(&target).await?;
            self.client().rename_over(&source, &target, replace).await
        };
        rename.await.map_err(|error| match error.code() {
            ErrorCode::Exists => failed(to, error),
            _ => missing(from, error),
        })
    }
}

/// Returns true if a name or a directory that leads to it does not exist.
fn is_missing<V>(result: &Result<V, Error>) -> bool {
    matches!(result, Err(error) if error.code() == ErrorCode::NotFound)
}

/// Returns true if a file was removed or replaced while it was used.
fn is_replaced<V>(result: &Result<V, Error>) -> bool {
    matches!(result, Err(error) if error.code() == ErrorCode::Stale)
}

/// Returns the ETag of a file as it was published.
fn etag(file: FileHandle) -> String {
    format!("\"{:x}\"", file.0)
}

/// Converts an error of an operation on an object.
fn failed(location: &Path, error: Error) -> object_store::Error {
    let (code, path, source) = (error.code(), location.to_string(), Box::new(error));
    match code {
        ErrorCode::NotFound | ErrorCode::NotDirectory => object_store::Error::NotFound { path, source },
        ErrorCode::Exists => object_store::Error::AlreadyExists { path, source },
        ErrorCode::Permission => object_store::Error::PermissionDenied { path, source },
        _ => generic(source),
    }
}

/// Converts an error of an operation on an object that must exist. A directory is none.
fn missing(location: &Path, error: Error) -> object_store::Error {
    if error.code() != ErrorCode::IsDirectory {
        return failed(location, error);
    }
    object_store::Error::NotFound { path: location.to_string(), source: Box::new(error) }
}

fn generic(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> object_store::Error {
    object_store::Error::Generic { store: "Pvfs", source: source.into() }
}

fn refused(operation: &str) -> object_store::Error {
    object_store::Error::NotImplemented { operation: operation.to_owned(), implementer: "PvfsStore".to_owned() }
}
