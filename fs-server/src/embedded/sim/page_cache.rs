//! The page cache of a simulated I/O server's system: memory of a bounded size in front of the
//! disk. It models what reads and writes of files cost, and holds no bytes. The
//! [store](super::SimStore) does.
//!
//! **Why.** A server that reads its files through the system has two speeds. What is in the cache
//! is copied by the processor; the rest comes from the disk, and then is copied. Which bytes are in
//! it depends on its size, so the model needs to know them ([Unifier-PVFS §6.2, Figure 5]).
//!
//! **Model.** Pages have 4 KiB. The least recently used page leaves first.
//!
//! | request | the disk | the processor |
//! |---|---|---|
//! | read | reads the pages that are not in the cache, in one request | then copies all bytes |
//! | read of a [mapped](super::SimStore::mapping) file | the same | nothing: registering is the adapter's price |
//! | write | writes all bytes behind the program, which waits if too much is not written yet | copies all bytes |
//! | sync | ends what was written before | nothing |
//!
//! The copies have the prices of files in memory ([`PageCacheOptions::copies`]), the disk has those
//! of the profile. In the profiles of 2003 both are from [Unifier-PVFS, Table 1] and [PVFS-IB,
//! Table 3].
//!
//! **Differences from a real system.**
//! - A page that is written in part and is not in the cache is not read first.
//! - Two requests that miss the same page at the same time both read it.
//! - Nothing is read ahead. For one reader of a disk whose price has no latency this makes no
//!   difference.
//! - Mapping and unmapping pages costs nothing: there is no figure for it.
//!
//! **Tests.** Below; `tests/sim/iod/page_cache.rs`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use async_trait::async_trait;
use bmi_sim::faults::{DiskUser, Loss};
use bmi_sim::{DiskProfile, Node, SimDisk};
use fs_proto::{DatafileHandle, Region};

use super::disk::{Medium, total};

/// Bytes of a page.
const PAGE: u64 = 4 << 10;

/// The part of the cache that may be written to the disk later: a quarter, as in a cache of the
/// server's own ([`bmi_cache::Settings::for_bytes`]).
const UNWRITTEN: u64 = 4;

/// The page cache of each simulated I/O server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageCacheOptions {
    /// Its memory, in bytes. It is rounded down to pages of 4 KiB, but there is one page at least.
    pub bytes: u64,
    /// The prices of copies from it and to it: a disk that is memory ([`DiskProfile::memory`]).
    pub copies: DiskProfile,
}

/// A page of a datafile, by its number.
type Page = (DatafileHandle, u64);

/// The pages that are in the cache.
struct Pages {
    most: usize,
    /// When each page was used last.
    used: BTreeMap<Page, u64>,
    /// The same the other way round: the least recently used page is first.
    oldest: BTreeMap<u64, Page>,
    /// The number of uses so far.
    uses: u64,
}

impl Pages {
    fn new(bytes: u64) -> Pages {
        let most = (bytes / PAGE).max(1) as usize;
        Pages { most, used: BTreeMap::new(), oldest: BTreeMap::new(), uses: 0 }
    }

    /// Uses a page. If it is not in the cache, it takes the place of the least recently used one.
    fn touch(&mut self, page: Page) {
        self.uses += 1;
        if let Some(before) = self.used.insert(page, self.uses) {
            self.oldest.remove(&before);
        }
        self.oldest.insert(self.uses, page);
        if self.used.len() > self.most
            && let Some((_, victim)) = self.oldest.pop_first()
        {
            self.used.remove(&victim);
        }
    }

    /// Uses those of the pages that are in the cache. Returns the number of the others.
    fn hit(&mut self, pages: impl Iterator<Item = Page>) -> u64 {
        let mut missing = 0;
        for page in pages {
            match self.used.contains_key(&page) {
                true => self.touch(page),
                false => missing += 1,
            }
        }
        missing
    }

    /// Forgets the pages of a datafile that have no byte before `size`.
    fn forget(&mut self, datafile: DatafileHandle, size: u64) {
        let gone = (datafile, size.div_ceil(PAGE))..=(datafile, u64::MAX);
        for (_, at) in self.used.extract_if(gone, |_, _| true) {
            self.oldest.remove(&at);
        }
    }
}

/// Returns the pages of the regions.
fn pages(datafile: DatafileHandle, regions: &[Region]) -> impl Iterator<Item = Page> + '_ {
    let of = |region: &Region| region.offset / PAGE..(region.offset + region.len).div_ceil(PAGE);
    regions.iter().filter(|region| region.len > 0).flat_map(of).map(move |page| (datafile, page))
}

/// A disk behind a page cache. A clone is the same one: it outlives the server's process.
#[derive(Clone)]
pub(super) struct PageCache(Rc<Inner>);

struct Inner {
    pages: RefCell<Pages>,
    copies: SimDisk,
    disk: SimDisk,
    node: Node,
}

impl PageCache {
    pub(super) fn new(node: &Node, settings: &PageCacheOptions) -> PageCache {
        let disk = node.disk();
        // The copy is charged at the prices of the cache.
        let behind = DiskProfile { cache_bytes: settings.bytes / UNWRITTEN, cache_ps_per_byte: 0, ..disk.prices() };
        PageCache(Rc::new(Inner {
            pages: RefCell::new(Pages::new(settings.bytes)),
            copies: disk.priced(DiskProfile { memory: true, ..settings.copies.clone() }),
            disk: disk.priced(behind),
            node: node.clone(),
        }))
    }
}

impl DiskUser for PageCache {
    fn power_fails(&self, _loss: &mut Loss) {
        let mut pages = self.0.pages.borrow_mut();
        (pages.used, pages.oldest) = (BTreeMap::new(), BTreeMap::new());
    }
}

#[async_trait(?Send)]
impl Medium for PageCache {
    async fn read(&self, bytes: u64) {
        Medium::read(&self.0.disk, bytes).await;
    }

    async fn write(&self, bytes: u64) {
        Medium::write(&self.0.disk, bytes).await;
    }

    async fn sync(&self) {
        Medium::sync(&self.0.disk).await;
    }

    async fn read_regions(&self, datafile: DatafileHandle, regions: &[Region]) {
        self.fetch(datafile, regions).await;
        Medium::read(&self.0.copies, total(regions)).await;
    }

    async fn write_regions(&self, datafile: DatafileHandle, regions: &[Region]) {
        let bytes = total(regions);
        Medium::write(&self.0.copies, bytes).await;
        Medium::write(&self.0.disk, bytes).await;
        let mut known = self.0.pages.borrow_mut();
        pages(datafile, regions).for_each(|page| known.touch(page));
    }

    async fn fetch(&self, datafile: DatafileHandle, regions: &[Region]) {
        let missing = self.0.pages.borrow_mut().hit(pages(datafile, regions));
        if missing > 0 {
            Medium::read(&self.0.disk, missing * PAGE).await;
            let mut known = self.0.pages.borrow_mut();
            pages(datafile, regions).for_each(|page| known.touch(page));
        }
    }

    fn holds(&self, datafile: DatafileHandle, regions: &[Region]) -> bool {
        let known = self.0.pages.borrow();
        pages(datafile, regions).all(|page| known.used.contains_key(&page))
    }

    fn forget(&self, datafile: DatafileHandle, size: u64) {
        self.0.pages.borrow_mut().forget(datafile, size);
    }

    fn wall_ns(&self) -> u64 {
        self.0.node.wall_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: DatafileHandle = DatafileHandle(7);

    fn region(first: u64, count: u64) -> [Region; 1] {
        [Region::new(first * PAGE, count * PAGE)]
    }

    /// Reads pages, and returns how many of them were not in the cache.
    fn read(cache: &mut Pages, first: u64, count: u64) -> u64 {
        let missing = cache.hit(pages(FILE, &region(first, count)));
        pages(FILE, &region(first, count)).for_each(|page| cache.touch(page));
        missing
    }

    #[test]
    fn a_loop_hits_as_long_as_it_fits() {
        for (len, missed) in [(99, 0), (100, 0), (101, 101)] {
            let mut cache = Pages::new(100 * PAGE + 1);
            (0..len).for_each(|page| assert_eq!(read(&mut cache, page, 1), 1));
            assert_eq!((0..len).map(|page| read(&mut cache, page, 1)).sum::<u64>(), missed, "{len} pages");
            assert_eq!(cache.used.len(), cache.oldest.len());
        }
    }

    #[test]
    fn the_least_recently_used_page_leaves() {
        let mut cache = Pages::new(3 * PAGE);
        read(&mut cache, 0, 3);
        assert_eq!(read(&mut cache, 0, 1), 0, "used again");
        assert_eq!(read(&mut cache, 3, 1), 1, "in the place of page 1");
        assert_eq!((read(&mut cache, 0, 1), read(&mut cache, 1, 1)), (0, 1));
    }

    #[test]
    fn what_is_cut_off_is_not_in_the_cache() {
        let mut cache = Pages::new(100 * PAGE);
        read(&mut cache, 0, 10);
        cache.touch((DatafileHandle(8), 9));
        cache.forget(FILE, 4 * PAGE + 1);
        assert_eq!((cache.used.len(), cache.oldest.len()), (6, 6), "page 4 has a byte left");
        assert_eq!(read(&mut cache, 0, 10), 5);
    }

    #[test]
    fn a_region_has_the_pages_that_it_touches() {
        let of = |offset, len| pages(FILE, &[Region::new(offset, len)]).map(|(_, page)| page).collect::<Vec<_>>();
        assert_eq!(of(PAGE - 1, 2), [0, 1]);
        assert_eq!(of(PAGE, PAGE), [1]);
        assert!(of(PAGE + 1, 0).is_empty());
    }
}
