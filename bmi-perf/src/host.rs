//! What this host can be measured over.

use std::collections::BTreeMap;

use crate::case::Over;
use crate::control::Settings;

/// Returns what this host can open, or why not.
pub(crate) fn overs(device: Option<&str>) -> BTreeMap<Over, Result<(), String>> {
    let mut overs = BTreeMap::from([(Over::Sockets, Ok(())), (Over::Memory, Ok(()))]);
    for over in [Over::Tcp, Over::Ib, Over::Shm] {
        let settings = Settings { device: device.map(str::to_owned), max_message: 1 << 20 };
        let opened = over.scheme().map(|scheme| crate::library::open(scheme, "bmi-perf", &settings).map(drop));
        overs.insert(over, opened.unwrap_or(Ok(())).map_err(|error| error.to_string()));
    }
    overs
}
