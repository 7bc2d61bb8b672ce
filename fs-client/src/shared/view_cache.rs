//! The view segments that a file has mapped, and what their servers have refused.

use std::collections::BTreeMap;
use std::time::Duration;

use bmi::Time;
use bmi::memory::RemoteView;
use fs_proto::{VIEW_GRANULE, VIEW_WINDOW, ViewRange, ViewRefusal, view_entry};

use super::view::Loan;
use crate::locked::Locked;

/// Most segments whose mapping a file keeps.
const MOST_SEGMENTS: usize = 64;
/// How long a server that had no memory for views is not asked again.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a server that lends nothing is not asked again. It may have been restarted.
const LONG_PAUSE: Duration = Duration::from_secs(5);

/// A mapped segment.
struct Known {
    view: RemoteView,
    /// By granule: the end of the lease.
    leases: Vec<Time>,
    used: u64,
}

#[derive(Default)]
struct Segments {
    /// By datafile and window.
    known: BTreeMap<(usize, u64), Known>,
    uses: u64,
    /// By datafile: the last refusal, and how long it counts.
    refused: BTreeMap<usize, (ViewRefusal, Time)>,
}

/// The view segments that a file has mapped.
#[derive(Default)]
pub(crate) struct ViewCache(Locked<Segments>);

/// Returns the versions of the granules of a range, with their entries. `None` if one of them is
/// not there. With `whole`, also if a byte of the range may be behind the end of the datafile.
pub(crate) fn versions(view: &RemoteView, range: &ViewRange, whole: bool) -> Option<Vec<(usize, u64)>> {
    let end = range.offset + range.len;
    let version = |granule: u32| {
        let entry = view_entry(granule);
        let version = view.word(entry).filter(|version| *version != 0)?;
        let needed = (end - u64::from(granule) * VIEW_GRANULE).min(VIEW_GRANULE);
        (!whole || view.word(entry + 8)? >= needed).then_some((entry, version))
    };
    range.granules().map(version).collect()
}

impl ViewCache {
    /// Returns a loan of a range for which no server must be asked.
    pub(crate) fn held(&self, datafile: usize, range: &ViewRange, now: Time) -> Option<Loan> {
        let view = self.0.with(|segments| {
            segments.uses += 1;
            let known = segments.known.get_mut(&(datafile, range.window))?;
            known.used = segments.uses;
            range.granules().all(|granule| known.leases[granule as usize] > now).then(|| known.view.clone())
        })?;
        let versions = versions(&view, range, true)?;
        if view.is_alive() {
            return Some(Loan { view, versions });
        }
        let dead = self.0.with(|segments| segments.known.remove(&(datafile, range.window)));
        drop(dead);
        None
    }

    /// Keeps a segment of which a range is lent until `lease`.
    pub(crate) fn keep(&self, datafile: usize, range: &ViewRange, view: &RemoteView, lease: Time) {
        let dropped = self.0.with(|segments| {
            segments.uses += 1;
            let (place, used) = ((datafile, range.window), segments.uses);
            let same = |known: &Known| known.view.as_ptr() == view.as_ptr();
            let mut dropped = Vec::new();
            if !segments.known.get(&place).is_some_and(same) {
                dropped.extend(segments.known.remove(&place));
                if segments.known.len() >= MOST_SEGMENTS {
                    let oldest = segments.known.iter().min_by_key(|(_, known)| known.used).map(|(place, _)| *place);
                    dropped.extend(oldest.and_then(|oldest| segments.known.remove(&oldest)));
                }
                let leases = vec![Time::ZERO; (VIEW_WINDOW / VIEW_GRANULE) as usize];
                segments.known.insert(place, Known { view: view.clone(), leases, used });
            }
            if let Some(known) = segments.known.get_mut(&place) {
                known.used = used;
                range.granules().for_each(|granule| known.leases[granule as usize] = lease);
            }
            segments.refused.remove(&datafile);
            dropped
        });
        drop(dropped);
    }

    pub(crate) fn refusal(&self, datafile: usize, now: Time) -> Option<ViewRefusal> {
        self.0.with(|segments| segments.refused.get(&datafile).filter(|(_, until)| *until > now).map(|(why, _)| *why))
    }

    pub(crate) fn refused(&self, datafile: usize, why: ViewRefusal, now: Time) {
        let passing = matches!(why, ViewRefusal::Full | ViewRefusal::Changing);
        let until = now + if passing { PAUSE } else { LONG_PAUSE };
        self.0.with(|segments| segments.refused.insert(datafile, (why, until)));
    }
}
