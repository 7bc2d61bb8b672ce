//! The bytes and the headers of a cache, as they last from one cache to the next.
//!
//! **Which file is taken over** is in the documentation of [`Frames::open`]. Nothing dirty is ever
//! removed. After a change of the settings, the next clean stop removes the file, and the start
//! after it makes it with the new sizes.
//!
//! **How a file is made.** The file is cut to nothing, then the superblock is written by one call,
//! then the file gets its whole length, of pages that do not exist yet. A kill does not cut a write
//! within a page. So a kill leaves an empty file, or a superblock with no chunks. Both hold
//! nothing.
//!
//! **Invariants**
//! 1. While `Frames` of a file exist, no other process has the file (`file`).
//! 2. The superblock counts only chunks whose headers and bytes have pages, and whose headers were
//!    emptied. Only these are accessed.
//! 3. There is one [`Memory`] for each chunk, the same for all arenas over the same frames, so that
//!    a chunk that is registered stays registered.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bmi_core::{Error, ErrorKind, Memory, mutated};

use super::layout::{
    CHUNKS_AT, HEADER, Layout, MAGIC, MAGIC_AT, SUPERBLOCK, Superblock, UNITS_AT, VERSION, VERSION_AT,
};
use super::mapping::Mapping;
use super::{file, header};

/// How much memory a cache has, and in which pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaSettings {
    /// The most bytes of frames. It is rounded down to chunks, but there is one chunk at least.
    pub bytes: u64,
    /// Bytes of a chunk, a multiple of [`BLOCK`](super::BLOCK): what is allocated at once, and what
    /// is registered with an adapter at once.
    pub chunk: usize,
}

impl ArenaSettings {
    /// Bytes of a chunk unless the settings have another number: 1 MiB.
    pub const CHUNK: usize = 1 << 20;

    /// Returns settings with chunks of the usual size.
    pub fn new(bytes: u64) -> ArenaSettings {
        ArenaSettings { bytes, chunk: ArenaSettings::CHUNK }
    }
}

/// Whose frames are opened.
///
/// The id of the store is not enough. A killed server leaves its frames, and the store may go on
/// with other ones: in another directory, on another host, in a container with its own `/dev/shm`.
/// What the first ones hold is then older than what the disk has. So frames have a number from the
/// moment when they are made. Their owner notes it, durably and outside of them, before anything
/// in them is acknowledged, and later takes over only the frames whose number it has noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Identifies the data that the cache is for.
    pub store: u128,
    /// The number that was noted, if any.
    pub noted: Option<u128>,
    /// The number of frames that are made now. Draw it at random: no other frames have it.
    pub next: u128,
}

/// The frames of a cache, and the headers that say which of their bytes are dirty. A clone refers
/// to the same frames. They outlive the cache that uses them.
///
/// A write is acknowledged when its bytes are in the frames and its record is in a header. What
/// happens to it after that:
///
/// | event | bytes in a named file | anonymous |
/// |---|---|---|
/// | `kill -9`, a panic, an abort, the kernel's out-of-memory killer | survive: the next server takes them over | lost with the process |
/// | the cache is dropped, and another one made over the same `Frames` | survive | survive |
/// | the file is removed or cut by somebody, its file system is unmounted | lost | - |
/// | the container with its own `/dev/shm` is removed | lost | - |
/// | the kernel crashes, the host restarts or loses power | lost | lost |
///
/// That is what the page cache of the system survives, with one addition: a page cache is not
/// removed by anybody. So give the server a path that nothing cleans up. `systemd-logind` removes
/// the files of an ordinary user in `/dev/shm` when the user's last session ends (`RemoveIPC`); it
/// spares system users and root.
///
/// A path on a disk works as well, and survives no more than this. The system then writes every
/// change to that disk, too.
///
/// **Limit.** The file says who may use it, not who still writes to its pages. TCP and shared
/// memory place bytes on behalf of a living process only. An adapter with queue pairs places them
/// until the kernel has destroyed the queue pairs of the killed process. That happens when the
/// kernel closes its files, as the release of the lock does, and the order of the two is not
/// documented.
#[derive(Clone)]
pub struct Frames(Arc<Inner>);

struct Inner {
    mapping: Arc<Mapping>,
    layout: Layout,
    number: u128,
    file: Option<Named>,
    /// The chunks that exist.
    chunks: Mutex<Vec<Memory>>,
    /// The number of the arena that uses the frames. Each arena has a number of its own.
    user: AtomicU64,
}

struct Named {
    file: File,
    path: PathBuf,
}

impl Frames {
    /// Makes frames without a file. They live as long as a clone of the value.
    ///
    /// # Errors
    /// `Invalid` for settings that make no sense; `Exhausted` if there is no memory.
    pub fn anonymous(settings: ArenaSettings) -> Result<Frames, Error> {
        let layout = Layout::new(settings.bytes, settings.chunk)?;
        let mapping = Mapping::private(layout.len(), layout.chunks_at())?;
        Ok(Frames::new(Existing { mapping, layout, chunks: 0, number: 0 }, None))
    }

    /// Takes over the frames in the file at `path`, which should be in a file system in memory
    /// (`/dev/shm`), or makes the file. What is done depends on what is there:
    ///
    /// | found | what is done |
    /// |---|---|
    /// | nothing, or an empty file | a file is made |
    /// | something else, or an arena of an impossible size | error: choose another path, or remove it |
    /// | of another version or another store, nothing dirty | it is made anew |
    /// | of another version or another store, dirty | error: start the server that wrote it |
    /// | of this store, with a number that was not noted, nothing dirty | it is made anew |
    /// | of this store, with a number that was not noted, dirty | error: see [`Owner`] |
    /// | noted, of other sizes, nothing dirty | it is made anew |
    /// | noted, of other sizes, dirty | it is taken over with its own sizes, with a warning |
    /// | noted, of these sizes | it is taken over |
    ///
    /// [`Frames::settings`] returns the sizes that the frames have, and [`Frames::number`] their
    /// number: `owner.next` if they were made.
    ///
    /// # Errors
    /// `Refused`, which is worth a retry, if another process uses the file. `Incompatible` if it
    /// holds dirty data of another store, of another version or of frames that were not noted.
    /// `Invalid` if it is not this user's alone, is no arena, or is damaged. `Exhausted` if the
    /// file system is full. The text says what to do.
    pub fn open(path: &Path, settings: ArenaSettings, owner: Owner) -> Result<Frames, Error> {
        let wanted = Layout::new(settings.bytes, settings.chunk)?;
        let file = file::open(path)?;
        let found = match existing(&file, path, wanted, &owner)? {
            Some(found) => found,
            None => make(&file, wanted, &owner).map_err(|error| file::failed("cannot make", path, error))?,
        };
        Ok(Frames::new(found, Some(Named { file, path: path.into() })))
    }

    /// Opens frames that [`Frames::open`] refuses because `owner` has not noted their number, to
    /// look at what is dirty in them ([`Arena::adopt`](super::Arena::adopt)) and to
    /// [discard](Frames::discard) them. Returns `None` if it does not refuse them for that reason.
    ///
    /// # Errors
    /// Those of [`Frames::open`], for other reasons than the number.
    pub fn refused(path: &Path, owner: Owner) -> Result<Option<Frames>, Error> {
        if !path.exists() {
            return Ok(None);
        }
        let file = file::open(path)?;
        let Some(found) = superblock(&file).map_err(|error| file::failed("cannot read", path, error))? else {
            return Ok(None);
        };
        let number = found.number();
        if found.word(VERSION_AT) != VERSION || found.store() != owner.store || owner.noted == Some(number) {
            return Ok(None);
        }
        let Some((layout, _)) = found.layout() else { return Ok(None) };
        let found = existing(&file, path, layout, &Owner { noted: Some(number), ..owner })?;
        let frames = found.map(|found| Frames::new(found, Some(Named { file, path: path.into() })));
        Ok(frames.filter(Frames::is_dirty))
    }

    /// Returns true if the file has the frames that `owner` has noted, and they hold nothing. Then
    /// the owner forgets the note before it opens them: [`Frames::open`] may make them anew.
    ///
    /// # Errors
    /// Those of [`Frames::open`].
    pub fn hold_nothing(path: &Path, owner: Owner) -> Result<bool, Error> {
        if !path.exists() {
            return Ok(false);
        }
        let file = file::open(path)?;
        let found = superblock(&file).map_err(|error| file::failed("cannot read", path, error))?;
        let is_noted = |found: &Superblock| {
            found.word(VERSION_AT) == VERSION && found.store() == owner.store && owner.noted == Some(found.number())
        };
        let Some(found) = found.filter(is_noted) else { return Ok(false) };
        if found.word(CHUNKS_AT) == 0 {
            return Ok(true);
        }
        let Some((layout, _)) = found.layout() else { return Ok(false) };
        let found = existing(&file, path, layout, &owner)?;
        Ok(found.is_none_or(|found| !Frames::new(found, Some(Named { file, path: path.into() })).is_dirty()))
    }

    fn new(found: Existing, file: Option<Named>) -> Frames {
        let Existing { mapping, layout, chunks, number } = found;
        let mapping = Arc::new(mapping);
        let chunks = Mutex::new((0..chunks).map(|_| mapping.lend(layout.chunk)).collect());
        Frames(Arc::new(Inner { mapping, layout, number, file, chunks, user: AtomicU64::new(0) }))
    }

    /// Returns the number of the frames, which their owner notes. That of anonymous frames is 0.
    pub fn number(&self) -> u128 {
        self.0.number
    }

    /// Returns the sizes that the frames have.
    pub fn settings(&self) -> ArenaSettings {
        let Layout { chunk, bound } = self.0.layout;
        ArenaSettings { bytes: (chunk * bound) as u64, chunk }
    }

    /// Returns true if a header says that something is dirty, or is damaged. Reads all headers.
    pub fn is_dirty(&self) -> bool {
        is_dirty(&self.0.mapping, &self.0.layout, self.chunks().len())
    }

    /// Removes the file after a clean stop, so that its memory is free. Bytes that are written to
    /// the frames after that survive nothing. Does nothing for frames without a file.
    ///
    /// # Errors
    /// `Invalid` if something is dirty: the next server needs the file. What the system fails with.
    pub fn remove(self) -> Result<(), Error> {
        if let Some(Named { path, .. }) = &self.0.file
            && self.is_dirty()
        {
            let text = format!("{} holds acknowledged data that is not on disk, so it is not removed", path.display());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.discard()
    }

    /// Removes the file with everything that is dirty in it: acknowledged data is lost. Only for
    /// frames of which a person has said that they are not needed.
    ///
    /// # Errors
    /// What the system fails with.
    pub fn discard(self) -> Result<(), Error> {
        let Some(Named { file, path }) = &self.0.file else { return Ok(()) };
        if !file::is_named(file, path) {
            return Ok(());
        }
        fs::remove_file(path).map_err(|error| file::failed("cannot remove", path, error))
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.0.mapping
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Returns the chunks that exist.
    pub(super) fn chunks(&self) -> MutexGuard<'_, Vec<Memory>> {
        self.0.chunks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws the number of a new user.
    pub(super) fn enter(&self) -> u64 {
        self.0.user.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Returns true if no user came after the one with this number.
    pub(super) fn is_used_by(&self, user: u64) -> bool {
        self.0.user.load(Ordering::Acquire) == user
    }

    /// Makes one chunk more, and returns it. Returns `None` at the bound.
    pub(super) fn grow(&self) -> Result<Option<Memory>, Error> {
        let Inner { mapping, layout, file, .. } = &*self.0;
        let mut chunks = self.chunks();
        let index = chunks.len();
        if index == layout.bound {
            return Ok(None);
        }
        if let Some(Named { file, path }) = file {
            allocate(file, layout, index..index + 1).map_err(|error| file::failed("cannot enlarge", path, error))?;
        }
        // They may hold anything if the file was damaged.
        for header in (layout.headers_at(index)..layout.headers_at(index + 1)).step_by(HEADER) {
            if !header::is_empty(mapping, header) {
                header::erase(mapping, header);
            }
        }
        // The chunk exists from here on. A kill before this store costs its pages, which the next
        // attempt finds.
        mapping.store(CHUNKS_AT, index as u64 + 1);
        let chunk = mapping.lend(layout.chunk);
        chunks.push(chunk.clone());
        Ok(Some(chunk))
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.file.as_ref().map(|named| &named.path);
        f.debug_struct("Frames").field("path", &path).field("layout", &self.0.layout).finish_non_exhaustive()
    }
}

/// An arena that is taken over: its sizes, how many chunks exist, and its number.
struct Existing {
    mapping: Mapping,
    layout: Layout,
    chunks: usize,
    number: u128,
}

/// Maps the arena in a file, if there is one to take over. Returns `None` if the file is to be made
/// anew.
fn existing(file: &File, path: &Path, wanted: Layout, owner: &Owner) -> Result<Option<Existing>, Error> {
    let failed = |error: io::Error| file::failed("cannot read", path, error);
    let refused = |kind, text: &str| Error::new(kind, format!("{} {text}", path.display()));
    let metadata = file.metadata().map_err(failed)?;
    if metadata.len() == 0 {
        return Ok(None);
    }
    let Some(superblock) = superblock(file).map_err(failed)? else {
        let text = "is not the memory of a cache: choose another path";
        return Err(refused(ErrorKind::Invalid, text));
    };
    if superblock.word(VERSION_AT) != VERSION {
        return match superblock.word(UNITS_AT) {
            0 => Ok(None),
            _ => Err(refused(
                ErrorKind::Incompatible,
                "holds acknowledged data of another version: start that version once, and stop it in order",
            )),
        };
    }
    if superblock.word(CHUNKS_AT) == 0 {
        return Ok(None);
    }
    let Some((layout, chunks)) = superblock.layout().filter(|(layout, _)| layout.len() as u64 == metadata.len()) else {
        let text = "is damaged, and the acknowledged data in it is lost: remove it";
        return Err(refused(ErrorKind::Invalid, text));
    };
    let mapping = Mapping::of_file(file, layout.len(), layout.chunks_at()).map_err(failed)?;
    let number = superblock.number();
    let is_noted = owner.noted == Some(number) || mutated("cache/frames-of-an-earlier-start");
    let is_own = superblock.store() == owner.store;
    match (is_own && is_noted, layout == wanted, is_dirty(&mapping, &layout, chunks)) {
        (false, _, true) if !is_own => {
            let text = "holds acknowledged data of another store: start the server of that store once, and stop it in \
                        order, or choose another path";
            return Err(refused(ErrorKind::Incompatible, text));
        }
        (false, _, true) => {
            let text = "holds acknowledged data of this store from an earlier start, and the store has gone on without \
                        it since: what the disk has is newer, or in another place";
            return Err(refused(ErrorKind::Incompatible, text));
        }
        (false, _, false) | (true, false, false) => return Ok(None),
        (true, false, true) => {
            let path = path.display();
            tracing::warn!(%path, ?layout, ?wanted, "the cache's memory holds data, and keeps its sizes until a clean stop");
        }
        (true, true, _) => {}
    }
    fill_holes(file, metadata.blocks(), &layout, chunks).map_err(failed)?;
    Ok(Some(Existing { mapping, layout, chunks, number }))
}

/// Reads the superblock. Returns `None` if the file has none.
fn superblock(file: &File) -> io::Result<Option<Superblock>> {
    let mut bytes = [0; SUPERBLOCK];
    match file.read_exact_at(&mut bytes, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        read => {
            read?;
            let superblock = Superblock::from_bytes(bytes);
            Ok((superblock.word(MAGIC_AT) == MAGIC).then_some(superblock))
        }
    }
}

/// Gives all chunks that exist their pages, if the file has fewer. A kill does not cause that, but
/// a copy of the file may have holes, and touching a hole of a full file system ends the process.
/// `blocks` are the file's, of 512 bytes.
fn fill_holes(file: &File, blocks: u64, layout: &Layout, chunks: usize) -> io::Result<()> {
    let least = chunks * (layout.chunk + layout.headers_of_chunk());
    if blocks * 512 < least as u64 { allocate(file, layout, 0..chunks) } else { Ok(()) }
}

/// Gives the bytes and the headers of some chunks their pages.
fn allocate(file: &File, layout: &Layout, chunks: std::ops::Range<usize>) -> io::Result<()> {
    let (bytes, headers) = (layout.chunk_at(chunks.start), layout.headers_at(chunks.start));
    // The bytes are first, because they are what there may be no room for.
    file::allocate(file, bytes, layout.chunk_at(chunks.end) - bytes)?;
    file::allocate(file, headers, layout.headers_at(chunks.end) - headers)
}

/// Makes an arena without chunks of whatever the file is.
fn make(file: &File, layout: Layout, owner: &Owner) -> io::Result<Existing> {
    file.set_len(0)?;
    file.write_all_at(&Superblock::new(layout, owner.store, owner.next).to_bytes(), 0)?;
    file.set_len(layout.len() as u64)?;
    let mapping = Mapping::of_file(file, layout.len(), layout.chunks_at())?;
    Ok(Existing { mapping, layout, chunks: 0, number: owner.next })
}

fn is_dirty(mapping: &Mapping, layout: &Layout, chunks: usize) -> bool {
    let mut headers = (layout.headers_at(0)..layout.headers_at(chunks)).step_by(HEADER);
    headers.any(|at| !header::is_empty(mapping, at))
}
