//! What the servers use: memory, descriptors, bytes of logs; and whether they live.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::clock::sleep;
use super::process::{descriptors, resident};
use super::report::Usage;
use crate::storm::cluster::Cluster;

/// How often the servers are looked at during an attack.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What one server uses at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sight {
    pub(super) resident: u64,
    /// The part of `resident` that is not shared memory of a peer, of this server, or a file.
    pub(super) private: u64,
    pub(super) descriptors: u64,
}

impl Sight {
    fn of(pid: u32) -> Sight {
        let (resident, private) = resident(pid);
        Sight { resident, private, descriptors: descriptors(pid) }
    }

    fn max(self, other: Sight) -> Sight {
        Sight {
            resident: self.resident.max(other.resident),
            private: self.private.max(other.private),
            descriptors: self.descriptors.max(other.descriptors),
        }
    }
}

/// Returns what each server uses.
pub(super) fn sights(cluster: &Cluster) -> Vec<Sight> {
    (0..cluster.len()).map(|index| cluster.pid(index).map_or(Sight::default(), Sight::of)).collect()
}

/// Returns the bytes of the logs of all servers.
pub(super) fn log_bytes(cluster: &Cluster) -> u64 {
    (0..cluster.len()).map(|index| fs::metadata(cluster.log(index)).map_or(0, |log| log.len())).sum()
}

/// Runs `work` while the servers are watched. Returns its result and the most that each used.
pub(super) fn watched<R>(cluster: &Cluster, work: impl FnOnce() -> R) -> (R, Vec<Sight>) {
    let pids: Vec<u32> = (0..cluster.len()).map(|index| cluster.pid(index).unwrap_or(0)).collect();
    let is_over = AtomicBool::new(false);
    /// Ends the watch also if the work panics.
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = vec![Sight::default(); pids.len()];
            while !is_over.load(Ordering::Relaxed) {
                most.iter_mut().zip(&pids).for_each(|(most, pid)| *most = most.max(Sight::of(*pid)));
                sleep(LOOK_AGAIN);
            }
            most
        });
        let end = End(&is_over);
        let result = work();
        drop(end);
        (result, watch.join().unwrap_or_default())
    })
}

/// Puts together what was seen of each server.
pub(super) fn usages(before: &[Sight], most: &[Sight], after: &[Sight]) -> Vec<Usage> {
    let of = |(index, ((before, most), after)): (usize, ((&Sight, &Sight), &Sight))| Usage {
        server: Cluster::name(index),
        resident_before: before.resident,
        resident_most: most.resident.max(before.resident),
        resident_after: after.resident,
        descriptors_before: before.descriptors,
        descriptors_most: most.descriptors.max(before.descriptors),
        descriptors_after: after.descriptors,
    };
    before.iter().zip(most).zip(after).enumerate().map(of).collect()
}
