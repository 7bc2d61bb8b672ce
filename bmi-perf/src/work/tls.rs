//! The certificates of this process: those that the environment names, or, between two processes of
//! one host, some that are thrown away afterwards.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bmi::config::Security;
use bmi::{Error, ErrorKind};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

/// What the client's process proves itself with, if the environment says nothing.
static MADE: OnceLock<Security> = OnceLock::new();

/// Returns the certificate of this process.
pub(super) fn security() -> Result<Security, Error> {
    let none = || {
        let text = "TLS needs certificates: name the files in BMI_CERTIFICATE, BMI_KEY and BMI_AUTHORITIES";
        Error::new(ErrorKind::Unsupported, text)
    };
    match MADE.get() {
        Some(made) => Ok(made.clone()),
        None => Security::from_env()?.ok_or_else(none),
    }
}

/// Makes an authority and a certificate for this host in a folder, unless the environment names
/// some. Returns what the environment of the other process is to have besides.
pub(crate) fn make(folder: &Path) -> Result<Vec<(&'static str, PathBuf)>, Error> {
    if Security::from_env()?.is_some() {
        return Ok(Vec::new());
    }
    let failed = |error: rcgen::Error| Error::new(ErrorKind::Io, format!("a certificate cannot be made: {error}"));
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().map_err(failed)?).map_err(failed)?;
    let key = KeyPair::generate().map_err(failed)?;
    let hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let own = CertificateParams::new(hosts).and_then(|params| params.signed_by(&key, &authority)).map_err(failed)?;
    let files =
        [("BMI_CERTIFICATE", own.pem()), ("BMI_KEY", key.serialize_pem()), ("BMI_AUTHORITIES", authority.pem())];
    let mut environment = Vec::new();
    for (name, text) in files {
        let path = folder.join(name);
        let mut options = fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| std::io::Write::write_all(&mut file, text.as_bytes())).map_err(Error::from)?;
        environment.push((name, path));
    }
    let [certificate, key, authorities] = [0, 1, 2].map(|at: usize| &environment[at].1);
    // A second run in this process would find the first one's.
    let _ = MADE.set(Security::mutual(certificate, key, authorities)?);
    Ok(environment)
}
