//! Directories: listing them.
//!
//! **Invariants**
//! 1. An entry has the same place in a listing as long as the directory is open. The listing begins
//!    again if it is read from the beginning.
//! 2. Attributes that come with a listing are those that the servers answer soon. A server that
//!    does not answer keeps no one from the names.
//! 3. A page of the manager's serves several requests of the kernel. The kernel takes attributes
//!    for those of the moment of its request: a size that is older than what was written meanwhile
//!    would cut the file off in its cache. So of an earlier page it gets only the attributes of
//!    what is not open here, and was not looked at since, and none after [`BELIEVED`].

use std::sync::{Arc, PoisonError};

use bmi::Time;
use fs_client::{DirEntry, Entry, ReadDir};
use fs_proto::{Kind, ListEntry};
use rustix::io::Errno;
use tokio::sync::Mutex;

use super::attributes::attr_of;
use super::{BELIEVED, PAUSE, SOON, Served, mode_of};
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
    page: Page,
    /// How it goes on. `None` before it was begun, and at its end.
    more: Option<ReadDir<bmi::threading::AnyThread>>,
}

/// All that the manager knew about the last names of a listing.
#[derive(Default)]
struct Page {
    entries: Vec<Entry>,
    /// When it was asked.
    asked: Time,
    /// By the [clock](crate::nodes::Nodes::clock) of the nodes.
    clock: u64,
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
        let mut is_earlier = true;
        loop {
            let at = (place - 2) as usize;
            let rest = entries.known.get(at..).unwrap_or_default();
            if rest.is_empty() {
                if !self.read_on(&mut entries, is_plus).await? {
                    break;
                }
                is_earlier = false;
                continue;
            }
            let rest = &rest[..rest.len().min((room / LEAST_ENTRY) as usize).max(1)];
            let Page { entries: page, asked, clock } = &entries.page;
            let is_old = is_earlier && self.client.endpoint().now().since(*asked) > BELIEVED;
            // Of an earlier part, which is read again, the kernel gets the names.
            let from = (at + page.len()).checked_sub(entries.known.len()).filter(|_| !is_old);
            let page = from.and_then(|from| page.get(from..)).unwrap_or_default();
            let page = &page[..rest.len().min(page.len())];
            let attrs = self.client.attributes_within(page, SOON).await;
            let before = place;
            for (at, entry) in rest.iter().enumerate() {
                let attr = attrs.get(at).copied().flatten();
                let attr = attr.filter(|_| !self.nodes.is_newer(entry.handle.raw(), *clock, is_earlier));
                let attr = is_plus.then(|| attr.map(|attr| attr_of(entry.handle, &attr)));
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

    /// Reads one page more. Returns false at the end.
    async fn read_on(&self, entries: &mut Entries, is_plus: bool) -> Result<bool, Errno> {
        let Some(more) = &mut entries.more else { return Ok(false) };
        loop {
            let (asked, clock) = (self.client.endpoint().now(), self.nodes.clock());
            let page = match is_plus {
                true => more.next_listing().await.map(|page| page.map(|page| (named(&page), objects(page)))),
                false => more.next_page().await.map(|page| page.map(|page| (page, Vec::new()))),
            };
            match page {
                Ok(Some((names, page))) => {
                    entries.known.extend(names);
                    entries.page = Page { entries: page, asked, clock };
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
