//! Posting: receives go to the adapter at once, requests to the queue of those that wait.

use bmi_backend::total_len;
use bmi_core::transport::{Payload, PostError, WorkId, WorkKind, WorkOptions, WriteTarget};
use bmi_core::{RemoteSlice, Segment};

use super::ids::{RECV, tag};
use super::{Planned, QueuePair, Recv};
use crate::config::{MAX_SEGMENTS, MAX_WORK_LEN};
use crate::verbs::Sge;

/// Returns how many of the `len` bytes of a receive's next segment are passed to the adapter. No
/// message is longer than `max_work_len`, so bytes of a receive beyond that are never written.
/// Also, an entry's length has 32 bits.
fn take_room(room: &mut u64, len: usize) -> u32 {
    let len = (*room).min(len as u64);
    *room -= len;
    len as u32 // at most `MAX_WORK_LEN`
}

impl QueuePair {
    pub(crate) fn post_recv(&mut self, work: WorkId, segments: &[Segment]) -> Result<(), PostError> {
        if self.recvs.len() >= self.recv_depth {
            return Err(PostError::QueueFull);
        }
        let mut entries = [Sge::new(0, 0, 0); MAX_SEGMENTS];
        let mut count = 0;
        let mut room = MAX_WORK_LEN;
        for segment in segments.iter().filter(|segment| !segment.is_empty()) {
            let len = take_room(&mut room, segment.len());
            if len > 0 {
                entries[count] = self.entry(segment, len);
                count += 1;
            }
        }
        let id = RECV | tag(self.conn) | u64::from(self.next_recv);
        // SAFETY: the segments are held until the receive has ended (invariant 1), or until the
        // queue pair is gone.
        match unsafe { self.verbs.post_receive(id, &entries[..count]) } {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => return Err(PostError::QueueFull),
            Err(_) => return Err(PostError::NotConnected),
        }
        self.next_recv = self.next_recv.wrapping_add(1);
        self.recv_segments.extend(segments.iter().cloned());
        self.recvs.push_back(Recv { work, segments: segments.len() as u32 });
        Ok(())
    }

    pub(crate) fn post_send(
        &mut self,
        work: WorkId,
        head: &[u8],
        payload: Payload<'_>,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let (slices, segments) = match payload {
            Payload::Inline(slices) => (slices, &[][..]),
            Payload::Gather(segments) => (&[][..], segments),
        };
        let staged = head.len() + slices.iter().map(|slice| slice.len()).sum::<usize>();
        let planned = self.plan(WorkKind::Send, work, staged, segments, options, None)?;
        self.staging.fill(planned.place, head, slices);
        self.enqueue(planned, segments);
        Ok(())
    }

    pub(crate) fn post_write(
        &mut self,
        work: WorkId,
        head: &[u8],
        segments: &[Segment],
        target: WriteTarget,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let remote = Some(target.remote);
        let mut planned = self.plan(WorkKind::Write, work, head.len(), segments, options, remote)?;
        planned.immediate = target.immediate;
        self.staging.fill(planned.place, head, &[]);
        self.enqueue(planned, segments);
        Ok(())
    }

    pub(crate) fn post_read(
        &mut self,
        work: WorkId,
        segments: &[Segment],
        remote: RemoteSlice,
        options: WorkOptions,
    ) -> Result<(), PostError> {
        let planned = self.plan(WorkKind::Read, work, 0, segments, options, Some(remote))?;
        self.enqueue(planned, segments);
        Ok(())
    }

    fn plan(
        &mut self,
        kind: WorkKind,
        work: WorkId,
        staged: usize,
        segments: &[Segment],
        options: WorkOptions,
        remote: Option<RemoteSlice>,
    ) -> Result<Planned, PostError> {
        if self.requests.len() + self.waiting.len() + self.reads.len() >= self.depth {
            return Err(PostError::QueueFull);
        }
        let place = self.staging.take(staged).ok_or(PostError::QueueFull)?;
        let len = staged as u64 + total_len(segments);
        let unchecked = remote.is_some_and(|remote| len == 0 || remote.key.0 > u64::from(u32::MAX));
        let remote = remote.map(|remote| (remote.addr, remote.key.0));
        let (signalled, segments) = (options.signalled, segments.len() as u32);
        Ok(Planned { work, kind, signalled, len, place, segments, remote, immediate: None, unchecked })
    }

    fn enqueue(&mut self, planned: Planned, segments: &[Segment]) {
        self.waiting_segments.extend(segments.iter().cloned());
        self.waiting.push_back(planned);
    }

    /// Returns whether the request that was just posted should be handed over at once.
    pub(crate) fn rings_at_once(&self) -> bool {
        !self.rang && self.waiting.len() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A regression test. The length of a receive's segment was truncated to 32 bits. A segment of
    /// 4 GiB had no room at all, and the first message for it ended the connection.
    #[test]
    fn receives_of_gigabytes_have_room_for_any_message() {
        let given = |lens: &[usize]| {
            let mut room = MAX_WORK_LEN;
            lens.iter().map(|len| u64::from(take_room(&mut room, *len))).collect::<Vec<_>>()
        };
        assert_eq!(given(&[4 << 30]), [MAX_WORK_LEN]);
        assert_eq!(given(&[10, 5 << 30, 7]), [10, MAX_WORK_LEN - 10, 0]);
        assert_eq!(given(&[1 << 20; 3]), [1 << 20; 3]);
    }
}
