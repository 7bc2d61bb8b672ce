//! Bodies of the fuzz targets of this crate: the decoders of a peer's bytes.

/// What members of a group send each other.
pub fn group(bytes: &[u8]) {
    crate::group::fuzz(bytes);
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::replay::replay;

    #[test]
    fn corpora_are_replayed() {
        replay("group", super::group);
    }
}
