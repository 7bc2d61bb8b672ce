//! The files of a cluster: what `bmi.files` is made of.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bmi::config::HandleConfig;
use bmi::threading::AnyThread;
use bmi::{Addr, Config, Handle};
use bstr::BStr;
use fs_client::{
    Caller, ClientOptions, CreateOptions, Draft, Error, ErrorCode, FsPath, Kind, Publish, RemoveKind, SharedClient,
    SharedFile, Stat,
};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use tokio::sync::OnceCell;

use crate::buffer::{self, Lease, Sink, Source};
use crate::error::Raised;
use crate::operation::{self, Home, How, seconds};

/// Most files of a directory whose attributes are asked for at a time.
const ASKED: usize = 64;

/// A client of a cluster. It connects with its first operation.
#[pyclass(frozen)]
pub(crate) struct Cluster(Home<Arc<Inner>>);

struct Inner {
    handle: Handle,
    manager: Addr,
    options: ClientOptions,
    client: OnceCell<SharedClient>,
}

impl Inner {
    async fn client(&self) -> Result<&SharedClient, Error> {
        let connect = || SharedClient::connect_through(self.handle.clone(), self.manager.clone(), self.options.clone());
        self.client.get_or_try_init(connect).await
    }
}

impl Cluster {
    /// Runs an operation with the client.
    fn run<T: Send + 'static, F>(
        &self,
        py: Python<'_>,
        how: How<'_>,
        work: impl FnOnce(SharedClient) -> F + Send + 'static,
        finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let inner = Arc::clone(self.0.get()?);
        let handle = inner.handle.clone();
        operation::run(py, how, Some(&handle), async move { Ok(work(inner.client().await?.clone()).await?) }, finish)
    }

    /// Runs an operation whose result is a file.
    fn run_open<F>(
        &self,
        py: Python<'_>,
        how: How<'_>,
        work: impl FnOnce(SharedClient) -> F + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = Result<(SharedFile, Option<Draft<AnyThread>>), Error>> + Send + 'static,
    {
        let (handle, timeout) = (self.0.get()?.handle.clone(), self.0.get()?.options.timeout);
        self.run(py, how, work, move |py, (file, draft)| {
            let draft = Arc::new(Mutex::new(draft.map(Arc::new)));
            Ok(Py::new(py, File { file: Home::new(file), handle: Home::new(handle), timeout, draft })?.into_any())
        })
    }
}

#[pymethods]
impl Cluster {
    #[new]
    fn new(py: Python<'_>, manager: &str, id: u128, timeout: f64, retry_for: f64) -> PyResult<Cluster> {
        let failed = |error| Raised::Transport(error).into_exception(py);
        let manager: Addr = manager.parse().map_err(failed)?;
        let options = ClientOptions {
            timeout: seconds(timeout)?,
            retry_for: seconds(retry_for)?,
            caller: Caller::of_process(),
            host: bmi::backend::host_id(),
            ..ClientOptions::new(id)
        };
        let transports = fs_client::user_transports().map_err(failed)?.at(&manager);
        let config = Config::named("python");
        let handle = bmi::handle(manager.scheme(), &transports, config, 1, HandleConfig::default()).map_err(failed)?;
        Ok(Cluster(Home::new(Arc::new(Inner { handle, manager, options, client: OnceCell::new() }))))
    }

    /// Returns the attributes of a path.
    fn stat(&self, py: Python<'_>, how: How<'_>, path: OsString) -> PyResult<Py<PyAny>> {
        let path = parse(py, &path)?;
        let asked = path.clone();
        self.run(
            py,
            how,
            |client| async move { client.stat(&asked).await },
            move |py, stat| attributes(py, &path, &stat),
        )
    }

    /// Returns the attributes of what is in a directory, by name.
    fn list(&self, py: Python<'_>, how: How<'_>, path: OsString) -> PyResult<Py<PyAny>> {
        let path = parse(py, &path)?;
        let work = |client: SharedClient| async move {
            let entries = client.readdir(&path).await?;
            let stat = |entry: fs_client::DirEntry| {
                let (client, path) = (client.clone(), path.clone());
                async move {
                    let path = path.join(&entry.name)?;
                    match client.getattr(&path, entry.handle).await {
                        Ok(stat) => Ok(Some((path, stat))),
                        // It was removed meanwhile.
                        Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Stale) => Ok(None),
                        Err(error) => Err(error),
                    }
                }
            };
            let stats = stream::iter(entries).map(stat).buffered(ASKED);
            stats.try_filter_map(|found| async { Ok(found) }).try_collect().await
        };
        self.run(py, how, work, |py, found: Vec<(FsPath, Stat)>| {
            let all = found.iter().map(|(path, stat)| attributes(py, path, stat)).collect::<PyResult<Vec<_>>>()?;
            Ok(all.into_pyobject(py)?.unbind())
        })
    }

    /// Creates a directory, and the missing ones above it if `parents` is true.
    fn mkdir(&self, py: Python<'_>, how: How<'_>, path: OsString, parents: bool) -> PyResult<Py<PyAny>> {
        let path = parse(py, &path)?;
        let work = move |client: SharedClient| async move {
            if parents { client.mkdir_all(&path).await } else { client.mkdir(&path).await.map(drop) }
        };
        self.run(py, how, work, |py, ()| Ok(py.None()))
    }

    /// Removes a `"file"`, an empty `"dir"`, `"any"` of these, or `"all"` with what is below.
    fn remove(&self, py: Python<'_>, how: How<'_>, path: OsString, what: &str) -> PyResult<Py<PyAny>> {
        let path = parse(py, &path)?;
        let kind = match what {
            "file" => Some(RemoveKind::File),
            "dir" => Some(RemoveKind::Dir),
            "any" => Some(RemoveKind::Any),
            _ => None,
        };
        let work = move |client: SharedClient| async move {
            match kind {
                Some(kind) => client.remove(&path, kind).await,
                None => client.remove_all(&path).await,
            }
        };
        self.run(py, how, work, |py, ()| Ok(py.None()))
    }

    /// Moves a name. A file or an empty directory of the new name is replaced.
    fn rename(&self, py: Python<'_>, how: How<'_>, from: OsString, to: OsString) -> PyResult<Py<PyAny>> {
        let (from, to) = (parse(py, &from)?, parse(py, &to)?);
        self.run(py, how, |client| async move { client.rename(&from, &to).await }, |py, ()| Ok(py.None()))
    }

    /// Opens a file.
    fn open(&self, py: Python<'_>, how: How<'_>, path: OsString) -> PyResult<Py<PyAny>> {
        let path = parse(py, &path)?;
        self.run_open(py, how, |client| async move { Ok((client.open(&path).await?, None)) })
    }

    /// Creates a file and opens it.
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn create(
        &self,
        py: Python<'_>,
        how: How<'_>,
        path: OsString,
        exclusive: bool,
        draft: bool,
        strip_size: u64,
        servers: u32,
    ) -> PyResult<Py<PyAny>> {
        let path = parse(py, &path)?;
        let options = CreateOptions { strip_size, servers, exclusive, ..CreateOptions::default() };
        self.run_open(py, how, move |client| async move {
            if !draft {
                return Ok((client.create(&path, options).await?, None));
            }
            let draft = client.draft(&path, options).await?;
            Ok((draft.file().clone(), Some(draft)))
        })
    }
}

/// A file that is open.
#[pyclass(frozen)]
pub(crate) struct File {
    file: Home<SharedFile>,
    handle: Home<Handle>,
    /// Time limit of a single request.
    timeout: Duration,
    /// What publishes it, if it has no name yet.
    draft: Slot,
}

/// A draft, until it is published or abandoned.
type Slot = Arc<Mutex<Option<Arc<Draft<AnyThread>>>>>;

impl File {
    fn run<T: Send + 'static, F>(
        &self,
        py: Python<'_>,
        how: How<'_>,
        lease: Option<Lease>,
        work: impl FnOnce(SharedFile) -> F,
        finish: impl FnOnce(Python<'_>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (work, handle) = (work(self.file.get()?.clone()), self.handle.get()?);
        let (sleeper, timeout) = (handle.clone(), self.timeout);
        let limit = move || async move { sleeper.sleep(timeout).await };
        let done = operation::and_return(lease, limit, async { Ok(work.await?) });
        operation::run(py, how, Some(handle), done, finish)
    }

    fn draft(&self) -> MutexGuard<'_, Option<Arc<Draft<AnyThread>>>> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn no_draft() -> PyErr {
    PyRuntimeError::new_err("not a draft, or one that was published or abandoned, or is being published")
}

#[pymethods]
impl File {
    /// The path that it was opened by.
    #[getter]
    fn path(&self) -> PyResult<OsString> {
        Ok(text(self.file.get()?.path()))
    }

    /// Returns the bytes of a range, as far as the file goes.
    fn read(&self, py: Python<'_>, how: How<'_>, offset: u64, len: usize) -> PyResult<Py<PyAny>> {
        let (bytes, memory) = buffer::unfilled(py, len)?;
        let work = |file: SharedFile| async move { file.read_at(offset, memory).await };
        self.run(py, how, None, work, move |py, read| {
            let read = usize::try_from(read).map_err(|_| buffer::too_long())?;
            Ok(match read == len {
                true => bytes.into_any(),
                false => PyBytes::new(py, &bytes.as_bytes(py)[..read.min(len)]).into_any().unbind(),
            })
        })
    }

    /// Fills a buffer from a place of the file. Returns the number of bytes before the file's end.
    fn read_into(&self, py: Python<'_>, how: How<'_>, offset: u64, into: Sink) -> PyResult<Py<PyAny>> {
        let Sink(memory, lease) = into;
        let work = |file: SharedFile| async move { file.read_at(offset, memory).await };
        self.run(py, how, Some(lease), work, |py, read: u64| Ok(read.into_pyobject(py)?.into_any().unbind()))
    }

    /// Writes a buffer at a place of the file.
    fn write(&self, py: Python<'_>, how: How<'_>, offset: u64, data: Source) -> PyResult<Py<PyAny>> {
        let Source(memory, lease) = data;
        let work = |file: SharedFile| async move { file.write_at(offset, memory).await };
        self.run(py, how, Some(lease), work, |py, ()| Ok(py.None()))
    }

    /// Returns the size.
    fn size(&self, py: Python<'_>, how: How<'_>) -> PyResult<Py<PyAny>> {
        let work = |file: SharedFile| async move { file.size().await };
        self.run(py, how, None, work, |py, size: u64| Ok(size.into_pyobject(py)?.into_any().unbind()))
    }

    /// Sets the size.
    fn truncate(&self, py: Python<'_>, how: How<'_>, size: u64) -> PyResult<Py<PyAny>> {
        self.run(py, how, None, |file| async move { file.set_len(size).await }, |py, ()| Ok(py.None()))
    }

    /// Waits until what was written is on the servers' disks.
    fn sync(&self, py: Python<'_>, how: How<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, how, None, |file| async move { file.sync().await }, |py, ()| Ok(py.None()))
    }

    /// Syncs a draft of so many bytes, and gives it its name.
    fn publish(&self, py: Python<'_>, how: How<'_>, size: u64) -> PyResult<Py<PyAny>> {
        let draft = self.draft().clone().ok_or_else(no_draft)?;
        let slot = Arc::clone(&self.draft);
        let work = |file: SharedFile| async move {
            file.sync().await?;
            draft.publish(Publish { size: Some(size), ..Publish::default() }).await?;
            // After a failure it may be published again, or abandoned.
            slot.lock().unwrap_or_else(PoisonError::into_inner).take();
            Ok(())
        };
        self.run(py, how, None, work, |py, ()| Ok(py.None()))
    }

    /// Removes a draft.
    fn abandon(&self, py: Python<'_>, how: How<'_>) -> PyResult<Py<PyAny>> {
        let draft = self.draft().take().and_then(Arc::into_inner).ok_or_else(no_draft)?;
        self.run(py, how, None, |_| draft.abandon(), |py, ()| Ok(py.None()))
    }
}

/// Names are bytes. Python has them as text as it has those of other files (`os.fsencode`).
fn parse(py: Python<'_>, path: &OsStr) -> PyResult<FsPath> {
    BStr::new(path.as_bytes()).try_into().map_err(|error| Raised::Files(error).into_exception(py))
}

/// Returns a path from the root as [`parse`] takes it.
fn text(path: &FsPath) -> OsString {
    let names: Vec<&[u8]> = path.components().map(AsRef::as_ref).collect();
    OsString::from_vec([b"/", names.join(&b'/').as_slice()].concat())
}

/// Returns attributes, with the names that `fsspec` has for them.
fn attributes(py: Python<'_>, path: &FsPath, stat: &Stat) -> PyResult<Py<PyAny>> {
    let attr = &stat.attr;
    let dict = PyDict::new(py);
    let (kind, size) = match attr.kind {
        Kind::File => ("file", attr.size),
        Kind::Dir => ("directory", 0),
        Kind::Symlink => ("link", attr.size),
    };
    dict.set_item("name", text(path))?;
    dict.set_item("type", kind)?;
    dict.set_item("size", size)?;
    dict.set_item("mode", attr.mode)?;
    dict.set_item("uid", attr.uid)?;
    dict.set_item("gid", attr.gid)?;
    dict.set_item("mtime", Duration::from_nanos(attr.mtime_ns).as_secs_f64())?;
    Ok(dict.into_any().unbind())
}
