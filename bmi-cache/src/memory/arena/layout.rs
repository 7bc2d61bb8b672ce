//! Where superblock, headers and chunks are, and the words of the superblock.
//!
//! All numbers are in the byte order of the machine: the file never leaves it. The drawing is in
//! the documentation of the [arena](super).
//!
//! **Invariants**
//! 1. A [`Layout`] is sane, wherever its numbers come from: the chunk is a multiple of [`BLOCK`],
//!    there is at least one, and every frame has a number of 32 bits. So no sum here overflows.
//! 2. The words [`MAGIC_AT`], [`VERSION_AT`] and [`UNITS_AT`] keep their places and their meaning
//!    in every version of the format.

use bmi_core::{Error, ErrorKind};

use super::{BLOCK, FRAME};

/// The first word of the file.
pub(super) const MAGIC: u64 = u64::from_ne_bytes(*b"bmiarena");
/// The version of the format that is written here.
pub(super) const VERSION: u64 = 2;

/// Offsets of the superblock's words, in bytes.
pub(super) const MAGIC_AT: usize = 0;
/// See [`VERSION`].
pub(super) const VERSION_AT: usize = 8;
/// How many units may be recorded: never fewer than are. After a kill it may be one too many. It
/// tells a server of another version whether there is something to lose.
pub(super) const UNITS_AT: usize = 16;
/// The lower half of the store's id.
const STORE_LOW_AT: usize = 24;
const STORE_HIGH_AT: usize = 32;
/// Bytes of a chunk.
const CHUNK_AT: usize = 40;
/// The most chunks.
const BOUND_AT: usize = 48;
/// How many chunks exist.
pub(super) const CHUNKS_AT: usize = 56;
/// The lower half of the number of the frames.
const NUMBER_LOW_AT: usize = 64;
const NUMBER_HIGH_AT: usize = 72;
/// Bytes of the words above.
pub(super) const SUPERBLOCK: usize = 80;

/// Offset of the first header. The superblock has a page to itself.
const HEADERS_AT: usize = 4096;
/// Bytes of a header.
pub(super) const HEADER: usize = 64;

/// The most frames: a frame has a number of 32 bits.
const MAX_FRAMES: u64 = u32::MAX as u64;

/// The sizes that determine where everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bytes of a chunk.
    pub(super) chunk: usize,
    /// The most chunks.
    pub(super) bound: usize,
}

impl Layout {
    /// Returns the layout for at most `bytes` bytes of frames, rounded down to chunks of `chunk`
    /// bytes, but one chunk at least.
    ///
    /// # Errors
    /// `Invalid` for a chunk that is no multiple of [`BLOCK`], or for more frames than have
    /// numbers.
    pub(super) fn new(bytes: u64, chunk: usize) -> Result<Layout, Error> {
        let invalid = |text: String| Error::new(ErrorKind::Invalid, text);
        if chunk == 0 || !chunk.is_multiple_of(BLOCK) {
            return Err(invalid(format!("chunks of {chunk} bytes; they must be multiples of {BLOCK}")));
        }
        let bound = (bytes / chunk as u64).max(1);
        Layout::checked(chunk as u64, bound)
            .ok_or_else(|| invalid(format!("a cache of {bytes} bytes; {MAX_FRAMES} frames of {FRAME} are the most")))
    }

    /// Returns the layout with these numbers if it is sane.
    fn checked(chunk: u64, bound: u64) -> Option<Layout> {
        let bytes = chunk.checked_mul(bound).filter(|bytes| (1..=MAX_FRAMES * FRAME as u64).contains(bytes))?;
        // All of the file has an address. It is less than 16 KiB and 65/64 of the frames.
        usize::try_from(bytes).ok()?.checked_mul(2)?;
        let (chunk, bound) = (usize::try_from(chunk).ok()?, usize::try_from(bound).ok()?);
        chunk.is_multiple_of(BLOCK).then_some(Layout { chunk, bound })
    }

    /// Returns how many frames a chunk has.
    pub(super) fn frames_of_chunk(&self) -> usize {
        self.chunk / FRAME
    }

    /// Returns the bytes of the headers of one chunk.
    pub(super) fn headers_of_chunk(&self) -> usize {
        self.frames_of_chunk() * HEADER
    }

    /// Returns the offset of the header of a frame.
    pub(super) fn header_at(&self, frame: u32) -> usize {
        HEADERS_AT + frame as usize * HEADER
    }

    /// Returns the offset of the first header of a chunk.
    pub(super) fn headers_at(&self, chunk: usize) -> usize {
        HEADERS_AT + chunk * self.headers_of_chunk()
    }

    /// Returns the offset of the first chunk: on the boundary of a block.
    pub(super) fn chunks_at(&self) -> usize {
        self.headers_at(self.bound).next_multiple_of(BLOCK)
    }

    /// Returns the offset of a chunk.
    pub(super) fn chunk_at(&self, chunk: usize) -> usize {
        self.chunks_at() + chunk * self.chunk
    }

    /// Returns the length of the whole file.
    pub(super) fn len(&self) -> usize {
        self.chunk_at(self.bound)
    }
}

/// The words of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock([u64; SUPERBLOCK / 8]);

impl Superblock {
    /// The superblock of a new file, in which no chunk exists.
    pub(super) fn new(layout: Layout, store: u128, number: u128) -> Superblock {
        let mut words = Superblock([0; SUPERBLOCK / 8]);
        words.0[MAGIC_AT / 8] = MAGIC;
        words.0[VERSION_AT / 8] = VERSION;
        words.0[STORE_LOW_AT / 8] = store as u64;
        words.0[STORE_HIGH_AT / 8] = (store >> 64) as u64;
        words.0[NUMBER_LOW_AT / 8] = number as u64;
        words.0[NUMBER_HIGH_AT / 8] = (number >> 64) as u64;
        words.0[CHUNK_AT / 8] = layout.chunk as u64;
        words.0[BOUND_AT / 8] = layout.bound as u64;
        words
    }

    pub(super) fn from_bytes(bytes: [u8; SUPERBLOCK]) -> Superblock {
        let mut words = bytes.as_chunks::<8>().0.iter();
        Superblock(std::array::from_fn(|_| words.next().map_or(0, |word| u64::from_ne_bytes(*word))))
    }

    pub(super) fn to_bytes(self) -> [u8; SUPERBLOCK] {
        let mut bytes = [0; SUPERBLOCK];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(self.0) {
            *to = word.to_ne_bytes();
        }
        bytes
    }

    /// Returns the word at an offset.
    pub(super) fn word(&self, at: usize) -> u64 {
        self.0[at / 8]
    }

    /// Returns the id of the store.
    pub(super) fn store(&self) -> u128 {
        u128::from(self.word(STORE_HIGH_AT)) << 64 | u128::from(self.word(STORE_LOW_AT))
    }

    /// Returns the number of the frames.
    pub(super) fn number(&self) -> u128 {
        u128::from(self.word(NUMBER_HIGH_AT)) << 64 | u128::from(self.word(NUMBER_LOW_AT))
    }

    /// Returns the sizes, and how many chunks exist, if these numbers are possible.
    pub(super) fn layout(&self) -> Option<(Layout, usize)> {
        let layout = Layout::checked(self.word(CHUNK_AT), self.word(BOUND_AT))?;
        let chunks = usize::try_from(self.word(CHUNKS_AT)).ok()?;
        (chunks <= layout.bound).then_some((layout, chunks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_has_room_for_everything_once() {
        for (bytes, chunk, bound) in [(0, BLOCK, 1), (BLOCK as u64 * 5 + 4095, BLOCK, 5), (10 << 20, 3 << 20, 3)] {
            let layout = Layout::new(bytes, chunk).unwrap();
            assert_eq!(layout.bound, bound);
            let last = (bound * layout.frames_of_chunk() - 1) as u32;
            assert!(layout.header_at(0) >= SUPERBLOCK && layout.headers_at(0) == layout.header_at(0));
            assert!(layout.header_at(last) + HEADER <= layout.chunks_at());
            assert!(layout.chunk_at(0).is_multiple_of(BLOCK) && layout.len() == layout.chunk_at(0) + bound * chunk);
        }
    }

    #[test]
    fn what_has_no_numbers_is_refused() {
        for (bytes, chunk) in [(1 << 20, 0), (1 << 20, 4096), (1 << 20, BLOCK + 1), (1 << 44, BLOCK), (u64::MAX, BLOCK)]
        {
            assert_eq!(Layout::new(bytes, chunk).unwrap_err().kind(), ErrorKind::Invalid, "{bytes}, {chunk}");
        }
        assert!(Layout::new((1 << 44) - 1, BLOCK).is_ok());
    }

    #[test]
    fn a_superblock_comes_back_from_its_bytes() {
        let layout = Layout::new(5 << 20, 1 << 20).unwrap();
        let written = Superblock::new(layout, 7 << 90 | 8, 9 << 80 | 5);
        let read = Superblock::from_bytes(written.to_bytes());
        assert_eq!((read, read.store(), read.layout()), (written, 7 << 90 | 8, Some((layout, 0))));
        assert_eq!(read.number(), 9 << 80 | 5);
        assert_eq!((read.word(MAGIC_AT), read.word(VERSION_AT), read.word(UNITS_AT)), (MAGIC, VERSION, 0));
        for (at, value) in [(CHUNK_AT, 0), (CHUNK_AT, 4096), (BOUND_AT, 0), (BOUND_AT, u64::MAX), (CHUNKS_AT, 6)] {
            let mut damaged = written;
            damaged.0[at / 8] = value;
            assert_eq!(damaged.layout(), None, "{value} at {at}");
        }
    }
}
