//! A short text for a message, for tools that show what was sent.
//!
//! The simulator uses it when it reports a failed test.

use super::header::{FinishStatus, HEADER_LEN, Header, Kind};

/// Describes the message between two endpoints that begins with `head` and has `len` bytes.
///
/// The text names the kind of the message and its tag, such as `Unexpected, tag 7`. Only the header
/// is read, so `head` may be shorter than the message. Returns `None` if `head` does not begin with
/// the header of such a message.
pub fn describe_message(head: &[u8], len: u64) -> Option<String> {
    let wire = head.first_chunk::<HEADER_LEN>()?;
    let payload_len = usize::try_from(len).ok()?.checked_sub(HEADER_LEN)?;
    let Header { kind, returned, tag, len, op } = Header::decode_head(wire, payload_len).ok()?;
    let (tag_text, op_text) = (number(tag), number(op));
    Some(match kind {
        Kind::Eager | Kind::Unexpected => format!("{kind:?}, tag {tag_text}"),
        Kind::Announce => format!("{kind:?}, tag {tag_text}, {len} bytes, operation {op_text}"),
        Kind::Ready => format!("{kind:?}, tag {tag_text}, operation {op_text}"),
        Kind::Finish => match FinishStatus::from_wire(tag) {
            Some(status) => format!("{kind:?}, {status:?}, {len} bytes, operation {op_text}"),
            None => format!("{kind:?}, status {tag_text}, {len} bytes, operation {op_text}"),
        },
        Kind::Credit => format!("{kind:?}, {} messages, {} bytes", returned.messages, returned.bytes),
        Kind::Written | Kind::ClearToWrite => format!("{kind:?}, {len} bytes, operation {op_text}"),
        Kind::Cancel | Kind::Withdraw | Kind::Withdrawn => format!("{kind:?}, operation {op_text}"),
        Kind::FastSlots => format!("{kind:?}, {op} of {len} bytes"),
        Kind::GoAway => "GoAway".to_owned(),
        Kind::Probe => format!("{kind:?}, purpose {op_text}"),
    })
}

/// Formats a tag or the name of an operation. Large numbers are put together from parts, so they
/// are easier to read in hexadecimal.
fn number(value: u64) -> String {
    if value < 1_000_000 { value.to_string() } else { format!("{value:#x}") }
}

#[cfg(test)]
mod tests {
    use super::super::header::Returned;
    use super::*;

    fn head(kind: Kind, tag: u64, len: u64, op: u64) -> [u8; HEADER_LEN] {
        Header { kind, returned: Returned { messages: 2, bytes: 64, ..Returned::default() }, tag, len, op }.encode()
    }

    #[test]
    fn messages_have_a_kind_and_a_tag() {
        let eager = head(Kind::Eager, 7, 16, 0);
        assert_eq!(describe_message(&eager, 48).unwrap(), "Eager, tag 7");
        let announce = head(Kind::Announce, 0x1_0000_0007, 300_000, 3);
        assert_eq!(describe_message(&announce, 56).unwrap(), "Announce, tag 0x100000007, 300000 bytes, operation 3");
        let finish = head(Kind::Finish, FinishStatus::TooLong as u64, 0, 3);
        assert_eq!(describe_message(&finish, 32).unwrap(), "Finish, TooLong, 0 bytes, operation 3");
        assert_eq!(describe_message(&head(Kind::Credit, 0, 0, 0), 32).unwrap(), "Credit, 2 messages, 64 bytes");
    }

    #[test]
    fn other_bytes_have_no_description() {
        assert_eq!(describe_message(b"hello", 5), None);
        assert_eq!(describe_message(&[0; 40], 40), None);
        assert_eq!(describe_message(&head(Kind::Eager, 7, 16, 0), 47), None, "the length contradicts the header");
        assert_eq!(describe_message(&head(Kind::Eager, 7, 16, 0), 31), None);
    }
}
