//! Collective operations: what the members of a group write and read together is what a walk over
//! all bytes says, whichever way it goes. The bodies run over any transport.

use bmi::Memory;
use bmi::group::{Group, GroupError};
use bmi::threading::Threading;
use bmi_report::stats::Random;
use fs_client::{
    Client, CollectiveError, CollectiveOptions, CreateOptions, Datatype, ErrorCode, File, FileView, Order, RemoveKind,
    TypedMemory, Way,
};

use super::bodies::{path, pattern};
use super::typed::{bytes_of, walk};

/// What a member accesses: a view, an offset in it, and a type in memory with a count.
#[derive(Clone, Debug)]
pub struct Piece {
    pub view: FileView,
    pub offset: u64,
    pub memory: (Datatype, u64),
}

impl Piece {
    fn new(view: FileView, offset: u64, (datatype, count): (Datatype, u64)) -> Piece {
        Piece { view, offset, memory: (datatype, count) }
    }

    fn len(&self) -> u64 {
        self.memory.0.size() * self.memory.1
    }

    /// Returns where its bytes are in memory and in the file.
    pub fn places(&self) -> (Vec<usize>, Vec<usize>) {
        let (datatype, count) = &self.memory;
        let cursor = self.view.cursor(self.offset * self.view.etype().size(), self.len()).unwrap();
        (walk(datatype.cursor(*count, 0).unwrap(), self.len()), walk(cursor, self.len()))
    }

    /// Returns the memory of a member, with bytes of its own.
    pub fn filled(&self, salt: u64) -> Memory {
        let (_, high) = self.memory.0.true_bounds(self.memory.1).unwrap();
        Memory::from(pattern(high.max(0) as usize + 5, salt))
    }

    pub fn typed(&self, memory: &Memory) -> TypedMemory {
        TypedMemory::new(memory, &self.memory.0, self.memory.1)
    }
}

/// What the members access in a case: each piece of the file belongs to one of them.
pub type Case = fn(rank: u64, size: u64) -> Piece;

fn bytes(len: u64) -> Datatype {
    Datatype::bytes(len).unwrap()
}

fn spread(len: u64, stride: u64) -> Datatype {
    Datatype::resized(0, stride as i64, &bytes(len)).unwrap()
}

fn view(displacement: u64, filetype: Datatype) -> FileView {
    FileView::new(displacement, Datatype::BYTE, filetype).unwrap()
}

/// Small elements of all members in turn, in contiguous memory [ECIO-IB, Figure 3].
pub fn interleaved(rank: u64, size: u64) -> Piece {
    Piece::new(view(4 * rank, spread(4, 4 * size)), 0, (bytes(4), 9_000))
}

/// Pieces of three bytes with holes between them, in memory with holes of other lengths.
fn with_holes(rank: u64, size: u64) -> Piece {
    Piece::new(view(1000 + 5 * rank, spread(3, 5 * size + 2)), 7, (spread(2, 9), 6_000))
}

/// Tiles of a matrix, one below the other, with margins in memory.
fn tiles(rank: u64, size: u64) -> Piece {
    let of = |sizes: &[u64], subsizes: &[u64], starts: &[u64]| {
        Datatype::subarray(sizes, subsizes, starts, Order::C, &Datatype::DOUBLE).unwrap()
    };
    let file = of(&[40, 60 * size], &[40, 60], &[0, 60 * rank]);
    Piece::new(FileView::new(96, Datatype::DOUBLE, file).unwrap(), 0, (of(&[42, 62], &[40, 60], &[1, 1]), 1))
}

/// A long block for each member but the second, which has nothing.
fn blocks(rank: u64, _: u64) -> Piece {
    let len = if rank == 1 { 0 } else { 150_000 + 1000 * rank };
    Piece::new(view(200_000 * rank, Datatype::BYTE), 11, (bytes(1), len))
}

/// Pieces of any length that are dealt out at random. Most views are too long for a proposal.
fn dealt(rank: u64, size: u64) -> Piece {
    let (mut random, mut at, mut own) = (Random::new(5), 0, Vec::new());
    for _ in 0..4000 {
        let (len, gap) = (1 + random.below(250), random.below(3) * random.below(40));
        if random.below(size as usize) as u64 == rank {
            own.push((len as u64, at as i64));
        }
        at += len + gap;
    }
    let filetype = Datatype::hindexed(&own, &Datatype::BYTE).unwrap();
    let len = filetype.size();
    Piece::new(view(0, filetype), 0, (bytes(1), len))
}

/// All cases.
pub const CASES: [(&str, Case); 5] =
    [("interleaved", interleaved), ("with holes", with_holes), ("tiles", tiles), ("blocks", blocks), ("dealt", dealt)];

/// The options of all ways, also with few aggregators and short buffers.
pub fn all_options() -> Vec<CollectiveOptions> {
    let options = CollectiveOptions::default;
    let mut all = vec![options(), options().way(Way::TwoPhase).aggregators(1).buffer(10_000)];
    all.extend(Way::ALL.map(|way| options().way(way)));
    all
}

/// One member's part of all cases in all ways.
pub async fn everything<S: Threading>(client: &Client<S>, group: &Group<S>, create: CreateOptions) {
    for (name, case) in CASES {
        for options in all_options() {
            check(client, group, (name, case), &options, &create).await;
        }
    }
    if group.size() > 1 {
        refusals(client, group, &create).await;
    }
}

/// Opens the file that rank 0 creates.
pub async fn open<S: Threading>(client: &Client<S>, group: &Group<S>, name: &str, create: &CreateOptions) -> File<S> {
    if group.rank() == 0 {
        client.create(&path(name), *create).await.unwrap();
    }
    group.barrier().await.unwrap();
    client.open(&path(name)).await.unwrap()
}

/// Removes a file when all have done with it.
async fn remove<S: Threading>(client: &Client<S>, group: &Group<S>, name: &str) {
    group.barrier().await.unwrap();
    if group.rank() == 0 {
        client.remove(&path(name), RemoveKind::File).await.unwrap();
    }
    group.barrier().await.unwrap();
}

async fn check<S: Threading>(
    client: &Client<S>,
    group: &Group<S>,
    (name, case): (&str, Case),
    options: &CollectiveOptions,
    create: &CreateOptions,
) {
    let (rank, size) = (u64::from(group.rank()), u64::from(group.size()));
    let file = open(client, group, "/together", &CreateOptions { exclusive: false, ..*create }).await;
    let before = pattern(70_000, 1);
    if rank == 0 {
        file.write_at(0, before.clone()).await.unwrap();
    }
    group.barrier().await.unwrap();

    let piece = case(rank, size);
    let memory = piece.filled(rank + 2);
    let done = file.write_all(group, &piece.view, piece.offset, piece.typed(&memory), options.clone()).await.unwrap();
    assert_eq!(done.len, piece.len(), "{name}");
    // It is not for long pieces, and not for views that are too long for a request.
    let is_considered = name != "blocks" && size > 1;
    assert!(name == "dealt" || done.choice.estimates[2].is_some() == is_considered, "{name}, {}", done.choice);
    let mut expected = before;
    for other in 0..size {
        let piece = case(other, size);
        let (source, (in_memory, in_file)) = (piece.filled(other + 2).to_vec(), piece.places());
        expected.resize(expected.len().max(in_file.last().map_or(0, |last| last + 1)), 0);
        in_memory.iter().zip(&in_file).for_each(|(from, to)| expected[*to] = source[*from]);
    }
    assert!(bytes_of(&file).await == expected, "{name}, {}", done.choice);

    let back = Memory::from(vec![0xEE; memory.len()]);
    let done = file.read_all(group, &piece.view, piece.offset, piece.typed(&back), options.clone()).await.unwrap();
    assert_eq!(done.len, piece.len(), "{name}, {}", done.choice);
    let (mut expected, source) = (vec![0xEE; memory.len()], memory.to_vec());
    piece.places().0.iter().for_each(|at| expected[*at] = source[*at]);
    assert!(back.to_vec() == expected, "{name}, {}", done.choice);

    // Beyond the end of the file, all are told how much there is.
    let size = file.size().await.unwrap();
    let (long, back) = (view(rank, spread(1, 3)), Memory::from(vec![0xEE; 1000]));
    let from = long.size_below(size) - 10 * (rank + 1);
    let done = file.read_all(group, &long, from, (&back).into(), options.clone()).await.unwrap();
    assert_eq!(done.len, 10 * (rank + 1), "{name}, {}", done.choice);
    assert!(back.to_vec()[done.len as usize..].iter().all(|byte| *byte == 0), "{name}, {}", done.choice);
    remove(client, group, "/together").await;
}

/// What one member cannot do, all are told, and the group goes on.
async fn refusals<S: Threading>(client: &Client<S>, group: &Group<S>, create: &CreateOptions) {
    let file = open(client, group, "/refused", create).await;
    let (whole, memory) = (FileView::default(), Memory::from(vec![1; 100]));
    for (odd, way) in [(0, Way::Independent), (1, Way::TwoPhase), (1, Way::Extended)] {
        let is_odd = group.rank() == odd;
        // More than the memory has.
        let typed = TypedMemory::new(&memory, &Datatype::BYTE, if is_odd { 101 } else { 10 });
        let error = file.write_all(group, &whole, 0, typed, CollectiveOptions::default().way(way)).await.unwrap_err();
        match error {
            CollectiveError::Own(error) if is_odd => assert_eq!(error.code(), ErrorCode::Invalid),
            CollectiveError::Member { rank, code: ErrorCode::Invalid, .. } if !is_odd => assert_eq!(rank, odd),
            other => panic!("{other}"),
        }
        // One that wants another way.
        let way = if is_odd { Way::TwoPhase } else { Way::Extended };
        let options = CollectiveOptions::default().way(way);
        let error = file.write_all(group, &whole, 0, (&memory).into(), options).await.unwrap_err();
        let named = if odd == 0 { 1 } else { odd };
        assert!(matches!(error, CollectiveError::Member { rank, .. } if rank == named), "{error}");
    }
    assert_eq!(file.size().await.unwrap(), 0, "nothing was written");
    remove(client, group, "/refused").await;
}

/// An operation that is dropped before its end ends the group for all.
pub async fn dropped<S: Threading>(client: &Client<S>, group: &Group<S>, create: CreateOptions) {
    let file = open(client, group, "/dropped", &create).await;
    let piece = interleaved(group.rank().into(), group.size().into());
    let memory = piece.filled(1);
    let write = file.write_all(group, &piece.view, 0, piece.typed(&memory), CollectiveOptions::default());
    if group.rank() == 1 {
        // It was not even polled.
        drop(write);
        group.barrier().await.unwrap_err();
        return;
    }
    let error = write.await.unwrap_err();
    let CollectiveError::Group(GroupError::Member { rank: 1, .. }) = error else { panic!("{error}") };
}
