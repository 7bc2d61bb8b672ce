//! The section `[cache]` of the configuration.

use std::path::PathBuf;
use std::time::Duration;

use bmi_cache::{ArenaSettings, Settings};
use serde::Deserialize;

use super::{ConfigError, Size};
use crate::store::{CacheSettings, LEAST_CACHE, Service, ViewSettings};

/// The part of the machine's memory that a cache has by default.
pub(super) const SHARE_OF_MEMORY: u64 = 8;
/// The part of its memory that a cache lends by default.
pub(super) const SHARE_OF_VIEWS: u64 = 8;

/// The section `[cache]`: how I/O servers move data between disk and network.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheSection {
    /// The service.
    pub service: ServiceName,
    /// Memory of the cache of one I/O server. An eighth of the machine's without this.
    pub memory: Option<Size>,
    /// The directory of a file system in memory, where the cache is while the server runs and after
    /// it was killed.
    pub dir: PathBuf,
    /// After this time the disk gets what was written, in milliseconds.
    pub age_ms: u64,
    /// Every write reaches the disk before it is acknowledged.
    pub write_through: bool,
    /// The part of the memory that clients on this host may read in place. An eighth of it without
    /// this, if the rest is enough for a cache. "0" turns it off.
    pub views: Option<Size>,
}

/// The name of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(rename_all = "lowercase")]
pub enum ServiceName {
    /// [`Service::Normal`].
    #[default]
    Normal,
    /// [`Service::Mmap`].
    Mmap,
    /// [`Service::Unifier`].
    Unifier,
    /// The fourth service of the paper, which is not offered. A configuration with it is refused.
    Sendfile,
}

/// Why there is no service that lets the kernel send files.
const NO_SENDFILE: &str = "\"sendfile\" is not offered: the kernel sends from a file to a socket only, after the \
    header of each message, while messages of other requests wait; use \"mmap\", which sends the same pages over every \
    transport, or \"unifier\"";

impl Default for CacheSection {
    fn default() -> CacheSection {
        CacheSection {
            service: ServiceName::Normal,
            memory: None,
            dir: PathBuf::from("/dev/shm"),
            age_ms: 5000,
            write_through: false,
            views: None,
        }
    }
}

impl CacheSection {
    /// Returns the service of an I/O server.
    pub fn service(&self) -> Service {
        match self.service {
            ServiceName::Normal | ServiceName::Sendfile => return Service::Normal,
            ServiceName::Mmap => return Service::Mmap,
            ServiceName::Unifier => {}
        }
        let bytes = self.memory.map_or_else(|| machine_memory() / SHARE_OF_MEMORY, |memory| memory.0);
        let views = self.views.map_or(bytes / SHARE_OF_VIEWS, |views| views.0.min(bytes));
        let spare = self.views.is_some() || bytes - views >= LEAST_CACHE;
        let views = if spare { ViewSettings::for_bytes(views) } else { ViewSettings::for_bytes(0) };
        let bytes = bytes - views.bytes;
        // Whole chunks, so that the cache that is found at the next start has the same size.
        let bytes = bytes - bytes % ArenaSettings::CHUNK as u64;
        let CacheSettings { arena, cache, .. } = CacheSettings::for_bytes(bytes);
        let age = Duration::from_millis(self.age_ms);
        let cache = Settings { age, write_through: self.write_through, ..cache };
        Service::Unifier(CacheSettings { arena: ArenaSettings { bytes, ..arena }, cache, views })
    }

    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        if !self.dir.is_absolute() {
            return Err(ConfigError(format!("cache.dir is {}; it must be absolute", self.dir.display())));
        }
        if self.service == ServiceName::Sendfile {
            return Err(ConfigError(format!("cache.service: {NO_SENDFILE}")));
        }
        match self.service() {
            Service::Normal | Service::Mmap => Ok(()),
            Service::Unifier(settings) => {
                settings.validate().map_err(|error| ConfigError(format!("cache: {}", error.detail)))
            }
        }
    }
}

/// Returns the bytes of memory of this machine.
fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_sized_by_the_machine_or_by_the_file() {
        let section: CacheSection = toml::from_str("service = \"unifier\"").unwrap();
        let Service::Unifier(settings) = section.service() else { panic!("{section:?}") };
        assert!(settings.arena.bytes >= machine_memory() / 10 && settings.arena.bytes > 0);
        section.validate().unwrap();
        let text = "service = \"unifier\"\nmemory = \"64M\"\nage_ms = 70\nwrite_through = true";
        let section: CacheSection = toml::from_str(text).unwrap();
        let Service::Unifier(CacheSettings { arena, cache, views }) = section.service() else { panic!("{section:?}") };
        assert_eq!((arena.bytes, cache.age, cache.dirty), (56 << 20, Duration::from_millis(70), 14 << 20));
        assert!(cache.write_through && cache.ready == 28 << 20);
        assert_eq!(views, ViewSettings { bytes: 8 << 20, lease: ViewSettings::LEASE });
        assert_eq!(CacheSection::default().service(), Service::Normal);
        assert_eq!(toml::from_str::<CacheSection>("service = \"mmap\"").unwrap().service(), Service::Mmap);
    }

    /// Views and the arena together have the memory.
    #[test]
    fn views_are_a_part_of_the_memory() {
        let parts = |text: &str| {
            let section: CacheSection = toml::from_str(&format!("service = \"unifier\"\n{text}")).unwrap();
            section.validate().unwrap();
            let Service::Unifier(CacheSettings { arena, views, .. }) = section.service() else { panic!("{section:?}") };
            (arena.bytes >> 20, views.bytes >> 20)
        };
        assert_eq!(parts("memory = \"64M\"\nviews = \"16M\""), (48, 16));
        assert_eq!(parts("memory = \"64M\"\nviews = \"0\""), (64, 0));
        assert_eq!(parts("memory = \"4M\""), (4, 0), "the cache needs all of it");
    }

    #[test]
    fn mistakes_are_named() {
        let fails = |text: &str| toml::from_str::<CacheSection>(text).unwrap().validate().unwrap_err().to_string();
        assert!(fails("dir = \"shm\"").contains("absolute"));
        assert!(fails("service = \"sendfile\"").contains("use \"mmap\""));
        let unifier = "service = \"unifier\"\n";
        assert!(fails(&format!("{unifier}memory = \"1M\"")).contains("at least"));
        assert!(fails(&format!("{unifier}age_ms = 1")).contains("10 ms"));
        assert!(fails(&format!("{unifier}memory = \"16M\"\nviews = \"15M\"")).contains("at least"));
    }
}
