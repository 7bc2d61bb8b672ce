//! Elements of all clients, interleaved in one file: the datatype of [ECIO-IB, Figure 3], with
//! several strategies.
//!
//! ```text
//!   memory of client 0   [0][2][4][6] …        file   [0][1][2][3][4][5][6][7] …
//!   memory of client 1   [1][3][5][7] …        parts  |--- client 0's --|--- client 1's --|    of two-phase I/O
//! ```
//!
//! | strategy | requests | where the elements are put in order |
//! |---|---|---|
//! | [`Independent`](Strategy::Independent) | one for each element | nowhere |
//! | [`ListIo`](Strategy::ListIo) | one for 128 elements, the limit of PVFS | at the server |
//! | [`TwoPhase`](Strategy::TwoPhase) | one for each client's part | at the clients: each sends the elements of the others' parts to them (collective I/O) |
//! | [`Extended`](Strategy::Extended) | one for 16,384 elements: a regular list has a few bytes, whatever its length | at the server |
//!
//! **Extended** is the part of the paper's ECIO that our interface allows. The view is sent with
//! the request, and not before it in a call of its own. The server puts each client's elements in
//! their places, but does not combine what two clients write.
//!
//! **Source.** [ECIO-IB §3.1, §4, §5].

use std::fmt;

use bmi::{Memory, Options, Peer};
use fs_client::{CreateOptions, File, Region};

use super::{Failed, Rank, Span, Workload, pattern};

/// How the elements get into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Each element in a request of its own.
    Independent,
    /// In lists of 128.
    ListIo,
    /// Two-phase collective I/O.
    TwoPhase,
    /// In one list.
    Extended,
}

impl Strategy {
    /// All strategies, the simplest first.
    pub const ALL: [Strategy; 4] = [Strategy::Independent, Strategy::ListIo, Strategy::TwoPhase, Strategy::Extended];

    /// Returns the name in options and tables.
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
    /// The number of elements in the file, of all clients together. It is divisible by the square
    /// of the number of clients.
    pub elements: usize,
    /// The bytes of an element.
    pub element: usize,
    /// The strategy.
    pub strategy: Strategy,
    /// The number of rounds that are measured. One round before them is not measured.
    pub rounds: usize,
}

/// The duration of each measured round.
#[derive(Clone, Debug, Default)]
pub struct Took {
    /// The spans of writing.
    pub write: Vec<Span>,
    /// The spans of reading.
    pub read: Vec<Span>,
}

/// A rank of a run.
struct Process<'a> {
    program: Interleaved,
    rank: &'a Rank,
    file: File,
    /// The other ranks. The entry of this rank is `None`.
    peers: Vec<Option<Peer>>,
    own: Memory,
    /// Its part of the file, in order, and the data that it exchanges with each other rank.
    part: Memory,
    parcels: Vec<Memory>,
}

impl Workload for Interleaved {
    type Out = Took;

    async fn run(&self, rank: Rank) -> Result<Took, Failed> {
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
            // The first round creates connections, registrations and buffers.
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
async fn mesh(rank: &Rank) -> Result<Vec<Option<Peer>>, Failed> {
    let endpoint = rank.client().endpoint();
    let addrs = rank.exchange(endpoint.listen(rank.listen_addr())?).await?;
    let mut peers = vec![None; rank.count()];
    for (number, addr) in addrs.iter().enumerate().skip(rank.number() + 1) {
        let peer = endpoint.connect(addr, Options::default()).await?;
        peer.send_unexpected(rank.number() as u64, Vec::new(), Options::default()).await?;
        peers[number] = Some(peer);
    }
    for _ in 0..rank.number() {
        let hello = rank.await_others(endpoint.next_unexpected()).await?;
        let number = usize::try_from(hello.tag())?;
        *peers.get_mut(number).ok_or("a process that there is not")? = Some(hello.peer().clone());
    }
    rank.barrier().await?;
    Ok(peers)
}

impl Process<'_> {
    /// Returns the offset of this rank's element `index` in the file.
    fn offset(&self, index: usize) -> u64 {
        ((index * self.rank.count() + self.rank.number()) * self.program.element) as u64
    }

    /// Returns the content of this rank's elements.
    fn expected(&self) -> Vec<u8> {
        let element = self.program.element;
        (0..self.own.len() / element).flat_map(|index| pattern(self.offset(index), element)).collect()
    }

    /// Returns the elements in groups. A group has its ranges of the file, and the offset of its
    /// memory.
    fn groups(&self) -> impl Iterator<Item = (Vec<Region>, usize)> + '_ {
        let element = self.program.element;
        let (all, group) = (self.own.len() / element, self.group());
        (0..all).step_by(group).map(move |first| {
            let indexes = first..all.min(first + group);
            (indexes.map(|index| Region::new(self.offset(index), element as u64)).collect(), first * element)
        })
    }

    /// Returns the number of elements in one call.
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

    /// Returns this rank's elements in the part of rank `number`. They are contiguous in memory.
    fn of_part(&self, number: usize) -> bmi::MemSlice {
        let len = self.own.len() / self.rank.count();
        self.own.slice(number * len, len)
    }

    /// Returns the other ranks, with their numbers.
    fn others(&self) -> impl Iterator<Item = (usize, &Peer)> {
        self.peers.iter().enumerate().filter_map(|(number, peer)| Some((number, peer.as_ref()?)))
    }

    /// Sends each rank the elements of its part, and puts the elements that arrive into this rank's
    /// part.
    async fn scatter(&self) -> Result<(), Failed> {
        let options = Options::default();
        let receives: Vec<_> =
            self.others().map(|(number, peer)| peer.recv(WRITE, &self.parcels[number], options)).collect();
        let sends: Vec<_> =
            self.others().map(|(number, peer)| peer.send(WRITE, self.of_part(number), options)).collect();
        self.parcels[self.rank.number()].copy_from(0, &self.of_part(self.rank.number()).to_vec());
        for operation in receives.into_iter().chain(sends) {
            operation.await?;
        }
        self.order(|part, parcel| part.copy_from_slice(parcel));
        Ok(())
    }

    /// Sends each rank its elements from this rank's part, and receives this rank's elements.
    async fn gather(&self) -> Result<(), Failed> {
        let options = Options::default();
        let receives: Vec<_> =
            self.others().map(|(number, peer)| peer.recv(READ, self.of_part(number), options)).collect();
        self.order(|part, parcel| parcel.copy_from_slice(part));
        let own = self.parcels[self.rank.number()].to_vec();
        self.of_part(self.rank.number()).copy_from(&own);
        let sends: Vec<_> =
            self.others().map(|(number, peer)| peer.send(READ, &self.parcels[number], options)).collect();
        for operation in receives.into_iter().chain(sends) {
            operation.await?;
        }
        Ok(())
    }

    /// Calls `each` for the elements of the part and their places in the parcels.
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
        // A program would copy everything once, element by element. The other copies are there
        // because of Rust's rules.
        self.rank.copied(self.part.len() as u64, (self.part.len() / element) as u64);
    }
}

/// The tags of data for the parts, and of data that comes back.
const WRITE: u64 = 1;
const READ: u64 = 2;
