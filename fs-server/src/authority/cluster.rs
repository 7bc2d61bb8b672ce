//! The certificates of a new cluster: what `pvfsd init --secure` makes, so that nobody has to think
//! of it again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bmi::Scheme;
use fs_proto::{Caller, Claims, Span};

use super::store::{CERTIFICATE, ISSUED, REVOKED};
use super::{Authority, Duty, Error, Holder, Order, files, place};
use crate::config::{CERTIFICATES, Config, ServerAddrs};

/// The authority's directory in that of a new cluster.
const AUTHORITY: &str = "authority";
/// How many days the authority lasts, and the certificates.
const DAYS: (u32, u32) = (3652, 365);

/// What was made.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) authority: PathBuf,
    /// The certificates of the servers.
    pub(crate) servers: PathBuf,
    /// The label of the user's certificate, and where it was put, unless there was another one.
    pub(crate) user: (String, Option<PathBuf>),
}

/// Makes an authority under `dir` and certificates of the servers beside it, as the configuration
/// looks for them. The user who does that may do everything. His certificate goes to `home`, the
/// folder of his programs, unless that has one.
///
/// # Errors
/// If there is an authority, or a file cannot be written.
pub(crate) fn secure(
    config: &Config,
    dir: &Path,
    (user, who): (&str, &Caller),
    home: Option<&Path>,
    now: Duration,
) -> Result<Made, Error> {
    let path = dir.join(AUTHORITY);
    fs::create_dir_all(dir).map_err(|error| files::trouble(dir, &error))?;
    let authority = Authority::init(&path, None, DAYS.0, now)?;
    let order = |role, at, claims| Order { role, at, claims, days: DAYS.1, renew: false };
    let at = |addrs: &ServerAddrs| {
        let networks = addrs.all().iter().filter(|addr| addr.scheme() != Scheme::Shm);
        let mut hosts: Vec<&str> = networks.map(|addr| addr.host()).collect();
        hosts.dedup();
        // Over shared memory alone, nobody looks for a name.
        let hosts = if hosts.is_empty() { vec!["localhost"] } else { hosts };
        hosts.into_iter().map(place).collect::<Result<Vec<_>, _>>().map_err(Error::Usage)
    };
    let servers = dir.join(CERTIFICATES);
    files::make_dir(&servers)?;
    let iods = config.cluster.iods.iter().zip(0..).map(|(addrs, number)| (Holder::Iod(number), addrs));
    for (role, addrs) in [(Holder::Manager, &config.cluster.manager)].into_iter().chain(iods) {
        let label = role.label();
        authority.issue(order(role, at(addrs)?, Claims::default()))?;
        hand_out(&path, &label, &servers, &label)?;
    }
    for file in [CERTIFICATE, REVOKED] {
        files::write_open(&servers.join(file), &files::read(&path.join(file))?)?;
    }
    let role = Holder::new("user", Some(user))?;
    let label = role.label();
    let all = |first: u32, more: &[u32]| [first].iter().chain(more).copied().map(Span::from).collect();
    let (uids, gids) = (all(who.uid, &[]), all(who.gid, &who.groups));
    let claims = Claims { role: None, duties: [Duty::Admin].into(), uids, gids };
    authority.issue(order(role, Vec::new(), claims))?;
    let free = home.filter(|home| !home.join("user.pem").exists());
    if let Some(home) = free {
        fs::create_dir_all(home).map_err(|error| files::trouble(home, &error))?;
        files::write_open(&home.join(CERTIFICATE), &files::read(&path.join(CERTIFICATE))?)?;
        hand_out(&path, &label, home, "user")?;
    }
    Ok(Made { authority: path, servers, user: (label, free.map(Path::to_path_buf)) })
}

/// Copies a certificate and its key. The certificate comes last: without it, the key is nothing.
fn hand_out(authority: &Path, label: &str, to: &Path, name: &str) -> Result<(), Error> {
    let from = |end: &str| files::read(&authority.join(ISSUED).join(format!("{label}.{end}")));
    files::write_secret(&to.join(format!("{name}.key")), &from("key")?)?;
    files::write_open(&to.join(format!("{name}.pem")), &from("pem")?)
}
