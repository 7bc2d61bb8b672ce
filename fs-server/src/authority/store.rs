//! The directory of an authority, and what is done in it.
//!
//! **Why.** What was issued must be found again to be renewed or revoked. Files that people can see
//! and copy are enough for that: there is no database beside them that could differ.
//!
//! **Tests.** Those of the authority.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{Issuer, KeyPair, SanType};
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;

use super::certificate::{self, Certificate, MAX_COMMON_NAME, Revoked, Validity};
use super::{Error, files};
use crate::host;
use fs_proto::{Claims, Duty, Holder, Ids};

pub(super) const CERTIFICATE: &str = "authority.pem";
const KEY: &str = "authority.key";
pub(super) const REVOKED: &str = "revoked.pem";
pub(super) const ISSUED: &str = "issued";
const REPLACED: &str = "replaced";
/// A certificate that expires in fewer days is worth a warning.
pub(crate) const EXPIRES_SOON_DAYS: i64 = 30;

/// A certificate that is to be issued.
#[derive(Debug)]
pub(crate) struct Order {
    pub(crate) role: Holder,
    /// DNS names and addresses.
    pub(crate) at: Vec<SanType>,
    /// Duties, and for whom the holder acts. Without users, a host acts for all but root.
    pub(crate) claims: Claims,
    pub(crate) days: u32,
    /// Replace the certificate that is there.
    pub(crate) renew: bool,
}

/// A certificate, as it is listed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) role: Option<Holder>,
    pub(crate) duties: Vec<Duty>,
    /// Users and groups for whom it acts.
    pub(crate) uids: Ids,
    pub(crate) gids: Ids,
    /// DNS names and addresses.
    pub(crate) names: Vec<String>,
    /// In hexadecimal.
    pub(crate) serial: String,
    /// Times of RFC 3339, in UTC.
    pub(crate) from: String,
    pub(crate) until: String,
    pub(crate) state: State,
    pub(crate) days_left: i64,
    /// It was renewed: there is a newer one.
    pub(crate) replaced: bool,
}

/// Whether a certificate is good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Valid,
    Expired,
    Revoked,
}

/// An authority. Nobody else uses its directory meanwhile.
#[derive(Debug)]
pub(crate) struct Authority {
    dir: PathBuf,
    own: Certificate,
    now: Duration,
    _lock: File,
}

impl Authority {
    /// Makes an authority in a directory, which may be missing. `now` is the time since 1970.
    ///
    /// # Errors
    /// If there is one, if the directory is open to others, or a file cannot be written.
    pub(crate) fn init(dir: &Path, name: Option<&str>, days: u32, now: Duration) -> Result<Authority, Error> {
        // Two authorities with one name are mixed up by those who trust both.
        let number = host::random_number().map_err(|error| Error::Failed(error.to_string()))? as u32;
        let name = name.map_or_else(|| format!("PVFS authority {number:08x}"), str::to_owned);
        if !(1..=MAX_COMMON_NAME).contains(&name.chars().count()) || name.contains(char::is_control) {
            return Err(Error::Usage(format!("the name of an authority has 1 to {MAX_COMMON_NAME} characters")));
        }
        files::make_dir(dir)?;
        let lock = locked(dir)?;
        for (path, why) in [
            (dir.join(CERTIFICATE), "there is an authority already"),
            (dir.join(ISSUED), "certificates were issued here; put authority.pem back from a copy"),
        ] {
            // An init that was interrupted may have left empty directories.
            if path.is_file() || fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some()) {
                return Err(Error::Usage(format!("{}: {why}", path.display())));
            }
        }
        [ISSUED, REPLACED].iter().try_for_each(|name| files::make_dir(&dir.join(name)))?;
        let (validity, key) = (Validity::days(now, days), certificate::new_key()?);
        files::write_secret(&dir.join(KEY), &key.serialize_pem())?;
        let (pem, issuer) = certificate::new_authority(&name, validity, key)?;
        files::write_open(&dir.join(REVOKED), &Revoked::default().next(validity, &issuer)?)?;
        // From here on it is an authority.
        files::write_open(&dir.join(CERTIFICATE), &pem)?;
        drop(lock);
        Authority::open(dir, now)
    }

    /// Opens an authority. `now` is the time since 1970.
    ///
    /// # Errors
    /// If there is none, or others can reach its secrets.
    pub(crate) fn open(dir: &Path, now: Duration) -> Result<Authority, Error> {
        let path = dir.join(CERTIFICATE);
        if !path.try_exists().map_err(|error| files::trouble(&path, &error))? {
            let text = format!("{}: no such file; `pvfsd ca init` makes an authority", path.display());
            return Err(Error::Usage(text));
        }
        files::refuse_readable(dir)?;
        let lock = locked(dir)?;
        let keys = files_in(&dir.join(ISSUED), "key")?.into_iter().chain([dir.join(KEY)]);
        // The authority's key may be elsewhere while nothing is issued.
        keys.filter(|key| key.exists()).try_for_each(|key| files::refuse_readable(&key))?;
        Ok(Authority { dir: dir.to_owned(), own: Certificate::read(&path)?, now, _lock: lock })
    }

    /// Returns the authority's own certificate.
    pub(crate) fn own(&self) -> Result<Entry, Error> {
        self.entry(&self.own, &Revoked::default(), false)
    }

    /// Returns what signs, if it is the authority's key.
    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, Error> {
        if self.own.validity.until <= self.now.as_secs() as i64 {
            return Err(Error::Failed("the authority has expired; make a new one, see `pvfsd ca --help`".to_owned()));
        }
        let path = self.dir.join(KEY);
        let lost = |error| Error::Failed(format!("{error}; if the key is lost, see `pvfsd ca --help`"));
        let bad = |why: &str| Error::Failed(format!("{}: {why}", path.display()));
        let key = certificate::key_of(&files::read(&path).map_err(lost)?).map_err(|error| bad(&error.to_string()))?;
        if key.public_key_raw() != self.own.key {
            return Err(bad("it is not the key of authority.pem"));
        }
        Ok(Issuer::from_ca_cert_pem(&self.own.pem, key)?)
    }

    fn issued(&self, role: &Holder, extension: &str) -> PathBuf {
        self.dir.join(ISSUED).join(format!("{}.{extension}", role.label()))
    }

    /// Issues a certificate with a new key. Returns it, and the one that it replaces if that is
    /// still good. A renewal without names and claims takes those that are there.
    ///
    /// # Errors
    /// If there is one already and it is not to be renewed, or a server has no name.
    pub(crate) fn issue(&self, mut order: Order) -> Result<(Entry, Option<Entry>), Error> {
        let (path, key_path) = (self.issued(&order.role, "pem"), self.issued(&order.role, "key"));
        if path.exists() && !order.renew {
            let text = format!("{} is there already; --renew makes a new key and certificate", path.display());
            return Err(Error::Usage(text));
        }
        let old = if path.exists() { Some(Certificate::read(&path)?) } else { None };
        if let Some(old) = old.as_ref().filter(|_| order.at.is_empty() && order.claims == Claims::default()) {
            order.at.clone_from(&old.at);
            order.claims.clone_from(&old.claims);
        }
        if order.role.is_server() && order.at.is_empty() {
            let text = "clients check that a server's certificate has the name or address by which they connect: give \
                        each of them with --at";
            return Err(Error::Usage(text.to_owned()));
        }
        let (issuer, key) = (self.issuer()?, certificate::new_key()?);
        let mut validity = Validity::days(self.now, order.days);
        // Nobody trusts a certificate longer than its authority.
        validity.until = validity.until.min(self.own.validity.until);
        let mut claims = order.claims;
        if matches!(order.role, Holder::Host(_)) && claims.uids.is_empty() {
            (claims.uids, claims.gids) = (Ids::all_but_root(), Ids::all_but_root());
        }
        claims.role = Some(order.role);
        let pem = certificate::new_certificate(&claims, &order.at, validity, &key, &issuer)?;
        let revoked = self.revoked()?;
        let old = match old {
            Some(old) => {
                let name =
                    format!("{}.{:032x}.pem", claims.role.as_ref().map(Holder::label).unwrap_or_default(), old.serial);
                files::write_open(&self.dir.join(REPLACED).join(name), &old.pem)?;
                Some(self.entry(&old, &revoked, true)?).filter(|old| old.state == State::Valid)
            }
            None => None,
        };
        files::write_secret(&key_path, &key.serialize_pem())?;
        files::write_open(&path, &pem)?;
        Ok((self.entry(&Certificate::read(&path)?, &revoked, false)?, old))
    }

    fn revoked(&self) -> Result<Revoked, Error> {
        Revoked::read(&self.dir.join(REVOKED), &self.own)
    }

    /// Returns the certificates of a folder.
    fn certificates(&self, folder: &str) -> Result<Vec<Certificate>, Error> {
        files_in(&self.dir.join(folder), "pem")?.iter().map(|path| Certificate::read(path)).collect()
    }

    /// Returns the newest certificate of each holder, and those that were replaced.
    fn all(&self) -> Result<(Vec<Certificate>, Vec<Certificate>), Error> {
        let (newest, mut replaced) = (self.certificates(ISSUED)?, self.certificates(REPLACED)?);
        // A renewal that was interrupted has replaced nothing.
        replaced.retain(|old| !newest.iter().any(|one| one.serial == old.serial));
        Ok((newest, replaced))
    }

    /// Returns all certificates: the newest one of each holder, and the replaced ones that have not
    /// expired.
    pub(crate) fn list(&self) -> Result<Vec<Entry>, Error> {
        let (revoked, (mut all, replaced)) = (self.revoked()?, self.all()?);
        let newest = all.len();
        all.extend(replaced);
        let entries = all.iter().enumerate().map(|(at, one)| self.entry(one, &revoked, at >= newest));
        let mut entries = entries.collect::<Result<Vec<Entry>, Error>>()?;
        entries.retain(|entry| !entry.replaced || entry.days_left >= 0);
        entries.sort_by(|one, other| (&one.role, one.replaced).cmp(&(&other.role, other.replaced)));
        Ok(entries)
    }

    /// Revokes all certificates of a holder, or only those that were replaced. Returns them.
    ///
    /// # Errors
    /// If there is none that is not revoked.
    pub(crate) fn revoke(&self, role: &Holder, only_replaced: bool) -> Result<Vec<Entry>, Error> {
        let (newest, mut found) = self.all()?;
        found.retain(|old| old.validity.until >= self.now.as_secs() as i64);
        if !only_replaced {
            found.extend(newest);
        }
        found.retain(|one| one.claims.role.as_ref() == Some(role));
        let what = if only_replaced { "no replaced certificate of" } else { "no certificate of" };
        if found.is_empty() {
            return Err(Error::Usage(format!("{what} {} was issued here", role.label())));
        }
        let mut revoked = self.revoked()?;
        found.retain(|one| !revoked.times.contains_key(&one.serial));
        if found.is_empty() {
            return Err(Error::Usage(format!("{} is revoked already", role.label())));
        }
        revoked.times.extend(found.iter().map(|one| (one.serial, self.now.as_secs() as i64)));
        let validity = Validity { until: self.own.validity.until, ..Validity::days(self.now, 1) };
        files::write_open(&self.dir.join(REVOKED), &revoked.next(validity, &self.issuer()?)?)?;
        found.iter().map(|one| self.entry(one, &revoked, false)).collect()
    }

    fn entry(&self, one: &Certificate, revoked: &Revoked, replaced: bool) -> Result<Entry, Error> {
        let date = |seconds: i64| {
            let time = certificate::time(seconds)?.to_datetime();
            let (date, hour, minute, second) = (time.date(), time.hour(), time.minute(), time.second());
            Ok::<_, Error>(format!("{date}T{hour:02}:{minute:02}:{second:02}Z"))
        };
        let left = one.validity.until - self.now.as_secs() as i64;
        let state = match () {
            () if revoked.times.contains_key(&one.serial) => State::Revoked,
            () if left < 0 => State::Expired,
            () => State::Valid,
        };
        Ok(Entry {
            name: one.claims.role.as_ref().map_or_else(|| one.subject.clone(), Holder::label),
            role: one.claims.role.clone(),
            duties: one.claims.duties.iter().copied().collect(),
            uids: one.claims.uids.clone(),
            gids: one.claims.gids.clone(),
            names: one.at.iter().map(certificate::text_of).collect(),
            serial: format!("{:032x}", one.serial),
            from: date(one.validity.from)?,
            until: date(one.validity.until)?,
            state,
            days_left: left.div_euclid(86_400),
            replaced,
        })
    }
}

/// Locks a directory, as long as the file is open. Waits for another program that has the lock.
fn locked(dir: &Path) -> Result<File, Error> {
    let lock =
        File::open(dir).and_then(|file| flock(&file, FlockOperation::LockExclusive).map(|()| file).map_err(Into::into));
    lock.map_err(|error| files::trouble(dir, &error))
}

/// Returns the files of a directory whose names end so, in order.
fn files_in(dir: &Path, extension: &str) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(dir).map_err(|error| files::trouble(dir, &error))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()).map_err(|error| files::trouble(dir, &error)));
    let mut paths = paths.collect::<Result<Vec<PathBuf>, Error>>()?;
    paths.retain(|path| path.extension().is_some_and(|found| found == extension));
    paths.sort();
    Ok(paths)
}
