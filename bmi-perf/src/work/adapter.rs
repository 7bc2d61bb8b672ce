//! The transports of this host.

use std::collections::BTreeMap;

use bmi::config::Device;
use bmi::{Addr, Error, ErrorKind, OpenOptions};
use serde::{Deserialize, Serialize};

use crate::case::{Over, Settings, Test};

/// What a transport can do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Abilities {
    rdma_read: bool,
    write_with_immediate: bool,
}

impl Abilities {
    pub(crate) const ALL: Abilities = Abilities { rdma_read: true, write_with_immediate: true };

    /// Returns what a test needs and the transport has not.
    pub(crate) fn lack(self, test: Test) -> Option<&'static str> {
        match test {
            _ if test.reads() && !self.rdma_read => Some("RDMA read"),
            Test::WriteImm if !self.write_with_immediate => Some("write with immediate data"),
            _ => None,
        }
    }
}

/// Returns what this host can open and what that can do, or why it cannot.
pub(crate) fn all(device: Option<&str>) -> BTreeMap<Over, Result<Abilities, String>> {
    let of = |over: Over| {
        let (device, secure) = (device.map(str::to_owned), over == Over::Tls);
        let settings = Settings { device, secure, ..Settings::default() };
        if over == Over::Uring {
            super::uring::check()?;
        }
        let Some(scheme) = over.scheme() else { return Ok(Abilities::ALL) };
        let transport = options(&settings).and_then(|options| bmi::backend::open(scheme, &options));
        let transport = transport.map_err(|error| error.to_string())?;
        let can = transport.capabilities();
        Ok(Abilities { rdma_read: can.rdma_read, write_with_immediate: can.write_with_immediate })
    };
    Over::ALL.into_iter().map(|over| (over, of(over))).collect()
}

/// Returns the settings of transports.
pub(super) fn options(settings: &Settings) -> Result<OpenOptions, Error> {
    let mut options = OpenOptions::default();
    if let Some(text) = &settings.device {
        options.ib.device = Some(device(text)?);
    }
    if let Some(streams) = settings.streams {
        options.tcp.streams = streams;
    }
    if settings.secure {
        options.tcp.security = Some(super::tls::security()?);
    }
    Ok(options)
}

/// Parses `mlx5_0` or `mlx5_0:1`, as in an address.
fn device(text: &str) -> Result<Device, Error> {
    let addr: Addr = format!("ib://{text}/host:1").parse()?;
    let none = || Error::new(ErrorKind::Invalid, format!("`{text}` is no device"));
    addr.device().cloned().ok_or_else(none)
}
