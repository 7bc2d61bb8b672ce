//! Which part of the suite runs over which configuration of which backend.
//!
//! **Why.** Each behaviour over each configuration would be half of all tests of the project, and
//! most of them would show once more what `bmi-core` does without the adapter. `BMI_FULL=1`, and
//! `cargo xtask test --full`, run them all the same.
//!
//! **Rules** (`the_rules_are_kept`)
//! 1. The contract itself, level `transport`, is tested over every configuration.
//! 2. Each part runs in the simulator and over a real backend that a machine without special
//!    devices has, with the defaults.
//! 3. Over small limits and over faults, each part runs in the simulator.
//! 4. Whatever a configuration changes runs over it:
//!
//! | configuration | what it changes |
//! |---|---|
//! | no RDMA read (`writes_only`) | long messages are written by their sender, pulls are refused |
//! | inline receives | short messages, and whatever may overtake them |
//! | small limits (`scarce`) over a real adapter | messages in pieces, full queues: what moves many bytes |
//! | several streams (`streams`) over TCP | the ways of bulk data, and its order: what moves bytes one-sidedly |
//! | TLS (`secure`, and `secure_streams` with small limits and keys that change) over TCP | beginnings and ends, and whatever moves bytes |
//! | faults (`troubled`) over a real adapter | the order of events: the properties |
//! | `by_kernel` and `changing` over shared memory | who copies: what moves bytes one-sidedly |
//! | verbs | queue pairs, registration, real RDMA: whatever is not a short message |

/// The columns: backend, and configuration. A letter stands for each in [`ROWS`].
const COLUMNS: [(&str, &str); 20] = [
    ("sim", "plain"),
    ("sim", "scarce"),
    ("sim", "writes_only"),
    ("sim", "inline_receives"),
    ("sim", "troubled"),
    ("sim", "troubled_inline_receives"),
    ("tcp", "plain"),
    ("tcp", "scarce"),
    ("tcp", "streams"),
    ("tcp", "secure"),
    ("tcp", "secure_streams"),
    ("tcp", "troubled"),
    ("shm", "plain"),
    ("shm", "by_kernel"),
    ("shm", "scarce"),
    ("shm", "changing"),
    ("shm", "troubled"),
    ("ib", "plain"),
    ("ib", "scarce"),
    ("ib", "troubled"),
];

/// For each part, an `x` in the columns in which it runs.
#[rustfmt::skip]
const ROWS: [(&str, &str); 27] = [
    //                             sim     tcp     shm    ib
    //                             pswiti  psneet  pkcst  pst
    ("transport::connect",        "xxxxxx  xxxxxx  xxxxx  xxx"),
    ("transport::channel",        "xxxxxx  xxxxxx  xxxxx  xxx"),
    ("transport::inline_receive", "xxxxxx  xxxxxx  xxxxx  xxx"),
    ("transport::remote",         "xxxxxx  xxxxxx  xxxxx  xxx"),
    ("transport::immediate_access", "xxxxxx  xxxxxx  xxxxx  xxx"),
    ("transport::end",            "xxxxxx  xxxxxx  xxxxx  xxx"),
    ("transport::waiting",        "xxxxxx  xxxxxx  xxxxx  xxx"),
    ("transport::shards",         "xxxxxx  xxxxxx  xxxxx  xxx"),
    ("message::expected",         "xxxxxx  xx.xx.  xxx..  xx."),
    ("message::unexpected",       "xx.xx.  xx....  x....  ..."),
    ("message::credits",          "xx.xxx  x.....  x.x..  ..."),
    ("message::deadlines",        "xxx.x.  x.....  x....  ..."),
    ("message::offered_receive",  "xx.xx.  x.....  x....  x.."),
    ("message::cancel",           "xxxxx.  x.....  x....  ..."),
    ("message::polling",          "xx.xx.  x.....  x....  ..."),
    ("message::bulk",             "xxx.x.  xxxxx.  xxxx.  xx."),
    ("message::immediate",        "xx..x.  x.x...  xx.x.  x.."),
    ("message::fast",             "xx..x.  xxxxx.  xxx..  x.."),
    ("message::calls",            "xxx.x.  xxxx..  xxxx.  xx."),
    ("message::late",             "xxxxx.  x.....  x....  ..."),
    ("message::peers",            "xxxxx.  xx.x..  x....  x.."),
    ("message::identity",         "xx..x.  x..x..  x....  x.."),
    ("message::hostile",          "xxxxxx  x..x..  x....  x.."),
    ("message::memory",           "xxx.x.  x...x.  xx.x.  x.."),
    ("message::recycled",         "xxx.x.  x...x.  xx.x.  x.."),
    ("message::property",         "xxxxxx  xxxxxx  xxxxx  xxx"),
    ("message::rough",            "xxxxxx  xxx.xx  x.x.x  ..x"),
];

/// Returns the parts that have a row.
#[cfg(test)]
pub(super) fn rows() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|(part, _)| *part)
}

/// Returns whether a part runs over a configuration. One that has no column runs everything, such
/// as those of a backend outside of this project.
pub(super) fn has(backend: &str, configuration: &str, part: &str) -> bool {
    let Some(column) = COLUMNS.iter().position(|column| *column == (backend, configuration)) else { return true };
    let row = ROWS.iter().find(|row| row.0 == part);
    row.is_none_or(|(_, marks)| marks.bytes().filter(|mark| *mark != b' ').nth(column) == Some(b'x'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_are_kept() {
        for (part, marks) in ROWS {
            assert_eq!(marks.bytes().filter(|mark| matches!(mark, b'x' | b'.')).count(), COLUMNS.len(), "{part}");
            let has = |backend, configuration| has(backend, configuration, part);
            if part.starts_with("transport::") {
                assert!(COLUMNS.iter().all(|(backend, configuration)| has(backend, configuration)), "{part}");
            }
            for configuration in ["plain", "scarce", "troubled"] {
                assert!(has("sim", configuration), "{part} over sim, {configuration}");
            }
            assert!(has("tcp", "plain") && has("shm", "plain"), "{part}");
        }
        assert!(has("another", "plain", "message::credits"));
    }
}
