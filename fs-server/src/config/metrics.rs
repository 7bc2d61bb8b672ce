//! The key `metrics`: where the servers serve what they count.

use std::net::SocketAddr;

use super::{Config, ConfigError};

/// Checks that each server has a port for its counters.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let last = usize::from(u16::MAX) - config.cluster.iods.len();
    match config.metrics {
        Some(addr) if !(1..=last).contains(&addr.port().into()) => {
            let text = format!("metrics is {addr}; it needs a port, and each I/O server one of the following");
            Err(ConfigError(text))
        }
        _ => Ok(()),
    }
}

impl Config {
    /// Returns where the manager, or an I/O server, serves what it counts: the manager at the
    /// address of the configuration, the I/O servers at the following ports.
    pub(crate) fn metrics_of(&self, iod: Option<usize>) -> Option<SocketAddr> {
        let number = iod.map_or(0, |index| index + 1);
        let mut addr = self.metrics?;
        addr.set_port(u16::try_from(usize::from(addr.port()) + number).ok()?);
        Some(addr)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bmi::Scheme;

    use super::*;

    #[test]
    fn each_server_has_a_port_for_its_counters() {
        let template = Config::template(Path::new("/srv/pvfs"), 2, 7000, &[Scheme::Tcp], false).unwrap();
        let of = |addr: &str| Config::parse(&format!("metrics = {addr:?}\n{template}"));
        assert_eq!(Config::parse(&template).unwrap().metrics_of(None), None, "it is off");
        let config = of("127.0.0.1:9400").unwrap();
        let ports = [None, Some(0), Some(1)].map(|iod| config.metrics_of(iod).unwrap().port());
        assert_eq!(ports, [9400, 9401, 9402]);
        assert!(of("[::1]:65533").is_ok());
        for (addr, why) in [("127.0.0.1:0", "needs a port"), ("[::1]:65534", "needs a port"), ("a:1", "socket address")]
        {
            let error = of(addr).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{error}");
        }
    }
}
