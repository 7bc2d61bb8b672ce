//! Directories: listing them.
//!
//! **Invariants**
//! 1. An entry has the same place in a listing as long as the directory is open, whatever changes
//!    in the directory. The listing begins again if it is read from the beginning.
//! 2. Attributes that come with a listing are those that the servers answer soon. A server that
//!    does not answer keeps no one from the names.
//! 3. A page of the manager's serves several requests of the kernel. The kernel takes attributes
//!    for those of the moment of its request: a size that is older than what was written meanwhile
//!    would cut the file off in its cache. So of an earlier page it gets only the attributes of
//!    what is not open here, and was not looked at since, and none after [`BELIEVED`]. The kernel
//!    of an exclusive mount believes the size of a file for as long as it knows the file. So it
//!    gets none of a file that may have been written and forgotten since the manager was asked.
//! 4. Of a part that was read, a mark of eight bytes for each name stays, and the last name. A
//!    place in it leads back to the name behind which the part begins. It is read from there again,
//!    and each name has the place of its mark. What is new since is left out, as POSIX permits: it
//!    would need a place of its own.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use bmi::Time;
use bmi::threading::AnyThread;
use fs_client::{BString, DirEntry, Entry, FsPath, ReadDir};
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
    /// How it goes on. `None` before it was begun, and at its end.
    more: Option<ReadDir<AnyThread>>,
    has_begun: bool,
    /// The parts that were read: the place where each ends, and its last name.
    parts: Vec<(usize, BString)>,
    /// The names that were read, by their places.
    marks: Vec<u64>,
    /// The places of one part, and its entries that are there, in order.
    here: Range<usize>,
    entries: Vec<(usize, DirEntry)>,
    /// What was known about the entries of that part.
    page: Page,
}

/// All that the manager knew about the names of a part. Nothing if it was read again.
#[derive(Default)]
struct Page {
    entries: Vec<Entry>,
    /// When it was asked.
    asked: Time,
    /// By the [clock](crate::nodes::Nodes::clock) of the nodes.
    clock: u64,
}

/// Returns what stays of a name.
fn mark(name: &BString) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
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
        if from == 0 || !entries.has_begun {
            let more = Some(self.ask(|| self.client.read_dir(&path)).await?);
            *entries = Entries { more, has_begun: true, ..Entries::default() };
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
            if !entries.here.contains(&at) {
                if !self.turn(&mut entries, &path, at, is_plus).await? {
                    break;
                }
                is_earlier = false;
            }
            let from = entries.entries.partition_point(|(place, _)| *place < at);
            let rest = &entries.entries[from..];
            if rest.is_empty() {
                place = entries.here.end as u64 + 2;
                continue;
            }
            let rest = &rest[..rest.len().min((room / LEAST_ENTRY) as usize).max(1)];
            let Page { entries: page, asked, clock } = &entries.page;
            let is_old = is_earlier && self.client.endpoint().now().since(*asked) > BELIEVED;
            let page = page.get(from..).filter(|_| !is_old).unwrap_or_default();
            let page = &page[..rest.len().min(page.len())];
            let attrs = self.client.attributes_within(page, SOON).await;
            for (index, (at, entry)) in rest.iter().enumerate() {
                let attr = attrs.get(index).copied().flatten();
                let attr = attr.filter(|_| !self.is_outdated(entry, *clock, is_earlier));
                let attr = is_plus.then(|| attr.map(|attr| attr_of(entry.handle, &attr)));
                let next = *at as u64 + 3;
                if !self.add(&mut listing, node, entry, attr, next) {
                    return Ok(listing.reply());
                }
                place = next;
            }
            if is_plus {
                break;
            }
        }
        Ok(listing.reply())
    }

    /// Returns true if what the manager has said of an entry at `clock` must not be believed, for
    /// an earlier request or this one.
    fn is_outdated(&self, entry: &DirEntry, clock: u64, is_earlier: bool) -> bool {
        let is_written = self.is_exclusive() && entry.handle.kind() == Kind::File;
        self.nodes.is_newer(entry.handle.raw(), clock, is_earlier || is_written)
            || is_written && self.nodes.has_forgotten(clock)
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

    /// Turns to the part with a place. Returns false if the directory ends before it.
    async fn turn(&self, entries: &mut Entries, dir: &FsPath, at: usize, is_plus: bool) -> Result<bool, Errno> {
        if at < entries.marks.len() {
            self.read_again(entries, dir, at).await?;
            return Ok(true);
        }
        while let Some(more) = &mut entries.more {
            let (asked, clock) = (self.client.endpoint().now(), self.nodes.clock());
            let (names, page) = self.page(more, is_plus).await?;
            let begin = entries.marks.len();
            entries.marks.extend(names.iter().map(|entry| mark(&entry.name)));
            entries.here = begin..entries.marks.len();
            match names.last() {
                Some(last) => entries.parts.push((entries.marks.len(), last.name.clone())),
                None => entries.more = None,
            }
            entries.entries = (begin..).zip(names).collect();
            entries.page = Page { entries: page, asked, clock };
            if entries.here.contains(&at) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads the part with a place again.
    async fn read_again(&self, entries: &mut Entries, dir: &FsPath, at: usize) -> Result<(), Errno> {
        let part = entries.parts.partition_point(|(end, _)| *end <= at);
        let (begin, before) = part.checked_sub(1).map(|part| entries.parts[part].clone()).unwrap_or_default();
        let (end, last) = &entries.parts[part];
        let places: BTreeMap<u64, usize> = entries.marks[begin..*end].iter().copied().zip(begin..).collect();
        let mut again = self.ask(|| self.client.read_dir(dir)).await?;
        again.seek(before);
        let mut found = Vec::new();
        loop {
            let (names, _) = self.page(&mut again, false).await?;
            let is_over = names.last().is_none_or(|name| name.name >= *last);
            let names = names.into_iter().take_while(|entry| entry.name <= *last);
            found.extend(names.filter_map(|entry| Some((*places.get(&mark(&entry.name))?, entry))));
            if is_over {
                break;
            }
        }
        (entries.here, entries.entries, entries.page) = (begin..*end, found, Page::default());
        Ok(())
    }

    /// Reads a page: its names, and all that is known about them if it is wanted. It is empty at
    /// the end.
    async fn page(&self, dir: &mut ReadDir<AnyThread>, is_plus: bool) -> Result<(Vec<DirEntry>, Vec<Entry>), Errno> {
        loop {
            let page = match is_plus {
                true => dir.next_listing().await.map(|page| page.map(|page| (named(&page), objects(page)))),
                false => dir.next_page().await.map(|page| page.map(|page| (page, Vec::new()))),
            };
            match page {
                Ok(page) => return Ok(page.unwrap_or_default()),
                Err(error) if self.settings.is_hard && error.is_retryable() => {
                    self.client.endpoint().sleep(PAUSE).await;
                }
                Err(error) => return Err(errno(&error)),
            }
        }
    }
}
