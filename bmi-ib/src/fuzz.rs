//! The body of the fuzz target of this crate: a message of the side channel.
//!
//! The program in `fuzz/` calls it with the fuzzer's bytes, the test below with the committed
//! corpus (`fuzz/corpus/ib_message`). The body panics if the decoder breaks one of its rules.

use bmi_core::transport::MAX_PRIVATE_DATA;

use crate::greeting::{MESSAGE, Message};

/// A message of the side channel.
///
/// What decodes comes back from its encoding. A prefix of it is neither refused nor taken for a
/// whole message, and bytes behind it do not change it. Numbers have as many bits as the adapter
/// takes.
pub fn message(bytes: &[u8]) {
    let Ok(Some((message, private))) = Message::decode(bytes) else { return };
    assert!(bytes.len() >= MESSAGE && private <= MAX_PRIVATE_DATA);
    assert_eq!(Message::decode(&message.encode(private)), Ok(Some((message, private))));
    assert_eq!(Message::decode(&bytes[..MESSAGE]), Ok(Some((message, private))));
    (0..MESSAGE).for_each(|len| assert_eq!(Message::decode(&bytes[..len]), Ok(None)));
    if let Message::Connect(port) | Message::Accept(port) = message {
        assert!(port.queue_pair < 1 << 24 && port.first_packet < 1 << 24 && (1..=5).contains(&port.mtu));
    }
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn corpora_are_replayed() {
        replay("ib_message", super::message);
    }
}
