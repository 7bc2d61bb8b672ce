//! What a user can set on a world.

use std::time::Duration;

use bmi_core::{Capabilities, OneSided, Registration};

use crate::profile::Profile;
use crate::rng::Rng;
use crate::timeline::TraceOptions;

/// Settings of a world. Two worlds with equal settings that run the same program do exactly the
/// same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Where all random numbers come from: keys, jitter.
    pub seed: u64,
    /// What things cost.
    pub profile: Profile,
    /// The adapters' capabilities, if not those of [`SimConfig::capabilities`]: tiny queues, for
    /// instance, to test back-pressure.
    pub capabilities_override: Option<Capabilities>,
    /// Messages of up to this many bytes are at hand while they are polled, and are shown to who
    /// can take them there (C16 of [`bmi_core::transport`]), as with an adapter that writes short
    /// messages into the completion itself; 0 for adapters without inline receives, as those of all
    /// profiles are. Taking one costs its completion, and what is copied; posting its receive again
    /// is saved.
    pub inline_receive_bytes: u64,
    /// Each message may be late by up to this, drawn from the seed, in ns. Connections stay in
    /// order, each by itself.
    pub jitter_ns: u64,
    /// Registrations that an adapter can hold; the next one fails, `Exhausted`.
    pub max_registrations: usize,
    /// Virtual time after which a run is given up as endless.
    pub time_limit: Duration,
    /// Events after which a run is given up as endless.
    pub event_limit: u64,
    /// Record a timeline from the start; see [`crate::Sim::trace`].
    pub trace: Option<TraceOptions>,
}

impl Default for SimConfig {
    fn default() -> SimConfig {
        SimConfig {
            seed: 0,
            profile: Profile::default(),
            capabilities_override: None,
            inline_receive_bytes: 0,
            jitter_ns: 0,
            max_registrations: 1 << 20,
            time_limit: Duration::from_secs(24 * 3600),
            event_limit: u64::MAX,
            trace: None,
        }
    }
}

impl SimConfig {
    /// The default settings with a seed.
    pub fn seeded(seed: u64) -> SimConfig {
        SimConfig { seed, ..SimConfig::default() }
    }

    /// The same, with what a sweep varies drawn from the seed: half of the worlds have adapters
    /// with inline receives, for short messages or for all that protocols send eagerly.
    pub fn drawn(seed: u64) -> SimConfig {
        // A stream of its own: what is drawn here says nothing of anything else.
        let mut rng = Rng::new(seed ^ 0x696e_6c69_6e65);
        SimConfig { inline_receive_bytes: [0, 0, 100, 64 << 10][rng.below(4) as usize], ..SimConfig::seeded(seed) }
    }

    /// The machines of the first paper; see [`Profile::vapi_2003`].
    pub fn vapi_2003() -> SimConfig {
        SimConfig { profile: Profile::vapi_2003(), ..SimConfig::default() }
    }

    /// The same machines with TCP; see [`Profile::ibnice_2003`].
    pub fn ibnice_2003() -> SimConfig {
        SimConfig { profile: Profile::ibnice_2003(), ..SimConfig::default() }
    }

    /// The default settings with what things cost.
    pub fn with_profile(profile: Profile) -> SimConfig {
        SimConfig { profile, ..SimConfig::default() }
    }

    /// What the adapters of this world can do. Largest inline send 256 bytes, so that longer
    /// messages go by gather.
    pub fn capabilities(&self) -> Capabilities {
        if let Some(capabilities) = &self.capabilities_override {
            return capabilities.clone();
        }
        let mut capabilities = Capabilities::minimal();
        let profile = &self.profile;
        capabilities.one_sided = if profile.software { OneSided::Emulated } else { OneSided::Native };
        let per_region = profile.register_region_ns + profile.deregister_batch_ns + profile.deregister_region_ns;
        let per_page = profile.register_page_ns + profile.deregister_page_ns;
        capabilities.registration = match (per_region, per_page) {
            (0, 0) => Registration::Free,
            (region, page) => {
                Registration::Pins { per_region: Duration::from_nanos(region), per_page: Duration::from_nanos(page) }
            }
        };
        if profile.outstanding_reads > 0 {
            capabilities.max_outstanding_reads = profile.outstanding_reads as usize;
        }
        capabilities.service_levels = 3;
        capabilities.max_segments = 32;
        capabilities.max_inline = 256;
        capabilities.send_queue_depth = 256;
        capabilities.recv_queue_depth = 4096;
        capabilities
    }
}
