//! Reads and writes local files on a separate thread, directly from and to memory that adapters may
//! access.
//!
//! **Why.** Storing a local file moves bytes from the local disk to memory to the network. A `read`
//! into a private buffer would add a copy of every byte. A `read` on the thread that drives the
//! endpoint would stop the network until the disk answers. So a worker thread makes the system
//! calls, and the kernel moves the bytes between the page cache and registered memory.
//!
//! **Invariants**
//! 1. No reference to the bytes of a [`Memory`](bmi::Memory) is made. Only the kernel accesses
//!    them (rule 2 of [`bmi::memory`]).
//! 2. A job holds a handle of its memory until it has run. Dropping the future that waits for it
//!    does not free memory that the kernel still uses.
//! 3. Jobs run in the order in which they were submitted. After the last handle is dropped, the
//!    thread ends when the earlier jobs have run.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::mpsc;
use std::thread::Builder;

use bmi::MemSlice;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// The worker thread. A clone is another handle to the same thread.
#[derive(Clone, Debug)]
pub struct LocalIo {
    jobs: mpsc::Sender<Job>,
}

impl LocalIo {
    /// Starts the thread.
    ///
    /// # Errors
    /// Those of the system for starting a thread.
    pub fn start() -> io::Result<LocalIo> {
        let (jobs, queue) = mpsc::channel::<Job>();
        Builder::new().name("pvfs-local-io".to_owned()).spawn(move || {
            for job in queue {
                job();
            }
        })?;
        Ok(LocalIo { jobs })
    }

    /// Runs `work` on the thread. If the returned future is dropped, the work is still done.
    ///
    /// # Errors
    /// Those of `work`; `BrokenPipe` if the work panicked and so ended the thread.
    pub async fn run<R: Send + 'static>(&self, work: impl FnOnce() -> io::Result<R> + Send + 'static) -> io::Result<R> {
        let gone = || io::Error::new(io::ErrorKind::BrokenPipe, "the thread for local files has ended");
        let (done, result) = oneshot::channel();
        self.jobs
            .send(Box::new(move || {
                // If the future was dropped, the result is not needed.
                let _ = done.send(work());
            }))
            .map_err(|_| gone())?;
        result.await.map_err(|_| gone())?
    }
}

/// Reads from `offset` of `file` until `into` is full or the file ends. Returns the number of bytes
/// read.
///
/// # Errors
/// Those of `pread`, except interruptions.
pub fn read_at(file: &File, offset: u64, into: &MemSlice) -> io::Result<usize> {
    transfer(into, offset, |ptr, len, at| {
        // SAFETY: `ptr` and `len` come from `transfer`: `len` bytes that the handle in `into` keeps
        // alive. The kernel writes them.
        unsafe { libc::pread(file.as_raw_fd(), ptr.cast(), len, at) }
    })
}

/// Writes all of `from` at `offset` of `file`.
///
/// # Errors
/// Those of `pwrite`, except interruptions; `WriteZero` if the file accepts no more bytes.
pub fn write_at(file: &File, offset: u64, from: &MemSlice) -> io::Result<()> {
    let written = transfer(from, offset, |ptr, len, at| {
        // SAFETY: as in `read_at`; the kernel only reads them.
        unsafe { libc::pwrite(file.as_raw_fd(), ptr.cast_const().cast(), len, at) }
    })?;
    complete(written, from)
}

/// Reads from a pipe, or from a file's current position, until `into` is full or the input ends.
/// Returns the number of bytes read.
///
/// # Errors
/// Those of `read`, except interruptions.
pub fn read_stream(fd: impl AsFd, into: &MemSlice) -> io::Result<usize> {
    transfer(into, 0, |ptr, len, _| {
        // SAFETY: as in `read_at`.
        unsafe { libc::read(fd.as_fd().as_raw_fd(), ptr.cast(), len) }
    })
}

/// Writes all of `from` to a pipe or at a file's current position.
///
/// # Errors
/// Those of `write`, except interruptions.
pub fn write_stream(fd: impl AsFd, from: &MemSlice) -> io::Result<()> {
    let written = transfer(from, 0, |ptr, len, _| {
        // SAFETY: as in `read_stream`; the kernel only reads the bytes.
        unsafe { libc::write(fd.as_fd().as_raw_fd(), ptr.cast_const().cast(), len) }
    })?;
    complete(written, from)
}

fn complete(written: usize, of: &MemSlice) -> io::Result<()> {
    if written < of.len() {
        return Err(io::Error::new(
            io::ErrorKind::WriteZero,
            format!("only {written} of {} bytes were taken", of.len()),
        ));
    }
    Ok(())
}

/// Repeats `call(pointer, length, offset)` until `slice` is used up or the call returns 0.
fn transfer(
    slice: &MemSlice,
    offset: u64,
    call: impl Fn(*mut u8, usize, libc::off_t) -> libc::ssize_t,
) -> io::Result<usize> {
    let mut done = 0;
    while done < slice.len() {
        let at = libc::off_t::try_from(offset + done as u64)
            .map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "offset beyond what the system can address"))?;
        // `done` is less than the slice's length, so the pointer stays within the memory that the
        // slice's handle keeps alive.
        match call(slice.as_ptr().wrapping_add(done), slice.len() - done, at) {
            0 => break,
            moved if moved > 0 => done += moved.unsigned_abs(),
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};

    use bmi::Memory;

    use super::*;

    #[test]
    fn bytes_go_out_and_come_back() {
        let file = tempfile::tempfile().unwrap();
        let memory = Memory::from((0..=255u8).collect::<Vec<_>>());
        write_at(&file, 1000, &memory.slice(10, 200)).unwrap();
        let back = Memory::zeroed(300).unwrap();
        assert_eq!(read_at(&file, 1000, &back.all()).unwrap(), 200, "the file ends after 200 bytes");
        assert_eq!(back.to_vec()[..200], memory.to_vec()[10..210]);
        assert_eq!(read_at(&file, 5000, &back.all()).unwrap(), 0);
        assert!(write_at(&file, u64::MAX, &memory.all()).is_err());
    }

    #[test]
    fn streams_are_read_from_where_they_stand() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"hello, world").unwrap();
        file.seek(std::io::SeekFrom::Start(7)).unwrap();
        let memory = Memory::zeroed(100).unwrap();
        assert_eq!(read_stream(&file, &memory.all()).unwrap(), 5);
        assert_eq!(memory.to_vec()[..5], *b"world");
        write_stream(&file, &memory.slice(0, 5)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 17);
    }

    #[test]
    fn jobs_run_in_order_on_their_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let io = LocalIo::start().unwrap();
            let order = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
            let jobs = (0..10).map(|n| {
                let order = order.clone();
                io.run(move || {
                    order.lock().unwrap().push(n);
                    Ok(n)
                })
            });
            let results = futures_util::future::join_all(jobs).await;
            assert_eq!(results.into_iter().collect::<io::Result<Vec<_>>>().unwrap(), (0..10).collect::<Vec<_>>());
            assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
            let error = io.run(|| Err::<(), _>(io::Error::other("no"))).await.unwrap_err();
            assert_eq!(error.to_string(), "no");
        });
    }
}
