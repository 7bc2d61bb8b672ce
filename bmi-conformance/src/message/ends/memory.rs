//! When an operation's completion is delivered, its memory is back. No further poll is needed.

use bmi_core::{Access, Config, Memory};
use futures_util::future::join;

use crate::data::{is_sole, memory, pattern};
use crate::message::{reads, tight};
use crate::net::Net;

/// Lengths in bytes: work that may be done while it is posted, one unit, and several units.
const SIZES: [usize; 4] = [1, 4 << 10, 100_000, 1 << 20];

/// Operations of each kind and length. The later ones find memory mapped and connections at work.
const ROUNDS: u64 = 3;

/// Returns memory of each kind that contains this pattern: in shareable pages, and in pages of this
/// process alone.
fn of_each_kind(seed: u64, len: usize) -> [Memory; 2] {
    let kinds = [memory(len), Memory::zeroed(len).expect("memory")];
    kinds.iter().for_each(|memory| memory.copy_from(0, &pattern(seed, len)));
    kinds
}

/// A pull or push has given its memory back when it ends, whatever its length.
pub async fn back_when_a_transfer_ends(net: &Net<'_>) {
    for config in [Config::default(), tight()] {
        let pair = net.pair(&config).await;
        for (size, round) in SIZES.into_iter().flat_map(|size| (0..ROUNDS).map(move |round| (size, round))) {
            for (mut far, mut near) in of_each_kind(1, size).into_iter().zip(of_each_kind(2 + round, size)) {
                let what = format!("{size} bytes, round {round}");
                let exposure = pair.expose(&far, Access::READ_WRITE);
                if reads(net) {
                    let pulled = pair.pull(exposure.descriptor(), 0, &near).await;
                    assert_eq!(pulled.expect("pull").len, size as u64);
                    assert!(is_sole(&mut near), "a pull of {what} has ended and holds its memory");
                    assert!(near.to_vec() == pattern(1, size), "{what}: other bytes were pulled");
                    near.copy_from(0, &pattern(2 + round, size));
                }
                let pushed = pair.push(exposure.descriptor(), 0, &near).await;
                assert_eq!(pushed.expect("push").len, size as u64);
                assert!(is_sole(&mut near), "a push of {what} has ended and holds its memory");
                pair.ping(net, "behind the push").await;
                assert!(far.to_vec() == pattern(2 + round, size), "{what}: other bytes were pushed");
                drop(exposure);
                pair.settled(net, &what).await;
                net.released("the exposed memory", [&mut far]).await;
            }
        }
    }
}

/// A send or a receive has given its memory back when it ends, at both ends and whatever its
/// length.
pub async fn back_when_a_message_ends(net: &Net<'_>) {
    for config in [Config::default(), tight()] {
        let pair = net.pair(&config).await;
        for (size, round) in SIZES.into_iter().flat_map(|size| (0..ROUNDS).map(move |round| (size, round))) {
            for (mut source, mut target) in of_each_kind(3 + round, size).into_iter().zip(of_each_kind(1, size)) {
                let what = format!("{size} bytes, round {round}");
                let receive = async {
                    let received = pair.recv(1, &target).await;
                    assert_eq!(received.expect("receive").len, size as u64);
                    assert!(is_sole(&mut target), "a receive of {what} has ended and holds its memory");
                    assert!(target.to_vec() == pattern(3 + round, size), "{what}: other bytes arrived");
                };
                let send = async {
                    pair.send(1, &source).await.expect("send");
                    assert!(is_sole(&mut source), "a send of {what} has ended and holds its memory");
                };
                join(receive, send).await;
            }
        }
        pair.settled(net, "after all messages").await;
    }
}
