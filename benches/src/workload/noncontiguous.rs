//! Any pattern of noncontiguous access, written and read back in several ways side by side.
//!
//! **How.** Each round has a write and a read by each way, one after the other, so what changes on
//! the machine affects all of them. Each way has a file of its own, so none reads what another has
//! written.
//!
//! **What is checked.** Each rank compares all of its memory after each read, the gaps too. In the
//! round that is not measured it also reads its part of the file in one piece, so an error that is
//! the same in both directions is found.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bmi::paths::{Direction, Path};
use bmi::{MemList, Memory};
use fs_client::{CollectiveOptions, CreateOptions, File, Region, TypedMemory};

use super::patterns::{Pattern, Piece, Share};
use super::{Failed, Rank, Span, Workload, pattern};

/// What memory has between the pieces, and everywhere before a read.
const GAP: u8 = 0xa5;
/// Most bytes of the file that are read in one piece by the check.
const CHECKED: u64 = 1 << 20;

/// How the bytes of a pattern are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One call for each piece that is contiguous on both sides.
    Single,
    /// One call with a list of the memory and a list of the file.
    List,
    /// One call with the type of the memory and the view of the file.
    View,
    /// All members together: the way that the library chooses, and two that it may choose.
    Collective,
    /// The members put the pieces together.
    TwoPhase,
    /// The servers put the pieces together.
    Extended,
}

impl Way {
    /// All ways, the simplest first.
    pub const ALL: [Way; 6] = [Way::Single, Way::List, Way::View, Way::Collective, Way::TwoPhase, Way::Extended];

    /// Returns the name in options and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Way::Single => "single",
            Way::List => "list",
            Way::View => "view",
            Way::Collective => "collective",
            Way::TwoPhase => "two-phase",
            Way::Extended => "extended",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The program.
#[derive(Clone, Debug)]
pub struct Noncontiguous {
    /// What is accessed.
    pub pattern: Arc<dyn Pattern>,
    /// The ways that are compared.
    pub ways: Vec<Way>,
    /// The number of rounds that are measured. One round before them is not measured.
    pub rounds: usize,
    /// The most pieces that [`Way::Single`] moves. The others are left out.
    pub singles: usize,
    /// The settings of the collective ways, except for the way.
    pub collective: CollectiveOptions,
}

/// What one direction of one way took of a rank.
#[derive(Clone, Debug, Default)]
pub struct Took {
    /// The spans of the rounds.
    pub spans: Vec<Span>,
    /// The bytes that this rank sent and received in all rounds: messages with their requests, but
    /// without headers, and data that the servers' adapters moved.
    pub wire: u64,
    /// The processor time of all servers in all rounds. Only the first rank knows it.
    pub servers: Duration,
}

/// What a rank has done by one way.
#[derive(Clone, Debug)]
pub struct Done {
    /// The way.
    pub way: Way,
    /// The number of bytes of a round in each direction.
    pub bytes: u64,
    /// The number of pieces that are contiguous on both sides.
    pub pieces: u64,
    /// Writing.
    pub write: Took,
    /// Reading.
    pub read: Took,
}

impl Workload for Noncontiguous {
    type Out = Vec<Done>;

    async fn run(&self, rank: Rank) -> Result<Vec<Done>, Failed> {
        let share = self.pattern.share(rank.number() as u64, rank.count() as u64)?;
        let memory = rank.client().memory(share.memory_len()?)?;
        let all = share.pieces()?;
        let (mut accesses, mut done) = (Vec::new(), Vec::new());
        for &way in &self.ways {
            let most = if way == Way::Single { self.singles } else { usize::MAX };
            let pieces = all[..all.len().min(most)].to_vec();
            let options = CreateOptions { exclusive: false, ..CreateOptions::default() };
            let file = rank.client().create(&format!("/{way}").parse()?, options).await?;
            let bytes = pieces.iter().map(|piece| piece.len).sum();
            done.push(Done { way, bytes, pieces: pieces.len() as u64, write: Took::default(), read: Took::default() });
            let image = share.image(&pieces, GAP)?;
            accesses.push(Access {
                way,
                collective: &self.collective,
                rank: &rank,
                file,
                share: &share,
                memory: &memory,
                pieces,
                image,
            });
        }
        let nothing = vec![GAP; memory.len()];
        for round in 0..=self.rounds {
            for (access, done) in accesses.iter().zip(&mut done) {
                memory.copy_from(0, &access.image);
                let write = access.measured(Direction::Write).await?;
                if round == 0 {
                    access.check().await?;
                }
                memory.copy_from(0, &nothing);
                let read = access.measured(Direction::Read).await?;
                if memory.to_vec() != access.image {
                    let (way, number) = (access.way, rank.number());
                    return Err(format!("{way}, rank {number}: what was read is not what was written").into());
                }
                // The first round creates connections, registrations and buffers.
                if round > 0 {
                    done.write.add(write);
                    done.read.add(read);
                }
            }
        }
        rank.barrier().await?;
        Ok(done)
    }
}

impl Took {
    fn add(&mut self, one: Took) {
        self.spans.extend(one.spans);
        self.wire += one.wire;
        self.servers += one.servers;
    }
}

/// The accesses of one rank by one way.
struct Access<'a> {
    way: Way,
    collective: &'a CollectiveOptions,
    rank: &'a Rank,
    file: File,
    share: &'a Share,
    memory: &'a Memory,
    /// What it accesses, piece by piece.
    pieces: Vec<Piece>,
    /// The content of the memory.
    image: Vec<u8>,
}

impl Access<'_> {
    /// Moves all bytes.
    async fn run(&self, direction: Direction) -> Result<(), Failed> {
        let Access { file, share, memory, .. } = self;
        let slice = |region: &Region| memory.slice(region.offset as usize, region.len as usize);
        match self.way {
            Way::Single => {
                for piece in &self.pieces {
                    let slice = slice(&Region::new(piece.memory, piece.len));
                    match direction {
                        Direction::Write => file.write_at(piece.file, slice).await?,
                        Direction::Read => file.read_at(piece.file, slice).await.map(drop)?,
                    }
                }
            }
            Way::List => {
                let (regions, list) = (share.file()?, share.memory()?.iter().map(slice).collect::<MemList>());
                match direction {
                    Direction::Write => file.write_list(&regions, list).await?,
                    Direction::Read => file.read_list(&regions, list).await.map(drop)?,
                }
            }
            Way::Collective => self.together(direction, None).await?,
            Way::TwoPhase => self.together(direction, Some(fs_client::Way::TwoPhase)).await?,
            Way::Extended => self.together(direction, Some(fs_client::Way::Extended)).await?,
            Way::View => {
                let typed = TypedMemory::new(memory, &share.datatype, share.count);
                match direction {
                    Direction::Write => file.write_view(&share.view, 0, typed).await?,
                    Direction::Read => file.read_view(&share.view, 0, typed).await.map(drop)?,
                }
            }
        }
        Ok(())
    }

    async fn together(&self, direction: Direction, way: Option<fs_client::Way>) -> Result<(), Failed> {
        let Access { file, share, memory, rank, .. } = self;
        let options = self.collective.clone();
        let options = way.into_iter().fold(options, CollectiveOptions::way);
        let (group, typed) = (rank.group().await?, TypedMemory::new(memory, &share.datatype, share.count));
        match direction {
            Direction::Write => file.write_all(group, &share.view, 0, typed, options).await?,
            Direction::Read => file.read_all(group, &share.view, 0, typed, options).await?,
        };
        Ok(())
    }

    async fn measured(&self, direction: Direction) -> Result<Took, Failed> {
        let rank = self.rank;
        // All are here, so no server has work. The others wait until this rank has looked.
        rank.barrier().await?;
        let servers = || if rank.number() == 0 { rank.servers_cpu() } else { Duration::ZERO };
        let (before, moved) = (servers(), Moved::by(rank, direction));
        let span = rank.timed(self.run(direction)).await?;
        let wire = Moved::by(rank, direction).since(moved);
        rank.barrier().await?;
        Ok(Took { spans: vec![span], wire, servers: servers().saturating_sub(before) })
    }

    /// Compares the file with what this rank has written.
    async fn check(&self) -> Result<(), Failed> {
        let mut pieces = self.pieces.iter().peekable();
        while let Some(first) = pieces.peek().map(|piece| piece.file) {
            let mut end = first;
            let mut here = Vec::new();
            // The pieces of a view are in the order of the file.
            while let Some(piece) = pieces.next_if(|piece| here.is_empty() || piece.file + piece.len - first <= CHECKED)
            {
                end = piece.file + piece.len;
                here.push(piece);
            }
            let found = self.rank.client().memory((end - first) as usize)?;
            self.file.read_at(first, &found).await?;
            let found = found.to_vec();
            for piece in here {
                let len = piece.len as usize;
                if found[(piece.file - first) as usize..][..len] != pattern(piece.file, len) {
                    let (way, number, offset) = (self.way, self.rank.number(), piece.file);
                    return Err(format!("{way}, rank {number}: wrong bytes in the file at {offset}").into());
                }
            }
        }
        Ok(())
    }
}

/// The bytes that a client's endpoint has moved.
#[derive(Clone, Copy)]
struct Moved {
    sent: u64,
    received: u64,
    /// Data that adapters moved without a message.
    aside: u64,
    /// Data of short reads. Servers put it into a message, or write it ahead of one.
    short: u64,
}

impl Moved {
    fn by(rank: &Rank, direction: Direction) -> Moved {
        let (counters, paths) = (rank.client().endpoint().counters(), rank.client().stats().paths);
        let aside = [Path::ServerBased, Path::ClientBased].map(|path| paths.bytes(direction, path));
        let short = if direction == Direction::Read { paths.bytes(direction, Path::FastRdma) } else { 0 };
        Moved { sent: counters.bytes_sent, received: counters.bytes_received, aside: aside.into_iter().sum(), short }
    }

    fn since(self, earlier: Moved) -> u64 {
        let received = self.received - earlier.received;
        let short = self.short - earlier.short;
        let ahead = if received < short { short } else { 0 };
        self.sent - earlier.sent + received + self.aside - earlier.aside + ahead
    }
}
