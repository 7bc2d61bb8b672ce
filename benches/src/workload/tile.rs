//! `mpi-tile-io`: a two-dimensional array in a file. Each process reads or writes one tile.
//!
//! ```text
//!   file, row by row               memory of a process
//!   +--------+--------+            contiguous     [ row 0 ][ row 1 ] …
//!   | tile 0 | tile 1 |            as an array    [ row 0 ]········[ row 1 ]········ …
//!   +--------+--------+                           rows of the whole array, the tile's in their place
//!   | tile 2 | tile 3 |
//!   +--------+--------+
//! ```
//!
//! **Source.** [PVFS-IB §6.7]: 2 × 2 tiles of 1024 × 768 elements of 24 bytes, with and without
//! list I/O. [PVFS-IB §6.8]: 64 bytes, with noncontiguous memory, with and without allocation
//! hints. [Quadrics-PVFS2 §4.2]: 32 bytes.
//!
//! **Without hints** each row of the memory is an allocation of its own for the library. It is the
//! same for PVFS if a program does not say that the rows belong together.

use bmi::{MemList, MemSlice};
use fs_client::{CreateOptions, Region};

use super::{Failed, Rank, Span, Workload, fill, pattern};

/// The memory that holds a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TileMemory {
    /// The tile and nothing else.
    Contiguous,
    /// The tile's rows in an array as large as that of the file. The library knows that they are
    /// parts of one allocation.
    Array,
    /// The same rows, but each is an allocation for the library.
    Rows,
}

/// The program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// The number of tiles in a row of tiles.
    pub tiles_x: usize,
    /// The number of rows of tiles. There are as many processes as tiles.
    pub tiles_y: usize,
    /// The number of elements in a row of a tile.
    pub size_x: usize,
    /// The number of rows of a tile.
    pub size_y: usize,
    /// The bytes of an element.
    pub element: usize,
    /// The number of rows in a call. 1 is without list I/O. A request of PVFS has room for 128.
    pub rows_a_call: usize,
    /// The memory that holds the tile.
    pub memory: TileMemory,
    /// The number of rounds that are measured. One round before them is not measured.
    pub rounds: usize,
    /// True if each access has memory that no adapter has seen. If false, all rounds use the same
    /// memory.
    pub fresh: bool,
}

impl Tile {
    /// Returns the tiles of [PVFS-IB] and [Quadrics-PVFS2], 2 × 2 of 1024 × 768 elements, with list
    /// I/O.
    pub fn paper(element: usize) -> Tile {
        let memory = TileMemory::Contiguous;
        let (size_x, size_y) = (1024, 768);
        Tile { tiles_x: 2, tiles_y: 2, size_x, size_y, element, rows_a_call: 128, memory, rounds: 2, fresh: false }
    }

    /// Returns the number of processes.
    pub fn processes(&self) -> usize {
        self.tiles_x * self.tiles_y
    }

    /// Returns the bytes of a tile.
    pub fn tile_bytes(&self) -> u64 {
        (self.size_x * self.size_y * self.element) as u64
    }

    /// Returns the ranges of a tile in the file, row by row.
    fn regions(&self, number: usize) -> Vec<Region> {
        let row = (self.size_x * self.element) as u64;
        let (x, y) = ((number % self.tiles_x) as u64, (number / self.tiles_x * self.size_y) as u64);
        (0..self.size_y as u64).map(|at| Region::new(((y + at) * self.tiles_x as u64 + x) * row, row)).collect()
    }

    /// Returns the tile's rows in memory.
    fn rows(&self, rank: &Rank) -> Result<Vec<MemSlice>, Failed> {
        let row = self.size_x * self.element;
        let (stride, client) = (row * self.tiles_x, rank.client());
        Ok(match self.memory {
            TileMemory::Contiguous => {
                let memory = client.memory(row * self.size_y)?;
                (0..self.size_y).map(|at| memory.slice(at * row, row)).collect()
            }
            TileMemory::Array => {
                // The rows of other tiles above and below are never used, so they are left out.
                let memory = client.memory(stride * self.size_y)?;
                let x = rank.number() % self.tiles_x * row;
                (0..self.size_y).map(|at| memory.slice(at * stride + x, row)).collect()
            }
            TileMemory::Rows => {
                (0..self.size_y).map(|_| Ok(client.memory(row)?.all())).collect::<Result<_, bmi::Error>>()?
            }
        })
    }
}

/// The duration of each measured round.
#[derive(Clone, Debug, Default)]
pub struct Took {
    /// The spans of writing.
    pub write: Vec<Span>,
    /// The spans of reading.
    pub read: Vec<Span>,
    /// The number of registrations of its memory.
    pub registrations: u64,
}

impl Workload for Tile {
    type Out = Took;

    async fn run(&self, rank: Rank) -> Result<Took, Failed> {
        if rank.count() != self.processes() {
            return Err(format!("{} tiles and {} processes", self.processes(), rank.count()).into());
        }
        let path = "/tiles".parse()?;
        let file = rank.client().create(&path, CreateOptions { exclusive: false, ..CreateOptions::default() }).await?;
        let regions = self.regions(rank.number());
        let expected: Vec<u8> = regions.iter().flat_map(|region| pattern(region.offset, region.len as usize)).collect();
        let nothing = vec![0; expected.len()];
        let misses = || rank.client().endpoint().counters().pin_misses;
        let mut took = Took::default();
        let mut rows = self.rows(&rank)?;
        for round in 0..=self.rounds {
            for reading in [false, true] {
                if self.fresh {
                    rows = self.rows(&rank)?;
                }
                let before = misses();
                let list = rows.iter().cloned().collect::<MemList>();
                fill(&list, if reading { &nothing } else { &expected });
                let calls = || regions.chunks(self.rows_a_call).zip(rows.chunks(self.rows_a_call));
                let span = rank.timed(async {
                    for (regions, rows) in calls() {
                        let list = rows.iter().cloned().collect::<MemList>();
                        if reading {
                            file.read_list(regions, list).await?;
                        } else {
                            file.write_list(regions, list).await?;
                        }
                    }
                    Ok::<_, fs_client::Error>(())
                });
                let span = span.await?;
                if reading && list.to_vec() != expected {
                    return Err(format!("tile {}: what was read is not what was written", rank.number()).into());
                }
                // The first round creates connections and buffers.
                if round > 0 {
                    took.registrations += misses() - before;
                    (if reading { &mut took.read } else { &mut took.write }).push(span);
                }
            }
        }
        rank.barrier().await?;
        Ok(took)
    }
}
