//! Where the thread of a driver sleeps.
//!
//! **Why not the event fd alone.** A thread that sleeps on a descriptor learns only that something
//! has come, and asks for what it is by a second system call. An adapter that sleeps by the call
//! which also says what has come saves that one.

use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::error::Error;

/// A place to sleep for one thread. It is not the transport, so other threads may use that
/// meanwhile.
pub trait Bed: Send {
    /// Sleeps until the transport has something to do (C11), until [`Bed::waker`] was woken, or for
    /// `timeout`. Call it after [`Transport::arm`](super::Transport::arm) has returned
    /// [`Armed::Waiting`](super::Armed::Waiting). It may return early. The next poll handles what
    /// it has learnt, on whichever thread.
    ///
    /// # Errors
    /// `Io` if the system cannot wait.
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error>;

    /// Returns a waker that ends the sleep, or the next one, from any thread. A poll by another
    /// thread does not use it up, as it may that of [`Transport::waker`](super::Transport::waker).
    fn waker(&self) -> Waker;
}

/// A bed on a descriptor that becomes readable.
pub(crate) struct DescriptorBed {
    fd: OwnedFd,
    alarm: PipeReader,
    /// The other end of the pipe.
    bell: Arc<Bell>,
}

struct Bell(PipeWriter);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // If there is no room, bytes of earlier wakes end the sleep. Without a reader, nobody
        // sleeps.
        let _ = (&self.0).write(&[0]);
    }
}

impl DescriptorBed {
    pub(crate) fn new(fd: OwnedFd) -> Result<DescriptorBed, Error> {
        let (alarm, bell) = std::io::pipe()?;
        rustix::io::ioctl_fionbio(&alarm, true).map_err(std::io::Error::from)?;
        rustix::io::ioctl_fionbio(&bell, true).map_err(std::io::Error::from)?;
        Ok(DescriptorBed { fd, alarm, bell: Arc::new(Bell(bell)) })
    }
}

impl Bed for DescriptorBed {
    fn sleep(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        // A duration that is too long for the system means no timeout.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut fds = [self.fd.as_fd(), self.alarm.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            // After a signal the driver looks and sleeps again.
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Error::from(std::io::Error::from(error))),
        }
        if !fds[1].revents().is_empty() {
            // Nothing may be left by now: bytes are taken together.
            let _ = self.alarm.read(&mut [0; 64]);
        }
        Ok(())
    }

    fn waker(&self) -> Waker {
        Waker::from(Arc::clone(&self.bell))
    }
}
