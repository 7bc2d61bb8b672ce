//! Directories: listing them.
//!
//! **Invariants**
//! 1. An entry has the same place in a listing as long as the directory is open. The listing begins
//!    again if it is read from the beginning.
//! 2. Attributes that come with a listing are those that the servers answer soon. A server that
//!    does not answer keeps no one from the names.

use std::pin::pin;
use std::sync::{Arc, PoisonError};

use fs_client::{DirEntry, FsPath, ReadDir, Stat};
use fs_proto::Kind;
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use futures_util::stream;
use rustix::io::Errno;
use tokio::sync::Mutex;

use super::attributes::attr_of;
use super::{PAUSE, SOON, Served, mode_of};
use crate::errors::errno;
use crate::fuse::{Args, Listing, Reply};

/// Objects that are asked for their attributes at the same time.
const AT_ONCE: usize = 32;
/// Least bytes of an entry with its attributes.
const LEAST_ENTRY: u32 = 160;

/// A directory that is open.
#[derive(Default)]
pub(super) struct OpenDir(Mutex<Entries>);

/// What was read of a directory.
#[derive(Default)]
struct Entries {
    known: Vec<DirEntry>,
    /// How it goes on. `None` before it was begun, and at its end.
    more: Option<ReadDir<bmi::threading::AnyThread>>,
}

impl Served {
    pub(super) fn open_dir(&self, node: u64) -> Result<Reply, Errno> {
        self.nodes.handle(node)?.dir().ok_or(Errno::NOTDIR)?;
        let number = self.new_listing();
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::default());
        Ok(Reply::opened(number, 0))
    }

    pub(super) fn close_dir(&self, number: u64) -> Result<Reply, Errno> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
        Ok(Reply::done())
    }

    /// Lists entries from a place on: 0 and 1 are the directory and the one above.
    pub(super) async fn read_dir(&self, node: u64, mut args: Args<'_>, is_plus: bool) -> Result<Reply, Errno> {
        let (number, from, room) = (args.u64()?, args.u64()?, args.u32()?);
        let open = self.listings.lock().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        let (open, path) = (open.ok_or(Errno::BADF)?, self.nodes.path(node)?);
        let mut entries = open.0.lock().await;
        if from == 0 {
            let more = Some(self.ask(|| self.client.read_dir(&path)).await?);
            *entries = Entries { known: Vec::new(), more };
        }
        let mut listing = Listing::new(room);
        let mut place = from;
        for (name, dir) in [(&b"."[..], node), (b"..", self.nodes.above(node)?)].into_iter().skip(from as usize) {
            let mode = mode_of(Kind::Dir);
            place += 1;
            let _ = if is_plus {
                listing.add_with(name, (dir, mode), None, place)
            } else {
                listing.add(name, dir, mode, place)
            };
        }
        loop {
            let rest = entries.known.get((place - 2) as usize..).unwrap_or_default();
            if rest.is_empty() {
                if !self.read_on(&mut entries).await? {
                    break;
                }
                continue;
            }
            let rest = &rest[..rest.len().min((room / LEAST_ENTRY) as usize).max(1)];
            let stats = if is_plus { self.stats(rest).await } else { Vec::new() };
            let before = place;
            for (at, entry) in rest.iter().enumerate() {
                if !self.add(&mut listing, node, entry, is_plus.then(|| stats[at].as_ref()), place + 1) {
                    return Ok(listing.reply());
                }
                place += 1;
            }
            if is_plus && place > before {
                break;
            }
        }
        Ok(listing.reply())
    }

    /// Adds an entry to a listing, if there is room. With attributes, the kernel knows it then.
    fn add(&self, listing: &mut Listing, dir: u64, entry: &DirEntry, stat: Option<Option<&Stat>>, next: u64) -> bool {
        let (name, node) = (&entry.name[..], entry.handle.raw());
        let mode = mode_of(entry.handle.kind());
        let Some(stat) = stat else { return listing.add(name, node, mode, next) };
        let known = stat.map(|stat| attr_of(stat.handle, &stat.attr));
        let with = known.as_ref().map(|attr| (attr, self.times(attr, true)));
        let is_added = listing.add_with(name, (node, mode), with, next);
        if let (true, Some(attr)) = (is_added, &known) {
            self.nodes.learn(dir, entry.handle, *attr, true);
        }
        is_added
    }

    /// Returns the attributes of entries, of each that is known soon.
    async fn stats(&self, entries: &[DirEntry]) -> Vec<Option<Stat>> {
        let mut stats: Vec<Option<Stat>> = vec![None; entries.len()];
        let one = async |at: usize, path: FsPath| Some((at, self.client.stat(&path).await.ok()?));
        let asked = entries.iter().enumerate().map(|(at, entry)| one(at, FsPath::of(entry.handle)));
        let asked: Vec<_> = asked.collect();
        let mut asked = pin!(stream::iter(asked).buffer_unordered(AT_ONCE));
        let mut soon = pin!(self.client.endpoint().sleep(SOON));
        while let Either::Left((Some(answer), _)) = select(asked.next(), soon.as_mut()).await {
            if let Some((at, stat)) = answer {
                stats[at] = Some(stat);
            }
        }
        stats
    }

    /// Reads one page more. Returns false at the end.
    async fn read_on(&self, entries: &mut Entries) -> Result<bool, Errno> {
        let Some(more) = &mut entries.more else { return Ok(false) };
        loop {
            match more.next_page().await {
                Ok(Some(page)) => {
                    entries.known.extend(page);
                    return Ok(true);
                }
                Ok(None) => {
                    entries.more = None;
                    return Ok(false);
                }
                Err(error) if self.settings.is_hard && error.is_retryable() => {
                    self.client.endpoint().sleep(PAUSE).await;
                }
                Err(error) => return Err(errno(&error)),
            }
        }
    }
}
