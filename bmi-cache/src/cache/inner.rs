//! What operations hold while they wait, and what they wait for: range locks, memory in turn,
//! transfers of the disk.

use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use bmi_core::{MemList, mutated};

use crate::interface::{CacheError, Disk};
use crate::ranges::{Extent, Progress, steps};
use crate::state::{Ahead, Batch, Short, State, Which};

/// Lets other tasks run once.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

/// What the handles of a cache share.
pub(crate) struct Inner<D: Disk> {
    pub(super) disk: D,
    pub(super) state: Mutex<State<D::Error>>,
    pub(super) most: u64,
}

/// A range lock, and what ends it.
pub(super) struct Locked<D: Disk> {
    pub(super) inner: Arc<Inner<D>>,
    pub(super) file: u64,
    id: u64,
}

impl<D: Disk> Drop for Locked<D> {
    fn drop(&mut self) {
        self.inner.with(|state| {
            if state.file(self.file).locks.end(self.id) {
                state.changed(self.file);
            }
            state.settle(self.file);
        });
    }
}

/// Units that an operation uses.
pub(super) struct Pinned<D: Disk> {
    inner: Arc<Inner<D>>,
    pub(super) units: Vec<usize>,
}

impl<D: Disk> Drop for Pinned<D> {
    fn drop(&mut self) {
        self.inner.with(|state| state.unpin(&self.units));
    }
}

/// A place in the queue for memory.
struct Queued<'a, D: Disk> {
    inner: &'a Inner<D>,
    ticket: u64,
}

impl<D: Disk> Drop for Queued<'_, D> {
    fn drop(&mut self) {
        self.inner.with(|state| state.leave_queue(self.ticket));
    }
}

/// Units that are being filled.
struct Filling<'a, D: Disk> {
    inner: &'a Inner<D>,
    file: u64,
    todo: Vec<(usize, Range<u32>)>,
    ended: bool,
}

impl<D: Disk> Filling<'_, D> {
    fn end(mut self, filled: bool) {
        self.ended = true;
        self.inner.with(|state| state.end_fill(self.file, &self.todo, filled));
    }
}

impl<D: Disk> Drop for Filling<'_, D> {
    fn drop(&mut self) {
        if !self.ended {
            self.inner.with(|state| {
                self.todo.iter().for_each(|(id, _)| state.units[*id].broken = true);
                state.end_fill(self.file, &self.todo, false);
            });
        }
    }
}

/// A batch that is being written to the disk.
pub(super) struct Flushing<'a, D: Disk> {
    inner: &'a Inner<D>,
    batch: Option<Batch>,
}

impl<D: Disk> Flushing<'_, D> {
    /// Writes the batch.
    pub(super) async fn write(mut self) -> Result<(), D::Error> {
        let Some(batch) = &self.batch else { return Ok(()) };
        let result = self.inner.disk.write(batch.file, &batch.extents, &batch.list).await;
        if let Some(batch) = self.batch.take() {
            self.inner.with(|state| state.end_flush(&batch, Some(&result)));
        }
        result
    }
}

impl<D: Disk> Drop for Flushing<'_, D> {
    fn drop(&mut self) {
        // Its end is not known: it is written again.
        if let Some(batch) = self.batch.take() {
            self.inner.with(|state| state.end_flush(&batch, None));
        }
    }
}

impl<D: Disk> Inner<D> {
    /// Calls `f` with the state. Wakes whoever waited for a change that it made.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut State<D::Error>) -> R) -> R {
        let (result, wake) = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let result = f(&mut state);
            (result, std::mem::take(&mut state.wake))
        };
        wake.into_iter().for_each(std::task::Waker::wake);
        result
    }

    /// Waits until `f` returns something. It is asked again when the file changes.
    pub(super) async fn until<R>(&self, file: u64, mut f: impl FnMut(&mut State<D::Error>) -> Option<R>) -> R {
        poll_fn(|context| {
            self.with(|state| match f(state) {
                Some(result) => Poll::Ready(result),
                None => {
                    state.wait_for_file(file, context.waker());
                    Poll::Pending
                }
            })
        })
        .await
    }

    pub(super) async fn lock_ranges(self: &Arc<Self>, file: u64, extents: Vec<Extent>, exclusive: bool) -> Locked<D> {
        let id = self.with(|state| state.file(file).locks.make(extents, exclusive));
        let locked = Locked { inner: self.clone(), file, id };
        poll_fn(|context| {
            self.with(|state| match state.file(file).locks.advance(id) {
                Progress::Granted => Poll::Ready(()),
                Progress::Waits => {
                    state.wait_for_file(file, context.waker());
                    Poll::Pending
                }
                Progress::Goes => {
                    context.waker().wake_by_ref();
                    Poll::Pending
                }
            })
        })
        .await;
        locked
    }

    /// Gets all units of `extents`, which are sorted and joined. Waits for memory if it must, in
    /// turn.
    pub(super) async fn pin(self: &Arc<Self>, file: u64, extents: &[Extent]) -> Result<Pinned<D>, D::Error> {
        let mut queued: Option<Queued<'_, D>> = None;
        loop {
            let ticket = queued.as_ref().map(|queued| queued.ticket);
            let pinned = poll_fn(|context| {
                self.with(|state| match state.pin(file, extents, ticket) {
                    Err(Short::Wait) if ticket.is_some() => {
                        state.wait_for_memory(context.waker());
                        Poll::Pending
                    }
                    Err(Short::Again) if ticket.is_some() => {
                        context.waker().wake_by_ref();
                        Poll::Pending
                    }
                    pinned => Poll::Ready(pinned),
                })
            });
            match pinned.await {
                Ok(units) => return Ok(Pinned { inner: self.clone(), units }),
                Err(_) if queued.is_none() => {
                    queued = Some(Queued { inner: self, ticket: self.with(State::queue_up) });
                }
                Err(_) => drop(self.flush_oldest().await?),
            }
        }
    }

    /// Reads from the disk what `parts` lack. Each is a unit and the bytes that are needed. Calls
    /// `turn` before each transfer, and keeps its result until the end of the transfer.
    pub(super) async fn fill<G>(
        &self,
        file: u64,
        parts: &[(usize, Range<u32>)],
        turn: impl AsyncFn() -> Result<G, D::Error>,
    ) -> Result<(), CacheError<D::Error>> {
        loop {
            let (todo, others) = self.with(|state| state.begin_fill(file, parts));
            if todo.is_empty() && !others {
                return Ok(());
            }
            if !todo.is_empty() {
                self.fill_from_disk(file, todo, &turn).await?;
                continue;
            }
            // The next round meets what is filled from now on.
            let mut rest = parts;
            let ended = self.until(file, |state| {
                while let [(id, _), others @ ..] = rest {
                    steps(1);
                    let unit = &state.units[*id];
                    if unit.broken || unit.filling {
                        return unit.broken.then_some(false);
                    }
                    rest = others;
                }
                Some(true)
            });
            if !ended.await {
                return Err(CacheError::Abandoned);
            }
        }
    }

    async fn fill_from_disk<G>(
        &self,
        file: u64,
        todo: Vec<(usize, Range<u32>)>,
        turn: &impl AsyncFn() -> Result<G, D::Error>,
    ) -> Result<(), CacheError<D::Error>> {
        let filling = Filling { inner: self, file, todo, ended: false };
        let (extents, list, broken) = self.with(|state| {
            let (mut extents, mut pieces) = (Vec::<Extent>::new(), Vec::new());
            for (id, range) in &filling.todo {
                let (offset, len) = (state.units[*id].at + u64::from(range.start), u64::from(range.end - range.start));
                match extents.last_mut() {
                    Some(last) if last.end() == offset => last.len += len,
                    _ => extents.push(Extent::new(offset, len)),
                }
                pieces.push(state.slice(*id, range));
            }
            let broken = filling.todo.iter().any(|(id, _)| state.units[*id].broken);
            (extents, pieces.into_iter().collect::<MemList>(), broken)
        });
        if broken {
            filling.end(false);
            return Err(CacheError::Abandoned);
        }
        let turn = match turn().await {
            Ok(turn) => turn,
            Err(error) => {
                filling.end(false);
                return Err(CacheError::Disk { error, extents });
            }
        };
        let result = self.disk.read(file, &extents, &list).await;
        drop(turn);
        filling.end(result.is_ok() || mutated("cache/failed-read-is-valid"));
        self.with(|state| state.counters.filled += list.len() as u64);
        result.map_err(|error| CacheError::Disk { error, extents })
    }

    /// Takes charge of units that [`State::begin_flush`] has chosen. If the result is dropped, they
    /// are dirty again.
    pub(super) fn flushing(&self, batch: Batch) -> Flushing<'_, D> {
        Flushing { inner: self, batch: Some(batch) }
    }

    /// Writes the oldest dirty units to the disk. Returns false if there are none that nobody
    /// writes. A file that cannot be written is no reason to fail as long as another one can.
    pub(super) async fn flush_oldest(&self) -> Result<bool, D::Error> {
        while let Some(batch) = self.with(|state| state.begin_flush(Which::Oldest)) {
            match self.flushing(batch).write().await {
                Err(error) if !self.with(|state| state.any_flushable()) => return Err(error),
                Err(_) => {}
                Ok(()) => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Writes the dirty bytes of a file to the disk, as far as they were written by the write
    /// `write` or before.
    pub(super) async fn flush(&self, file: u64, write: u64) -> Result<(), D::Error> {
        let mut from = 0;
        loop {
            let which = Which::Of(file, write, from);
            if from > 0 && self.with(|state| state.is_flushable(which)) {
                // The disk may have written the batch before at once.
                yield_now().await;
            }
            if let Some(batch) = self.with(|state| state.begin_flush(which)) {
                // What is written again behind it does not keep it from going on.
                from = batch.end();
                self.flushing(batch).write().await?;
                continue;
            }
            let done = self.until(file, |state| {
                if !state.is_unflushed(file, write) {
                    return Some(true);
                }
                state.is_flushable(Which::Of(file, write, 0)).then_some(false)
            });
            if done.await {
                return Ok(());
            }
        }
    }

    /// Waits until dirty bytes may be written to the disk, or `more` of them are not too many.
    pub(super) async fn until_flushable(&self, more: u64) {
        poll_fn(|context| {
            self.with(|state| {
                if !state.is_too_dirty(more) || state.is_flushable(Which::Oldest) {
                    return Poll::Ready(());
                }
                state.wait_for_memory(context.waker());
                Poll::Pending
            })
        })
        .await;
    }

    /// Reads something ahead, up to the end of the file, if there is memory for it that nobody
    /// misses.
    pub(super) async fn read_ahead(self: &Arc<Self>, Ahead { file, mut extents }: Ahead) {
        // What is written behind the end and not on the disk yet is in the cache.
        let Ok(end) = self.disk.end(file).await else { return };
        extents.iter_mut().for_each(|extent| extent.len = extent.len.min(end.saturating_sub(extent.offset)));
        let units = self.with(|state| state.pin_ahead(file, &extents));
        if units.is_empty() {
            return;
        }
        let pinned = Pinned { inner: self.clone(), units };
        let whole = |id: &usize| self.with(|state| (*id, 0..state.units[*id].size()));
        let parts: Vec<_> = pinned.units.iter().map(whole).collect();
        let (todo, _) = self.with(|state| state.begin_fill(file, &parts));
        if !todo.is_empty() {
            // Whoever needs the bytes reads them again, and learns of the error.
            let _ = self.fill_from_disk(file, todo, &async || Ok(())).await;
        }
    }
}
