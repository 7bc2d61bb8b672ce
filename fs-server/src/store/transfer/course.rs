//! The course of a transfer: which call is next, and what its result means. It makes no call
//! itself, so a worker thread and a ring of the kernel share it.
//!
//! | result of a call | what follows |
//! |---|---|
//! | some bytes | the rest; buffered if it does not begin at a unit any more |
//! | no bytes, reading | the end of the file: the rest of the part is zeros |
//! | no bytes, writing | a direct call: the same buffered; a buffered one: an error |
//! | `EINTR`, `EAGAIN`, `ECANCELED` | the same call again, up to [`MOST_AGAIN`] times |
//! | a direct call was refused | the same buffered; if that moves bytes, nothing is moved directly any more |
//! | another error | the end; the bytes before this call were moved |
//!
//! A direct read that reaches the end of the file is short, and what is left does not begin at a
//! unit. So it is read buffered, which says that the file ends there. Whatever the direct read has
//! left in the memory behind the end is then overwritten with zeros.
//!
//! A call can be refused because the file system does not know this way, or because the request
//! itself is impossible, with the same error (`EINVAL`). Only in the first case the buffered call
//! moves any bytes.
//!
//! **Tests.** Every row of the table, with results that a test makes up.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bmi::MemSlice;

use super::jobs::Job;
use super::parts::{Part, divide};
use crate::store::disk::steps::step;
use crate::store::open::{OpenFile, Way};
use crate::store::sys;

/// Most times that a call is repeated at once. The system asks for it when it is short of memory
/// for a moment, or when a thread ends for which a call waited.
const MOST_AGAIN: u32 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the file to the memory.
    Read,
    /// From the memory to the file.
    Write,
}

/// A transfer in flight.
#[derive(Debug)]
pub(in crate::store) struct Course {
    direction: Direction,
    file: Arc<OpenFile>,
    /// What is left. No part is empty.
    parts: VecDeque<Part>,
    moved: u64,
    /// How often the next call was made in vain.
    again: u32,
    /// A direct call of the first part was refused.
    doubted: bool,
    refused: bool,
}

/// What came of a transfer. It holds none of its memory.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// On failure, also how many bytes were moved.
    pub(crate) result: Result<(), (u64, io::Error)>,
    /// The file system refuses to move anything directly.
    pub(crate) refused: bool,
    /// The file, which is closed when the last handle is dropped.
    pub(crate) file: Arc<OpenFile>,
}

/// Returns true if an error means that a direct call is not possible.
pub(in crate::store) fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// Returns true if the same call may succeed.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::ECANCELED))
}

impl Course {
    pub(in crate::store) fn new(direction: Direction, file: Arc<OpenFile>, jobs: Vec<Job>) -> Course {
        let parts = divide(jobs, file.direct().map(|direct| direct.alignment));
        Course { direction, file, parts, moved: 0, again: 0, doubted: false, refused: false }
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    pub(crate) fn file(&self) -> &Arc<OpenFile> {
        &self.file
    }

    /// Returns what the next call has to move; `None` if everything was moved.
    pub(super) fn next(&self) -> Option<&Part> {
        self.parts.front()
    }

    /// Returns true if the next call was made before, and should wait for what it needs.
    pub(super) fn is_repeated(&self) -> bool {
        self.again > 0
    }

    /// Takes the result of the call for [`Course::next`].
    ///
    /// # Errors
    /// That of the call. The transfer has failed.
    pub(crate) fn called(&mut self, result: io::Result<usize>) -> io::Result<()> {
        let Some(part) = self.parts.front_mut() else { return Ok(()) };
        let len = match result {
            Ok(len) => (len as u64).min(part.len),
            Err(error) if is_passing(&error) && self.again < MOST_AGAIN => {
                self.again += 1;
                return Ok(());
            }
            Err(error) if part.way == Way::Direct && is_refusal(&error) => {
                (part.way, self.doubted) = (Way::Buffered, true);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.again = 0;
        match (len, self.direction, part.way) {
            (0, Direction::Read, _) => {
                part.pieces.iter().for_each(MemSlice::zero);
                self.moved += part.len;
                part.len = 0;
            }
            (0, Direction::Write, Way::Direct) => part.way = Way::Buffered,
            (0, Direction::Write, Way::Buffered) => return Err(io::ErrorKind::WriteZero.into()),
            _ => {
                part.advance(len);
                self.moved += len;
                // A part has another way only if it is buffered already.
                let unit = self.file.direct().map_or(1, |direct| direct.alignment.unit);
                if !part.offset.is_multiple_of(unit) {
                    part.way = Way::Buffered;
                }
            }
        }
        if part.len == 0 {
            self.parts.pop_front();
        }
        // At the end of a file nothing shows which of the two it was.
        if std::mem::take(&mut self.doubted) && len > 0 {
            self.refused = true;
            self.parts.iter_mut().for_each(|part| part.way = Way::Buffered);
        }
        Ok(())
    }

    /// Ends the transfer. Its memory is free when this returns.
    pub(crate) fn end(self, result: io::Result<()>) -> Outcome {
        if self.direction == Direction::Write {
            // Only now: a sync that began before may not cover it.
            self.file.changed();
        }
        let result = result.map_err(|error| (self.moved, error));
        Outcome { result, refused: self.refused, file: self.file }
    }

    /// Makes all calls, on this thread.
    pub(in crate::store) fn run(mut self) -> Outcome {
        let result = loop {
            let Some(part) = self.next() else { break Ok(()) };
            let file = self.file.descriptor(part.way);
            let result = match self.direction {
                Direction::Read => sys::read_pieces_at(file, part.offset, &part.pieces),
                Direction::Write => step(|| sys::write_pieces_at(file, part.offset, &part.pieces)),
            };
            if let Err(error) = self.called(result) {
                break Err(error);
            }
        };
        self.end(result)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use bmi::{MemList, Memory};
    use fs_proto::Region;

    use super::*;
    use crate::store::open::{Alignment, DirectFile};
    use crate::store::transfer::jobs::jobs;

    const REGIONS: [Region; 2] = [Region::new(4000, 10_000), Region::new(40_960, 4096)];

    /// A transfer of a head of 96 bytes, two units, a tail of 1712 bytes, and a unit.
    fn course(direction: Direction) -> (Course, MemList) {
        let file = tempfile::tempfile().unwrap();
        let direct = DirectFile { file: file.try_clone().unwrap(), alignment: Alignment { unit: 4096, memory: 512 } };
        let file = Arc::new(OpenFile::new(Arc::new(file), Weak::new()));
        file.set_direct(Some(direct));
        let memory = Memory::zeroed(20_000).unwrap();
        memory.copy_from(0, &[0xee; 20_000]);
        // The second region begins at a multiple of 512 bytes in memory, too.
        let list: MemList = [memory.slice(4000, 10_000), memory.slice(14_336, 4096)].into_iter().collect();
        (Course::new(direction, file, jobs(&REGIONS, &list)), list)
    }

    fn next(course: &Course) -> Option<(Way, u64, u64)> {
        course.next().map(|part| (part.way, part.offset, part.len))
    }

    fn system(error: i32) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(error))
    }

    use Way::{Buffered, Direct};

    #[test]
    fn the_parts_follow_each_other() {
        let (mut course, _) = course(Direction::Write);
        let calls = [(Buffered, 4000, 96), (Direct, 4096, 8192), (Buffered, 12_288, 1712), (Direct, 40_960, 4096)];
        for call in calls {
            assert_eq!(next(&course), Some(call));
            course.called(Ok(call.2 as usize)).unwrap();
        }
        assert_eq!(next(&course), None);
        let outcome = course.end(Ok(()));
        assert!(outcome.result.is_ok() && !outcome.refused && outcome.file.is_unwritten());
    }

    #[test]
    fn a_short_call_is_followed_by_the_rest() {
        let (mut course, _) = course(Direction::Write);
        for (moved, call) in [
            (90, (Buffered, 4000, 96)),
            (6, (Buffered, 4090, 6)),
            (4096, (Direct, 4096, 8192)),
            // Not a whole unit.
            (512, (Direct, 8192, 4096)),
            (3584, (Buffered, 8704, 3584)),
        ] {
            assert_eq!(next(&course), Some(call));
            course.called(Ok(moved)).unwrap();
        }
        assert_eq!(next(&course), Some((Buffered, 12_288, 1712)));
    }

    #[test]
    fn a_read_that_meets_the_end_gives_zeros() {
        let (mut course, list) = course(Direction::Read);
        course.called(Ok(96)).unwrap();
        // The file ends in the second unit.
        course.called(Ok(5000)).unwrap();
        assert_eq!(next(&course), Some((Buffered, 9096, 3192)));
        course.called(Ok(0)).unwrap();
        assert_eq!(next(&course), Some((Buffered, 12_288, 1712)));
        course.called(Ok(0)).unwrap();
        assert_eq!(next(&course), Some((Direct, 40_960, 4096)), "it may begin before the end");
        course.called(Ok(0)).unwrap();
        assert_eq!(next(&course), None);
        let bytes = list.to_vec();
        assert!(bytes[..5096].iter().all(|byte| *byte == 0xee) && bytes[5096..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_write_of_nothing_is_made_the_other_way_and_then_fails() {
        let (mut course, _) = course(Direction::Write);
        course.called(Ok(96)).unwrap();
        course.called(Ok(0)).unwrap();
        assert_eq!(next(&course), Some((Buffered, 4096, 8192)));
        let error = course.called(Ok(0)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
        let outcome = course.end(Err(error));
        assert!(matches!(outcome.result, Err((96, _))) && !outcome.refused);
    }

    #[test]
    fn a_call_is_repeated_for_a_while() {
        for error in [libc::EINTR, libc::EAGAIN, libc::ECANCELED] {
            let (mut course, _) = course(Direction::Read);
            for _ in 0..3 {
                assert!(!course.is_repeated());
                for _ in 0..MOST_AGAIN {
                    course.called(system(error)).unwrap();
                    assert!(course.is_repeated());
                }
                course.called(Ok(10)).unwrap();
            }
            assert_eq!(next(&course), Some((Buffered, 4030, 66)));
            for _ in 0..MOST_AGAIN {
                course.called(system(error)).unwrap();
            }
            assert_eq!(course.called(system(error)).unwrap_err().raw_os_error(), Some(error), "but not for ever");
        }
    }

    #[test]
    fn a_refusal_is_one_if_the_other_way_moves_bytes() {
        for error in [libc::EINVAL, libc::EOPNOTSUPP] {
            let (mut course, _) = course(Direction::Write);
            course.called(Ok(96)).unwrap();
            course.called(system(error)).unwrap();
            assert_eq!(next(&course), Some((Buffered, 4096, 8192)));
            course.called(Ok(8192)).unwrap();
            course.called(Ok(1712)).unwrap();
            assert_eq!(next(&course), Some((Buffered, 40_960, 4096)), "it is not tried again");
            assert!(course.end(Ok(())).refused);
        }
        // It is the request that is impossible.
        let (mut course, _) = course(Direction::Write);
        course.called(Ok(96)).unwrap();
        course.called(system(libc::EINVAL)).unwrap();
        let error = course.called(system(libc::EINVAL)).unwrap_err();
        let outcome = course.end(Err(error));
        assert!(matches!(outcome.result, Err((96, _))) && !outcome.refused);
    }

    #[test]
    fn nothing_is_concluded_at_the_end_of_a_file() {
        let (mut course, _) = course(Direction::Read);
        course.called(Ok(96)).unwrap();
        course.called(system(libc::EINVAL)).unwrap();
        course.called(Ok(0)).unwrap();
        course.called(Ok(0)).unwrap();
        assert_eq!(next(&course), Some((Direct, 40_960, 4096)));
        assert!(!course.end(Ok(())).refused);
    }

    #[test]
    fn another_error_ends_the_transfer() {
        let (mut course, _) = course(Direction::Read);
        course.called(Ok(96)).unwrap();
        course.called(Ok(4096)).unwrap();
        let error = course.called(system(libc::EIO)).unwrap_err();
        let outcome = course.end(Err(error));
        assert!(matches!(outcome.result, Err((4192, _))) && !outcome.file.is_unwritten());
    }
}
