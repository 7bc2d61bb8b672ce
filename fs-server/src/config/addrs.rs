//! The addresses of servers: one or several for each server, and the one that a server is known by.
//!
//! **Why a primary address.** Clients, layouts, errors and listings need one name for a server, and
//! an address that is the same from every machine. Over that address a client asks the server for
//! the other ones. It uses a better one if it really leads to the same server
//! (`fs_proto::Identity`).

use std::fmt;
use std::path::Path;

use bmi::{Addr, Scheme};
use fs_proto::limits::MAX_ADDRS;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::ConfigError;

/// The addresses that one server listens on: an address or a list of them, written `"tcp://a:7001"`
/// or `["tcp://a:7001", "shm:///run/pvfs/iod-0"]`. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddrs(Vec<Addr>);

impl ServerAddrs {
    /// Returns all addresses. The one that the server is known by is first; the others keep their
    /// order.
    pub fn all(&self) -> &[Addr] {
        &self.0
    }

    /// Returns the address that the server is known by. Clients connect to it first, and errors and
    /// listings name it.
    pub fn primary(&self) -> &Addr {
        &self.0[0]
    }
}

impl TryFrom<Vec<Addr>> for ServerAddrs {
    type Error = &'static str;

    fn try_from(mut addrs: Vec<Addr>) -> Result<ServerAddrs, &'static str> {
        let first = primary(&addrs).ok_or("a server needs an address")?;
        let at = addrs.iter().position(|addr| addr == first).unwrap_or(0);
        addrs[..=at].rotate_right(1);
        Ok(ServerAddrs(addrs))
    }
}

/// Returns the address that a server is known by. TCP is the first choice, because every machine
/// has it. Shared memory is the last, because it reaches only one machine.
fn primary(addrs: &[Addr]) -> Option<&Addr> {
    let of = |scheme| addrs.iter().find(|addr| addr.scheme() == scheme);
    of(Scheme::Tcp).or_else(|| of(Scheme::Ib)).or_else(|| addrs.first())
}

impl fmt::Display for ServerAddrs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(Addr::to_string).collect();
        f.write_str(&texts.join("  "))
    }
}

impl<'de> Deserialize<'de> for ServerAddrs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ServerAddrs, D::Error> {
        struct OneOrMore;

        impl<'de> Visitor<'de> for OneOrMore {
            type Value = ServerAddrs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address or a list of addresses, as in \"tcp://host:7001\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ServerAddrs, E> {
                Ok(ServerAddrs(vec![text.parse().map_err(E::custom)?]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ServerAddrs, A::Error> {
                let mut addrs = Vec::new();
                while let Some(addr) = list.next_element()? {
                    addrs.push(addr);
                }
                ServerAddrs::try_from(addrs).map_err(de::Error::custom)
            }
        }

        deserializer.deserialize_any(OneOrMore)
    }
}

/// Checks the addresses of all servers: a server can listen on each of them, and no two servers
/// share one.
pub(super) fn check(manager: &ServerAddrs, iods: &[ServerAddrs]) -> Result<(), ConfigError> {
    let fail = |text: String| Err(ConfigError(format!("cluster: {text}")));
    let servers = || iods.iter().chain([manager]);
    // A client that reaches the manager from another machine would take a socket of its own machine
    // for this server.
    let one_machine = servers().all(|addrs| addrs.primary().scheme() == Scheme::Shm);
    if let Some(addrs) = servers().find(|addrs| addrs.primary().scheme() == Scheme::Shm && !one_machine) {
        let addr = addrs.primary();
        return fail(format!("{addr} reaches one machine only, the other servers more; give this one tcp:// as well"));
    }
    let mut places = Vec::new();
    for addrs in servers().map(ServerAddrs::all) {
        if addrs.len() > MAX_ADDRS {
            return fail(format!("{} has {} addresses; a server may have {MAX_ADDRS}", addrs[0], addrs.len()));
        }
        let mut sockets = Vec::new();
        for addr in addrs {
            match addr.scheme() {
                Scheme::Tcp | Scheme::Ib if addr.port() != 0 => places.push((addr.host(), addr.port(), addr)),
                Scheme::Tcp | Scheme::Ib => return fail(format!("{addr} needs a port")),
                // The same path on another machine is another socket. It is not known here which
                // servers share a machine.
                Scheme::Shm if sockets.contains(&addr) => return fail(format!("{addr} is there twice")),
                Scheme::Shm => sockets.push(addr),
                Scheme::Sim | Scheme::Custom(_) => {
                    return fail(format!("{addr} is no address of a server; there are tcp://, ib:// and shm://"));
                }
            }
        }
    }
    // The side channel of verbs also uses a TCP port.
    places.sort();
    match places.windows(2).find(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1)) {
        Some(twice) if twice[0].2 == twice[1].2 => fail(format!("{} is there twice", twice[0].2)),
        Some(twice) => fail(format!("{} and {} are one port", twice[0].2, twice[1].2)),
        None => Ok(()),
    }
}

/// Returns addresses on this machine for server `number` of `servers` (0 is the manager), one for
/// each scheme. TCP uses the ports from `port` on, and the side channel of verbs uses the ports
/// after those. Sockets are under `dir`.
pub(super) fn local(
    over: &[Scheme],
    number: usize,
    servers: usize,
    port: u16,
    dir: &Path,
) -> Result<ServerAddrs, ConfigError> {
    let fail = |text: String| ConfigError(text);
    let port = |offset: usize| {
        u16::try_from(usize::from(port) + offset).map_err(|_| fail(format!("no {offset} ports behind {port}")))
    };
    let one = |scheme: &Scheme| match scheme {
        Scheme::Tcp => Ok(Addr::tcp("127.0.0.1", port(number)?)),
        Scheme::Ib => Ok(Addr::ib(None, "127.0.0.1", port(servers + number)?)),
        Scheme::Shm => {
            let name = if number == 0 { "manager".to_owned() } else { format!("iod-{}", number - 1) };
            // Parse the text, so that a path that is invalid for a socket is rejected here.
            let text = format!("shm://{}", dir.join("sockets").join(name).display());
            text.parse().map_err(|error: bmi::Error| fail(error.to_string()))
        }
        Scheme::Sim | Scheme::Custom(_) => Err(fail(format!("{scheme}:// is not for servers of a real machine"))),
    };
    let addrs = over.iter().map(one).collect::<Result<Vec<Addr>, _>>()?;
    ServerAddrs::try_from(addrs).map_err(|why| fail(why.to_owned()))
}

impl ServerAddrs {
    /// Returns the addresses in the form of the configuration file.
    pub(super) fn to_toml(&self) -> String {
        let quoted = |addr: &Addr| toml::Value::String(addr.to_string()).to_string();
        match self.0.as_slice() {
            [one] => quoted(one),
            several => format!("[{}]", several.iter().map(quoted).collect::<Vec<_>>().join(", ")),
        }
    }
}
