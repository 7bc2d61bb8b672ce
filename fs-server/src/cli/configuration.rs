//! The configuration file, and a new cluster.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use bmi::{OpenOptions, Scheme};

use super::output::{Failure, print};
use crate::authority;
use crate::config::{Config, ConfigError};
use crate::embedded::format_manager_directory;
use crate::host;
use crate::store::others;

#[expect(clippy::too_many_arguments, reason = "the options of the command")]
pub(super) fn init(
    path: &Path,
    dir: &Path,
    iods: usize,
    port: u16,
    over: &[Scheme],
    checksums: bool,
    secure: bool,
    force: bool,
) -> Result<(), Failure> {
    if path.exists() && !force {
        return Err(Failure::Usage(format!("{} is there already; --force writes over it", path.display())));
    }
    // Make the path absolute, so that the servers may be started in any directory.
    let dir = std::path::absolute(dir).map_err(|error| Failure::Usage(format!("{}: {error}", dir.display())))?;
    let mut once: Vec<Scheme> = Vec::new();
    over.iter().for_each(|scheme| {
        if !once.contains(scheme) {
            once.push(*scheme)
        }
    });
    let usage = |error: ConfigError| Failure::Usage(error.to_string());
    let mut text = Config::template(&dir, iods, port, &once, checksums).map_err(usage)?;
    if secure {
        text = text.replace("\n# dir = ", "\ndir = ");
        let user = std::env::var("USER").unwrap_or_else(|_| rustix::process::geteuid().as_raw().to_string());
        let (config, now) = (Config::parse(&text).map_err(usage)?, Duration::from_nanos(host::wall_clock()));
        let who = fs_proto::Caller::of_process();
        let made = authority::secure(&config, &dir, (&user, &who), fs_proto::user_folder().as_deref(), now)?;
        let (servers, own) = (made.servers.display(), made.authority.display());
        let (label, home) = made.user;
        let home = match home {
            Some(home) => format!("yours, of {label}, in {}", home.display()),
            None => format!("yours is {own}/issued/{label}.pem: another one is where your programs look"),
        };
        print(&format!("certificates of the servers in {servers}; {home}; keep {own} in a safe place\n"))?;
    }
    fs::write(path, text).map_err(|error| Failure::Runtime(format!("{}: {error}", path.display())))?;
    print(&format!("wrote {}: a manager and {iods} I/O servers, data under {}\n", path.display(), dir.display()))
}

pub(super) fn describe(config: &Config) -> String {
    let mut text = format!("manager  {}  {}\n", config.cluster.manager, config.storage.manager.display());
    for (index, addrs) in config.cluster.iods.iter().enumerate() {
        text += &format!("iod {index}    {addrs}  {}\n", config.iod_dir(index).display());
    }
    text += &format!("logs     {}\n", config.logs_dir().display());
    text += &format!("strip size {}\n", config.cluster.strip_size);
    text += &match &config.security.dir {
        Some(dir) => format!("security TLS, with the certificates in {}\n", dir.display()),
        None => {
            "security none: whoever reaches a port may read and change everything (\"pvfsd init --secure\")\n".into()
        }
    };
    if let Some(addr) = config.metrics {
        text += &format!("metrics  http://{addr}/metrics, and the following ports\n");
    }
    let servers = || config.cluster.iods.iter().chain([&config.cluster.manager]);
    for scheme in [Scheme::Tcp, Scheme::Ib, Scheme::Shm] {
        if servers().any(|addrs| addrs.all().iter().any(|addr| addr.scheme() == scheme)) {
            text += &match bmi::backend::open(scheme, &OpenOptions::default()) {
                Ok(_) => format!("{scheme}: can be opened on this machine\n"),
                Err(error) => format!("{scheme}: cannot be opened on this machine: {error}\n"),
            };
        }
    }
    text
}

/// Begins a new cluster.
pub(super) fn format(config: &Config) -> Result<(), Failure> {
    let used = |dir: PathBuf| match others(&dir) {
        Ok(names) if names.is_empty() => None,
        Ok(_) => Some(format!("{} is in use", dir.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(format!("{}: {error}", dir.display())),
    };
    if let Some(why) = (0..config.cluster.iods.len()).find_map(|index| used(config.iod_dir(index))) {
        let text = format!("{why}; a new cluster needs empty directories. Nothing was changed");
        return Err(Failure::Runtime(text));
    }
    let cluster = format_manager_directory(&config.storage.manager)?;
    print(&format!("cluster {cluster}: the manager's directory is {}\n", config.storage.manager.display()))
}
