//! Directories: listing them.
//!
//! **Invariants**
//! 1. An entry has the same place in a listing as long as the directory is open. The listing begins
//!    again if it is read from the beginning.
//! 2. Attributes that come with a listing are those that the servers answer soon. A server that
//!    does not answer keeps no one from the names.

use std::pin::pin;
use std::sync::{Arc, PoisonError};

use fs_client::{DirEntry, Entry, ReadDir};
use fs_proto::{Kind, ListEntry};
use futures_util::future::{Either, select};
use rustix::io::Errno;
use tokio::sync::Mutex;

use super::attributes::attr_of;
use super::{PAUSE, SOON, Served, mode_of};
use crate::errors::errno;
use crate::fuse::{Args, Attr, Listing, Reply};

/// Least bytes of an entry with its attributes.
const LEAST_ENTRY: u32 = 160;

/// A directory that is open.
#[derive(Default)]
pub(super) struct OpenDir(Mutex<Entries>);

/// What was read of a directory.
#[derive(Default)]
struct Entries {
    known: Vec<DirEntry>,
    /// All that the manager knew about the last ones.
    page: Vec<Entry>,
    /// How it goes on. `None` before it was begun, and at its end.
    more: Option<ReadDir<bmi::threading::AnyThread>>,
}

/// Returns the names of a page.
fn named(page: &[ListEntry]) -> Vec<DirEntry> {
    page.iter().map(|listed| DirEntry { name: listed.name.clone(), handle: listed.entry.handle }).collect()
}

/// Returns the objects of a page.
fn objects(page: Vec<ListEntry>) -> Vec<Entry> {
    page.into_iter().map(|listed| listed.entry).collect()
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
            *entries = Entries { more, ..Entries::default() };
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
            let at = (place - 2) as usize;
            let rest = entries.known.get(at..).unwrap_or_default();
            if rest.is_empty() {
                if !self.read_on(&mut entries, is_plus).await? {
                    break;
                }
                continue;
            }
            let rest = &rest[..rest.len().min((room / LEAST_ENTRY) as usize).max(1)];
            // Of an earlier part, which is read again, the kernel gets the names.
            let page = (at + entries.page.len()).checked_sub(entries.known.len());
            let page = page.and_then(|from| entries.page.get(from..)).unwrap_or_default();
            let attrs = if is_plus { self.attrs(&page[..rest.len().min(page.len())]).await } else { Vec::new() };
            let before = place;
            for (at, entry) in rest.iter().enumerate() {
                let attr = is_plus.then(|| attrs.get(at).copied().flatten());
                if !self.add(&mut listing, node, entry, attr, place + 1) {
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
    fn add(&self, listing: &mut Listing, dir: u64, entry: &DirEntry, known: Option<Option<Attr>>, next: u64) -> bool {
        let (name, node) = (&entry.name[..], entry.handle.raw());
        let mode = mode_of(entry.handle.kind());
        let Some(known) = known else { return listing.add(name, node, mode, next) };
        let with = known.as_ref().map(|attr| (attr, self.times(attr, true)));
        let is_added = listing.add_with(name, (node, mode), with, next);
        if let (true, Some(attr)) = (is_added, &known) {
            self.nodes.learn(dir, entry.handle, *attr, true);
        }
        is_added
    }

    /// Returns the attributes of objects, of each that is known soon.
    async fn attrs(&self, entries: &[Entry]) -> Vec<Option<Attr>> {
        let known = |entry: &Entry| Some(attr_of(entry.handle, &entry.known_attr()?));
        let mut attrs: Vec<Option<Attr>> = entries.iter().map(known).collect();
        let unknown: Vec<usize> = (0..entries.len()).filter(|at| attrs[*at].is_none()).collect();
        if unknown.is_empty() {
            return attrs;
        }
        let asked: Vec<Entry> = unknown.iter().map(|at| entries[*at].clone()).collect();
        let soon = pin!(self.client.endpoint().sleep(SOON));
        if let Either::Left((found, _)) = select(pin!(self.client.attributes(&asked)), soon).await {
            for (at, found) in unknown.into_iter().zip(found) {
                attrs[at] = found.ok().map(|attr| attr_of(entries[at].handle, &attr));
            }
        }
        attrs
    }

    /// Reads one page more. Returns false at the end.
    async fn read_on(&self, entries: &mut Entries, is_plus: bool) -> Result<bool, Errno> {
        let Some(more) = &mut entries.more else { return Ok(false) };
        loop {
            let page = match is_plus {
                true => more.next_listing().await.map(|page| page.map(|page| (named(&page), objects(page)))),
                false => more.next_page().await.map(|page| page.map(|page| (page, Vec::new()))),
            };
            match page {
                Ok(Some((names, page))) => {
                    entries.known.extend(names);
                    entries.page = page;
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
