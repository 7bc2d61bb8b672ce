//! The settings of a world.

use std::time::Duration;

use bmi_core::{Capabilities, OneSided, Registration};

use crate::prices::Profile;
use crate::rng::Rng;

/// Settings of a world. Two worlds with equal settings that run the same program do exactly the
/// same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// The source of all random numbers: keys, jitter.
    pub seed: u64,
    /// The price of each operation.
    pub profile: Profile,
    /// The adapters' capabilities, if they differ from those of [`SimConfig::capabilities`]: tiny
    /// queues, for instance, to test back-pressure.
    pub capabilities_override: Option<Capabilities>,
    /// Maximum length of an inline receive, in bytes; 0 for adapters without inline receives, which
    /// all profiles have. A poll shows a message of up to this length to an [inline
    /// receiver](bmi_core::transport::InlineReceiver), which can take it there (C16 of
    /// [`bmi_core::transport`]). Real adapters do this by writing short messages into the
    /// completion. Taking a message costs its completion and the copy. It saves posting the receive
    /// again.
    pub inline_receive_bytes: u64,
    /// Maximum delay of each message, drawn from the seed, in ns. Each connection stays in order.
    pub jitter_ns: u64,
    /// Number of registrations that an adapter can hold. The next one fails with `Exhausted`.
    pub max_registrations: usize,
    /// Virtual time after which a run is given up as endless.
    pub time_limit: Duration,
    /// Events after which a run is given up as endless.
    pub event_limit: u64,
    /// Records a timeline from the start; see [`crate::Sim::trace`].
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
    /// Returns the default settings with a seed.
    pub fn seeded(seed: u64) -> SimConfig {
        SimConfig { seed, ..SimConfig::default() }
    }

    /// Returns [`SimConfig::seeded`] settings whose variable parts are drawn from the seed. Half of
    /// the worlds have adapters with inline receives, for short messages or for all that protocols
    /// send eagerly.
    pub fn drawn(seed: u64) -> SimConfig {
        // A separate stream, so that these draws do not affect any others.
        let mut rng = Rng::new(seed ^ 0x696e_6c69_6e65);
        SimConfig { inline_receive_bytes: [0, 0, 100, 64 << 10][rng.below(4) as usize], ..SimConfig::seeded(seed) }
    }

    /// Returns the machines of [PVFS-IB]; see [`Profile::vapi_2003`].
    pub fn vapi_2003() -> SimConfig {
        SimConfig { profile: Profile::vapi_2003(), ..SimConfig::default() }
    }

    /// Returns the same machines with TCP; see [`Profile::ibnice_2003`].
    pub fn ibnice_2003() -> SimConfig {
        SimConfig { profile: Profile::ibnice_2003(), ..SimConfig::default() }
    }

    /// Returns the default settings with another profile.
    pub fn with_profile(profile: Profile) -> SimConfig {
        SimConfig { profile, ..SimConfig::default() }
    }

    /// Returns the capabilities of this world's adapters. The largest inline send is 256 bytes, so
    /// that longer messages are gathered.
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

/// The options of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceOptions {
    /// Number of spans that are kept. Later ones are counted and left out.
    pub max_spans: usize,
}

impl Default for TraceOptions {
    fn default() -> TraceOptions {
        TraceOptions { max_spans: 1_000_000 }
    }
}
