//! What a program needs, the commands and the benchmarks alike: a reason to stop, endpoints, a
//! number of its own, words for the user.

use std::fmt::Display;
use std::io::{Read, Write};
use std::path::PathBuf;

use bmi::config::TcpConfig;
use bmi::{Addr, Config, Endpoint, Scheme, driver};

use crate::{Endpoints, TransportChoice};

pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const INTERRUPTED: u8 = 130;

/// The reason why a command ended early: its status and the line to print.
pub(crate) struct Stop(pub(crate) u8, pub(crate) String);

impl Stop {
    pub(crate) fn failed(error: impl std::fmt::Display) -> Stop {
        Stop(FAILED, error.to_string())
    }

    pub(crate) fn usage(text: impl Into<String>) -> Stop {
        Stop(USAGE, text.into())
    }
}

impl From<crate::Error> for Stop {
    fn from(error: crate::Error) -> Stop {
        Stop::failed(error)
    }
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Stop {
        Stop::failed(error)
    }
}

/// Opens an endpoint for each transport that may be used: the manager's and, unless one was
/// explicitly requested, all that this machine has. TCP is always included, because I/O servers are
/// known by their TCP addresses where they have one.
pub(crate) fn open(manager: &Addr, over: TransportChoice) -> Result<Endpoints, Stop> {
    let clock = driver::MonotonicClock::new();
    // The adapter in the user's manager address is this machine's, so it applies here.
    let mut options = fs_proto::user_transports().map_err(Stop::failed)?.at(manager);
    // The server's setting decides.
    options.tcp.streams = TcpConfig::MAX_STREAMS;
    let endpoint = |scheme| bmi::endpoint(scheme, &options, Config::named("pvfs"), clock);
    let first: Endpoint = endpoint(manager.scheme()).map_err(Stop::failed)?;
    let mut endpoints = Endpoints::one(manager.scheme(), first);
    for scheme in [Scheme::Tcp, Scheme::Shm, Scheme::Ib].into_iter().filter(|scheme| *scheme != manager.scheme()) {
        let asked = over == TransportChoice::Only(scheme);
        if !asked && over != TransportChoice::Auto && scheme != Scheme::Tcp {
            continue;
        }
        endpoints = match endpoint(scheme) {
            Ok(endpoint) => endpoints.and(scheme, endpoint),
            Err(error) if asked => return Err(Stop::failed(error)),
            Err(error) => endpoints.without(scheme, error.to_string()),
        };
    }
    Ok(endpoints)
}

/// Returns the program of the crate `fs-mount`: the one beside this program, or that of the PATH.
pub(crate) fn mount_program() -> PathBuf {
    const PROGRAM: &str = "pvfs-mount";
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM)).filter(|path| path.exists());
    beside.unwrap_or_else(|| PROGRAM.into())
}

/// Returns a number that no other client has.
pub(crate) fn random_id() -> Result<u128, Stop> {
    let mut bytes = [0; 16];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|error| Stop::failed(format!("/dev/urandom: {error}")))?;
    Ok(u128::from_le_bytes(bytes))
}

/// Prints an error on standard error. If that fails, the exit status still reports it.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "pvfs: {}", printable(line));
}

/// Returns a name in a form that is safe in a line of text. A name may contain line feeds and
/// control codes of terminals.
pub(crate) fn printable(name: impl Display) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    name.to_string().chars().map(escaped).collect()
}
