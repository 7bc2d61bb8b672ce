//! What a client and a server write in front of requests and replies.
//!
//! **Layout.** All integers are little-endian. A request is the request of a call of the library
//! (`docs/design/protocol.md`, section 10), and begins with 24 bytes:
//!
//! | offset | field | |
//! |---|---|---|
//! | 0 | version u8 | [`VERSION`] |
//! | 1 | kind u8 | see below |
//! | 2 | traced u8 | 1 if the last 24 bytes of the request are a trace |
//! | 3 | trace flags u8 | those of W3C's Trace Context; 0 without a trace |
//! | 4 | stream u32 | number of the stream; 0 without one |
//! | 8 | time u64 | µs until the client's deadline |
//! | 16 | number u64 | see below |
//!
//! A trace is the id of the trace (u128) and the id of the client's span (u64).
//!
//! | kind | | number |
//! |---|---|---|
//! | 1 call | for the handler | the longest data that it takes |
//! | 2 fetch | asks for the data of a reply that was too long for the memory of the call | of the data |
//! | 3 ping | asks whether the server is there | 0 |
//! | 4 open | a call for the handler that moves parts, in a stream | the longest part or data that it takes |
//! | 5 part | brings a part: the call's data. It is answered when the handler has taken it | of the part in its stream, from 0 |
//! | 6 demand | asks for a part. It is answered with the handler's next | of the demand in its stream, from 0 |
//! | 7 end | no more parts come | of all parts that were sent |
//! | 8 close | the client has dropped the call | 0 |
//! | 9 finish | no more parts come, and none is taken | of all parts that were sent |
//!
//! The client numbers its streams, from 1 on for each address. A part or a demand that is not
//! answered has come when the call was over. The answer to the *open* says how it ended.
//!
//! A reply begins with 24 bytes. The reply's bytes follow, or the text of an error:
//!
//! | offset | field | |
//! |---|---|---|
//! | 0 | version u8 | |
//! | 1 | status u8 | 0, or the kind of the error ([`KINDS`]) |
//! | 2 | place u8 | where the data is: 0 behind the reply's bytes, 1 in the memory of the call, 2 to be fetched |
//! | 3 | not begun u8 | 1 if the handler has not begun, so that the call may be made again |
//! | 4 | length u32 | of the reply's bytes |
//! | 8 | data u64 | length of the data |
//! | 16 | number u64 | names the data that is to be fetched |

use std::ops::Range;

use super::Trace;
use crate::{Error, ErrorKind};

/// The version of this layout.
const VERSION: u8 = 2;
/// Length of what is in front of a request, in bytes.
pub(super) const REQUEST_HEAD: usize = 24;
/// Length of a trace behind a request, in bytes.
const TRACE: usize = 24;
/// Length of what is in front of a reply, in bytes.
pub(super) const REPLY_HEAD: usize = 24;

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// A call for the handler, which takes so many bytes of data at most.
    Call { max_reply: u64 },
    /// Asks for the data of a reply that was too long for the call's memory.
    Fetch { number: u64 },
    /// Asks whether the server is there.
    Ping,
    /// Something of a stream.
    Stream { stream: u32, event: StreamEvent },
}

/// What happens to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEvent {
    /// It begins, as a call for the handler, which takes so many bytes in a part at most.
    Open { max_reply: u64 },
    /// Brings a part.
    Part { turn: u64 },
    /// Asks for a part.
    Demand { turn: u64 },
    /// There were so many parts, and no more come. The client takes further ones, or it does not.
    End { parts: u64, takes: bool },
    /// The client has dropped the call.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestHead {
    pub(super) kind: RequestKind,
    /// Time until the client's deadline, in µs.
    pub(super) time_us: u64,
    pub(super) trace: Option<Trace>,
}

impl RequestHead {
    /// Encodes the head. Behind the request there must be the trace, if there is one
    /// ([`append_trace`]).
    pub(super) fn encode(self) -> [u8; REQUEST_HEAD] {
        use StreamEvent::{Close, Demand, End, Open, Part};
        let (kind, stream, number) = match self.kind {
            RequestKind::Call { max_reply } => (1, 0, max_reply),
            RequestKind::Fetch { number } => (2, 0, number),
            RequestKind::Ping => (3, 0, 0),
            RequestKind::Stream { stream, event } => match event {
                Open { max_reply } => (4, stream, max_reply),
                Part { turn } => (5, stream, turn),
                Demand { turn } => (6, stream, turn),
                End { parts, takes: true } => (7, stream, parts),
                End { parts, takes: false } => (9, stream, parts),
                Close => (8, stream, 0),
            },
        };
        let mut wire = [0; REQUEST_HEAD];
        let flags = self.trace.map_or(0, |trace| trace.flags);
        wire[..4].copy_from_slice(&[VERSION, kind, self.trace.is_some().into(), flags]);
        wire[4..8].copy_from_slice(&u32::to_le_bytes(stream));
        wire[8..16].copy_from_slice(&self.time_us.to_le_bytes());
        wire[16..].copy_from_slice(&number.to_le_bytes());
        wire
    }

    /// Decodes the head of a request. Returns it with the place of the program's bytes; `None` if
    /// no client of this version has made it.
    pub(super) fn decode(wire: &[u8]) -> Option<(RequestHead, Range<usize>)> {
        use StreamEvent::{Close, Demand, End, Open, Part};
        let (head, rest) = wire.split_first_chunk::<REQUEST_HEAD>()?;
        let stream = u32::from_le_bytes(head[4..8].try_into().expect("four bytes"));
        let number = u64_at(head, 16);
        let of_stream = |event| RequestKind::Stream { stream, event };
        let kind = match (head[1], stream) {
            (1, 0) => RequestKind::Call { max_reply: number },
            (2, 0) => RequestKind::Fetch { number },
            (3, 0) if number == 0 => RequestKind::Ping,
            (4, 1..) => of_stream(Open { max_reply: number }),
            (5, 1..) => of_stream(Part { turn: number }),
            (6, 1..) => of_stream(Demand { turn: number }),
            (7 | 9, 1..) => of_stream(End { parts: number, takes: head[1] == 7 }),
            (8, 1..) if number == 0 => of_stream(Close),
            _ => return None,
        };
        let (trace, end) = match (head[2], head[3], rest.last_chunk::<TRACE>()) {
            (0, 0, _) => (None, wire.len()),
            (1, flags, Some(trace)) => {
                let (id, span) = trace.split_first_chunk().expect("it is longer");
                let trace = Trace { id: u128::from_le_bytes(*id), span: u64_at(span, 0), flags };
                if trace.id == 0 || trace.span == 0 {
                    return None;
                }
                (Some(trace), wire.len() - TRACE)
            }
            _ => return None,
        };
        let head = (head[0] == VERSION).then_some(RequestHead { kind, time_us: u64_at(head, 8), trace })?;
        Some((head, REQUEST_HEAD..end))
    }
}

/// Appends a trace to a request.
pub(super) fn append_trace(trace: Option<Trace>, request: &mut Vec<u8>) {
    if let Some(Trace { id, span, .. }) = trace {
        request.extend_from_slice(&id.to_le_bytes());
        request.extend_from_slice(&span.to_le_bytes());
    }
}

/// Where the data of a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Behind the reply's bytes.
    Behind,
    /// In the memory of the call.
    InMemory,
    /// At the server, under this number.
    Kept { number: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyHead {
    /// `None` for a reply of the handler, or the kind of the error.
    pub(super) error: Option<ErrorKind>,
    /// The handler has not begun.
    pub(super) not_begun: bool,
    pub(super) place: Place,
    /// Length of the reply's bytes.
    pub(super) len: u32,
    /// Length of the data.
    pub(super) data: u64,
}

impl ReplyHead {
    pub(super) fn encode(self) -> [u8; REPLY_HEAD] {
        let (place, number) = match self.place {
            Place::Behind => (0, 0),
            Place::InMemory => (1, 0),
            Place::Kept { number } => (2, number),
        };
        let mut wire = [0; REPLY_HEAD];
        let not_begun = self.not_begun.into();
        wire[..4].copy_from_slice(&[VERSION, self.error.map_or(0, code_of), place, not_begun]);
        wire[4..8].copy_from_slice(&self.len.to_le_bytes());
        wire[8..16].copy_from_slice(&self.data.to_le_bytes());
        wire[16..].copy_from_slice(&number.to_le_bytes());
        wire
    }

    /// Decodes the beginning of a reply.
    ///
    /// # Errors
    /// `Protocol` if no server of this version has made it.
    pub(super) fn decode(wire: &[u8]) -> Result<ReplyHead, Error> {
        let invalid = |what: &str| Error::new(ErrorKind::Protocol, format!("a reply {what}"));
        let Some(head) = wire.first_chunk::<REPLY_HEAD>() else {
            return Err(invalid("that no bmi::Server has made"));
        };
        let [version, status, place, not_begun, ..] = *head;
        if version != VERSION {
            return Err(invalid(&format!("of version {version}, and this side knows {VERSION}")));
        }
        let place = match place {
            0 => Place::Behind,
            1 => Place::InMemory,
            2 => Place::Kept { number: u64_at(head, 16) },
            _ => return Err(invalid("with data in an unknown place")),
        };
        let len = u32::from_le_bytes(head[4..8].try_into().expect("four bytes"));
        let (error, not_begun) = (kind_of(status), not_begun != 0);
        let head = ReplyHead { error, not_begun, place, len, data: u64_at(head, 8) };
        let behind = (wire.len() - REPLY_HEAD) as u64;
        let carried = if place == Place::Behind { head.data } else { 0 };
        if u64::from(len).checked_add(carried) != Some(behind) {
            return Err(invalid("that contradicts its length"));
        }
        Ok(head)
    }
}

/// The kinds of errors on the wire. The code of a kind is its place here, from 1.
const KINDS: [ErrorKind; 15] = [
    ErrorKind::Invalid,
    ErrorKind::Unsupported,
    ErrorKind::Incompatible,
    ErrorKind::Refused,
    ErrorKind::PeerLost,
    ErrorKind::TimedOut,
    ErrorKind::Cancelled,
    ErrorKind::TooLarge,
    ErrorKind::Exhausted,
    ErrorKind::Protocol,
    ErrorKind::Io,
    ErrorKind::Abandoned,
    ErrorKind::Busy,
    ErrorKind::Denied,
    // For kinds of later versions.
    ErrorKind::Io,
];

/// Returns the code of a kind of errors on the wire.
pub(crate) fn code_of(kind: ErrorKind) -> u8 {
    let at = KINDS.iter().position(|known| *known == kind).unwrap_or(KINDS.len() - 1);
    at as u8 + 1
}

/// Returns the kind of errors that a code means. 0 means none.
pub(crate) fn kind_of(code: u8) -> Option<ErrorKind> {
    let at = usize::from(code.checked_sub(1)?);
    Some(*KINDS.get(at).unwrap_or(&ErrorKind::Io))
}

fn u64_at(wire: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(wire[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_survived_and_heads_come_back(
            (first, bytes) in (any::<[u8; 4]>(), proptest::collection::vec(any::<u8>(), 0..80)),
        ) {
            // Most of them begin as requests do.
            let [version, kind, traced, stream] = first;
            let version = if version < 0xe0 { VERSION } else { version };
            let stream = if stream < 0x80 { 0 } else { stream };
            let bytes = [&[version, kind % 10, traced % 3, 0, stream, 0, 0, 0], &bytes[..]].concat();
            if let Some((head, request)) = RequestHead::decode(&bytes) {
                let mut again = [&head.encode()[..], &bytes[request]].concat();
                append_trace(head.trace, &mut again);
                prop_assert_eq!(again, &bytes[..]);
            }
            if let Ok(head) = ReplyHead::decode(&bytes) {
                let again = [&head.encode()[..], &bytes[REPLY_HEAD..]].concat();
                prop_assert_eq!(ReplyHead::decode(&again).expect("its own encoding"), head);
            }
        }
    }

    #[test]
    fn every_kind_has_a_code() {
        for kind in KINDS {
            assert_eq!(kind_of(code_of(kind)), Some(kind));
        }
        assert_eq!((kind_of(0), kind_of(200)), (None, Some(ErrorKind::Io)));
    }

    #[test]
    fn a_reply_is_as_long_as_it_says() {
        let head = ReplyHead { error: None, not_begun: false, place: Place::Behind, len: 2, data: u64::MAX };
        let wire = [&head.encode()[..], b"ok"].concat();
        assert_eq!(ReplyHead::decode(&wire).unwrap_err().kind(), ErrorKind::Protocol);
        let head = ReplyHead { data: 3, ..head };
        assert_eq!(ReplyHead::decode(&[&head.encode()[..], b"okabc"].concat()).unwrap(), head);
    }
}
