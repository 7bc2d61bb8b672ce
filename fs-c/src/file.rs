//! Files: opening, data, size.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use bmi::threading::AnyThread;
use bmi::{Handle, MemList};
use fs_client::{CreateOptions, Draft, Publish, Region, SharedClient, SharedFile, TypedMemory};

use crate::boundary::{Out, Outcome, call, call_int, given, invalid, list, path};
use crate::client::pvfs_client;
use crate::memory::{Lent, pvfs_piece};
use crate::names::pvfs_attr;
use crate::queue::{pvfs_async, run};
use crate::types::{pvfs_type, pvfs_view};

/// Create the file if it does not exist.
pub const PVFS_CREATE: u32 = 1;
/// With `PVFS_CREATE`: an existing file is an error.
pub const PVFS_EXCLUSIVE: u32 = 2;
/// Cut the file off.
pub const PVFS_TRUNCATE: u32 = 4;
/// Create a file without a name. Nobody else sees it until `pvfs_publish` gives it its name, and
/// replaces what is there in one step. Without that it is removed, when it is closed or later.
pub const PVFS_DRAFT: u32 = 8;

/// How a new file is laid out.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct pvfs_layout {
    /// Strip size in bytes; 0 for the default of the cluster.
    pub strip_size: u64,
    /// Number of I/O servers; 0 for all that are up.
    pub servers: u32,
}

/// A region of a file.
#[repr(C)]
pub struct pvfs_region {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// An open file.
pub struct pvfs_file {
    handle: Handle,
    client: SharedClient,
    file: SharedFile,
    draft: Option<Arc<Draft<AnyThread>>>,
}

/// Opens a file. `flags` are some of `PVFS_CREATE`, `PVFS_EXCLUSIVE`, `PVFS_TRUNCATE` and
/// `PVFS_DRAFT`. `mode` are the permission bits of a new file. `layout` is that of a new file, or
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_open(
    client: Option<&pvfs_client>,
    path: *const c_char,
    flags: u32,
    mode: u32,
    layout: Option<&pvfs_layout>,
    file: *mut *mut pvfs_file,
    later: Option<&pvfs_async>,
) -> c_int {
    call_int(|| {
        // SAFETY: C's promise, here and below.
        let (path, place) = unsafe { (self::path(path)?, Out::new(file, "file")?) };
        let pvfs_client { handle, client } = given(client, "client")?;
        if flags & !(PVFS_CREATE | PVFS_EXCLUSIVE | PVFS_TRUNCATE | PVFS_DRAFT) != 0 {
            return Err(invalid(format!("flags are {flags:#x}")));
        }
        let pvfs_layout { strip_size, servers } = layout.copied().unwrap_or(pvfs_layout { strip_size: 0, servers: 0 });
        let exclusive = flags & PVFS_EXCLUSIVE != 0;
        let options = CreateOptions { strip_size, servers, mode, exclusive, ..CreateOptions::default() };
        let (own, client) = (handle.clone(), client.clone());
        let open = async move {
            let (file, draft) = if flags & PVFS_DRAFT != 0 {
                let draft = client.draft(&path, options).await?;
                (draft.file().clone(), Some(Arc::new(draft)))
            } else if flags & PVFS_CREATE != 0 {
                (client.create(&path, options).await?, None)
            } else {
                (client.open(&path).await?, None)
            };
            if flags & PVFS_TRUNCATE != 0 {
                file.set_len(0).await?;
            }
            place.set(Box::into_raw(Box::new(pvfs_file { handle: own, client, file, draft })));
            Ok(0)
        };
        // SAFETY: as above.
        unsafe { run(handle, later, open) }
    })
}

/// Gives a draft its name, with the size that it has, and replaces a file of that name. What must
/// survive a crash is synced before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_publish(file: Option<&pvfs_file>, later: Option<&pvfs_async>) -> c_int {
    call_int(|| {
        let file = given(file, "file")?;
        let draft = file.draft.clone().ok_or_else(|| invalid("the file is no draft"))?;
        let publish = async move |file: SharedFile| {
            let size = Some(file.size().await?);
            draft.publish(Publish { inherit: true, size, ..Publish::default() }).await?;
            Ok(0)
        };
        // SAFETY: C's promise.
        unsafe { with(Some(file), later, publish) }
    })
}

/// Closes a file. What was written is not synced. Operations that were posted go on. NULL is
/// ignored.
#[unsafe(no_mangle)]
pub extern "C" fn pvfs_close(file: Option<Box<pvfs_file>>) {
    call(|| {
        let Some(pvfs_file { handle, file, draft, .. }) = file.map(|file| *file) else { return Ok(0) };
        drop(file);
        // Does nothing to a draft that was published.
        if let Some(draft) = draft.and_then(Arc::into_inner) {
            handle.block_on(draft.abandon())?;
        }
        Ok(0)
    });
}

/// Waits for an operation of a file, or posts it.
///
/// # Safety
/// As [`run`].
unsafe fn with<F: Future<Output = Outcome<i64>> + Send + 'static>(
    file: Option<&pvfs_file>,
    later: Option<&pvfs_async>,
    operation: impl FnOnce(SharedFile) -> F,
) -> Outcome<i64> {
    let pvfs_file { handle, file, .. } = given(file, "file")?;
    // SAFETY: the caller's promise.
    unsafe { run(handle, later, operation(file.clone())) }
}

/// Reads or writes pieces of memory.
///
/// # Safety
/// As [`Lent::memory`] for each piece, until the operation has ended, and as [`run`].
unsafe fn transfer(
    file: Option<&pvfs_file>,
    pieces: &[pvfs_piece],
    regions: Vec<Region>,
    is_read: bool,
    later: Option<&pvfs_async>,
) -> Outcome<i64> {
    let lent = Lent::new();
    // SAFETY: the caller's promise, here and below.
    let memory: MemList = unsafe { lent.list(pieces, is_read) }?;
    let transfer = async move |file: SharedFile| {
        let total = memory.len() as i64;
        let moved = async {
            if is_read {
                return file.read_list(&regions, memory).await.map(|read| read as i64);
            }
            file.write_list(&regions, memory).await.map(|()| total)
        };
        Ok(lent.until_back(moved).await?)
    };
    // SAFETY: as above.
    unsafe { with(file, later, transfer) }
}

/// Reads `len` bytes from `offset` on. Returns how many were read: fewer only at the end of the
/// file. The rest of the memory is set to zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_read(
    file: Option<&pvfs_file>,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
    later: Option<&pvfs_async>,
) -> i64 {
    let regions = vec![Region::new(offset, len as u64)];
    // SAFETY: C's promise.
    call(|| unsafe { transfer(file, &[pvfs_piece { base: buffer, len }], regions, true, later) })
}

/// Writes `len` bytes from `offset` on. Returns `len`. The bytes reach the disks with `pvfs_sync`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_write(
    file: Option<&pvfs_file>,
    buffer: *const c_void,
    len: usize,
    offset: u64,
    later: Option<&pvfs_async>,
) -> i64 {
    let regions = vec![Region::new(offset, len as u64)];
    // SAFETY: C's promise.
    call(|| unsafe { transfer(file, &[pvfs_piece { base: buffer.cast_mut(), len }], regions, false, later) })
}

/// Reads regions of the file, in order, into pieces of memory, in order. Both have the same number
/// of bytes, in any shape. Returns how many of them are before the end of the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_read_list(
    file: Option<&pvfs_file>,
    pieces: *const pvfs_piece,
    piece_count: usize,
    regions: *const pvfs_region,
    region_count: usize,
    later: Option<&pvfs_async>,
) -> i64 {
    // SAFETY: C's promise.
    call(|| unsafe {
        let (pieces, regions) = lists(pieces, piece_count, regions, region_count)?;
        transfer(file, pieces, regions, true, later)
    })
}

/// Writes pieces of memory, in order, to regions of the file, in order. Both have the same number
/// of bytes, in any shape. Returns that number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_write_list(
    file: Option<&pvfs_file>,
    pieces: *const pvfs_piece,
    piece_count: usize,
    regions: *const pvfs_region,
    region_count: usize,
    later: Option<&pvfs_async>,
) -> i64 {
    // SAFETY: C's promise.
    call(|| unsafe {
        let (pieces, regions) = lists(pieces, piece_count, regions, region_count)?;
        transfer(file, pieces, regions, false, later)
    })
}

/// # Safety
/// As [`list`].
unsafe fn lists<'a>(
    pieces: *const pvfs_piece,
    piece_count: usize,
    regions: *const pvfs_region,
    region_count: usize,
) -> Outcome<(&'a [pvfs_piece], Vec<Region>)> {
    // SAFETY: the caller's promise.
    let (pieces, regions) = unsafe { (list(pieces, piece_count, "pieces")?, list(regions, region_count, "regions")?) };
    Ok((pieces, regions.iter().map(|region| Region::new(region.offset, region.len)).collect()))
}

/// Reads what a view shows of the file, from its element `offset` on, into `count` instances of a
/// type in a buffer of `len` bytes. Returns how many bytes are before the end of the file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_read_view(
    file: Option<&pvfs_file>,
    view: Option<&pvfs_view>,
    offset: u64,
    buffer: *mut c_void,
    len: usize,
    memtype: Option<&pvfs_type>,
    count: u64,
    later: Option<&pvfs_async>,
) -> i64 {
    // SAFETY: C's promise.
    call(|| unsafe { through(file, view, offset, (buffer, len), memtype, count, true, later) })
}

/// Writes `count` instances of a type in a buffer of `len` bytes to what a view shows of the file,
/// from its element `offset` on. Returns the number of bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_write_view(
    file: Option<&pvfs_file>,
    view: Option<&pvfs_view>,
    offset: u64,
    buffer: *const c_void,
    len: usize,
    memtype: Option<&pvfs_type>,
    count: u64,
    later: Option<&pvfs_async>,
) -> i64 {
    // SAFETY: C's promise.
    call(|| unsafe { through(file, view, offset, (buffer.cast_mut(), len), memtype, count, false, later) })
}

/// Reads or writes through a view.
///
/// # Safety
/// As [`transfer`].
#[expect(clippy::too_many_arguments, reason = "those of C")]
unsafe fn through(
    file: Option<&pvfs_file>,
    view: Option<&pvfs_view>,
    offset: u64,
    (buffer, len): (*mut c_void, usize),
    memtype: Option<&pvfs_type>,
    count: u64,
    is_read: bool,
    later: Option<&pvfs_async>,
) -> Outcome<i64> {
    let (view, memtype) = (given(view, "view")?.0.clone(), given(memtype, "memtype")?.0.clone());
    let total = memtype.size().checked_mul(count).and_then(|total| i64::try_from(total).ok());
    let total = total.ok_or_else(|| invalid(format!("{count} instances of {} bytes", memtype.size())))?;
    let lent = Lent::new();
    // SAFETY: the caller's promise, here and below.
    let memory = unsafe { lent.memory(buffer, len, is_read) }?;
    let transfer = async move |file: SharedFile| {
        let typed = TypedMemory::new(&memory, &memtype, count);
        drop(memory);
        let moved = async {
            if is_read {
                return file.read_view(&view, offset, typed).await.map(|read| read as i64);
            }
            file.write_view(&view, offset, typed).await.map(|()| total)
        };
        Ok(lent.until_back(moved).await?)
    };
    // SAFETY: as above.
    unsafe { with(file, later, transfer) }
}

/// Flushes what was written to the disks of all servers of the file. It then survives a crash.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_sync(file: Option<&pvfs_file>, later: Option<&pvfs_async>) -> c_int {
    // SAFETY: C's promise.
    call_int(|| unsafe { with(file, later, async |file| Ok(file.sync().await.map(|()| 0)?)) })
}

/// Sets the length of a file: cuts it off, or extends it with zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_truncate(file: Option<&pvfs_file>, size: u64, later: Option<&pvfs_async>) -> c_int {
    // SAFETY: C's promise.
    call_int(|| unsafe { with(file, later, async move |file| Ok(file.set_len(size).await.map(|()| 0)?)) })
}

/// Returns the attributes of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pvfs_fstat(
    file: Option<&pvfs_file>,
    attr: *mut pvfs_attr,
    later: Option<&pvfs_async>,
) -> c_int {
    call_int(|| {
        // SAFETY: C's promise, here and below.
        let (attr, client) = (unsafe { Out::new(attr, "attr") }?, given(file, "file")?.client.clone());
        let stat = async move |file: SharedFile| {
            attr.set(client.getattr(file.path(), file.handle().into()).await?.into());
            Ok(0)
        };
        // SAFETY: as above.
        unsafe { with(file, later, stat) }
    })
}

versioned!(
    pvfs_open,
    pvfs_publish,
    pvfs_close,
    pvfs_read,
    pvfs_write,
    pvfs_read_list,
    pvfs_write_list,
    pvfs_read_view,
    pvfs_write_view,
    pvfs_sync,
    pvfs_truncate,
    pvfs_fstat,
);
