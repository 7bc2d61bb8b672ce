//! What each member tells the others at the beginning of an operation, and at its end.

use std::ops::Range;

use bmi::group::Lane;
use bmi::paths::Direction;
use bmi::threading::Threading;
use bmi::{MemList, Memory};
use fs_proto::{ErrorCode, FileView};
use serde::{Deserialize, Serialize};

use super::CollectiveOptions;
use super::error::CollectiveError;
use super::member::Member;
use crate::error::Error;

/// Longest view that is in a proposal, in bytes. Longer ones are sent to all afterwards.
const SHORT: usize = 4 << 10;
/// Most bytes of all long views. A member has them in memory.
const LONGEST: u64 = 64 << 20;
/// Most bytes of the text of an error.
const TEXT: usize = 1024;

/// What one member wants.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Proposal {
    is_write: bool,
    is_atomic: bool,
    /// The file.
    handle: u64,
    /// Most bytes of a window.
    window: u64,
    options: CollectiveOptions,
    /// The range of the stream.
    stream: (u64, u64),
    /// The view, or its length if it is long.
    view: Result<FileView, u32>,
    /// Why this member cannot.
    refused: Option<(ErrorCode, String)>,
}

impl Proposal {
    pub(super) fn new(
        (direction, is_atomic): (Direction, bool),
        (handle, window): (u64, u64),
        options: &CollectiveOptions,
        (view, stream): (&FileView, &Result<Range<u64>, Error>),
    ) -> Proposal {
        let len = view.encoded_len();
        let refused = stream.as_ref().err().map(told);
        let stream = stream.as_ref().map_or((0, 0), |stream| (stream.start, stream.end));
        Proposal {
            is_write: direction == Direction::Write,
            is_atomic,
            handle,
            window,
            options: options.clone(),
            stream,
            view: if len <= SHORT { Ok(view.clone()) } else { Err(u32::try_from(len).unwrap_or(u32::MAX)) },
            refused,
        }
    }

    fn is_long(&self) -> bool {
        self.view.is_err()
    }
}

/// What all want.
pub(super) struct Agreed {
    pub(super) members: Vec<Member>,
    /// Most bytes of a window.
    pub(super) window: u64,
    /// True if a view is too long for a request.
    pub(super) is_long: bool,
}

/// Tells the others what this member wants, and returns what all want.
///
/// # Errors
/// An error that names a member that cannot do it, or wants something else.
pub(super) async fn agree<S: Threading>(
    lane: &Lane<S>,
    own: &Proposal,
    view: &FileView,
) -> Result<Agreed, CollectiveError> {
    let values = lane.all_gather(&encoded(own)).await?;
    let member =
        |rank: usize, code, text: &str| CollectiveError::Member { rank: rank as u32, code, detail: text.into() };
    let bad = |rank| member(rank, ErrorCode::Protocol, "a proposal that is none");
    let decoded_of = |(rank, value): (usize, &[u8])| decoded::<Proposal>(value).ok_or_else(|| bad(rank));
    let values = values.iter().map(AsRef::as_ref).enumerate();
    let mut proposals = values.map(decoded_of).collect::<Result<Vec<_>, _>>()?;
    let mut all = 0;
    // All find the same, so that nobody waits for another.
    for (rank, proposal) in proposals.iter().enumerate() {
        let first = &proposals[0];
        let what = |proposal: &Proposal| (proposal.is_write, proposal.is_atomic, proposal.handle);
        let differs = (what(proposal), &proposal.options) != (what(first), &first.options);
        if differs {
            return Err(member(rank, ErrorCode::Invalid, "another operation, file or options than rank 0"));
        }
        if let Some((code, text)) = &proposal.refused {
            return Err(member(rank, *code, text));
        }
        all += proposal.view.as_ref().err().map_or(0, |len| u64::from(*len));
        if all > LONGEST {
            return Err(member(rank, ErrorCode::TooLarge, "views that are too long together"));
        }
    }
    let window = proposals.iter().map(|proposal| proposal.window).min().unwrap_or(0).max(1);
    let is_long = proposals.iter().any(Proposal::is_long);
    if is_long {
        let long = |proposal: &Proposal| proposal.view.as_ref().err().map_or(0, |len| *len as usize);
        let ours = match own.is_long() {
            true => MemList::from(encoded(view)),
            false => MemList::default(),
        };
        let parts = proposals.iter().map(|_| ours.clone()).collect();
        let into: Vec<Memory> = proposals.iter().map(|proposal| Memory::from(vec![0; long(proposal)])).collect();
        lane.exchange(parts, into.iter().map(MemList::from).collect()).await?;
        for (rank, (proposal, view)) in proposals.iter_mut().zip(&into).enumerate() {
            if proposal.is_long() {
                proposal.view = Ok(decoded(&view.to_vec()).ok_or_else(|| bad(rank))?);
            }
        }
    }
    let mut members = Vec::with_capacity(proposals.len());
    for (rank, proposal) in proposals.iter_mut().enumerate() {
        let (start, end) = proposal.stream;
        let view = std::mem::replace(&mut proposal.view, Err(0)).map_err(|_| bad(rank))?;
        let len = end.checked_sub(start).ok_or_else(|| bad(rank))?;
        view.cursor(start, len).map_err(|error| member(rank, error.code, &error.detail))?;
        members.push(Member { view, stream: start..end });
    }
    Ok(Agreed { members, window, is_long })
}

/// What became of one member's part.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Outcome {
    /// Why it failed.
    failed: Option<(ErrorCode, String)>,
    /// The size of the file, if what the member read reached beyond it.
    size: Option<u64>,
}

/// Tells the others how it went here. Returns the size of the file, if a member saw its end.
pub(super) async fn conclude<S: Threading>(
    lane: &Lane<S>,
    own: Result<Option<u64>, Error>,
) -> Result<Option<u64>, CollectiveError> {
    let outcome = match &own {
        Ok(size) => Outcome { failed: None, size: *size },
        Err(error) => Outcome { failed: Some(told(error)), size: None },
    };
    let values = lane.all_gather(&encoded(&outcome)).await?;
    own?;
    let mut size = None;
    for (rank, value) in values.iter().enumerate() {
        let member = |code, detail| CollectiveError::Member { rank: rank as u32, code, detail };
        let outcome: Outcome =
            decoded(value).ok_or_else(|| member(ErrorCode::Protocol, "an outcome that is none".into()))?;
        if let Some((code, detail)) = outcome.failed {
            return Err(member(code, detail));
        }
        size = outcome.size.into_iter().chain(size).min();
    }
    Ok(size)
}

/// Returns what the others are told of an error.
fn told(error: &Error) -> (ErrorCode, String) {
    let mut text = error.to_string();
    text.truncate(text.floor_char_boundary(TEXT));
    (error.code(), text)
}

fn encoded(value: &impl Serialize) -> Vec<u8> {
    postcard::to_extend(value, Vec::new()).expect("a vector has room")
}

fn decoded<'a, V: Deserialize<'a>>(bytes: &'a [u8]) -> Option<V> {
    postcard::take_from_bytes(bytes).ok().filter(|(_, rest)| rest.is_empty()).map(|(value, _)| value)
}
