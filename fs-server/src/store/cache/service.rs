//! How an I/O server moves data between its disk and the network.

use std::time::Duration;

use bmi::Scheme;
use bmi_cache::{ArenaSettings, Policy, Settings};
use fs_proto::{ErrorCode, FsError};

use super::views::ViewSettings;

/// How an I/O server moves data between its disk and the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// Through the system's page cache and the server's buffers.
    #[default]
    Normal,
    /// As `Normal`, but large reads are sent from the pages that the system has of mapped files
    /// ([`FileStore::mapped`](crate::store::FileStore::mapped)). A simulated server has a model of
    /// that (`embedded::SimStore`).
    Mmap,
    /// Through one cache, whose memory is also that of the transport ([`super::UnifiedStore`]).
    Unifier(CacheSettings),
}

impl Service {
    /// Returns true if the server has a cache of its own.
    pub fn has_cache(&self) -> bool {
        matches!(self, Service::Unifier(_))
    }

    /// Checks that a server can offer the service over a transport.
    ///
    /// # Errors
    /// `Invalid`, with the reason.
    pub fn check_over(&self, scheme: Scheme) -> Result<(), FsError> {
        if *self == Service::Mmap && scheme == Scheme::Ib {
            let text = "the service \"mmap\" is not offered over verbs (ib): not every kernel registers the pages of \
                a file that is mapped for reading; use \"unifier\" or \"normal\"";
            return Err(FsError::new(ErrorCode::Invalid, text));
        }
        Ok(())
    }

    /// Returns the name of the service in a configuration.
    pub fn name(&self) -> &'static str {
        match self {
            Service::Normal => "normal",
            Service::Mmap => "mmap",
            Service::Unifier(_) => "unifier",
        }
    }
}

/// Settings of the cache of [`Service::Unifier`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheSettings {
    /// The memory.
    pub arena: ArenaSettings,
    /// How it is used.
    pub cache: Settings,
    /// What clients on this host may read in place. Its memory comes on top of the arena's.
    pub views: ViewSettings,
}

/// Longest lease of a view.
const LONGEST_LEASE: Duration = Duration::from_secs(60);
/// Least memory of a cache.
pub const LEAST_CACHE: u64 = 4 << 20;

impl CacheSettings {
    /// Returns the default settings for a cache of `bytes` bytes, and views of an eighth of that
    /// beside it.
    pub fn for_bytes(bytes: u64) -> CacheSettings {
        // A chunk is registered at once: 1 MiB costs little more than its first page.
        let arena = ArenaSettings { bytes, chunk: 1 << 20 };
        let cache = Settings { policy: Policy::ScanResistant, ..Settings::for_bytes(bytes) };
        CacheSettings { arena, cache, views: ViewSettings::for_bytes(bytes / 8) }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// `Invalid`, with the reason.
    pub fn validate(&self) -> Result<(), FsError> {
        let CacheSettings { arena, cache, views } = self;
        let invalid = |text: String| Err(FsError::new(ErrorCode::Invalid, text));
        if arena.bytes < LEAST_CACHE {
            return invalid(format!("a cache of {} bytes; it needs at least {LEAST_CACHE}", arena.bytes));
        }
        if !cache.unit.is_power_of_two() || !(4 << 10..=64 << 10).contains(&cache.unit) {
            return invalid(format!("cache units of {} bytes; 4, 8, 16, 32 and 64 KiB are possible", cache.unit));
        }
        if cache.dirty > arena.bytes / 2 {
            let text = format!("{} dirty bytes in a cache of {}; at most half may be dirty", cache.dirty, arena.bytes);
            return invalid(text);
        }
        if cache.age < Duration::from_millis(10) {
            return invalid("dirty bytes must be allowed to stay in the cache for 10 ms at least".to_owned());
        }
        if views.bytes > 0 && views.lease > LONGEST_LEASE {
            return invalid(format!("a lease of {:?}; at most {LONGEST_LEASE:?} are possible", views.lease));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_that_a_transport_cannot_offer_is_refused() {
        let error = Service::Mmap.check_over(Scheme::Ib).unwrap_err();
        assert!(error.code == ErrorCode::Invalid && error.detail.contains("verbs"), "{error}");
        for scheme in [Scheme::Tcp, Scheme::Shm, Scheme::Sim] {
            Service::Mmap.check_over(scheme).unwrap();
        }
        Service::Unifier(CacheSettings::for_bytes(8 << 20)).check_over(Scheme::Ib).unwrap();
        Service::Normal.check_over(Scheme::Ib).unwrap();
    }
}
