//! Elements of all clients, interleaved in one file: the datatype of [ECIO-IB, Figure 3], by
//! several strategies.
//!
//! ```text
//!   memory of client 0   [0][2][4][6] …        file   [0][1][2][3][4][5][6][7] …
//!   memory of client 1   [1][3][5][7] …        parts  |--- client 0's --|--- client 1's --|    of two-phase I/O
//! ```
//!
//! | strategy | requests | who puts the elements in order |
//! |---|---|---|
//! | [`Independent`](Strategy::Independent) | one for each element | nobody has to |
//! | [`ListIo`](Strategy::ListIo) | one for 128 elements, as PVFS has room for | the server |
//! | [`TwoPhase`](Strategy::TwoPhase) | one for each client's part | the clients: elements of others are sent to whoever has their part (collective I/O) |
//! | [`Extended`](Strategy::Extended) | one for 16,384 elements: a regular list is a few bytes, whatever its length | the server |
//!
//! **Extended** is as much of the paper's ECIO as our interface says: the view travels with the
//! request, not ahead of it in a call of its own, and the server puts each client's elements in
//! their places, but does not put together what two clients write.
//!
//! **Source.** [ECIO-IB §3.1, §4, §5].

use std::fmt;

use bmi_core::{Memory, Options, PeerId, Transport};
use fs_client::{CreateOptions, File, Region};

use super::{Failed, Rank, Span, Workload, pattern};

/// How the elements get into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Each element by itself.
    Independent,
    /// In lists of 128.
    ListIo,
    /// Two-phase collective I/O.
    TwoPhase,
    /// In one list.
    Extended,
}

impl Strategy {
    /// All of them, the simplest first.
    pub const ALL: [Strategy; 4] = [Strategy::Independent, Strategy::ListIo, Strategy::TwoPhase, Strategy::Extended];

    /// Its name in options and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Strategy::Independent => "independent",
            Strategy::ListIo => "list-io",
            Strategy::TwoPhase => "two-phase",
            Strategy::Extended => "extended",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interleaved {
    /// Elements in the file, all clients' together; divisible by the square of the number of
    /// clients.
    pub elements: usize,
    /// Bytes of an element.
    pub element: usize,
    /// How.
    pub strategy: Strategy,
    /// Rounds that are measured, after one that is not.
    pub rounds: usize,
}

/// What each measured round took.
#[derive(Clone, Debug, Default)]
pub struct Took {
    /// Writing.
    pub write: Vec<Span>,
    /// Reading.
    pub read: Vec<Span>,
}

/// A rank of a run.
struct Process<'a, T: Transport> {
    program: Interleaved,
    rank: &'a Rank<T>,
    file: File<T>,
    /// The other ranks; itself is `None`.
    peers: Vec<Option<PeerId>>,
    own: Memory,
    /// Its part of the file, in order; and what comes from, or goes to, each other rank.
    part: Memory,
    parcels: Vec<Memory>,
}

impl Workload for Interleaved {
    type Out = Took;

    async fn run<T: Transport + 'static>(&self, rank: Rank<T>) -> Result<Took, Failed> {
        let Interleaved { elements, element, strategy, rounds } = *self;
        let clients = rank.count();
        if elements % (clients * clients) != 0 {
            return Err(format!("{elements} elements cannot be dealt out evenly to {clients} clients, twice").into());
        }
        let path = "/interleaved".parse()?;
        let file = rank.client().create(&path, CreateOptions { exclusive: false, ..CreateOptions::default() }).await?;
        let share = elements / clients * element;
        let two_phase = strategy == Strategy::TwoPhase;
        let peers = if two_phase { mesh(&rank).await? } else { Vec::new() };
        let room = |len: usize| rank.client().memory(if two_phase { len } else { 0 });
        let parcels = (0..clients).map(|_| room(share / clients)).collect::<Result<_, _>>()?;
        let process = Process {
            program: *self,
            rank: &rank,
            file,
            peers,
            own: rank.client().memory(share)?,
            part: room(share)?,
            parcels,
        };
        let expected = process.expected();
        let mut took = Took::default();
        for round in 0..=rounds {
            process.own.copy_from(0, &expected);
            let write = rank.timed(process.write()).await?;
            process.own.copy_from(0, &vec![0; share]);
            let read = rank.timed(process.read()).await?;
            if process.own.to_vec() != expected {
                return Err(format!("client {}: what was read is not what was written", rank.number()).into());
            }
            // The first makes connections, registrations and buffers.
            if round > 0 {
                took.write.push(write);
                took.read.push(read);
            }
        }
        rank.barrier().await?;
        Ok(took)
    }
}

/// Connects all ranks with each other.
async fn mesh<T: Transport + 'static>(rank: &Rank<T>) -> Result<Vec<Option<PeerId>>, Failed> {
    let endpoint = rank.client().endpoint();
    let addrs = rank.exchange(endpoint.listen(rank.listen_addr())?).await?;
    let mut peers = vec![None; rank.count()];
    for (number, addr) in addrs.iter().enumerate().skip(rank.number() + 1) {
        let peer = endpoint.connect(addr, Options::default()).await?;
        endpoint.send_unexpected(peer, rank.number() as u64, Vec::new(), Options::default()).await?;
        peers[number] = Some(peer);
    }
    for _ in 0..rank.number() {
        let hello = rank.await_others(endpoint.next_unexpected()).await?;
        let number = usize::try_from(hello.tag())?;
        *peers.get_mut(number).ok_or("a process that there is not")? = Some(hello.peer());
    }
    rank.barrier().await?;
    Ok(peers)
}

impl<T: Transport + 'static> Process<'_, T> {
    /// Offset of this rank's element `index` in the file.
    fn offset(&self, index: usize) -> u64 {
        ((index * self.rank.count() + self.rank.number()) * self.program.element) as u64
    }

    /// What its elements contain.
    fn expected(&self) -> Vec<u8> {
        let element = self.program.element;
        (0..self.own.len() / element).flat_map(|index| pattern(self.offset(index), element)).collect()
    }

    /// Its elements in groups, each group's ranges of the file and where its memory begins.
    fn groups(&self) -> impl Iterator<Item = (Vec<Region>, usize)> + '_ {
        let element = self.program.element;
        let (all, group) = (self.own.len() / element, self.group());
        (0..all).step_by(group).map(move |first| {
            let indexes = first..all.min(first + group);
            (indexes.map(|index| Region::new(self.offset(index), element as u64)).collect(), first * element)
        })
    }

    /// Elements in one call.
    fn group(&self) -> usize {
        match self.program.strategy {
            Strategy::Independent => 1,
            Strategy::ListIo => 128,
            Strategy::TwoPhase | Strategy::Extended => usize::MAX >> 1,
        }
    }

    async fn write(&self) -> Result<(), Failed> {
        if self.program.strategy == Strategy::TwoPhase {
            self.scatter().await?;
            return Ok(self.file.write_at(self.part_offset(), &self.part).await?);
        }
        for (regions, at) in self.groups() {
            let len = regions.len() * self.program.element;
            self.file.write_list(&regions, self.own.slice(at, len)).await?;
        }
        Ok(())
    }

    async fn read(&self) -> Result<(), Failed> {
        if self.program.strategy == Strategy::TwoPhase {
            self.file.read_at(self.part_offset(), &self.part).await?;
            return self.gather().await;
        }
        for (regions, at) in self.groups() {
            let len = regions.len() * self.program.element;
            self.file.read_list(&regions, self.own.slice(at, len)).await?;
        }
        Ok(())
    }

    fn part_offset(&self) -> u64 {
        (self.rank.number() * self.part.len()) as u64
    }

    /// This rank's elements of rank `number`'s part stand together in its memory.
    fn of_part(&self, number: usize) -> bmi_core::MemSlice {
        let len = self.own.len() / self.rank.count();
        self.own.slice(number * len, len)
    }

    /// Sends everybody what belongs in his part, and puts what comes into this one's.
    async fn scatter(&self) -> Result<(), Failed> {
        let (endpoint, options) = (self.rank.client().endpoint(), Options::default());
        let others = || self.peers.iter().enumerate().filter_map(|(number, peer)| Some((number, (*peer)?)));
        let receives: Vec<_> =
            others().map(|(number, peer)| endpoint.recv(peer, WRITE, &self.parcels[number], options)).collect();
        let sends: Vec<_> =
            others().map(|(number, peer)| endpoint.send(peer, WRITE, self.of_part(number), options)).collect();
        self.parcels[self.rank.number()].copy_from(0, &self.of_part(self.rank.number()).to_vec());
        for operation in receives.into_iter().chain(sends) {
            operation.await?;
        }
        self.order(|part, parcel| part.copy_from_slice(parcel));
        Ok(())
    }

    /// The reverse.
    async fn gather(&self) -> Result<(), Failed> {
        let (endpoint, options) = (self.rank.client().endpoint(), Options::default());
        let others = || self.peers.iter().enumerate().filter_map(|(number, peer)| Some((number, (*peer)?)));
        let receives: Vec<_> =
            others().map(|(number, peer)| endpoint.recv(peer, READ, self.of_part(number), options)).collect();
        self.order(|part, parcel| parcel.copy_from_slice(part));
        let own = self.parcels[self.rank.number()].to_vec();
        self.of_part(self.rank.number()).copy_from(&own);
        let sends: Vec<_> =
            others().map(|(number, peer)| endpoint.send(peer, READ, &self.parcels[number], options)).collect();
        for operation in receives.into_iter().chain(sends) {
            operation.await?;
        }
        Ok(())
    }

    /// Goes through the elements of the part and their places in the parcels.
    fn order(&self, each: impl Fn(&mut [u8], &mut [u8])) {
        let (element, clients) = (self.program.element, self.rank.count());
        let mut part = self.part.to_vec();
        let mut parcels: Vec<Vec<u8>> = self.parcels.iter().map(Memory::to_vec).collect();
        for (at, target) in part.chunks_mut(element).enumerate() {
            let from = at / clients * element;
            each(target, &mut parcels[at % clients][from..from + element]);
        }
        self.part.copy_from(0, &part);
        self.parcels.iter().zip(&parcels).for_each(|(memory, bytes)| memory.copy_from(0, bytes));
        // What a program does of this: one copy of everything, element by element. (The copies
        // around it are of Rust's making.)
        self.rank.copied(self.part.len() as u64, (self.part.len() / element) as u64);
    }
}

/// Tags of what goes to the parts, and comes back.
const WRITE: u64 = 1;
const READ: u64 = 2;
