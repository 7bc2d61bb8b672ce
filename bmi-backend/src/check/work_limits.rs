//! The limits of one work request.

use bmi_core::transport::{Payload, PostError, WriteTarget};
use bmi_core::{Capabilities, RemoteSlice, Segment};

/// Returns the length of all `segments` together, in bytes.
#[inline]
pub fn total_len(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.len() as u64).sum()
}

/// The largest work request that a backend takes, as its [`Capabilities`] say.
///
/// **Why.** A request beyond a limit is refused before anything is queued or copied, and with the
/// same words by every backend. The limits of a software adapter are constants
/// ([`WORK_LIMITS`](crate::software::WORK_LIMITS)), so a check reads nothing.
///
/// **Invariant.** A request that passes its check can be refused only because a queue is full, the
/// connection does not take it, or its memory does not fit. Each check returns the length of the
/// request in bytes, head included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkLimits {
    /// Largest number of segments.
    pub max_segments: usize,
    /// Longest head, in bytes.
    pub max_head: usize,
    /// Longest inline send, head included, in bytes. A head alone has only the limit of heads.
    pub max_inline: usize,
    /// Longest request, in bytes.
    pub max_work_len: u64,
}

impl WorkLimits {
    /// Returns the limits that `capabilities` name.
    pub fn of(capabilities: &Capabilities) -> WorkLimits {
        let Capabilities { max_segments, max_head, max_inline, max_work_len, .. } = *capabilities;
        WorkLimits { max_segments, max_head, max_inline, max_work_len }
    }

    /// Checks a receive. Its length has no limit.
    ///
    /// # Errors
    /// `Invalid` for too many segments.
    #[inline]
    pub fn check_recv(&self, segments: &[Segment]) -> Result<(), PostError> {
        if segments.len() > self.max_segments {
            return Err(PostError::Invalid("more segments than max_segments"));
        }
        Ok(())
    }

    /// Checks a send.
    ///
    /// # Errors
    /// `Invalid` beyond a limit.
    #[inline]
    pub fn check_send(&self, head: &[u8], payload: Payload<'_>) -> Result<u64, PostError> {
        match payload {
            Payload::Inline(slices) => {
                let len = head.len() + slices.iter().map(|slice| slice.len()).sum::<usize>();
                if len > self.max_inline && len > head.len() {
                    return Err(PostError::Invalid("head and payload are longer than max_inline"));
                }
                self.check_len(head, len as u64)
            }
            Payload::Gather(segments) => {
                self.check_recv(segments)?;
                self.check_len(head, head.len() as u64 + total_len(segments))
            }
        }
    }

    /// Checks a write.
    ///
    /// # Errors
    /// `Invalid` beyond a limit, or for more bytes than the target has.
    #[inline]
    pub fn check_write(&self, head: &[u8], segments: &[Segment], target: &WriteTarget) -> Result<u64, PostError> {
        self.check_recv(segments)?;
        let len = head.len() as u64 + total_len(segments);
        if len > target.remote.len {
            return Err(PostError::Invalid("more bytes than the target has"));
        }
        self.check_len(head, len)
    }

    /// Checks a read.
    ///
    /// # Errors
    /// `Invalid` beyond a limit, or for more bytes than the source has.
    #[inline]
    pub fn check_read(&self, segments: &[Segment], source: &RemoteSlice) -> Result<u64, PostError> {
        self.check_recv(segments)?;
        let len = total_len(segments);
        if len > source.len {
            return Err(PostError::Invalid("the segments hold more bytes than the source has"));
        }
        self.check_len(&[], len)
    }

    #[inline]
    fn check_len(&self, head: &[u8], len: u64) -> Result<u64, PostError> {
        if head.len() > self.max_head {
            return Err(PostError::Invalid("the head is longer than max_head"));
        }
        if len > self.max_work_len {
            return Err(PostError::Invalid("longer than max_work_len"));
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use bmi_core::{Memory, RemoteKey};

    use super::*;
    use crate::software::{self, WORK_LIMITS};
    use crate::{Limit, Regions};

    const LIMITS: WorkLimits = WorkLimits { max_segments: 2, max_head: 4, max_inline: 10, max_work_len: 100 };

    fn remote(len: u64) -> RemoteSlice {
        RemoteSlice { key: RemoteKey(1), addr: 0, len }
    }

    #[test]
    fn a_request_passes_up_to_each_limit_and_not_beyond() {
        let memory = Memory::zeroed(200).unwrap();
        let mut regions = Regions::new(Limit { max: 1, what: "regions", setting: None });
        let region = regions.register(&memory).unwrap();
        let list = |lens: &[usize]| lens.iter().map(|len| region.segment(0, *len)).collect::<Vec<_>>();
        let invalid = |result: Result<u64, PostError>| matches!(result, Err(PostError::Invalid(_)));
        assert_eq!(LIMITS.check_recv(&list(&[150, 150])), Ok(()));
        assert!(LIMITS.check_recv(&list(&[1, 1, 1])).is_err());
        for (head, lens, passes) in
            [(4, &[50, 46][..], true), (4, &[50, 47], false), (5, &[1], false), (0, &[1, 1, 1], false), (0, &[], true)]
        {
            let (head, segments) = (vec![0; head], list(lens));
            let len = head.len() as u64 + total_len(&segments);
            let expected = |result: Result<u64, PostError>| if passes { result == Ok(len) } else { invalid(result) };
            assert!(expected(LIMITS.check_send(&head, Payload::Gather(&segments))), "{lens:?}");
            assert!(expected(LIMITS.check_write(&head, &segments, &remote(len).into())), "{lens:?}");
            assert!(len == 0 || invalid(LIMITS.check_write(&head, &segments, &remote(len - 1).into())));
            if head.is_empty() {
                assert!(expected(LIMITS.check_read(&segments, &remote(len))), "{lens:?}");
                assert!(len == 0 || invalid(LIMITS.check_read(&segments, &remote(len - 1))));
            }
        }
        assert!(invalid(LIMITS.check_read(&list(&[100, 1]), &remote(101))));
        let slices = |lens: &[usize]| lens.iter().map(|len| memory.slice(0, *len)).collect::<Vec<_>>();
        let inline = |head: usize, lens: &[usize]| LIMITS.check_send(&vec![0; head], Payload::Inline(&slices(lens)));
        assert_eq!(inline(4, &[1, 2, 3]), Ok(10), "the number of slices has no limit");
        assert!(invalid(inline(4, &[7])) && invalid(inline(5, &[])));
        let without_inline = WorkLimits { max_inline: 0, ..LIMITS };
        assert_eq!(without_inline.check_send(&[0; 4], Payload::EMPTY), Ok(4));
        assert!(invalid(without_inline.check_send(&[], Payload::Inline(&slices(&[1])))));
    }

    #[test]
    fn a_software_adapter_checks_what_its_capabilities_say() {
        assert_eq!(WorkLimits::of(&software::capabilities(1, 1)), WORK_LIMITS);
    }
}
