//! Addresses of endpoints, as people write them: `tcp://host:port`, `sim://node:port`.
//!
//! The scheme names the backend. An address is only text until a backend resolves it; parsing checks its form and never looks
//! anything up, so it cannot block.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};

/// Which backend an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// `tcp://host:port`
    Tcp,
    /// `sim://node:port`
    Sim,
}

impl Scheme {
    /// The scheme as it stands before `://`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scheme::Tcp => "tcp",
            Scheme::Sim => "sim",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The address of an endpoint. Its text form parses back to the same address.
///
/// ```
/// use bmi_core::{Addr, Scheme};
/// let addr: Addr = "tcp://[::1]:4000".parse()?;
/// assert_eq!((addr.scheme(), addr.host(), addr.port()), (Scheme::Tcp, "::1", 4000));
/// assert_eq!(addr.to_string(), "tcp://[::1]:4000");
/// # Ok::<(), bmi_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Addr {
    scheme: Scheme,
    host: String,
    port: u16,
}

impl Addr {
    /// `tcp://host:port`; `host` is a name, an IPv4 address, or an IPv6 address without brackets. Port 0 asks `listen` for a free one.
    pub fn tcp(host: impl Into<String>, port: u16) -> Addr {
        Addr { scheme: Scheme::Tcp, host: host.into(), port }
    }

    /// `sim://node:port`; `node` is the name of a node of the simulated world.
    pub fn sim(node: impl Into<String>, port: u16) -> Addr {
        Addr { scheme: Scheme::Sim, host: node.into(), port }
    }

    /// The backend it belongs to.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Host or node, an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; 0 stands for "any" when listening.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The same host with another port.
    pub fn with_port(&self, port: u16) -> Addr {
        Addr { port, ..self.clone() }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "{}://[{}]:{}", self.scheme, self.host, self.port)
        } else {
            write!(f, "{}://{}:{}", self.scheme, self.host, self.port)
        }
    }
}

impl FromStr for Addr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Addr, Error> {
        let bad = |why: &str| Error::new(ErrorKind::Invalid, format!("address {text:?}: {why}"));
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| bad("expected scheme://host:port, as in tcp://localhost:7000"))?;
        let scheme = match scheme {
            "tcp" => Scheme::Tcp,
            "sim" => Scheme::Sim,
            _ => return Err(bad("unknown scheme; this build knows tcp:// and sim://")),
        };
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| bad("the port is missing"))?;
        let port = port.parse().map_err(|_| bad("the port must be a number from 0 to 65535"))?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner.strip_suffix(']').ok_or_else(|| bad("'[' without ']'"))?,
            None if host.contains(':') => {
                return Err(bad("an IPv6 address stands in brackets, as in tcp://[::1]:7000"));
            }
            None => host,
        };
        if host.is_empty() {
            return Err(bad("the host is missing"));
        }
        if host.len() > 255 || host.contains(|c: char| c.is_whitespace() || c.is_control() || "[]/".contains(c)) {
            return Err(bad("the host is not a name or an IP address"));
        }
        Ok(Addr { scheme, host: host.to_owned(), port })
    }
}

impl TryFrom<String> for Addr {
    type Error = Error;

    fn try_from(text: String) -> Result<Addr, Error> {
        text.parse()
    }
}

impl From<Addr> for String {
    fn from(addr: Addr) -> String {
        addr.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        for text in ["tcp://localhost:0", "tcp://127.0.0.1:7000", "tcp://[fe80::1%eth0]:65535", "sim://iod-3:1"] {
            assert_eq!(text.parse::<Addr>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn each_mistake_is_named() {
        for (text, why) in [
            ("localhost:1", "scheme://host:port"),
            ("ftp://a:1", "unknown scheme"),
            ("tcp://a", "port is missing"),
            ("tcp://a:65536", "0 to 65535"),
            ("tcp://::1:7", "in brackets"),
            ("tcp://[::1:7", "without ']'"),
            ("tcp://:7", "host is missing"),
            ("tcp://a b:7", "not a name"),
        ] {
            let error = text.parse::<Addr>().unwrap_err();
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
    }
}
