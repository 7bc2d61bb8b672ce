//! Addresses of endpoints in text form: `tcp://host:port`, `ib://device:port/host:port`,
//! `shm:///path`, `sim://node:port`, or the scheme of a backend outside this tree.
//!
//! The scheme names the backend. An address is only text until a backend resolves it. Parsing
//! checks the form and looks nothing up, so it cannot block.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};

/// The backend that an address belongs to. The text form parses back to the same scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheme {
    /// `tcp://host:port`
    Tcp,
    /// `ib://[device[:port]]/host:port`
    Ib,
    /// `shm:///path`
    Shm,
    /// `sim://node:port`
    Sim,
    /// The scheme of a backend outside this tree: `name://host:port` or `name:///path`.
    Custom(CustomScheme),
}

/// The name of a scheme of a backend outside this tree. [`Scheme::custom`] and the parsing of an
/// address make it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CustomScheme {
    /// The name, padded with zeros.
    bytes: [u8; Self::MAX_LEN],
}

impl CustomScheme {
    /// Length of the longest name, in bytes.
    pub const MAX_LEN: usize = 16;

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        let len = self.bytes.iter().position(|byte| *byte == 0).unwrap_or(Self::MAX_LEN);
        std::str::from_utf8(&self.bytes[..len]).expect("made of ASCII letters")
    }
}

impl fmt::Debug for CustomScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Scheme {
    /// The schemes of the backends in this tree.
    pub const ALL: [Scheme; 4] = [Scheme::Tcp, Scheme::Ib, Scheme::Shm, Scheme::Sim];

    /// Returns the scheme of a backend outside this tree.
    ///
    /// ```
    /// use bmi_core::{Addr, Scheme};
    ///
    /// let scheme = Scheme::custom("ucx")?;
    /// let addr: Addr = "ucx://node-3:7000".parse()?;
    /// assert_eq!((addr.scheme(), addr.host(), addr.port()), (scheme, "node-3", 7000));
    /// # Ok::<(), bmi_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Invalid` unless the name is a lower-case letter followed by lower-case letters, digits,
    /// `+`, `-` and `.`. `Invalid` for a name over [`CustomScheme::MAX_LEN`] bytes, and for the
    /// name of one of [`Scheme::ALL`].
    pub fn custom(name: &str) -> Result<Scheme, Error> {
        let bad = |why| Err(Error::new(ErrorKind::Invalid, format!("scheme {name:?}: {why}")));
        match name.parse() {
            Ok(Scheme::Custom(custom)) => Ok(Scheme::Custom(custom)),
            Ok(_) => bad("a backend in this tree has it"),
            Err(why) => bad(why),
        }
    }

    /// Returns the name before `://`.
    pub fn as_str(&self) -> &str {
        match self {
            Scheme::Tcp => "tcp",
            Scheme::Ib => "ib",
            Scheme::Shm => "shm",
            Scheme::Sim => "sim",
            Scheme::Custom(custom) => custom.as_str(),
        }
    }
}

impl FromStr for Scheme {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Scheme, &'static str> {
        if let Some(known) = Scheme::ALL.into_iter().find(|known| known.as_str() == name) {
            return Ok(known);
        }
        let letter = |byte: u8| byte.is_ascii_lowercase();
        let formed = name.bytes().next().is_some_and(letter)
            && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit() || b"+-.".contains(&byte));
        if !formed || name.len() > CustomScheme::MAX_LEN {
            return Err("a scheme is up to 16 lower-case letters, digits, '+', '-' and '.', as in tcp");
        }
        let mut bytes = [0; CustomScheme::MAX_LEN];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Scheme::Custom(CustomScheme { bytes }))
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The adapter that an `ib://` address names. It is an adapter of *this* host. The two sides of a
/// connection may name different adapters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// The system's name of the adapter, for example `mlx5_0` or `rxe0`.
    pub name: String,
    /// The port, from 1. Without it, the first active port is used.
    pub port: Option<u8>,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

impl FromStr for Device {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Device, &'static str> {
        let (name, port) = match text.split_once(':') {
            Some((name, port)) => match port.parse() {
                Ok(port) if port > 0 => (name, Some(port)),
                _ => return Err("the device's port must be a number from 1 to 255"),
            },
            None => (text, None),
        };
        if name.is_empty() || name.len() > 64 || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        {
            return Err("the device is not the name of an adapter, as in mlx5_0");
        }
        Ok(Device { name: name.to_owned(), port })
    }
}

/// The address of an endpoint. Its text form parses back to the same address.
///
/// | form | host | port |
/// |---|---|---|
/// | `tcp://host:port` | a name, an IPv4 address, or an IPv6 address in brackets | 0 asks `listen` for a free one |
/// | `ib://[device[:port]]/host:port` | the host of the TCP side channel between two adapters | as for TCP |
/// | `shm:///path` | the absolute path of a Unix socket | always 0 |
/// | `sim://node:port` | a node of the simulated world | as for TCP |
/// | `name://host:port`, `name:///path` | defined by the backend outside this tree | 0 with a path |
///
/// ```
/// use bmi_core::{Addr, Scheme};
/// let addr: Addr = "tcp://[::1]:4000".parse()?;
/// assert_eq!((addr.scheme(), addr.host(), addr.port()), (Scheme::Tcp, "::1", 4000));
/// assert_eq!(addr.to_string(), "tcp://[::1]:4000");
/// let addr: Addr = "ib://mlx5_0:1/10.0.0.1:4000".parse()?;
/// assert_eq!((addr.host(), addr.device().map(|device| device.name.as_str())), ("10.0.0.1", Some("mlx5_0")));
/// # Ok::<(), bmi_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Addr {
    scheme: Scheme,
    device: Option<Device>,
    host: String,
    port: u16,
}

impl Addr {
    /// Returns `tcp://host:port`. `host` is a name, an IPv4 address, or an IPv6 address without
    /// brackets. Port 0 asks `listen` for a free one.
    pub fn tcp(host: impl Into<String>, port: u16) -> Addr {
        Addr { scheme: Scheme::Tcp, device: None, host: host.into(), port }
    }

    /// Returns `ib://device/host:port`. Without a device, it means the first device of this host
    /// with an active port.
    pub fn ib(device: Option<Device>, host: impl Into<String>, port: u16) -> Addr {
        Addr { scheme: Scheme::Ib, device, host: host.into(), port }
    }

    /// Returns `shm://path`. `path` is absolute.
    pub fn shm(path: impl Into<String>) -> Addr {
        Addr { scheme: Scheme::Shm, device: None, host: path.into(), port: 0 }
    }

    /// Returns the address without the adapter, for use on another host. The adapter is one of the
    /// host that listens. A client uses the adapter that its transport was opened on.
    #[must_use]
    pub fn without_device(&self) -> Addr {
        Addr { device: None, ..self.clone() }
    }

    /// Returns `sim://node:port`. `node` is the name of a node of the simulated world.
    pub fn sim(node: impl Into<String>, port: u16) -> Addr {
        Addr { scheme: Scheme::Sim, device: None, host: node.into(), port }
    }

    /// Returns the scheme, which names the backend.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Returns the adapter of this host that an `ib://` address names.
    pub fn device(&self) -> Option<&Device> {
        self.device.as_ref()
    }

    /// Returns the host, the node, or the path of the socket. An IPv6 address has no brackets here.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the port. When listening, 0 means any free port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the address with another port.
    pub fn with_port(&self, port: u16) -> Addr {
        Addr { port, ..self.clone() }
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        match (self.scheme, &self.device) {
            (Scheme::Shm, _) => return f.write_str(&self.host),
            (Scheme::Custom(_), _) if self.host.starts_with('/') => return f.write_str(&self.host),
            (Scheme::Ib, Some(device)) => write!(f, "{device}/")?,
            (Scheme::Ib, None) => f.write_str("/")?,
            (Scheme::Tcp | Scheme::Sim | Scheme::Custom(_), _) => {}
        }
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Addr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Addr, Error> {
        let bad = |why: &str| Error::new(ErrorKind::Invalid, format!("address {text:?}: {why}"));
        let (scheme, rest) =
            text.split_once("://").ok_or_else(|| bad("expected scheme://host:port, as in tcp://localhost:7000"))?;
        let scheme: Scheme = scheme.parse().map_err(bad)?;
        let (device, rest) = match scheme {
            Scheme::Shm => return parse_path(scheme, rest).map_err(bad),
            Scheme::Custom(_) if rest.starts_with('/') => return parse_path(scheme, rest).map_err(bad),
            Scheme::Ib => {
                let (device, rest) = rest.split_once('/').ok_or_else(|| {
                    bad("expected ib://device/host:port, or ib:///host:port for the first device with an active port")
                })?;
                (if device.is_empty() { None } else { Some(device.parse().map_err(bad)?) }, rest)
            }
            Scheme::Tcp | Scheme::Sim | Scheme::Custom(_) => (None, rest),
        };
        let (host, port) = parse_host_and_port(rest).map_err(bad)?;
        Ok(Addr { scheme, device, host: host.to_owned(), port })
    }
}

/// Parses an address that is the path of a socket.
fn parse_path(scheme: Scheme, path: &str) -> Result<Addr, &'static str> {
    // On Linux the name of a socket has at most 108 bytes, with the zero at the end.
    if !path.starts_with('/') || path.ends_with('/') {
        return Err("the path must be absolute and name a socket, as in shm:///run/bmi/iod-0");
    }
    if path.len() > 107 {
        return Err("the path is longer than the 107 bytes that the name of a socket may have");
    }
    if path.contains(|c: char| c.is_control()) {
        return Err("the path has control characters");
    }
    Ok(Addr { scheme, device: None, host: path.to_owned(), port: 0 })
}

/// Parses `host:port`, with an IPv6 address in brackets.
fn parse_host_and_port(text: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = text.rsplit_once(':').ok_or("the port is missing")?;
    let port = port.parse().map_err(|_| "the port must be a number from 0 to 65535")?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or("'[' without ']'")?,
        None if host.contains(':') => return Err("an IPv6 address stands in brackets, as in tcp://[::1]:7000"),
        None => host,
    };
    if host.is_empty() {
        return Err("the host is missing");
    }
    if host.len() > 255 || host.contains(|c: char| c.is_whitespace() || c.is_control() || "[]/".contains(c)) {
        return Err("the host is not a name or an IP address");
    }
    Ok((host, port))
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
        for text in [
            "tcp://localhost:0",
            "tcp://127.0.0.1:7000",
            "tcp://[fe80::1%eth0]:65535",
            "sim://iod-3:1",
            "ib:///[::1]:7000",
            "ib://mlx5_0/host:1",
            "ib://rxe0:1/10.0.0.1:0",
            "shm:///run/bmi/iod-0",
            "ucx://node-3:7000",
            "x-9.+:///run/bmi/iod-0",
            "sixteenlettersxx://[::1]:0",
        ] {
            assert_eq!(text.parse::<Addr>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_adapter_is_left_out_for_others() {
        let addr: Addr = "ib://rxe0:1/10.0.0.1:7".parse().unwrap();
        assert_eq!(addr.without_device().to_string(), "ib:///10.0.0.1:7");
        assert_eq!(Addr::tcp("h", 1).without_device(), Addr::tcp("h", 1));
    }

    #[test]
    fn a_scheme_of_this_tree_is_no_custom_one() {
        assert!(Scheme::ALL.iter().all(|scheme| Scheme::custom(scheme.as_str()).is_err()));
        assert_eq!(Scheme::custom("ucx").unwrap().to_string(), "ucx");
    }

    #[test]
    fn each_mistake_is_named() {
        for (text, why) in [
            ("localhost:1", "scheme://host:port"),
            ("FTP://a:1", "lower-case letters"),
            ("seventeenletterss://a:1", "up to 16"),
            ("://a:1", "up to 16"),
            ("ucx://a", "port is missing"),
            ("ucx:///a/", "name a socket"),
            ("tcp://a", "port is missing"),
            ("tcp://a:65536", "0 to 65535"),
            ("tcp://::1:7", "in brackets"),
            ("tcp://[::1:7", "without ']'"),
            ("tcp://:7", "host is missing"),
            ("tcp://a b:7", "not a name"),
            ("ib://a:7", "ib://device/host:port"),
            ("ib://mlx5_0:0/a:7", "1 to 255"),
            ("ib://:1/a:7", "name of an adapter"),
            ("ib://mlx5_0/a", "port is missing"),
            ("shm://run", "absolute"),
            ("shm:///run/", "name a socket"),
        ] {
            let error = text.parse::<Addr>().unwrap_err();
            assert!(error.to_string().contains(why), "{text}: {error}");
        }
    }
}
