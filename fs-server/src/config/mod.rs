//! The configuration of `pvfsd`: one TOML file for the whole cluster, the same on every machine.
//!
//! Unknown keys are errors, so that a misspelt one is noticed. An error is one line that says where
//! the problem is.

mod addrs;
mod cache;
mod dirs;
#[cfg(test)]
mod keys;
mod metrics;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use bmi::config::{Security, TcpConfig};
use bmi::{OpenOptions, Scheme};
use fs_proto::limits::{DEFAULT_STRIP, MAX_SERVERS, MAX_STRIP, MIN_STRIP};
use serde::{Deserialize, Deserializer};

use crate::iod::{Gate, IodSettings};
use crate::service::Limits;

pub use addrs::ServerAddrs;
pub use cache::{CacheSection, ServiceName};

/// The contents of the configuration file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where the servers serve what they count. `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// The addresses of the servers.
    pub cluster: Cluster,
    /// The data directories of the servers.
    pub storage: Storage,
    /// The limits of each server.
    #[serde(default)]
    pub limits: LimitSection,
    /// How I/O servers move data between disk and network.
    #[serde(default)]
    pub cache: CacheSection,
    /// What servers prove themselves with.
    #[serde(default)]
    pub security: SecuritySection,
}

/// The section `[security]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SecuritySection {
    /// The directory of certificates, on each machine, with the files that `pvfsd ca` makes:
    /// `manager.pem` and `manager.key`, or `iod-N.pem` and `iod-N.key`; `authority.pem`; and
    /// `revoked.pem`, if some are revoked. `None`: everything is in the clear.
    pub dir: Option<PathBuf>,
    /// With certificates: I/O servers let clients use the files that the manager has opened for
    /// them, and no others.
    pub tickets: bool,
    /// For how long files that are open can be used while the manager is down, in seconds.
    pub manager_down_s: u64,
}

impl Default for SecuritySection {
    fn default() -> SecuritySection {
        SecuritySection { dir: None, tickets: true, manager_down_s: Gate::PATIENCE.as_secs() }
    }
}

impl SecuritySection {
    /// Returns whether I/O servers need tickets, and for how long those that they have seen are
    /// good without the manager.
    pub fn tickets(&self) -> Option<Duration> {
        (self.dir.is_some() && self.tickets).then_some(Duration::from_secs(self.manager_down_s))
    }

    /// Returns what the server proves itself with whose files have this name, if servers do.
    ///
    /// # Errors
    /// Those of [`Security::mutual`], which name the file.
    pub fn of(&self, name: &str) -> Result<Option<Security>, bmi::Error> {
        let Some(dir) = &self.dir else { return Ok(None) };
        let [certificate, key] = ["pem", "key"].map(|end| dir.join(format!("{name}.{end}")));
        let security = Security::mutual(certificate, key, dir.join("authority.pem"))?;
        security.without_revoked_if_any(dir.join("revoked.pem")).map(Some)
    }
}

/// The section `[cluster]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// The manager's addresses.
    pub manager: ServerAddrs,
    /// The I/O servers' addresses. Files refer to their servers by the position in this list.
    /// Append new servers, and never reorder the list.
    pub iods: Vec<ServerAddrs>,
    /// Strip size of files for which the client requests no other.
    #[serde(default = "default_strip")]
    pub strip_size: Size,
}

/// The section `[storage]`. All paths are absolute, because a server may be started in any
/// directory.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// The manager's directory.
    pub manager: PathBuf,
    /// The I/O servers' directory. `{index}` is replaced by the server's number.
    pub iod: String,
    /// The directory for the logs of servers in the background ([`Config::logs_dir`]).
    pub logs: Option<PathBuf>,
    /// The I/O servers keep checksums of what they store.
    #[serde(default)]
    pub checksums: bool,
}

/// The section `[limits]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitSection {
    /// Event loops of each server, each on a thread of its own. Limits of requests and of
    /// connections are for all loops of a server together: each loop has an equal part. Only the
    /// loops of the manager have all places for requests each.
    pub threads: usize,
    /// Time limit of one request, in seconds.
    pub request_timeout_s: u64,
    /// Total memory of an I/O server's buffers, shared by all its transports.
    pub buffers: Size,
    /// Most connections at the same time, over each of the server's transports.
    pub connections: usize,
    /// A newcomer beyond `connections` takes the place of the connection that was idle longest, if
    /// it was idle for this long, in seconds.
    pub idle_s: u64,
    /// A host that answers nothing for about this long is given up, in seconds (TCP). Hosts answer
    /// also for programs that do not read.
    pub peer_timeout_s: u64,
    /// Most TCP connections for one connection of a client ([`TcpConfig::streams`]).
    pub streams: u8,
}

impl Default for LimitSection {
    fn default() -> LimitSection {
        let (limits, iod, tcp) = (Limits::default(), IodSettings::default(), TcpConfig::default());
        LimitSection {
            threads: 1,
            request_timeout_s: limits.request_timeout.as_secs(),
            buffers: Size((iod.unit * iod.buffers) as u64),
            connections: DEFAULT_CONNECTIONS,
            idle_s: DEFAULT_IDLE.as_secs(),
            peer_timeout_s: tcp.peer_timeout.as_secs(),
            streams: tcp.streams,
        }
    }
}

/// Transfers of this many bytes or more are handed to the storage threads for long work. Moving a
/// smaller one in the page cache takes about as long as handing it over.
pub const DEFAULT_OFFLOAD: u64 = 128 << 10;

/// Most connections that a server accepts over each transport by default. It is less than the
/// library's, so that the usual limits of file descriptors are enough.
pub const DEFAULT_CONNECTIONS: usize = 4096;

/// After this time without a message a connection is idle, and a newcomer may take its place. An
/// I/O server reports to the manager ten times as often.
pub const DEFAULT_IDLE: Duration = Duration::from_secs(10);

/// The directory of certificates in that of a new cluster.
pub(crate) const CERTIFICATES: &str = "certificates";

/// Most event loops of a server.
pub const MAX_THREADS: usize = 64;

/// A number of bytes, written as `4096`, `"64K"`, `"1M"`, `"2G"`, `"1T"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

fn default_strip() -> Size {
    Size(DEFAULT_STRIP)
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let bad = || format!("{text:?} is not a size; write bytes, or K, M, G, T behind a number, as in \"64K\"");
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let shift = match unit.trim() {
            "" | "B" => 0,
            "K" | "KiB" => 10,
            "M" | "MiB" => 20,
            "G" | "GiB" => 30,
            "T" | "TiB" => 40,
            _ => return Err(bad()),
        };
        let number: u64 = number.parse().map_err(|_| bad())?;
        number.checked_mul(1 << shift).map(Size).ok_or_else(|| format!("{text:?} is too large"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut value, mut unit) = (self.0, 0);
        while value >= 1024 && value.is_multiple_of(1024) && unit < 4 {
            (value, unit) = (value / 1024, unit + 1);
        }
        write!(f, "{value}{}", ["", "K", "M", "G", "T"][unit])
    }
}

#[cfg(test)]
impl serde::Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a size: bytes, or text as in \"64K\"")]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Size(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// An error in a configuration, described in one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// One line that names the file and, where possible, the line and column.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError(format!("{}: {error} (`pvfsd init` writes one)", path.display())))?;
        Config::parse(&text).map_err(|error| ConfigError(format!("{}: {error}", path.display())))
    }

    /// Parses and checks a configuration.
    ///
    /// # Errors
    /// One line that describes the problem and, where possible, its location.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| {
            let place = error.span().map_or(String::new(), |span| {
                let before = text.get(..span.start).unwrap_or(text);
                let line = before.matches('\n').count() + 1;
                let column = before.len() - before.rfind('\n').map_or(0, |at| at + 1) + 1;
                format!("line {line}, column {column}: ")
            });
            ConfigError(format!("{place}{}", error.message().replace('\n', " ")))
        })?;
        config.validate()?;
        Ok(config)
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let fail = |text: String| Err(ConfigError(text));
        let Cluster { manager, iods, strip_size } = &self.cluster;
        if iods.is_empty() || iods.len() > MAX_SERVERS {
            return fail(format!("cluster.iods: {} I/O servers; there must be from 1 to {MAX_SERVERS}", iods.len()));
        }
        addrs::check(manager, iods)?;
        if !(MIN_STRIP..=MAX_STRIP).contains(&strip_size.0) {
            let (low, high) = (Size(MIN_STRIP), Size(MAX_STRIP));
            return fail(format!("cluster.strip_size is {strip_size}; it must be from {low} to {high}"));
        }
        metrics::check(self)?;
        dirs::check(self)?;
        self.cache.validate()?;
        self.limits.validate()
    }

    /// Returns the directory of I/O server `index`.
    pub fn iod_dir(&self, index: usize) -> PathBuf {
        PathBuf::from(self.storage.iod.replace("{index}", &index.to_string()))
    }

    /// Returns the directory for the logs of servers in the background: `storage.logs`, or else
    /// `logs` beside the manager's directory.
    pub fn logs_dir(&self) -> PathBuf {
        self.storage.logs.clone().unwrap_or_else(|| self.storage.manager.with_file_name("logs"))
    }

    /// Returns the text of a commented configuration for a cluster on this machine. It has `iods`
    /// I/O servers, with `checksums` or without, and its data directories are under `dir`. Each
    /// server listens over each of the schemes.
    ///
    /// # Errors
    /// If there are no such addresses: too few ports, or a path too long for a socket.
    pub fn template(
        dir: &Path,
        iods: usize,
        port: u16,
        over: &[Scheme],
        checksums: bool,
    ) -> Result<String, ConfigError> {
        let servers = (0..=iods).map(|number| Ok(addrs::local(over, number, iods + 1, port, dir)?.to_toml()));
        let servers = servers.collect::<Result<Vec<String>, ConfigError>>()?;
        let list: Vec<String> = servers[1..].iter().map(|addrs| format!("    {addrs},\n")).collect();
        let text = |path: PathBuf| toml::Value::String(path.display().to_string()).to_string();
        let (limits, cache) = (LimitSection::default(), CacheSection::default());
        Ok(format!(
            r#"# Configuration of pvfsd: one file for the whole cluster, the same on every machine.

# What the servers count, in Prometheus's text form: the manager at this address, I/O server N at the port N + 1 above it, path
# "/metrics". Whoever reaches the port can read it. Without this it is off.
# metrics = "127.0.0.1:9400"

[cluster]
# The manager: names, attributes, layouts.
manager = {first}
# The I/O servers. Files know their servers by the place in this list: append new ones, never reorder.
# A server may listen on several transports at once; it stands here with one address, or with a list of them:
#   ["tcp://host:7001", "shm:///run/pvfs/iod-0", "ib://mlx5_0/host:7101"]
# Clients begin with the TCP address and take a faster one if they can; "pvfs servers" shows which.
iods = [
{list}]
# Strip size of files that ask for no other.
strip_size = "{strip}"

[storage]
# The manager's directory, on the manager's machine.
manager = {manager}
# The I/O servers' directories; {{index}} stands for the server's number, from 0.
iod = {iod}
# Where "pvfsd start" puts the servers' logs.
logs = {logs}
# Whether the I/O servers keep checksums of what they store, and compare with them what they read from the disk.
checksums = {checksums}

# How much each server takes on. All of it may be left out.
[limits]
# Event loops of each server, each on a thread of its own. Connections are spread over them, and each loop has an equal part of
# "connections". More than one helps if a server uses a whole processor and others idle.
threads = {threads}
# Longest time for one request, in seconds.
request_timeout_s = {timeout}
# Memory for all transfers in flight in an I/O server, whatever transports they come over.
buffers = "{buffers}"
# Connections at a time, over each transport; clients, other servers, all together. A newcomer beyond that takes the place of the
# connection that was idle longest, if it was idle for idle_s seconds; its client connects again when it needs to. If nobody was
# idle for so long, the newcomer is refused. Connections need descriptors ("ulimit -Hn").
connections = {connections}
idle_s = {idle}
# A host that answers nothing is given up after about this many seconds (TCP: probes every quarter of it). Programs that hang or do
# not read keep their connections.
peer_timeout_s = {peer_timeout}
# TCP connections for each client, for paths that one does not fill: long ones, or with a limit for each flow.
streams = {streams}

# How the I/O servers move data between disk and network. All of it may be left out.
[cache]
# "normal": through the system's page cache, and through buffers that are copied to and from.
# "mmap": the same, but large reads are sent from mapped files without a copy. Not over verbs (ib).
# "unifier": through a cache of the server's own, whose memory is also that of the network. Nothing is copied on the server.
service = "normal"
# The rest is for "unifier". Memory of the cache of one I/O server; without this an eighth of the machine's.
# memory = "1G"
# Where the cache is, in a file system in memory: there the next start finds what the disk did not have when the server was killed.
dir = "{cache_dir}"
# For how many milliseconds the disk may lack what was written and not synced.
age_ms = {age}
# Every write reaches the disk before it is acknowledged.
write_through = false
# The part of the memory that clients on this host may read in place (without this an eighth); "0" turns it off.
# views = "128M"

# What servers prove themselves with. Without it everything is in the clear, and whoever reaches a port may read and change all.
[security]
# The directory of certificates, on each machine, as "pvfsd ca" makes them: manager.pem and manager.key, or iod-N.pem and iod-N.key;
# authority.pem; revoked.pem, if some are revoked.
# dir = {certificates}
# With them, I/O servers let clients use only the files that the manager has opened for them. On a network where all is trusted: off.
# tickets = true
# For how long files that are open can be used while the manager is down, in seconds.
# manager_down_s = 600
"#,
            first = servers[0],
            list = list.concat(),
            strip = default_strip(),
            manager = text(dir.join("manager")),
            iod = text(dir.join("iod{index}")),
            logs = text(dir.join("logs")),
            threads = limits.threads,
            timeout = limits.request_timeout_s,
            buffers = limits.buffers,
            connections = limits.connections,
            idle = limits.idle_s,
            peer_timeout = limits.peer_timeout_s,
            streams = limits.streams,
            cache_dir = cache.dir.display(),
            age = cache.age_ms,
            certificates = text(dir.join(CERTIFICATES)),
        ))
    }
}

impl LimitSection {
    fn validate(&self) -> Result<(), ConfigError> {
        let within = |name: &str, value: u64, low: u64, high: u64| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(ConfigError(format!("limits.{name} is {value}; it must be from {low} to {high}")))
        };
        within("threads", self.threads as u64, 1, MAX_THREADS as u64)?;
        within("request_timeout_s", self.request_timeout_s, 1, 24 * 3600)?;
        within("buffers", self.buffers.0, 2 * IodSettings::default().unit as u64, 1 << 40)?;
        within("connections", self.connections as u64, 16, 1 << 20)?;
        within("idle_s", self.idle_s, 3, 24 * 3600)?;
        within("peer_timeout_s", self.peer_timeout_s, 1, 24 * 3600)?;
        within("streams", self.streams.into(), 1, TcpConfig::MAX_STREAMS.into())
    }

    /// Returns the settings of the endpoints of the server `name`.
    pub fn endpoint(&self, name: impl Into<String>) -> bmi::Config {
        let idle = Duration::from_secs(self.idle_s);
        bmi::Config::named(name).max_peers(self.connections).evict_idle_after(Some(idle))
    }

    /// Returns the settings of the transports. A transport has room for all connections of its
    /// endpoint, those that are ending (an eighth more), those that are being made, and a few that
    /// the server itself makes.
    pub fn transports(&self) -> OpenOptions {
        let mut options = OpenOptions::default();
        let all = self.connections + self.connections / 8 + options.tcp.limits.max_half_open + MAX_SERVERS;
        options.tcp.limits.max_connections = all;
        options.ib.limits.max_connections = all;
        options.shm.limits.max_connections = all;
        options.tcp.peer_timeout = Duration::from_secs(self.peer_timeout_s);
        options.tcp.streams = self.streams;
        options
    }

    /// Returns the limits of the request loop.
    pub fn service(&self) -> Limits {
        Limits { request_timeout: Duration::from_secs(self.request_timeout_s), ..Limits::default() }
    }

    /// Returns the settings of an I/O server.
    pub fn iod(&self) -> IodSettings {
        let settings = IodSettings::default();
        IodSettings { buffers: (self.buffers.0 / settings.unit as u64) as usize, ..settings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> String {
        Config::template(Path::new("/srv/pvfs"), 2, 7000, &[Scheme::Tcp], false).unwrap()
    }

    fn addrs(texts: &[&str]) -> ServerAddrs {
        ServerAddrs::try_from(texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_template_is_a_configuration_with_the_defaults() {
        let config = Config::parse(&template()).unwrap();
        assert_eq!(config.cluster.iods, [addrs(&["tcp://127.0.0.1:7001"]), addrs(&["tcp://127.0.0.1:7002"])]);
        assert_eq!(config.limits, LimitSection::default());
        assert_eq!(config.cache, CacheSection::default());
        assert_eq!(config.limits.iod(), IodSettings::default());
        assert_eq!(config.limits.service(), Limits::default());
        let endpoint = config.limits.endpoint("");
        assert_eq!(
            endpoint,
            bmi::Config::default().max_peers(DEFAULT_CONNECTIONS).evict_idle_after(Some(DEFAULT_IDLE))
        );
        let tcp = config.limits.transports().tcp;
        assert!(
            tcp.limits.max_connections
                > endpoint.limits.max_peers + endpoint.limits.max_peers / 8 + tcp.limits.max_half_open
        );
        let mut expected = TcpConfig::default();
        expected.limits.max_connections = tcp.limits.max_connections;
        assert_eq!(tcp, expected);
        assert_eq!(config.iod_dir(1), Path::new("/srv/pvfs/iod1"));
        assert_eq!(config.storage.logs.as_deref(), Some(Path::new("/srv/pvfs/logs")));
    }

    #[test]
    fn mistakes_are_one_clear_line() {
        let cases = [
            ("strip_size = \"64K\"", "stripsize = 1", "unknown field `stripsize`"),
            ("strip_size = \"64K\"", "strip_size = \"64Q\"", "is not a size"),
            ("strip_size = \"64K\"", "strip_size = 17", "must be from 4K to 1G"),
            ("tcp://127.0.0.1:7002", "tcp://127.0.0.1:7000", "is there twice"),
            ("tcp://127.0.0.1:7002", "tcp://127.0.0.1", "the port is missing"),
            ("tcp://127.0.0.1:7002", "sim://a:1", "no address of a server"),
            ("tcp://127.0.0.1:7002", "tcp://127.0.0.1:0", "needs a port"),
            ("tcp://127.0.0.1:7002", "ib:///127.0.0.1:7001", "ib:///127.0.0.1:7001 are one port"),
            ("\"tcp://127.0.0.1:7002\"", "[\"tcp://a:1\", \"tcp://a\"]", "the port is missing"),
            ("\"tcp://127.0.0.1:7002\"", "[\"tcp://a:1\", \"shm://x\"]", "absolute"),
            ("\"tcp://127.0.0.1:7002\"", "[\"tcp://a:1\", \"tcp://a:1\"]", "tcp://a:1 is there twice"),
            ("\"tcp://127.0.0.1:7002\"", "[\"shm:///a\", \"tcp://a:1\", \"shm:///a\"]", "shm:///a is there twice"),
            ("\"tcp://127.0.0.1:7002\"", "[]", "needs an address"),
            ("\"tcp://127.0.0.1:7002\"", "\"shm:///run/x\"", "shm:///run/x reaches one machine only"),
            ("\"tcp://127.0.0.1:7002\"", "17", "an address or a list of addresses"),
            ("iod{index}", "iod", "needs {index}"),
            ("threads = 1", "half_open = 256", "unknown field `half_open`"),
            ("threads = 1", "threads = 0", "limits.threads is 0; it must be from 1 to 64"),
            ("idle_s = 10", "idle_s = 0", "limits.idle_s is 0; it must be from 3"),
            ("connections = 4096", "connections = 1", "limits.connections is 1; it must be from 16"),
            ("[storage]", "[storage", "line 21"),
        ];
        for (from, to, expected) in cases {
            let text = template().replacen(from, to, 1);
            let error = Config::parse(&text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{to}: {error}");
        }
    }

    #[test]
    fn a_server_has_one_address_or_a_list() {
        let list = r#"["shm:///run/bmi/iod-1", "tcp://b:7001", "ib://mlx5_0/b:7101"]"#;
        let text = template().replacen("\"tcp://127.0.0.1:7002\"", list, 1);
        let config = Config::parse(&text).unwrap();
        let second = &config.cluster.iods[1];
        assert_eq!(second.primary().to_string(), "tcp://b:7001", "clients begin with TCP, wherever it stands");
        assert_eq!(*second, addrs(&["tcp://b:7001", "shm:///run/bmi/iod-1", "ib://mlx5_0/b:7101"]));
        assert_eq!(addrs(&["shm:///a", "ib:///b:1"]).primary().to_string(), "ib:///b:1");
        // Two machines may have sockets of the same name.
        let both = text.replacen("\"tcp://127.0.0.1:7001\"", r#"["tcp://a:7001", "shm:///run/bmi/iod-1"]"#, 1);
        assert!(Config::parse(&both).is_ok());
    }

    #[test]
    fn a_template_has_every_server_over_every_transport() {
        let over = [Scheme::Shm, Scheme::Tcp, Scheme::Ib];
        let text = Config::template(Path::new("/srv/pvfs"), 2, 7000, &over, true).unwrap();
        let config = Config::parse(&text).unwrap();
        let expected = ["tcp://127.0.0.1:7002", "shm:///srv/pvfs/sockets/iod-1", "ib:///127.0.0.1:7005"];
        assert_eq!(config.cluster.iods[1], addrs(&expected));
        assert_eq!(config.cluster.manager.all().len(), 3);
        let deep = Path::new("/srv").join("x".repeat(100));
        let error = Config::template(&deep, 2, 7000, &over, false).unwrap_err().to_string();
        assert!(error.contains("107 bytes"), "{error}");
    }

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("64K", 65536), ("1 MiB", 1 << 20), ("3G", 3 << 30)] {
            assert_eq!(text.parse(), Ok(Size(bytes)));
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
        assert!("".parse::<Size>().is_err() && "K".parse::<Size>().is_err());
        assert!("99999999999T".parse::<Size>().is_err());
    }
}
