//! What a program proves itself with, and whom it trusts.

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, SystemTime};

use bmi_core::{Error, ErrorKind, PeerIdentity};
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::Breach;
use crate::certificate::{Certificate, now};

/// Records that one key seals: 64 GiB of payload at most, a quarter of what AES-GCM allows (RFC
/// 8446, 5.5).
const RECORDS_OF_KEY: u64 = 1 << 22;
/// Time before its end at which a certificate is warned of.
const WARNS: Duration = Duration::from_secs(30 * 24 * 3600);

/// TLS 1.3 with certificates on both sides: this side's, its key, and the authorities whose
/// certificates are trusted. A copy is the same: [`Security::reload`] on one is seen by all.
///
/// A server is trusted if its certificate has the name or the address that was connected to. Whom a
/// server lets in besides, and whom a client talks to, is decided by the names in the certificate:
/// [`Config::admit`](bmi_core::Config::admit), [`PeerIdentity::Names`].
///
/// ```no_run
/// use bmi_tls::Security;
///
/// let security = Security::mutual("host.pem", "host.key", "authority.pem")?;
/// # Ok::<(), bmi_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Security(Arc<Shared>);

struct Shared {
    files: Files,
    records_of_key: u64,
    current: RwLock<Arc<Material>>,
}

#[derive(Clone, Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
    authorities: PathBuf,
    revoked: Option<PathBuf>,
    /// The file of revoked ones may be missing.
    revoked_if_any: bool,
}

/// What is made of the files.
pub(crate) struct Material {
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    own: Certificate,
}

impl Security {
    /// Reads three files in PEM: a certificate, with those between it and the authority behind it;
    /// its key, which nobody else may read; the certificates of authorities.
    ///
    /// # Errors
    /// `Io` if a file cannot be read. `Invalid` if it has not what is expected, if others can read
    /// the key, if it is not the certificate's, or if the certificate has expired. The texts name
    /// the file.
    pub fn mutual(
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
        authorities: impl AsRef<Path>,
    ) -> Result<Security, Error> {
        let [certificate, key, authorities] =
            [certificate.as_ref(), key.as_ref(), authorities.as_ref()].map(Path::to_path_buf);
        Security::of(Files { certificate, key, authorities, revoked: None, revoked_if_any: false }, RECORDS_OF_KEY)
    }

    /// Refuses the certificates that a file lists: lists of authorities (CRL) in PEM.
    ///
    /// # Errors
    /// As [`Security::mutual`].
    pub fn without_revoked(self, lists: impl AsRef<Path>) -> Result<Security, Error> {
        let revoked = Some(lists.as_ref().to_path_buf());
        Security::of(Files { revoked, revoked_if_any: false, ..self.0.files.clone() }, self.0.records_of_key)
    }

    /// Does the same, but the file may be missing, now or whenever it is read again.
    ///
    /// # Errors
    /// As [`Security::mutual`].
    pub fn without_revoked_if_any(self, lists: impl AsRef<Path>) -> Result<Security, Error> {
        let revoked = Some(lists.as_ref().to_path_buf());
        Security::of(Files { revoked, revoked_if_any: true, ..self.0.files.clone() }, self.0.records_of_key)
    }

    /// Changes keys after so many records.
    ///
    /// # Errors
    /// As [`Security::mutual`].
    #[doc(hidden)]
    pub fn with_records_of_key(self, records: u64) -> Result<Security, Error> {
        Security::of(self.0.files.clone(), records)
    }

    /// Reads the files that the environment names: `BMI_CERTIFICATE`, `BMI_KEY`, `BMI_AUTHORITIES`,
    /// and `BMI_REVOKED` if there are lists of revoked certificates. `None` if it names none.
    ///
    /// # Errors
    /// As [`Security::mutual`]. `Invalid` if it names some of the first three only.
    pub fn from_env() -> Result<Option<Security>, Error> {
        const NAMES: [&str; 4] = ["BMI_CERTIFICATE", "BMI_KEY", "BMI_AUTHORITIES", "BMI_REVOKED"];
        let found = NAMES.map(|name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from));
        let [certificate, key, authorities, revoked] = found;
        let files = match (certificate, key, authorities) {
            (Some(certificate), Some(key), Some(authorities)) => {
                Files { certificate, key, authorities, revoked, revoked_if_any: false }
            }
            (None, None, None) => return Ok(None),
            _ => {
                let text = format!("the environment names some of {} only", NAMES[..3].join(", "));
                return Err(Error::new(ErrorKind::Invalid, text));
            }
        };
        Security::of(files, RECORDS_OF_KEY).map(Some)
    }

    fn of(files: Files, records_of_key: u64) -> Result<Security, Error> {
        let current = RwLock::new(Arc::new(files.read()?));
        Ok(Security(Arc::new(Shared { files, records_of_key, current })))
    }

    /// Reads the files again. Connections from now on use what is in them; those that are there
    /// stay. If it fails, nothing has changed.
    ///
    /// # Errors
    /// As [`Security::mutual`].
    pub fn reload(&self) -> Result<(), Error> {
        let material = Arc::new(self.0.files.read()?);
        *self.0.current.write().unwrap_or_else(std::sync::PoisonError::into_inner) = material;
        Ok(())
    }

    /// Returns who this side is: the names in its certificate.
    pub fn identity(&self) -> PeerIdentity {
        self.material().own.identity.clone()
    }

    /// Returns when its certificate expires.
    pub fn expires(&self) -> SystemTime {
        self.material().own.until
    }

    pub(crate) fn material(&self) -> Arc<Material> {
        self.0.current.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub(crate) fn records_of_key(&self) -> u64 {
        self.0.records_of_key
    }

    /// Returns the name that a server's certificate has to have.
    pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, Breach> {
        // An address may name the interface to a neighbour, which no certificate knows.
        let host = host.split('%').next().unwrap_or(host);
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(ServerName::from(address));
        }
        let no_name = |_| Breach::Internal(format!("{} is no name that a certificate can have", host.escape_debug()));
        ServerName::try_from(host.to_owned()).map_err(no_name)
    }
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Security({})", self.identity())
    }
}

/// Two are the same if they are copies.
impl PartialEq for Security {
    fn eq(&self, other: &Security) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Security {}

fn wrong(path: &Path, why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Invalid, format!("{}: {why}", path.display()))
}

/// Returns the items of a file in PEM.
fn items<T: PemObject>(path: &Path, what: &str) -> Result<Vec<T>, Error> {
    let bytes = fs::read(path).map_err(|error| unreadable(path, error))?;
    let items: Result<Vec<T>, _> = T::pem_slice_iter(&bytes).collect();
    let items = items.map_err(|error| wrong(path, format_args!("no {what} in PEM: {error}")))?;
    if items.is_empty() { Err(wrong(path, format_args!("there is no {what} in it"))) } else { Ok(items) }
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{} cannot be read", path.display())).caused_by(error)
}

impl Files {
    fn read(&self) -> Result<Material, Error> {
        let provider = provider();
        let chain: Vec<CertificateDer<'static>> = items(&self.certificate, "certificate")?;
        let own = Certificate::parse(&chain[0]).map_err(|why| wrong(&self.certificate, why))?;
        warn_of_end(&self.certificate, own.until)?;
        let mut roots = RootCertStore::empty();
        for root in items(&self.authorities, "certificate of an authority")? {
            roots.add(root).map_err(|error| wrong(&self.authorities, error))?;
        }
        let roots = Arc::new(roots);
        let lists: Vec<CertificateRevocationListDer<'static>> = match &self.revoked {
            Some(path) if self.revoked_if_any && !path.try_exists().map_err(|error| unreadable(path, error))? => {
                Vec::new()
            }
            Some(path) => items(path, "list of revoked certificates")?,
            None => Vec::new(),
        };
        let about_roots = |error: &dyn fmt::Display| wrong(&self.authorities, error);
        let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone())
            .with_crls(lists.clone())
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| about_roots(&error))?;
        let clients = WebPkiClientVerifier::builder_with_provider(roots, provider.clone())
            .with_crls(lists)
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| about_roots(&error))?;
        let about_key = |error: rustls::Error| wrong(&self.key, error);
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(about_key)?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(chain.clone(), self.key()?)
            .map_err(about_key)?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(about_key)?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, self.key()?)
            .map_err(about_key)?;
        (client.enable_secret_extraction, server.enable_secret_extraction) = (true, true);
        Ok(Material { client: Arc::new(client), server: Arc::new(server), own })
    }

    /// Returns the private key. A file that others can read is refused: who can read it is this
    /// side, for everybody.
    fn key(&self) -> Result<PrivateKeyDer<'static>, Error> {
        let path = &self.key;
        let mode = fs::metadata(path).map_err(|error| unreadable(path, error))?.mode();
        if mode & 0o077 != 0 {
            let why = format!("others can use the key, its mode is {:o}: chmod 600 {}", mode & 0o777, path.display());
            return Err(wrong(path, why));
        }
        items::<PrivateKeyDer<'static>>(path, "private key").map(|mut keys| keys.remove(0))
    }
}

/// The ciphers, with the one first that the processors of servers are fastest with.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    provider.cipher_suites = vec![
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256,
        ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ring::cipher_suite::TLS13_AES_256_GCM_SHA384,
    ];
    Arc::new(provider)
}

/// Refuses a certificate that no peer would take, and warns of one that soon will be.
fn warn_of_end(path: &Path, until: SystemTime) -> Result<(), Error> {
    match until.duration_since(now()) {
        Err(_) => Err(wrong(path, "the certificate has expired")),
        Ok(left) if left < WARNS => {
            let days = left.as_secs() / (24 * 3600);
            tracing::warn!(certificate = %path.display(), days, "a certificate expires soon: issue a new one");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}
