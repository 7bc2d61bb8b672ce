//! A thread that has the kernel make the calls of transfers (io_uring), and wakes who waits.
//!
//! **Why.** A worker thread that makes a direct transfer waits for the disk, and is of no other use
//! meanwhile. A disk is fast only with many transfers at the same time, which would take as many
//! threads. The kernel needs none: it starts a transfer, and says later that it is done. An event
//! loop cannot start it, because even that may wait, for instance for the block of the file system
//! that says where the bytes are. So one thread starts and ends the transfers of all event loops.
//!
//! ```text
//!   event loop ──job──> inbox ──bell──> thread ──request──> kernel ──disk
//!        ^                                │  ^                 │
//!        └───────────── result ───────────┘  └── completion ───┘
//! ```
//!
//! The bell is an event descriptor. The thread always has a read of it in the ring, so it waits for
//! completions and for jobs in one call.
//!
//! **Invariants**
//! 1. The memory and the file of a transfer stay until its last call is completed, whether anybody
//!    waits for the result or not. They are released before the result is given.
//! 2. *Bounded.* There are [`PLACES`] places. Who finds none waits, in the order of coming. A job
//!    has its place until its end, so it never waits for a second one.
//! 3. *No job is forgotten.* A job that is put into the inbox rings the bell, unless that was done
//!    since the thread looked last.
//! 4. A transfer that panics fails alone.
//!
//! **Failure.** If the kernel refuses to go on with the ring, which it has no reason for, no new
//! job is taken, and workers make the transfers. Calls in flight keep their memory for good, and
//! nobody is told that they have ended, because it is not known.
//!
//! **Stop.** Dropping the ring does not wait. The thread ends when all jobs have. Whoever must know
//! that nothing is in flight asks [`Ring::wait_until_idle`].
//!
//! **Source.** io_uring(7); [Unifier-PVFS §4.2] asks for asynchronous transfers of the storage.
//!
//! **Tests.** `ring/tests.rs` stalls transfers with pipes; `direct_io/tests.rs` compares the
//! bytes.

mod sys;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use bmi::{MemSlice, Memory};
use fs_proto::{ErrorCode, FsError};
use rustix::event::{EventfdFlags, eventfd};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use self::sys::{Call, RawRing};
use super::course::{Course, Direction, Outcome};
use crate::lock::lock;
use crate::store::sys::position;

/// Most transfers at the same time. With the bell, a power of two, as the kernel's queues have it.
/// That is as deep as the queues of common disks.
const PLACES: usize = 127;

/// How long the thread waits if the kernel is short of memory and nothing is in flight.
const RETRY: Duration = Duration::from_millis(1);

/// A handle to the thread.
pub(in crate::store) struct Ring(Arc<Shared>);

/// What the thread and its users have in common.
struct Shared {
    state: Mutex<State>,
    /// A job has ended.
    ended: Condvar,
    places: Arc<Semaphore>,
    bell: File,
}

#[derive(Default)]
struct State {
    inbox: Vec<Job>,
    /// The bell was rung since the thread looked into the inbox.
    is_called: bool,
    /// Places that are taken.
    taken: usize,
    /// The handle was dropped.
    is_closed: bool,
    /// The thread takes no more jobs.
    is_broken: bool,
}

/// The right to one transfer, until it is dropped.
pub(in crate::store) struct Place {
    shared: Arc<Shared>,
    _permit: OwnedSemaphorePermit,
}

/// A transfer. Its place comes last: when it is free, everything else is.
struct Job {
    course: Course,
    result: oneshot::Sender<(Outcome, Keep)>,
    keep: Keep,
    place: Place,
}

/// What a transfer keeps alive, such as the lock on a directory.
type Keep = Arc<dyn Any + Send + Sync>;

/// What has calls in the ring.
enum Work {
    /// Reads the bell, into this memory.
    Bell(Arc<Shared>, MemSlice),
    /// Moves the next part of a transfer, which has this offset.
    Job(Box<Job>, libc::off_t),
}

impl Shared {
    fn ring_bell(&self) {
        let rung = rustix::io::retry_on_intr(|| rustix::io::write(&self.bell, &1u64.to_ne_bytes()));
        debug_assert!(rung.is_ok(), "the count is far from its limit");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.shared.state).taken -= 1;
        self.shared.ended.notify_all();
    }
}

impl Ring {
    /// Starts the thread, with a ring that has shown that it works.
    ///
    /// # Errors
    /// Those of the kernel if it has no rings for this process; those of a thread that cannot be
    /// started.
    pub(in crate::store) fn open() -> io::Result<Ring> {
        Ring::with_places(PLACES)
    }

    fn with_places(places: usize) -> io::Result<Ring> {
        let mut ring = RawRing::new(places + 1)?;
        let bell = File::from(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (state, places) = (Mutex::default(), Arc::new(Semaphore::new(places)));
        let shared = Arc::new(Shared { state, ended: Condvar::new(), places, bell });
        // A process may be allowed to make rings, and not to use them.
        listen(&mut ring, &shared);
        shared.ring_bell();
        ring.enter()?;
        if ring.completed().is_none_or(|(_, result)| result.is_err()) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the ring does not read an event descriptor"));
        }
        let own = shared.clone();
        Builder::new().name("disk-ring".to_owned()).spawn(move || work(ring, &own))?;
        Ok(Ring(shared))
    }

    /// Waits for a place. `None` if the ring takes no more jobs.
    pub(in crate::store) async fn place(&self) -> Option<Place> {
        let permit = self.0.places.clone().acquire_owned().await.ok()?;
        lock(&self.0.state).taken += 1;
        Some(Place { shared: self.0.clone(), _permit: permit })
    }

    /// Makes a transfer. `keep` is kept until it has ended, also if the future is dropped.
    ///
    /// # Errors
    /// `Io` if the transfer has panicked, or the ring is broken.
    pub(in crate::store) async fn run(
        &self,
        place: Place,
        course: Course,
        keep: Arc<impl Any + Send + Sync>,
    ) -> Result<Outcome, FsError> {
        let (result, ended) = oneshot::channel();
        self.hand_over(Job { course, result, keep, place });
        let (outcome, _keep) =
            ended.await.map_err(|_| FsError::new(ErrorCode::Io, "a transfer failed on the ring of the disk"))?;
        Ok(outcome)
    }

    fn hand_over(&self, job: Job) {
        let mut state = lock(&self.0.state);
        if state.is_broken {
            // Not under the lock: the job has a place, which takes it.
            drop(state);
            return drop(job);
        }
        state.inbox.push(job);
        let is_called = std::mem::replace(&mut state.is_called, true);
        drop(state);
        if !is_called {
            self.0.ring_bell();
        }
    }

    /// Blocks this thread until no transfer is in flight, but for `patience` at most. Returns false
    /// if there still is one. Call it when the event loop has ended.
    pub(in crate::store) fn wait_until_idle(&self, patience: Duration) -> bool {
        self.0.wait_until_idle(patience)
    }
}

impl Shared {
    fn wait_until_idle(&self, patience: Duration) -> bool {
        let waited = self.ended.wait_timeout_while(lock(&self.state), patience, |state| state.taken > 0);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.taken == 0
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        lock(&self.0.state).is_closed = true;
        self.0.ring_bell();
    }
}

impl Job {
    /// Ends the transfer, and gives its result to who waits.
    fn end(self, result: io::Result<()>) {
        let Job { course, result: waits, keep, place } = self;
        if let Err((outcome, keep)) = waits.send((course.end(result), keep))
            && let Some(workers) = outcome.file.closer()
        {
            // Nobody waits. Closing the file may wait for the disk.
            workers.leave(move || drop((outcome, keep, place)));
        }
    }
}

/// Has the bell read.
fn listen(ring: &mut RawRing<Work>, shared: &Arc<Shared>) {
    let count = Memory::from(vec![0; size_of::<u64>()]).all();
    ring.begin(Work::Bell(shared.clone(), count), call);
}

/// Returns the next call of some work.
fn call(work: &Work) -> Call<'_> {
    match work {
        Work::Bell(shared, count) => {
            Call { file: &shared.bell, writes: false, offset: 0, pieces: vec![count.clone()], may_wait: false }
        }
        Work::Job(job, offset) => {
            let part = job.course.next().expect("a transfer that has ended has no call");
            Call {
                file: job.course.file().descriptor(part.way),
                writes: job.course.direction() == Direction::Write,
                offset: *offset,
                pieces: part.pieces.iter().cloned().collect(),
                may_wait: job.course.is_repeated(),
            }
        }
    }
}

/// Goes on with a transfer, after the result of its last call if there was one: begins the next
/// call, or ends the transfer.
fn go_on(ring: &mut RawRing<Work>, mut job: Box<Job>, mut last: Option<io::Result<usize>>) {
    loop {
        if let Some(result) = last.take() {
            // A panic is reported by the hook. The caller learns of it, because its end of the
            // channel is dropped.
            match catch_unwind(AssertUnwindSafe(|| job.course.called(result))) {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return job.end(Err(error)),
                Err(_) => return,
            }
        }
        let Some(part) = job.course.next() else { return job.end(Ok(())) };
        match position(part.offset) {
            Ok(offset) => return ring.begin(Work::Job(job, offset), call),
            Err(error) => last = Some(Err(error)),
        }
    }
}

/// The work of the thread: makes transfers until the handle has been dropped and all have ended.
fn work(mut ring: RawRing<Work>, shared: &Arc<Shared>) {
    let mut listens = false;
    loop {
        let (jobs, is_closed) = shared.look();
        if !listens && !is_closed {
            listen(&mut ring, shared);
            listens = true;
        }
        jobs.into_iter().for_each(|job| go_on(&mut ring, Box::new(job), None));
        if ring.is_idle() {
            return;
        }
        let entered = ring.enter();
        let mut has_completed = false;
        while let Some((work, result)) = ring.completed() {
            has_completed = true;
            match work {
                Work::Bell(..) => listens = false,
                Work::Job(job, _) => go_on(&mut ring, job, Some(result)),
            }
        }
        match entered.map_err(|error| (error.raw_os_error(), error)) {
            Ok(()) | Err((Some(libc::EINTR), _)) => {}
            Err((Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM), _)) => {
                if !has_completed {
                    std::thread::park_timeout(RETRY);
                }
            }
            Err((_, error)) => return shared.give_up(&error),
        }
    }
}

impl Shared {
    /// Takes what is in the inbox. Also returns true if nothing more will come.
    fn look(&self) -> (Vec<Job>, bool) {
        let mut state = lock(&self.state);
        state.is_called = false;
        (std::mem::take(&mut state.inbox), state.is_closed)
    }

    /// Takes no more jobs.
    fn give_up(&self, error: &io::Error) {
        tracing::error!(%error, "the kernel refuses to go on with a ring: threads make the transfers from now on");
        self.places.close();
        let jobs = {
            let mut state = lock(&self.state);
            state.is_broken = true;
            std::mem::take(&mut state.inbox)
        };
        drop(jobs);
    }
}
