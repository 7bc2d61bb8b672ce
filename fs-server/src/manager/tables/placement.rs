//! Chooses the I/O servers of a new file.
//!
//! **Rules**
//! 1. A file for which no number of servers is requested is striped over all servers that are up
//!    and that its client can reach.
//! 2. A requested number is met. Servers that are down are used only if there are not enough
//!    others. A number that is taken over from a replaced file is met as far as servers are up.
//! 3. The first server rotates from file to file.
//! 4. A server that will have a datafile soon is waited for: one that is up and is creating more,
//!    or one that is expected back since the manager was started.
//! 5. A small file has one of these servers, the first one that has a datafile. When it grows, it
//!    gets the ones behind that, as far as they are up and its client can reach them.

use std::collections::BTreeSet;

use bmi::hooks::steps;
use fs_proto::{ErrorCode, FsError};

/// What the manager knows about an I/O server when it places a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manager) struct Candidate {
    /// It is up.
    pub(in crate::manager) up: bool,
    /// It is not up, but expected to be soon.
    pub(in crate::manager) awaited: bool,
    /// There is a datafile in its pool.
    pub(in crate::manager) prepared: bool,
    /// It could not create datafiles the last time.
    pub(in crate::manager) failing: bool,
    /// The client cannot reach it.
    pub(in crate::manager) avoided: bool,
}

/// Why a file cannot be placed now.
#[derive(Debug)]
pub(in crate::manager) enum Unplaced {
    /// An I/O server will have datafiles soon.
    Later,
    /// The request is not possible.
    Refused(FsError),
    /// This I/O server is needed, and cannot create datafiles.
    Failing(u32),
}

/// How many I/O servers a new file is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manager) enum Wanted {
    /// All that can be used.
    All,
    /// As many as the file that it replaces, as far as they can be used.
    AtMost(u32),
    /// This many, in any case.
    Exactly(u32),
}

/// Returns the numbers of the I/O servers for a new file, in the order of its layout. `created` is
/// the number of files created before. Of a small file, only the first one has to have a datafile.
pub(in crate::manager) fn place(
    candidates: &[Candidate],
    created: u64,
    wanted: Wanted,
    small: bool,
) -> Result<Vec<u32>, Unplaced> {
    let all = 0..candidates.len() as u32;
    steps(candidates.len());
    let of = |iod: u32| candidates[iod as usize];
    let stuck = |iod: u32| of(iod).failing && !of(iod).prepared;
    let usable = |iod: u32| of(iod).up || of(iod).awaited;
    let reached = |iod: &u32| usable(*iod) && !of(*iod).avoided;
    if let Wanted::Exactly(wanted) = wanted
        && wanted as usize > candidates.len()
    {
        let text = format!("a file on {wanted} I/O servers; the cluster has {}", candidates.len());
        return Err(Unplaced::Refused(FsError::new(ErrorCode::Invalid, text)));
    }
    let mut chosen: Vec<u32> = if !matches!(wanted, Wanted::Exactly(_)) {
        let well: Vec<u32> = all.clone().filter(|iod| reached(iod) && !stuck(*iod)).collect();
        let reached: Vec<u32> = all.clone().filter(reached).collect();
        // A client that reaches no server may be wrong.
        let choices = [well, reached, all.filter(|iod| usable(*iod)).collect()];
        choices.into_iter().find(|choice| !choice.is_empty()).unwrap_or_default()
    } else {
        all.collect()
    };
    if chosen.is_empty() {
        return Err(Unplaced::Refused(FsError::new(ErrorCode::Unreachable, "no I/O server is up")));
    }
    // The file's number is not used here. It increases by more than one from file to file, and so
    // might never select some servers.
    let first = created % chosen.len() as u64;
    chosen.rotate_left(first as usize);
    if let Wanted::AtMost(most) = wanted {
        chosen.truncate(most as usize);
    }
    if let Wanted::Exactly(wanted) = wanted {
        let mut ranked = chosen.clone();
        ranked.sort_by_key(|iod| (!usable(*iod), stuck(*iod), of(*iod).avoided));
        let ranked: BTreeSet<u32> = ranked.into_iter().take(wanted as usize).collect();
        chosen.retain(|iod| ranked.contains(iod));
    }
    let needed = if small { 1 } else { chosen.len() };
    if small && let Some(first) = chosen.iter().position(|iod| of(*iod).prepared && usable(*iod)) {
        chosen.rotate_left(first);
    }
    match chosen[..needed].iter().find(|iod| !of(**iod).prepared) {
        None => Ok(chosen),
        Some(iod) if usable(*iod) && stuck(*iod) => Err(Unplaced::Failing(*iod)),
        Some(iod) if usable(*iod) => Err(Unplaced::Later),
        Some(iod) => {
            let text = format!("iod {iod} is down and has created no datafiles in advance");
            Err(Unplaced::Refused(FsError::new(ErrorCode::Unreachable, text)))
        }
    }
}

/// Returns the numbers of the further I/O servers of a small file that grows, in the order of its
/// layout: `most` at most, and none that is on `first`.
pub(in crate::manager) fn place_further(candidates: &[Candidate], first: u32, most: u32) -> Result<Vec<u32>, Unplaced> {
    let all = candidates.len() as u32;
    steps(candidates.len());
    let of = |iod: u32| candidates[iod as usize];
    let is_well = |iod: &u32| {
        let Candidate { up, awaited, prepared, failing, avoided } = of(*iod);
        (up || awaited) && !avoided && (prepared || !failing)
    };
    let behind = (1..all).map(|distance| (first + distance) % all);
    let chosen: Vec<u32> = behind.filter(is_well).take(most as usize).collect();
    if chosen.iter().all(|iod| of(*iod).prepared) { Ok(chosen) } else { Err(Unplaced::Later) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UP: Candidate = Candidate { up: true, awaited: false, prepared: true, failing: false, avoided: false };
    const DOWN: Candidate = Candidate { up: false, ..UP };
    const AWAITED: Candidate = Candidate { awaited: true, prepared: false, ..DOWN };
    const EMPTY: Candidate = Candidate { prepared: false, ..UP };
    const AVOIDED: Candidate = Candidate { avoided: true, ..UP };

    const STUCK: Candidate = Candidate { failing: true, ..EMPTY };

    /// Returns the servers, or the reason why there are none. `None` stands for `Later`.
    fn placed(candidates: &[Candidate], created: u64, wanted: u32) -> Result<Vec<u32>, Option<ErrorCode>> {
        let wanted = if wanted == 0 { Wanted::All } else { Wanted::Exactly(wanted) };
        outcome(candidates, created, wanted)
    }

    fn outcome(candidates: &[Candidate], created: u64, wanted: Wanted) -> Result<Vec<u32>, Option<ErrorCode>> {
        place(candidates, created, wanted, false).map_err(|unplaced| match unplaced {
            Unplaced::Later => None,
            Unplaced::Refused(error) => Some(error.code),
            Unplaced::Failing(_) => Some(ErrorCode::NoSpace),
        })
    }

    #[test]
    fn a_server_that_cannot_create_datafiles_is_left_out() {
        assert_eq!(placed(&[UP, STUCK, UP], 0, 0), Ok(vec![0, 2]));
        assert_eq!(placed(&[UP, Candidate { prepared: true, ..STUCK }], 0, 0), Ok(vec![0, 1]), "it has some left");
        assert_eq!(placed(&[STUCK, UP], 0, 1), Ok(vec![1]));
        assert_eq!(placed(&[STUCK, UP], 0, 2), Err(Some(ErrorCode::NoSpace)));
        assert_eq!(placed(&[STUCK; 2], 0, 0), Err(Some(ErrorCode::NoSpace)));
    }

    #[test]
    fn the_first_server_rotates() {
        assert_eq!(placed(&[UP; 3], 0, 0), Ok(vec![0, 1, 2]));
        assert_eq!(placed(&[UP; 3], 4, 0), Ok(vec![1, 2, 0]));
        assert_eq!(placed(&[UP; 3], 5, 2), Ok(vec![2, 0]));
    }

    #[test]
    fn servers_that_are_down_are_avoided_unless_the_number_was_asked_for() {
        let one_down = [UP, DOWN, UP];
        assert_eq!(placed(&one_down, 0, 0), Ok(vec![0, 2]));
        assert_eq!(placed(&one_down, 1, 2), Ok(vec![2, 0]));
        assert_eq!(placed(&one_down, 0, 3), Ok(vec![0, 1, 2]));
        let nothing_prepared = [UP, Candidate { prepared: false, ..DOWN }, UP];
        assert_eq!(placed(&nothing_prepared, 0, 3), Err(Some(ErrorCode::Unreachable)));
        assert_eq!(placed(&[DOWN; 3], 0, 0), Err(Some(ErrorCode::Unreachable)));
        assert_eq!(placed(&[UP; 3], 0, 4), Err(Some(ErrorCode::Invalid)));
        assert_eq!(placed(&[UP, AVOIDED], 0, 0), Ok(vec![0]));
        assert_eq!(placed(&[AVOIDED, UP], 0, 1), Ok(vec![1]));
        assert_eq!(placed(&[AVOIDED, DOWN], 0, 0), Ok(vec![0]), "the client may be wrong");
    }

    #[test]
    fn a_number_that_was_taken_over_is_met_as_far_as_servers_are_up() {
        assert_eq!(outcome(&[UP; 3], 1, Wanted::AtMost(2)), Ok(vec![1, 2]));
        assert_eq!(outcome(&[UP, DOWN, AVOIDED, UP], 0, Wanted::AtMost(4)), Ok(vec![0, 3]));
        assert_eq!(outcome(&[UP, UP], 0, Wanted::AtMost(7)), Ok(vec![0, 1]), "the cluster has fewer");
    }

    #[test]
    fn a_small_file_needs_one_datafile() {
        let small = |candidates: &[Candidate], created| place(candidates, created, Wanted::All, true).ok();
        assert_eq!(small(&[UP; 3], 1), Some(vec![1, 2, 0]));
        assert_eq!(small(&[UP, EMPTY, UP], 1), Some(vec![2, 0, 1]), "the first one that has a datafile");
        assert_eq!(small(&[EMPTY, AWAITED], 0), None);
        let further = |candidates: &[Candidate], first, most| place_further(candidates, first, most).ok();
        assert_eq!(further(&[UP; 4], 2, 3), Some(vec![3, 0, 1]));
        assert_eq!(further(&[UP; 4], 2, 1), Some(vec![3]), "as many as were planned");
        assert_eq!(further(&[DOWN, UP, AVOIDED, STUCK], 1, 3), Some(vec![]), "no other one can be used");
        assert_eq!(further(&[UP, EMPTY], 0, 1), None, "it will have datafiles soon");
        assert_eq!(further(&[UP], 0, 1), Some(vec![]));
    }

    #[test]
    fn servers_that_will_be_ready_soon_are_waited_for() {
        assert_eq!(placed(&[UP, AWAITED], 0, 0), Err(None));
        assert_eq!(placed(&[UP, EMPTY], 0, 0), Err(None));
        assert_eq!(placed(&[UP, EMPTY], 0, 2), Err(None));
        assert_eq!(placed(&[EMPTY, DOWN], 0, 0), Err(None));
    }
}
