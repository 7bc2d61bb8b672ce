//! Registrations, exposures, and the errors when the system may not pin more memory.
//!
//! **Why a domain per connection.** A remote key is valid on every queue pair of its protection
//! domain, and it is a number of 32 bits that can be guessed. A peer must never reach memory that
//! was exposed to another peer, so each connection has a domain of its own. This has a price. A
//! region that work requests of several connections use is registered once in each, when it is
//! first used there. Exposed memory is registered for exactly its range. Memory windows of type 2,
//! bound to one queue pair, would cost less on an adapter with many connections. But Soft-RoCE
//! checks accesses through a window against the bounds of the region beneath it, not against the
//! window's own, so they cannot be tested there. So windows are not used.
//!
//! **Invariants**
//! 1. [`Regions::register`] pins nothing. It refuses memory that would not fit, so that the error
//!    comes early. Pinning is per connection ([`Keys`]).
//! 2. A region's registrations end at the next poll after its last handle is dropped, or with their
//!    connection.
//! 3. A peer learns no address: an exposure begins at the offset of its memory in a page.
//!
//! **Tests**: the conformance suite's `transport::remote`; `tests/it/faults.rs` for the limit.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use bmi_backend::Limit;
use bmi_core::{Access, Error, ErrorKind, Memory, MemoryRegion, RemoteKey, RemoteSlice, Segment};

use crate::verbs::{Domain, Region, Rights};

const PAGE: u64 = 4096;
/// The capability that lifts the limit on locked memory, `CAP_IPC_LOCK`.
const CAP_IPC_LOCK: u32 = 14;

/// The regions of a transport.
pub(crate) struct Regions {
    pub(crate) registered: bmi_backend::Regions,
    /// For each region, by number, the connections that have registered it.
    users: Vec<Vec<u32>>,
}

impl Regions {
    pub(crate) fn new(limit: Limit) -> Regions {
        Regions { registered: bmi_backend::Regions::new(limit), users: Vec::new() }
    }

    pub(crate) fn register(&mut self, memory: &Memory) -> Result<MemoryRegion, Error> {
        if let Some(locked) = Locked::now().filter(|locked| !locked.has_room(memory.len() as u64)) {
            return Err(locked.explain(memory.len() as u64).during("register"));
        }
        self.registered.register(memory)
    }

    /// Notes that the connection in `slot` has registered a region. If an earlier connection in
    /// that slot had it, the slot is noted already. So a region that outlives its connections has
    /// at most as many notes as there are slots.
    pub(crate) fn note_user(&mut self, region: &MemoryRegion, slot: u32) {
        let number = region.local_key().0 as usize;
        if self.users.len() <= number {
            self.users.resize_with(number + 1, Vec::new);
        }
        if !self.users[number].contains(&slot) {
            self.users[number].push(slot);
        }
    }

    /// Forgets the released regions. Calls `forget` with each region's number and each connection
    /// that may have registered it.
    pub(crate) fn collect(&mut self, mut forget: impl FnMut(usize, u32)) {
        let users = &mut self.users;
        self.registered.collect(|number| {
            users.get_mut(number).into_iter().flat_map(|users| users.drain(..)).for_each(|slot| forget(number, slot));
        });
    }
}

/// The registrations of one connection, indexed by the region's number.
#[derive(Default)]
pub(crate) struct Keys(Vec<Option<Region>>);

impl Keys {
    /// Returns the local key of a region, if it is registered.
    pub(crate) fn local(&self, region: &MemoryRegion) -> Option<u32> {
        self.0.get(region.local_key().0 as usize)?.as_ref().map(Region::local_key)
    }

    /// Registers a region in the connection's domain.
    pub(crate) fn add(&mut self, domain: &Arc<Domain>, region: &MemoryRegion) -> Result<(), Error> {
        let index = region.local_key().0 as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        let memory = region.memory();
        // Pages that the program may not write cannot be registered for writing.
        let rights = Rights { local_write: !memory.is_read_only(), ..Rights::default() };
        self.0[index] = Some(pin(domain, memory.as_ptr(), memory.len(), memory.as_ptr() as u64, rights)?);
        Ok(())
    }

    pub(crate) fn forget(&mut self, index: usize) {
        if let Some(entry) = self.0.get_mut(index) {
            *entry = None;
        }
    }
}

/// Registers memory. The caller must keep the memory alive longer than the registration can be
/// used.
pub(crate) fn pin(domain: &Arc<Domain>, ptr: *mut u8, len: usize, begin: u64, rights: Rights) -> Result<Region, Error> {
    // SAFETY: memory that peers may access is kept alive by the exposure beside the region. Memory
    // that only this side may name is kept alive by the object that names it: a work request's
    // segment or the staging ring. A registration that outlives its memory only keeps pages pinned
    // that nothing accesses.
    unsafe { Region::new(domain, ptr, len, begin, rights) }.map_err(|error| match error.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN) => match Locked::now() {
            Some(locked) => locked.explain(len as u64).caused_by(error),
            None => Error::new(ErrorKind::Exhausted, format!("no memory to register {len} bytes")).caused_by(error),
        },
        _ => Error::new(ErrorKind::Io, format!("the adapter cannot register {len} bytes")).caused_by(error),
    })
}

/// How much memory this process may lock, and how much it has locked.
#[derive(Clone, Copy, Debug)]
struct Locked {
    limit: u64,
    pinned: u64,
}

impl Locked {
    /// Returns the limit, or `None` if there is none.
    fn now() -> Option<Locked> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a plain system call that fills the structure.
        if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit) } != 0 || limit.rlim_cur == libc::RLIM_INFINITY {
            return None;
        }
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        Locked::of(&status, limit.rlim_cur)
    }

    fn of(status: &str, limit: u64) -> Option<Locked> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let capabilities = field("CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(0);
        if capabilities >> CAP_IPC_LOCK & 1 == 1 {
            return None;
        }
        let pinned = field("VmPin:").and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0);
        Some(Locked { limit, pinned: pinned << 10 })
    }

    fn has_room(&self, len: u64) -> bool {
        // The kernel counts pages, and one more if the memory does not begin on a page boundary.
        len.div_ceil(PAGE) * PAGE <= self.limit.saturating_sub(self.pinned)
    }

    fn explain(&self, need: u64) -> Error {
        let text = format!(
            "registering {need} bytes pins them, and this process may lock {} bytes (RLIMIT_MEMLOCK), of which {} are taken; raise the limit with \
             `ulimit -l`, in /etc/security/limits.conf (memlock), or with LimitMEMLOCK= of systemd",
            self.limit, self.pinned
        );
        Error::new(ErrorKind::Exhausted, text)
    }
}

struct Exposed {
    // Declared, and so dropped, before the segment that keeps its memory alive.
    _region: Option<Region>,
    segment: Segment,
    begin: u64,
    access: Access,
}

/// The exposures of one connection.
#[derive(Default)]
pub(crate) struct Exposures {
    by_key: HashMap<u64, Exposed>,
    empty: u64,
}

impl Exposures {
    pub(crate) fn add(
        &mut self,
        domain: &Arc<Domain>,
        segment: &Segment,
        access: Access,
        limit: Limit,
    ) -> Result<RemoteSlice, Error> {
        limit.admit(self.by_key.len()).map_err(|error| error.during("expose"))?;
        let begin = segment.as_ptr() as u64 % PAGE;
        let (region, key) = if segment.is_empty() {
            // There is nothing to register. No adapter has such a key, so the peer's program checks
            // accesses with it.
            self.empty += 1;
            (None, (1 << 32) + self.empty)
        } else {
            let rights =
                Rights { remote_read: access.remote_read, remote_write: access.remote_write, ..Rights::default() };
            let region = pin(domain, segment.as_ptr(), segment.len(), begin, rights);
            let region = region.map_err(|error| error.during("expose"))?;
            let key = u64::from(region.remote_key());
            (Some(region), key)
        };
        self.by_key.insert(key, Exposed { _region: region, segment: segment.clone(), begin, access });
        Ok(RemoteSlice { key: RemoteKey(key), addr: begin, len: segment.len() as u64 })
    }

    pub(crate) fn remove(&mut self, key: u64) {
        self.by_key.remove(&key);
    }

    /// Returns whether the peer may make an access of no bytes at `addr` with `key`. Adapters do
    /// not check such accesses.
    pub(crate) fn allows_nothing_at(&self, key: u64, addr: u64, write: bool) -> bool {
        self.by_key.get(&key).is_some_and(|exposed| {
            let granted = if write { exposed.access.remote_write } else { exposed.access.remote_read };
            granted && (exposed.begin..=exposed.begin + exposed.segment.len() as u64).contains(&addr)
        })
    }
}

/// Returns the error for a failed call other than a registration. If the system has run out of
/// something, the text names the limit on locked memory.
pub(crate) fn io_error(what: &str, error: io::Error) -> Error {
    let kind = match (error.raw_os_error(), ErrorKind::from(&error)) {
        (Some(libc::EAGAIN), _) | (_, ErrorKind::Exhausted) => ErrorKind::Exhausted,
        _ => ErrorKind::Io,
    };
    let text = match (kind, Locked::now()) {
        (ErrorKind::Exhausted, Some(locked)) => {
            format!("{what}; this process may lock {} bytes (RLIMIT_MEMLOCK, `ulimit -l`)", locked.limit)
        }
        _ => what.to_owned(),
    };
    Error::new(kind, text).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_explained() {
        let status = "Name:\tx\nVmPin:\t      40 kB\nCapEff:\t0000000000000000\n";
        let locked = Locked::of(status, 64 << 10).unwrap();
        assert!(locked.has_room(24 << 10));
        assert!(!locked.has_room((24 << 10) + 1));
        let error = locked.explain(100_000);
        assert_eq!(error.kind(), ErrorKind::Exhausted);
        for part in ["100000 bytes", "65536", "40960", "ulimit -l", "memlock"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(Locked::of("CapEff:\t0000000000004000\n", 1).is_none(), "CAP_IPC_LOCK lifts the limit");
    }

    /// A regression test. A region that was used on one connection after another kept a note of
    /// each, forever.
    #[test]
    fn notes_of_a_regions_users_do_not_pile_up() {
        let mut regions = Regions::new(Limit { max: 1, what: "regions", setting: None });
        let region = regions.register(&Memory::zeroed(1).unwrap()).unwrap();
        for slot in [3, 5, 3, 3, 5] {
            regions.note_user(&region, slot);
        }
        drop(region);
        let mut forgotten = Vec::new();
        regions.collect(|_, slot| forgotten.push(slot));
        assert_eq!(forgotten, [3, 5]);
    }
}
