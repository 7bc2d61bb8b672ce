//! What a client knows about a file that it has open.

/// What a client knows about a file that it has open.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OpenState {
    /// Number of [`File`](crate::File)s.
    pub(super) open: usize,
    /// The size that is recorded at the manager, as far as this client knows. It may have been
    /// withdrawn. `None` is certain: no size is recorded, and a write need not withdraw one.
    pub(super) recorded_size: Option<u64>,
    /// Number of times that a size was noted here. An answer of the manager to an earlier question
    /// does not replace a size that was noted meanwhile, because the size may be recorded after the
    /// answer.
    pub(super) noted: u64,
}

impl OpenState {
    pub(super) fn note(&mut self, size: u64) {
        self.recorded_size = Some(size);
        self.noted += 1;
    }
}
