//! Collective operations: the members of a group read or write a file together, each its own
//! pieces.
//!
//! **Why.** Where each member has many small pieces between those of the others, none of them has a
//! range that is worth a request. Together they have long ones. Who puts the pieces together, the
//! members or the servers, is what [`Way`]s differ in.
//!
//! **Protocol.** Each member tells all others its view and the range of it that it accesses
//! (`proposal`). So all know what all want, and compute the same: whether it is possible, which way
//! is the cheapest (`choice`), and each step of it. In the end each tells the others how it went.
//! An operation has a lane of its own in the group, so several may be under way at the same time.
//!
//! **Why all views go to all.** It costs some bytes for each member, once. Then no step needs a
//! question: a server knows how many requests make up a unit, and in an exchange everybody knows
//! what comes from whom.
//!
//! **Invariants**
//! 1. *Each byte is the old one or the new one*, whatever fails, and bytes that no member has stay
//!    as they are.
//! 2. A member that is lost or does something else ends the operation for all, with an error that
//!    names it, within the group's limit for each step.
//! 3. A failure of one member's part is told to all, and the group goes on.
//! 4. Memory does not grow with the number of pieces.
//!
//! | file | contents; each uses those below it |
//! |---|---|
//! | this | the interface |
//! | `two_phase` | the steps of two-phase I/O |
//! | `proposal` | what members tell each other |
//! | `choice` | what each way costs |
//! | `member`, `error` | what follows from the views of all; errors |
//!
//! **Source.** [ECIO-IB §3, §4]; MPI-4.1, *Collective Data Access*.

mod choice;
mod error;
mod member;
mod proposal;
mod two_phase;

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use bmi::group::{Group, Lane};
use bmi::paths::Direction;
use bmi::threading::{AnyThread, Threading};
use fs_proto::FileView;
use serde::{Deserialize, Serialize};

pub use self::choice::{Choice, Way};
use self::choice::{Load, aggregators};
pub use self::error::CollectiveError;
use self::member::{Sample, Together, hull};
use self::proposal::{Agreed, Proposal, agree, conclude};
use self::two_phase::{Domains, Rooms, TwoPhase};
use crate::error::Error;
use crate::file::{File, Joining, SharedFile, TypedMemory, stream_range};

/// The options of a collective operation. All members must have the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "an operation takes them"]
pub struct CollectiveOptions {
    way: Option<Way>,
    aggregators: Option<u32>,
    buffer: Option<u64>,
}

impl CollectiveOptions {
    /// Sets the way. The default is the one that is estimated to be the cheapest.
    pub fn way(mut self, way: Way) -> CollectiveOptions {
        self.way = Some(way);
        self
    }

    /// Sets the number of aggregators of two-phase I/O, as `cb_nodes` of MPI-IO. The default is
    /// twice the number of servers, or all members if there are fewer.
    pub fn aggregators(mut self, count: u32) -> CollectiveOptions {
        self.aggregators = Some(count);
        self
    }

    /// Sets the bytes that an aggregator handles in a step, as `cb_buffer_size` of MPI-IO. The
    /// default is 4 MiB, the most 1 GiB.
    pub fn buffer(mut self, bytes: u64) -> CollectiveOptions {
        self.buffer = Some(bytes.max(1));
        self
    }
}

/// The default of [`CollectiveOptions::buffer`], and its largest value.
const BUFFER: u64 = 4 << 20;
const MOST_BUFFER: u64 = 1 << 30;

/// What became of a collective operation, at one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// The number of this member's bytes that were written, or read before the end of the file. The
    /// other bytes of a read are zero.
    pub len: u64,
    /// How all was carried out.
    pub choice: Choice,
}

/// What a member reads or writes.
struct Part<S: Threading> {
    file: File<S>,
    view: FileView,
    offset: u64,
    typed: TypedMemory,
    direction: Direction,
}

impl<S: Threading> File<S> {
    /// Writes typed memory through a view, from `offset` on, which counts elements of the view,
    /// together with the other members of a group. Each has its own view. Where members write the
    /// same bytes, it is undefined which remain. The bytes reach the disk when all members have
    /// called [`File::sync`].
    ///
    /// All members must call the same operations of the group in the same order. The place in this
    /// order is taken by the call. What the future does begins when it is polled first. So a
    /// program that goes on meanwhile, as with the split and nonblocking operations of MPI-IO,
    /// gives it to a task and awaits this later. If the future is dropped before its end, the group
    /// has failed.
    ///
    /// ```no_run
    /// use bmi::group::Group;
    /// use bmi::{Addr, Memory};
    /// use fs_client::{CollectiveError, CollectiveOptions, Datatype, File, FileView};
    ///
    /// /// Each member has every n-th number of the file.
    /// async fn deal(file: &File, group: &Group, numbers: &Memory) -> Result<(), CollectiveError> {
    ///     let every = Datatype::resized(0, 8 * i64::from(group.size()), &Datatype::DOUBLE).expect("short");
    ///     let view = FileView::new(8 * u64::from(group.rank()), Datatype::DOUBLE, every).expect("ascending");
    ///     let done = file.write_all(group, &view, 0, numbers.into(), CollectiveOptions::default()).await?;
    ///     println!("{}", done.choice);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`CollectiveError::Own`] as [`File::write_view`]; the others if it fails at another member.
    pub fn write_all(
        &self,
        group: &Group<S>,
        view: &FileView,
        offset: u64,
        memory: TypedMemory,
        options: CollectiveOptions,
    ) -> impl Future<Output = Result<Done, CollectiveError>> + use<S> {
        self.part(Direction::Write, view, offset, memory).run(group.lane(), options)
    }

    /// Reads through a view into typed memory, from `offset` on, which counts elements of the view,
    /// together with the other members of a group. See [`File::write_all`].
    ///
    /// # Errors
    /// [`CollectiveError::Own`] as [`File::read_view`]; the others if it fails at another member.
    pub fn read_all(
        &self,
        group: &Group<S>,
        view: &FileView,
        offset: u64,
        memory: TypedMemory,
        options: CollectiveOptions,
    ) -> impl Future<Output = Result<Done, CollectiveError>> + use<S> {
        self.part(Direction::Read, view, offset, memory).run(group.lane(), options)
    }

    fn part(&self, direction: Direction, view: &FileView, offset: u64, typed: TypedMemory) -> Part<S> {
        Part { file: self.clone(), view: view.clone(), offset, typed, direction }
    }
}

/// An operation in its lane. Ends the group unless it comes to its end.
struct Unfinished<S: Threading> {
    lane: Lane<S>,
    is_over: bool,
}

impl<S: Threading> Drop for Unfinished<S> {
    fn drop(&mut self) {
        if !self.is_over {
            self.lane.abort("a collective operation was dropped before its end");
        }
    }
}

impl<S: Threading> Part<S> {
    /// Begins. The others count on it from now on, also if the future is never polled.
    fn run(
        self,
        lane: Lane<S>,
        options: CollectiveOptions,
    ) -> impl Future<Output = Result<Done, CollectiveError>> + use<S> {
        let begun = Unfinished { lane, is_over: false };
        async move {
            let mut unfinished = begun;
            let told = self.carry_out(&unfinished.lane, &options).await?;
            unfinished.is_over = true;
            told
        }
    }

    /// Returns the range of the stream that this member accesses.
    fn stream(&self) -> Result<Range<u64>, Error> {
        let memory = self.typed.pieces_for(self.direction)?;
        Ok(stream_range(&self.view, self.offset, memory.remaining())?)
    }

    /// Carries it out. The outer error is one that the others do not know.
    async fn carry_out(
        &self,
        lane: &Lane<S>,
        options: &CollectiveOptions,
    ) -> Result<Result<Done, CollectiveError>, CollectiveError> {
        // Rank 0 excludes others for all, so members exclude nobody by themselves.
        let (mut file, is_atomic) = (self.file.atomic(false), self.file.is_atomic());
        // All members must know the same layout.
        let grown = file.grown().await.map(|grown| file = grown);
        let (file, view, stream) = (&file, &self.view, grown.and_then(|()| self.stream()));
        let what = (file.handle().0, file.largest_window());
        let proposal = Proposal::new((self.direction, is_atomic), what, options, (view, &stream));
        let Agreed { members, window, is_long } = match agree(lane, &proposal, view).await {
            Ok(agreed) => agreed,
            Err(CollectiveError::Member { rank, code, detail }) => {
                let error = CollectiveError::Member { rank, code, detail };
                return Ok(Err(stream.err().filter(|_| rank == lane.rank()).map_or(error, CollectiveError::Own)));
            }
            Err(error) => return Err(error),
        };
        let Range { start, end } = stream?;
        let distribution = file.distribution();
        let count = aggregators(options.aggregators, lane.size(), distribution);
        let domains = Domains::new(&members, distribution, count, options.buffer.unwrap_or(BUFFER).min(MOST_BUFFER));
        let load = Load {
            is_write: self.direction == Direction::Write,
            bytes: members.iter().map(|member| member.stream.end - member.stream.start).fold(0, u64::saturating_add),
            sample: Sample::of(&members),
            members: members.len() as u64,
            servers: distribution.servers() as u64,
            aggregators: u64::from(count),
            rounds: domains.steps(),
            is_long,
        };
        // Where members write the same bytes, those of the highest rank remain then.
        let in_order = is_atomic && self.direction == Direction::Write;
        let choice = load.choose(if in_order { Some(Way::TwoPhase) } else { options.way });
        let operation = (lane.id(), lane.number());
        let joining = (choice.way == Way::Extended && load.sample.is_short())
            .then(|| Together::new(&members, operation, distribution, window));
        let joining = joining.as_ref().map(|together| together as &dyn Joining);
        let two_phase = || {
            let memory = self.typed.pieces_for(self.direction)?;
            Ok::<_, Error>(TwoPhase {
                file,
                lane,
                members: &members,
                typed: &self.typed,
                memory,
                rooms: Rooms::default(),
            })
        };
        let during = |error: Error| error.during(format!("collective {} of {}", self.direction.as_str(), file.path()));
        let begun = AtomicBool::new(false);
        let work = async {
            begun.store(true, Ordering::Relaxed);
            if is_atomic && let Err(error) = conclude(lane, Ok(None)).await {
                return told(error);
            }
            let mut len = end - start;
            let own = match (self.direction, choice.way) {
                (Direction::Write, Way::TwoPhase) => two_phase()?.write(domains).await?.map(|()| None),
                (Direction::Read, Way::TwoPhase) => two_phase()?.read(domains).await?,
                (Direction::Write, _) => file.write_with(view, self.offset, &self.typed, joining).await.map(|()| None),
                (Direction::Read, _) => {
                    let read = file.read_with(view, self.offset, &self.typed, joining).await;
                    read.map(|came| {
                        len = came;
                        None
                    })
                }
            };
            match conclude(lane, own.map_err(during)).await {
                Ok(None) => Ok(Ok(Done { len, choice })),
                Ok(Some(size)) => {
                    let len = view.size_below(size).clamp(start, end) - start;
                    Ok(Ok(Done { len, choice }))
                }
                Err(error) => told(error),
            }
        };
        let work = Box::pin(work);
        if !is_atomic || lane.rank() > 0 {
            return work.await;
        }
        let alone = self.file.excluding(self.direction, hull(&members), async { Ok(work.await) });
        match Box::pin(alone).await {
            Ok(result) => result,
            Err(error) if begun.load(Ordering::Relaxed) => Ok(Err(CollectiveError::Own(during(error)))),
            // The others wait for the beginning, and are told that there is none.
            Err(error) => match conclude(lane, Err(during(error.clone()))).await {
                Ok(_) => Ok(Err(CollectiveError::Own(during(error)))),
                Err(error) => told(error),
            },
        }
    }
}

/// Distinguishes an error that all members are told from one that ends the group.
fn told(error: CollectiveError) -> Result<Result<Done, CollectiveError>, CollectiveError> {
    match error {
        CollectiveError::Group(error) => Err(error.into()),
        error => Ok(Err(error)),
    }
}

/// A collective operation may go to any thread, for instance as a task of tokio.
const _: fn() = || {
    fn can_be_sent<V: Send + 'static>(_: V) {}
    let _ = |file: SharedFile, group: Group<AnyThread>, view: FileView, memory: TypedMemory| {
        can_be_sent(file.write_all(&group, &view, 0, memory, CollectiveOptions::default()));
    };
};
