//! Locks of ranges of files, for clients whose accesses must not mix.
//!
//! **Protocol.** A file's locks are at the server of its first datafile. A client asks for one, and
//! asks again until none that conflicts is ahead of it. So it waits here without a request, and
//! takes no place from those that hold a lock. The order is that of the first question, so nobody
//! is overtaken. A client that holds a lock asks again and again, too. Who has not asked for
//! [`FORGOTTEN`] has no lock any more as soon as another asks. If it still lives, it is told so.
//!
//! **Invariants**
//! 1. Of two locks that conflict, at most one is held.
//! 2. *Bounded.* A datafile has at most [`MOST`] locks, and all together at most [`MOST_OF_ALL`].
//!    A question looks at those of one datafile, or at all if there is no room.
//!
//! Locks are forgotten when the server ends. Who holds one then is told when it asks or gives it
//! back.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use bmi::Time;
use bmi::hooks::{mutated, steps};
use fs_proto::{DatafileHandle, ErrorCode, FsError, Region};

use crate::lock::lock;

/// How long a lock is known that its client does not ask for.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// Most locks of a datafile, and of all.
const MOST: usize = 256;
const MOST_OF_ALL: usize = 4096;

/// A client, and the number of the lock there.
pub(in crate::iod) type Owner = (u128, u64);

/// The locks of a server.
#[derive(Default)]
pub(in crate::iod) struct Locks(Mutex<State>);

#[derive(Default)]
struct State {
    files: BTreeMap<DatafileHandle, Vec<Lock>>,
    count: usize,
}

/// A lock that is held or waited for.
struct Lock {
    owner: Owner,
    range: Region,
    is_exclusive: bool,
    asked: Time,
}

impl Lock {
    fn conflicts(&self, other: &Lock) -> bool {
        let (one, two) = (self.range, other.range);
        let overlap =
            one.offset < two.offset.saturating_add(two.len) && two.offset < one.offset.saturating_add(one.len);
        overlap && (self.is_exclusive || other.is_exclusive)
    }
}

impl State {
    /// Forgets locks that nobody has asked for, of a datafile.
    fn forget(&mut self, datafile: DatafileHandle, except: Owner, now: Time) {
        let Some(locks) = self.files.get_mut(&datafile) else { return };
        steps(locks.len());
        let before = locks.len();
        locks.retain(|lock| lock.owner == except || now < lock.asked + FORGOTTEN);
        self.count -= before - locks.len();
        if locks.is_empty() {
            self.files.remove(&datafile);
        }
    }
}

impl Locks {
    /// Asks for a lock, or asks again. Returns the number of locks that must be given back before.
    /// With `is_held`, the client had it.
    ///
    /// # Errors
    /// `Stale` if a client does not have a lock that it had. `Busy` if there are too many.
    pub(in crate::iod) fn ask(
        &self,
        datafile: DatafileHandle,
        owner: Owner,
        (range, is_exclusive): (Region, bool),
        is_held: bool,
        now: Time,
    ) -> Result<u32, FsError> {
        let mut state = lock(&self.0);
        state.forget(datafile, owner, now);
        let known = state.files.get(&datafile).and_then(|locks| locks.iter().position(|lock| lock.owner == owner));
        let at = match known {
            Some(at) => at,
            None if is_held => return Err(lost()),
            None => {
                if state.count >= MOST_OF_ALL {
                    let all: Vec<DatafileHandle> = state.files.keys().copied().collect();
                    all.into_iter().for_each(|datafile| state.forget(datafile, owner, now));
                }
                let is_full = state.count >= MOST_OF_ALL;
                let locks = state.files.entry(datafile).or_default();
                if is_full || locks.len() >= MOST {
                    let text = format!("{} locks of {datafile}, or too many of all datafiles", locks.len());
                    if locks.is_empty() {
                        state.files.remove(&datafile);
                    }
                    return Err(FsError::new(ErrorCode::Busy, text));
                }
                locks.push(Lock { owner, range, is_exclusive, asked: now });
                let at = locks.len() - 1;
                state.count += 1;
                at
            }
        };
        let locks = state.files.get_mut(&datafile).ok_or_else(lost)?;
        steps(at);
        locks[at].asked = now;
        if mutated("iod/lock-granted-to-all") {
            return Ok(0);
        }
        Ok(locks[..at].iter().filter(|lock| lock.conflicts(&locks[at])).count() as u32)
    }

    /// Gives a lock back, or stops to wait for it.
    ///
    /// # Errors
    /// `Stale` if the client does not have it any more.
    pub(in crate::iod) fn give_back(&self, datafile: DatafileHandle, owner: Owner) -> Result<(), FsError> {
        let mut state = lock(&self.0);
        let locks = state.files.get_mut(&datafile).ok_or_else(lost)?;
        steps(locks.len());
        let at = locks.iter().position(|lock| lock.owner == owner).ok_or_else(lost)?;
        locks.remove(at);
        if locks.is_empty() {
            state.files.remove(&datafile);
        }
        state.count -= 1;
        Ok(())
    }
}

fn lost() -> FsError {
    FsError::new(ErrorCode::Stale, "a lock was lost: others may have accessed the bytes meanwhile")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: DatafileHandle = DatafileHandle(7);

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn range(offset: u64, len: u64) -> (Region, bool) {
        (Region::new(offset, len), true)
    }

    #[test]
    fn who_came_first_is_first_and_readers_share() {
        let locks = Locks::default();
        let ask = |client, what| locks.ask(FILE, (client, 1), what, false, at(0)).unwrap();
        let reads = |offset, len| (Region::new(offset, len), false);
        assert_eq!(
            [ask(1, reads(0, 10)), ask(2, reads(5, 10)), ask(3, range(9, 1)), ask(4, range(15, 9))],
            [0, 0, 2, 0]
        );
        assert_eq!(ask(5, reads(0, 10)), 1, "a reader does not overtake a writer");
        assert_eq!(locks.ask(DatafileHandle(8), (1, 1), range(0, 99), false, at(0)), Ok(0), "another file");
        locks.give_back(FILE, (1, 1)).unwrap();
        locks.give_back(FILE, (2, 1)).unwrap();
        assert_eq!([ask(3, range(9, 1)), ask(5, reads(0, 10))], [0, 1]);
        locks.give_back(FILE, (3, 1)).unwrap();
        assert_eq!(ask(5, reads(0, 10)), 0);
        assert_eq!(locks.give_back(FILE, (3, 1)).unwrap_err().code, ErrorCode::Stale);
        locks.give_back(FILE, (4, 1)).unwrap();
        locks.give_back(FILE, (5, 1)).unwrap();
        locks.give_back(DatafileHandle(8), (1, 1)).unwrap();
        let state = lock(&locks.0);
        assert_eq!((state.count, state.files.len()), (0, 0));
    }

    #[test]
    fn who_does_not_ask_again_is_forgotten_and_told() {
        let locks = Locks::default();
        let ask = |client, is_held, ms| locks.ask(FILE, (client, 1), range(0, 10), is_held, at(ms));
        assert_eq!((ask(1, false, 0), ask(2, false, 0)), (Ok(0), Ok(1)));
        assert_eq!((ask(1, true, 9_000), ask(2, false, 9_001)), (Ok(0), Ok(1)));
        assert_eq!(ask(2, false, 18_999), Ok(1));
        assert_eq!(ask(2, false, 19_000), Ok(0));
        assert_eq!(ask(1, true, 19_001).unwrap_err().code, ErrorCode::Stale);
        assert_eq!(locks.give_back(FILE, (1, 1)).unwrap_err().code, ErrorCode::Stale);
    }

    #[test]
    fn locks_are_bounded() {
        let locks = Locks::default();
        let ask = |file: u64, number, ms| locks.ask(DatafileHandle(file), (1, number), range(0, 1), false, at(ms));
        (0..MOST as u64).for_each(|number| drop(ask(0, number, 0)));
        assert_eq!(ask(0, 999, 0).unwrap_err().code, ErrorCode::Busy);
        (MOST as u64..MOST_OF_ALL as u64).for_each(|number| drop(ask(1 + number / 100, number, 5000)));
        assert_eq!(ask(999, 1, 5000).unwrap_err().code, ErrorCode::Busy);
        assert_eq!(ask(999, 1, 10_000), Ok(0), "those of the first file are forgotten");
    }
}
