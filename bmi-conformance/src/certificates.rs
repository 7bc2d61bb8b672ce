//! An authority for tests, and certificates of it: in files, as programs have them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType, IsCa, KeyIdMethod,
    KeyPair, KeyUsagePurpose, RevokedCertParams, SanType, SerialNumber,
};
use tempfile::TempDir;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// An authority, with a folder of its own for all that it issues.
pub struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
    revoked: Vec<RevokedCertParams>,
}

/// The files of a certificate.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    serial: u64,
}

/// What a certificate says. By default it is good for this host, from yesterday to tomorrow.
#[derive(Clone, Debug)]
pub struct Says {
    /// Names of hosts, addresses, and URIs.
    pub names: Vec<String>,
    /// Names that are written as those of hosts, whatever they look like.
    pub hosts: Vec<String>,
    /// From when it is good.
    pub from: SystemTime,
    /// Until when it is good.
    pub until: SystemTime,
}

impl Says {
    /// Returns what a certificate of this host says, which also has the names.
    pub fn names(names: &[&str]) -> Says {
        let own = ["localhost", "127.0.0.1", "::1"];
        let names = own.iter().chain(names).map(|name| (*name).to_owned()).collect();
        let now = now();
        Says { names, hosts: Vec::new(), from: now - DAY, until: now + 365 * DAY }
    }
}

fn now() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "certificates are good until a date")]
    SystemTime::now()
}

impl Authority {
    /// Makes an authority.
    pub fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority signs itself");
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("authority.pem"), issuer.pem()).expect("write");
        Authority { folder, issuer, revoked: Vec::new() }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the file of the authority's own certificate.
    pub fn certificate(&self) -> PathBuf {
        self.folder().join("authority.pem")
    }

    /// Issues a certificate in files that begin with `name`. Those that are there are replaced.
    pub fn issue(&self, name: &str, says: &Says) -> Issued {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        for name in &says.names {
            let uri = || SanType::URI(Ia5String::try_from(name.as_str()).expect("ASCII"));
            let host = || SanType::DnsName(Ia5String::try_from(name.as_str()).expect("ASCII"));
            let other = || if name.contains("://") || name.starts_with("pvfs:") { uri() } else { host() };
            params.subject_alt_names.push(name.parse().map_or_else(|_| other(), SanType::IpAddress));
        }
        for host in &says.hosts {
            params.subject_alt_names.push(SanType::DnsName(Ia5String::try_from(host.as_str()).expect("ASCII")));
        }
        (params.not_before, params.not_after) = (says.from.into(), says.until.into());
        let key = KeyPair::generate().expect("a key");
        // Bytes of a key that was drawn at random, as no two certificates have the same.
        let serial = u64::from_be_bytes(key.public_key_raw()[1..9].try_into().expect("eight bytes")) >> 1;
        params.serial_number = Some(SerialNumber::from(serial));
        let certificate = params.signed_by(&key, &self.issuer).expect("a signature");
        let [certificate_file, key_file] = ["pem", "key"].map(|end| self.folder().join(format!("{name}.{end}")));
        fs::write(&certificate_file, certificate.pem()).expect("write");
        fs::write(&key_file, key.serialize_pem()).expect("write");
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o600)).expect("change the mode");
        Issued { certificate: certificate_file, key: key_file, serial }
    }

    /// Revokes a certificate, and returns the file with all that are revoked.
    pub fn revoke(&mut self, issued: &Issued) -> PathBuf {
        self.revoked.push(RevokedCertParams {
            serial_number: SerialNumber::from(issued.serial),
            revocation_time: now().into(),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: (now() - DAY).into(),
            next_update: (now() + DAY).into(),
            crl_number: SerialNumber::from(self.revoked.len() as u64),
            issuing_distribution_point: None,
            revoked_certs: self.revoked.iter().map(copy_of).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let path = self.folder().join("revoked.pem");
        let list = list.signed_by(&self.issuer).expect("a signature");
        fs::write(&path, list.pem().expect("PEM")).expect("write");
        path
    }
}

fn copy_of(revoked: &RevokedCertParams) -> RevokedCertParams {
    RevokedCertParams {
        serial_number: revoked.serial_number.clone(),
        revocation_time: revoked.revocation_time,
        reason_code: revoked.reason_code,
        invalidity_date: revoked.invalidity_date,
    }
}
