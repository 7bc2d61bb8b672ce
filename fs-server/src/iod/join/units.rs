//! The units of a server that several requests fill or read.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bmi::hooks::{mutated, steps};
use bmi::paths::Direction;
use bmi::{Endpoint, MemSlice, Memory, Time};
use bmi_cache::yield_now;
use fs_proto::limits::MAX_JOINED;
use fs_proto::{Coverage, DatafileHandle, ErrorCode, FsError, Joined, PartCursor, Region, gather, scatter};
use tokio::sync::Notify;

use super::{RANGES, STEP};
use crate::lock::lock;

/// Most units that have a buffer at the same time.
const MOST_BUFFERS: usize = 16;
/// Most units that are known.
const MOST_UNITS: usize = 1024;
/// How long a unit waits for the next client, at first and at least.
const PATIENCE: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(1)];
/// Most operations whose units have less patience.
const MOST_HURRIED: usize = 64;
/// How long a unit is known, and keeps its buffer, after the last client.
const KEPT: Duration = Duration::from_secs(2);
/// Most requests of a unit that is written ahead.
const MOST_MARKS: usize = 256;
/// Pieces that are copied under the lock, and those after which others run.
const BATCH: usize = 512;
const BREAK: usize = 4096;

/// What distinguishes units.
pub(super) type Key = (DatafileHandle, (u64, u64), bool, u64);

/// The units of a server.
#[derive(Default)]
pub(in crate::iod) struct Joins(Mutex<Table>);

#[derive(Default)]
struct Table {
    units: BTreeMap<Key, Arc<Unit>>,
    /// Buffers that no unit has, and the number of all.
    free: Vec<Memory>,
    buffers: usize,
    /// The patience of operations for which it was too long, the oldest first.
    hurried: VecDeque<((u64, u64), Duration)>,
}

/// A unit.
pub(super) struct Unit {
    pub(super) joined: Joined,
    patience: Duration,
    state: Mutex<State>,
    pub(super) changed: Notify,
}

struct State {
    phase: Phase,
    /// Requests that have come, also those that have failed.
    came: u32,
    /// Requests that wait until it is written or read.
    waiting: u32,
    last: Time,
    memory: Option<Memory>,
    coverage: Coverage,
    /// How far each request has come: the unit has all its bytes before this place.
    marks: Vec<u64>,
    /// The bytes at the front that are written, or read.
    ready: u64,
    /// The bytes at the front that are written, or are being written ahead. They take no more: a
    /// request that came twice may have been taken for another one that is still to come.
    closed: u64,
    /// What becomes of what is complete at the front.
    ahead: AheadState,
}

#[derive(PartialEq)]
enum AheadState {
    Idle,
    /// One client writes it.
    Busy,
    /// It could not be written.
    Failed,
}

enum Phase {
    /// It takes what is written, or was not read yet.
    Open,
    /// One client writes or reads it.
    Busy,
    Done(Result<(), FsError>),
}

impl Joins {
    /// Returns the place of a request in its unit, or none if there is no room for one more unit.
    ///
    /// # Errors
    /// `Invalid` if other requests describe the unit differently.
    pub(super) fn unit(
        &self,
        datafile: DatafileHandle,
        joined: Joined,
        direction: Direction,
        now: Time,
    ) -> Result<Option<Part<'_>>, FsError> {
        let key = (datafile, joined.operation(), direction == Direction::Write, joined.unit().offset);
        let is_full = self.find(&key, joined, now)?.is_none();
        if is_full {
            self.sweep(now);
        }
        let Some(unit) = self.find(&key, joined, now)? else { return Ok(None) };
        if unit.joined != joined {
            let (ours, theirs) = (joined.unit(), unit.joined.unit());
            let (one, other) = (joined.requests(), unit.joined.requests());
            let text = format!("{one} requests for {ours}, and {other} for {theirs} in the same operation");
            return Err(FsError::new(ErrorCode::Invalid, text));
        }
        let mut state = lock(&unit.state);
        state.last = now;
        let number = state.marks.len();
        // Requests beyond these have no mark, and nothing is written ahead then.
        if number <= MOST_MARKS {
            state.marks.push(0);
        }
        drop(state);
        Ok(Some(Part { joins: self, key, unit, number, came: false }))
    }

    /// Returns a unit, and makes it if there is room.
    fn find(&self, key: &Key, joined: Joined, now: Time) -> Result<Option<Arc<Unit>>, FsError> {
        let mut table = lock(&self.0);
        if let Some(unit) = table.units.get(key) {
            return Ok(Some(unit.clone()));
        }
        if table.free.is_empty() && table.buffers == MOST_BUFFERS || table.units.len() >= MOST_UNITS {
            return Ok(None);
        }
        let memory = match table.free.pop() {
            Some(memory) => memory,
            None => {
                let memory = Memory::zeroed(MAX_JOINED as usize)?;
                table.buffers += 1;
                memory
            }
        };
        let hurried = table.hurried.iter().find(|(operation, _)| *operation == joined.operation());
        let patience = hurried.map_or(PATIENCE[0], |(_, patience)| *patience);
        let coverage = Coverage::new(if key.2 { joined.unit().len } else { 0 });
        let state = State {
            phase: Phase::Open,
            came: 0,
            waiting: 0,
            last: now,
            memory: Some(memory),
            coverage,
            marks: Vec::new(),
            ready: 0,
            closed: 0,
            ahead: AheadState::Idle,
        };
        let unit = Arc::new(Unit { joined, patience, state: Mutex::new(state), changed: Notify::new() });
        table.units.insert(*key, unit.clone());
        Ok(Some(unit))
    }

    /// Forgets units that nobody has come to for long.
    fn sweep(&self, now: Time) {
        let all: Vec<_> = lock(&self.0).units.iter().map(|(key, unit)| (*key, unit.clone())).collect();
        steps(all.len());
        for (key, unit) in all {
            if let Some(memory) = unit.give_up(now) {
                self.give_back(&key, memory, true);
            }
        }
    }

    /// Lets the next units of an operation wait for a shorter time.
    pub(super) fn hurry(&self, unit: &Unit) {
        let (operation, patience) = (unit.joined.operation(), (unit.patience / 2).max(PATIENCE[1]));
        let mut table = lock(&self.0);
        table.hurried.retain(|(known, _)| *known != operation);
        if table.hurried.len() == MOST_HURRIED {
            table.hurried.pop_front();
        }
        table.hurried.push_back((operation, patience));
    }

    /// Takes the buffer of a unit back, and forgets the unit if all its requests have come.
    fn give_back(&self, key: &Key, memory: Option<Memory>, all_came: bool) {
        let mut table = lock(&self.0);
        table.free.extend(memory);
        if all_came {
            table.units.remove(key);
        }
    }
}

/// A request's place in a unit. It has come at the latest when this is dropped.
pub(super) struct Part<'a> {
    joins: &'a Joins,
    key: Key,
    pub(super) unit: Arc<Unit>,
    /// Its place in the marks.
    number: usize,
    came: bool,
}

/// What can be written before all requests have come.
pub(super) enum Ahead {
    /// These runs, of which the unit then has all bytes before `end` in the store.
    Write {
        memory: Memory,
        runs: Vec<Region>,
        end: u64,
    },
    Wait,
    End,
}

impl Part<'_> {
    /// Notes that the request has copied all of its bytes, or will copy no more.
    pub(super) fn contributed(&self) {
        lock(&self.unit.state).mark(self.number, u64::MAX);
        self.unit.changed.notify_waiters();
    }

    /// Returns what can be written ahead. It is the only one to write then, until an [`AheadWork`]
    /// ends.
    pub(super) fn ahead(&self) -> Ahead {
        let mut state = lock(&self.unit.state);
        let contributes = state.marks.get(self.number).is_some_and(|mark| *mark < u64::MAX);
        if !contributes || !matches!(state.phase, Phase::Open) {
            return Ahead::End;
        }
        let Some(mut end) = state.complete(&self.unit.joined).filter(|end| *end >= state.ready + STEP) else {
            return Ahead::Wait;
        };
        let Some(memory) = state.memory.clone() else { return Ahead::End };
        let mut runs: Vec<Region> = Vec::new();
        for run in state.coverage.runs_from(state.ready).take_while(|run| run.offset < end).take(RANGES) {
            runs.push(run.part(0, end - run.offset));
        }
        if let Some(last) = runs.last().filter(|_| runs.len() == RANGES) {
            end = last.offset + last.len;
        }
        steps(runs.len());
        (state.ahead, state.closed) = (AheadState::Busy, end);
        Ahead::Write { memory, runs, end }
    }

    /// Notes that the request has come, now. The next one has some time.
    pub(super) fn comes_at(&mut self, now: Time) {
        lock(&self.unit.state).last = now;
        self.comes();
    }

    /// Takes the buffer back when the unit was written.
    pub(super) fn written(&self, memory: Memory) {
        let all_came = self.unit.all_came();
        self.joins.give_back(&self.key, Some(memory), all_came);
    }

    /// Notes that the request has come.
    fn comes(&mut self) {
        if std::mem::replace(&mut self.came, true) {
            return;
        }
        let mut state = lock(&self.unit.state);
        state.mark(self.number, u64::MAX);
        state.came += 1;
        if state.came < self.unit.joined.requests() {
            return;
        }
        let is_over = matches!(state.phase, Phase::Done(_));
        let memory = if is_over { state.memory.take() } else { None };
        drop(state);
        match is_over {
            // All have read it, or it was written before.
            true => self.joins.give_back(&self.key, memory, true),
            false => self.unit.changed.notify_waiters(),
        }
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.comes();
    }
}

/// A request that waits until a unit is written or read.
pub(super) struct Waiting<'a>(&'a Unit);

impl<'a> Waiting<'a> {
    pub(super) fn new(unit: &'a Unit) -> Waiting<'a> {
        lock(&unit.state).waiting += 1;
        Waiting(unit)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).waiting -= 1;
    }
}

/// One client's writing ahead. If it is dropped before its end, nobody writes ahead any more.
pub(super) struct AheadWork<'a>(pub(super) &'a Unit);

impl AheadWork<'_> {
    /// Ends it. All bytes before `end` are written, unless it failed.
    pub(super) fn end(self, end: Option<u64>) {
        let mut state = lock(&self.0.state);
        state.ready = end.unwrap_or(state.ready);
        state.ahead = if end.is_some() { AheadState::Idle } else { AheadState::Failed };
    }
}

impl Drop for AheadWork<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        if state.ahead == AheadState::Busy {
            state.ahead = AheadState::Failed;
        }
        drop(state);
        self.0.changed.notify_waiters();
    }
}

impl State {
    fn mark(&mut self, number: usize, at: u64) {
        if let Some(mark) = self.marks.get_mut(number) {
            *mark = at;
        }
    }

    /// Returns how many bytes at the front no request will change, if that can be said. Nobody
    /// writes ahead at the moment then.
    fn complete(&self, joined: &Joined) -> Option<u64> {
        let known = self.marks.len() == joined.requests() as usize && self.marks.len() <= MOST_MARKS;
        let marks = self.marks.iter().copied();
        let end = if mutated("iod/join-ahead-of-a-client") { marks.max() } else { marks.min() };
        let end = end.filter(|_| known && self.ahead == AheadState::Idle)?;
        Some(end.min(joined.unit().len))
    }
}

/// One client's work on a unit. If it is dropped before its end, the server stops.
pub(super) struct Work<'a>(pub(super) &'a Unit);

impl Work<'_> {
    pub(super) fn end(&self, result: Result<(), FsError>) {
        let mut state = lock(&self.0.state);
        if matches!(state.phase, Phase::Busy) {
            state.phase = Phase::Done(result);
            drop(state);
            self.0.changed.notify_waiters();
        }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.end(Err(FsError::new(ErrorCode::Unreachable, "the server was stopped")));
    }
}

/// What a request does next.
pub(super) enum Next {
    Work,
    Wait(Option<Time>),
    End(Result<(), FsError>),
}

impl Unit {
    pub(super) fn all_came(&self) -> bool {
        lock(&self.state).came >= self.joined.requests()
    }

    /// Returns true if what comes now must be written alone.
    pub(super) fn is_late(&self) -> bool {
        !matches!(lock(&self.state).phase, Phase::Open)
    }

    /// Returns true if something can be written ahead.
    fn is_ahead(&self) -> bool {
        let state = lock(&self.state);
        state.complete(&self.joined).is_some_and(|end| end >= state.ready + STEP)
    }

    /// Gives the unit up if nobody has come for long, and returns its buffer. Whoever still comes
    /// goes alone.
    fn give_up(&self, now: Time) -> Option<Option<Memory>> {
        let mut state = lock(&self.state);
        if state.waiting > 0 || state.ahead == AheadState::Busy || now < state.last + KEPT {
            return None;
        }
        state.phase = Phase::Done(Ok(()));
        Some(state.memory.take())
    }

    /// Notes that its first bytes were read.
    pub(super) fn loaded(&self, bytes: u64) {
        lock(&self.state).ready = bytes;
        self.changed.notify_waiters();
    }

    /// Takes what has come, to be written from a place on.
    pub(super) fn take(&self) -> Result<(Memory, Coverage, u64), FsError> {
        let mut state = lock(&self.state);
        let coverage = std::mem::replace(&mut state.coverage, Coverage::new(0));
        let from = state.ready;
        state.memory.take().map(|memory| (memory, coverage, from)).ok_or_else(given_up)
    }

    /// Returns the buffer.
    pub(super) fn memory(&self) -> Result<Memory, FsError> {
        lock(&self.state).memory.clone().ok_or_else(given_up)
    }

    /// Returns what is next for a request that needs the unit read or written.
    pub(super) fn next(&self, is_write: bool, now: Time) -> Next {
        let mut state = lock(&self.state);
        let due = state.last + self.patience;
        let is_ready = !is_write || state.came >= self.joined.requests() || now >= due;
        match &state.phase {
            Phase::Done(result) => Next::End(result.clone()),
            Phase::Busy => Next::Wait(None),
            Phase::Open if state.ahead == AheadState::Busy => Next::Wait(None),
            Phase::Open if !is_ready => Next::Wait(Some(due)),
            Phase::Open => {
                state.phase = Phase::Busy;
                Next::Work
            }
        }
    }
}

/// What a copy has done.
enum Copied {
    /// So many bytes in so many pieces.
    Some(usize, usize),
    /// Nothing: the unit is not read so far.
    NotYet,
    /// Nothing: the unit does not take or give any more.
    Over,
}

impl Part<'_> {
    /// Copies the next bytes of a part between the unit and `other`, to the unit for a write.
    /// Returns false if the unit does not take or give any more.
    pub(super) async fn copy(
        &self,
        endpoint: &Endpoint,
        pieces: &mut PartCursor<'_>,
        other: &MemSlice,
        is_write: bool,
        go_on: impl Fn() -> Result<(), FsError>,
    ) -> Result<bool, FsError> {
        let mut done = 0;
        loop {
            let mut changed = pin!(self.unit.changed.notified());
            changed.as_mut().enable();
            match self.copy_some(pieces, &other.slice(done, other.len() - done), is_write)? {
                Copied::Over => return Ok(false),
                Copied::NotYet => changed.await,
                Copied::Some(bytes, copied) => {
                    endpoint.copied(bytes as u64, copied as u64);
                    done += bytes;
                    if is_write && self.unit.is_ahead() {
                        self.unit.changed.notify_waiters();
                    }
                    if done == other.len() {
                        return Ok(true);
                    }
                    yield_now().await;
                }
            }
            go_on()?;
        }
    }

    /// Copies as many bytes as may be copied without a break.
    fn copy_some(&self, pieces: &mut PartCursor<'_>, other: &MemSlice, is_write: bool) -> Result<Copied, FsError> {
        let (mut found, unit) = ([Region::new(0, 0); BATCH], self.unit.joined.unit());
        let (mut done, mut copied, mut is_read) = (0, 0, true);
        while done < other.len() && copied < BREAK {
            let before = pieces.clone();
            let count = pieces.next_batch(&mut found, (other.len() - done) as u64)?;
            steps(count);
            let found = &found[..count];
            let (Some(first), Some(last)) = (found.first(), found.last()) else { break };
            // They ascend.
            if let Some(piece) = [first, last].into_iter().find(|piece| piece.hull(unit) != unit) {
                return Err(FsError::new(ErrorCode::Invalid, format!("{piece} is not in the unit, {unit}")));
            }
            let (begin, end) = (first.offset - unit.offset, last.offset + last.len - unit.offset);
            let mut state = lock(&self.unit.state);
            if is_write && begin < state.closed && !mutated("iod/join-takes-what-was-written-ahead") {
                return Ok(Copied::Over);
            }
            if is_write && matches!(state.phase, Phase::Open) {
                state.mark(self.number, end);
            }
            let State { phase, memory, coverage, ready, .. } = &mut *state;
            let memory = match (&*phase, is_write) {
                (Phase::Done(Err(error)), false) => return Err(error.clone()),
                (Phase::Open, true) | (Phase::Done(Ok(())), false) => memory.as_ref(),
                (Phase::Open | Phase::Busy, false) if end <= *ready => memory.as_ref(),
                (Phase::Open | Phase::Busy, false) => {
                    *pieces = before;
                    is_read = false;
                    break;
                }
                _ => None,
            };
            let Some(memory) = memory else { return Ok(Copied::Over) };
            let rest = other.slice(done, other.len() - done);
            done += match is_write {
                true => {
                    coverage.mark_all(found, unit.offset);
                    scatter(memory, &rest, found, unit.offset)
                }
                false => gather(memory, &rest, found, unit.offset),
            };
            copied += count;
        }
        Ok(if done == 0 && !is_read { Copied::NotYet } else { Copied::Some(done, copied) })
    }
}

fn given_up() -> FsError {
    FsError::new(ErrorCode::Unreachable, "the unit was given up")
}
