//! The device: reads requests and writes replies.
//!
//! **Invariants**
//! 1. The device is read without blocking, in a task of the runtime. The thread that the system
//!    wakes for a request also begins it.
//! 2. The data of a write is read into memory that the transports move best, and goes to the
//!    servers from there.
//! 3. Buffers that are not used are bounded ([`MOST_FREE`]).

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use bmi::Memory;
use fs_client::SharedClient;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::reply::Reply;
use super::request::{Request, WRITE_HEAD, op};
use super::settings::{Coherence, MOST_DATA, Settings};

/// Most buffers that are kept while nothing uses them.
const MOST_FREE: usize = 16;
/// Memory for data, of [`MOST_DATA`] bytes each.
pub(crate) struct Buffers {
    /// The memory is what its transports move best. Without a client it is any.
    client: Option<SharedClient>,
    free: Mutex<Vec<Memory>>,
}

impl Buffers {
    pub(crate) fn new(client: Option<SharedClient>) -> Buffers {
        Buffers { client, free: Mutex::default() }
    }

    /// Returns memory that nobody else uses. The error is that there is no more.
    pub(crate) fn take(&self) -> Result<Memory, Errno> {
        let free = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let unused = free.iter_mut().rposition(|memory| memory.get_mut().is_some());
            unused.map(|at| free.swap_remove(at))
        };
        let new = || match &self.client {
            Some(client) => client.memory(MOST_DATA).ok(),
            None => Memory::zeroed(MOST_DATA).ok(),
        };
        free.or_else(new).ok_or(Errno::NOMEM)
    }

    /// Takes memory back. An operation that was given up may still use it, and the endpoint for a
    /// moment that of one that has ended.
    pub(crate) fn give_back(&self, memory: Memory) {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < MOST_FREE {
            free.push(memory);
        }
    }
}

/// The device, for one file system.
pub(crate) struct Device(AsyncFd<OwnedFd>);

impl Device {
    /// Opens the device. The descriptor is mounted before it becomes a device.
    pub(crate) fn open() -> Result<OwnedFd, Errno> {
        rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
    }

    /// Makes a device of a descriptor that is mounted. Needs a runtime.
    pub(crate) fn new(fd: OwnedFd) -> std::io::Result<Device> {
        // SAFETY: an `OwnedFd` always returns the same descriptor, and it is open until the
        // `AsyncFd` is dropped, which nothing replaces it in.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE | Interest::ERROR) };
        Ok(Device(fd?))
    }

    /// Returns the number of the descriptor.
    pub(crate) fn number(fd: &OwnedFd) -> i32 {
        fd.as_raw_fd()
    }

    /// Returns the next request, or `None` after the file system was unmounted.
    pub(crate) async fn next(&self, buffers: &Buffers) -> std::io::Result<Option<Request>> {
        let (mut head, mut payload) = ([0; WRITE_HEAD], buffers.take()?);
        loop {
            let mut ready = self.0.ready(Interest::READABLE | Interest::ERROR).await?;
            let read = ready.try_io(|fd| {
                let payload = payload.get_mut().expect("nobody else has the memory");
                Ok(rustix::io::readv(fd, &mut [IoSliceMut::new(&mut head), IoSliceMut::new(payload)])?)
            });
            let len = match read {
                Err(_would_block) => continue,
                Ok(Ok(len)) => len,
                Ok(Err(error)) => match Errno::from_io_error(&error) {
                    Some(Errno::NODEV) => return Ok(None),
                    // The process that asked was killed.
                    Some(Errno::NOENT | Errno::INTR) => continue,
                    _ => return Err(error),
                },
            };
            let Some((request, unused)) = Request::new(&head, payload, len) else {
                return Err(std::io::Error::other("a request that is none was read from /dev/fuse"));
            };
            unused.into_iter().for_each(|memory| buffers.give_back(memory));
            return Ok(Some(request));
        }
    }

    /// Answers INIT.
    ///
    /// # Errors
    /// The kernel does not offer what the mount needs. All that programs do on it fails then.
    pub(crate) fn begin(&self, request: &Request, coherence: Coherence) -> std::io::Result<()> {
        debug_assert_eq!(request.op, op::INIT);
        let offered = (|| {
            let mut args = request.args();
            let _versions_and_read_ahead = (args.u64()?, args.u32()?);
            args.u32()
        })();
        let agreed = Settings::agreed(coherence, offered.unwrap_or(0));
        let answer = agreed.as_ref().map(Reply::init).map_err(|_| Errno::PROTO);
        self.answer(request.unique, answer, None);
        agreed.map(drop)
    }

    /// Answers a request. Memory of the answer goes to `buffers`.
    pub(crate) fn answer(&self, unique: u64, answer: Result<Reply, Errno>, buffers: Option<&Buffers>) {
        let error = answer.as_ref().err().map_or(0, |errno| -errno.raw_os_error());
        let mut memory = None;
        let mut bytes = Vec::new();
        match answer {
            Ok(Reply::Bytes(all)) => bytes = all,
            Ok(Reply::Memory(all, len)) => memory = Some((all, len)),
            Err(_) => {}
        }
        let data = match &mut memory {
            Some((memory, len)) => match memory.get_mut() {
                Some(all) => &all[..(*len).min(all.len())],
                None => {
                    bytes = memory.slice(0, (*len).min(memory.len())).to_vec();
                    &bytes
                }
            },
            None => &bytes,
        };
        let mut header = [0; 16];
        let len = (header.len() + data.len()) as u32;
        header[..4].copy_from_slice(&len.to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        let written = rustix::io::writev(self.0.as_fd(), &[IoSlice::new(&header), IoSlice::new(data)]);
        match written {
            // The process was killed, or the file system unmounted: nobody waits for the answer.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::PERM) => {}
            Err(error) => tracing::warn!(%error, unique, "the kernel does not take an answer"),
        }
        if let (Some((memory, _)), Some(buffers)) = (memory, buffers) {
            buffers.give_back(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that the endpoint still had for a moment was dropped, and each read of 64 KiB made
    /// new one.
    #[test]
    fn memory_that_is_still_used_is_given_out_later() {
        let buffers = Buffers::new(None);
        let mut one = buffers.take().unwrap();
        one.get_mut().unwrap()[0] = 7;
        let used = one.slice(0, 1);
        buffers.give_back(one);
        assert_eq!(buffers.take().unwrap().get_mut().unwrap()[0], 0, "another one");
        drop(used);
        assert_eq!(buffers.take().unwrap().get_mut().unwrap()[0], 7, "the same");
    }
}
