//! Certificates, and the list of revoked ones: made with `rcgen`, read with `x509-parser`.
//!
//! **Why.** All that depends on these two crates is here. The rest sees claims, names, times and
//! serial numbers.
//!
//! **Source.** RFC 5280: §4.2.1 extensions of certificates, §5 lists of revoked ones.
//!
//! **Tests.** Those of the authority.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    RevokedCertParams, SanType, SerialNumber,
};
use x509_parser::pem::{Pem, parse_x509_pem};
use x509_parser::prelude::{ASN1Time, CertificateRevocationList, FromDer, GeneralName};

use super::{Error, files};
use crate::host;
use fs_proto::{Claims, Holder};

/// A certificate is good from this time before it was made on: clocks differ.
const BACKDATE: Duration = Duration::from_secs(3600);
/// Longest common name in a certificate (RFC 5280, appendix A.1).
pub(super) const MAX_COMMON_NAME: usize = 64;
/// Longest DNS name, and longest label of one.
const MAX_DNS: usize = 253;
const MAX_LABEL: usize = 63;

/// A time span in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: i64,
    pub(super) until: i64,
}

impl Validity {
    /// Returns the validity of what is made now for some days.
    pub(super) fn days(now: Duration, days: u32) -> Validity {
        let lasts = Duration::from_secs(u64::from(days) * 86_400);
        Validity { from: seconds(now.saturating_sub(BACKDATE)), until: seconds(now + lasts) }
    }
}

fn seconds(time: Duration) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

/// What is read of a certificate.
#[derive(Clone, Debug)]
pub(super) struct Certificate {
    pub(super) subject: String,
    pub(super) claims: Claims,
    /// DNS names and addresses.
    pub(super) at: Vec<SanType>,
    pub(super) serial: u128,
    pub(super) validity: Validity,
    pub(super) pem: String,
    /// Its public key.
    pub(super) key: Vec<u8>,
}

impl Certificate {
    /// Reads the certificate of a file.
    pub(super) fn read(path: &Path) -> Result<Certificate, Error> {
        let pem = files::read(path)?;
        let bad = |why: String| Error::Failed(format!("{}: {why}", path.display()));
        let (_, outer) = parse_x509_pem(pem.as_bytes()).map_err(|error| bad(format!("no certificate: {error}")))?;
        let inner = outer.parse_x509().map_err(|error| bad(format!("no certificate: {error}")))?;
        let names = inner.subject_alternative_name().map_err(|error| bad(error.to_string()))?;
        let names = names.map(|names| names.value.general_names.as_slice()).unwrap_or_default();
        let uris = names.iter().filter_map(|name| if let GeneralName::URI(uri) = name { Some(*uri) } else { None });
        let name = inner.subject().iter_common_name().find_map(|name| name.as_str().ok());
        Ok(Certificate {
            subject: name.unwrap_or_default().to_owned(),
            claims: Claims::of(&uris.collect::<Vec<_>>()).map_err(|error| bad(error.to_string()))?,
            at: names.iter().filter_map(place_of).collect(),
            serial: u128::try_from(&inner.serial).map_err(|_| bad("its serial number is none of ours".to_owned()))?,
            validity: Validity {
                from: inner.validity().not_before.timestamp(),
                until: inner.validity().not_after.timestamp(),
            },
            key: inner.public_key().subject_public_key.data.to_vec(),
            pem: pem.clone(),
        })
    }
}

/// Returns the DNS name or the address of a name in a certificate.
fn place_of(name: &GeneralName<'_>) -> Option<SanType> {
    match name {
        GeneralName::DNSName(name) => Some(SanType::DnsName((*name).try_into().ok()?)),
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(|bytes| IpAddr::from(Ipv4Addr::from(bytes)));
            let six = || <[u8; 16]>::try_from(*bytes).map(|bytes| IpAddr::from(Ipv6Addr::from(bytes)));
            Some(SanType::IpAddress(four.or_else(|_| six()).ok()?))
        }
        _ => None,
    }
}

/// Returns a DNS name or an address, as text.
pub(super) fn text_of(place: &SanType) -> String {
    match place {
        SanType::DnsName(name) => name.as_str().to_owned(),
        SanType::IpAddress(addr) => addr.to_string(),
        _ => String::new(),
    }
}

/// Parses a DNS name or an IP address by which a server is reached.
///
/// # Errors
/// If it is neither. A port or a scheme is not part of it.
pub(crate) fn place(text: &str) -> Result<SanType, String> {
    if let Ok(addr) = text.parse() {
        return Ok(SanType::IpAddress(addr));
    }
    let is_label = |label: &str| {
        (1..=MAX_LABEL).contains(&label.len())
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    // A name never ends in a number: that is an address with an error in it.
    let is_number = |label: &str| label.bytes().all(|byte| byte.is_ascii_digit());
    let is_name =
        text.len() <= MAX_DNS && text.split('.').all(is_label) && !text.rsplit('.').next().is_some_and(is_number);
    let name = is_name.then(|| text.try_into().ok()).flatten().map(SanType::DnsName);
    name.ok_or_else(|| "it must be a host's name or an IP address, without scheme and port".to_owned())
}

/// Makes a key.
pub(super) fn new_key() -> Result<KeyPair, Error> {
    Ok(KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?)
}

/// Reads the key of an authority.
pub(super) fn key_of(pem: &str) -> Result<KeyPair, Error> {
    Ok(KeyPair::from_pkcs8_pem_and_sign_algo(pem, &PKCS_ECDSA_P256_SHA256)?)
}

fn parameters(name: &str, validity: Validity) -> Result<CertificateParams, Error> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    let serial = host::random_number().map_err(|error| Error::Failed(error.to_string()))?;
    parameters.serial_number = Some(SerialNumber::from_slice(&serial.to_be_bytes()));
    parameters.not_before = time(validity.from)?.to_datetime();
    parameters.not_after = time(validity.until)?.to_datetime();
    Ok(parameters)
}

pub(super) fn time(seconds: i64) -> Result<ASN1Time, Error> {
    ASN1Time::from_timestamp(seconds).map_err(|error| Error::Failed(format!("time {seconds}: {error}")))
}

/// Makes the certificate of an authority. Returns it in PEM, and what signs with it.
pub(super) fn new_authority(
    name: &str,
    validity: Validity,
    key: KeyPair,
) -> Result<(String, Issuer<'static, KeyPair>), Error> {
    let mut parameters = parameters(name, validity)?;
    // It signs certificates of holders, never one of another authority.
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let pem = parameters.self_signed(&key)?.pem();
    Ok((pem, Issuer::new(parameters, key)))
}

/// Makes the certificate of a holder, in PEM.
pub(super) fn new_certificate(
    claims: &Claims,
    at: &[SanType],
    validity: Validity,
    key: &KeyPair,
    issuer: &Issuer<'_, KeyPair>,
) -> Result<String, Error> {
    // The name is for people. The URI of the role is what counts, and is never cut off.
    let name = claims.role.as_ref().map(Holder::label).unwrap_or_default();
    let mut parameters = parameters(&name[..name.len().min(MAX_COMMON_NAME)], validity)?;
    parameters.subject_alt_names = at.to_vec();
    for uri in claims.names() {
        parameters.subject_alt_names.push(SanType::URI(uri.as_str().try_into()?));
    }
    parameters.is_ca = IsCa::ExplicitNoCa;
    parameters.use_authority_key_identifier_extension = true;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if !matches!(claims.role, Some(Holder::User(_))) {
        parameters.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    Ok(parameters.signed_by(key, issuer)?.pem())
}

/// The revoked certificates: when each of them was, by serial number.
#[derive(Debug, Default)]
pub(super) struct Revoked {
    /// The number of the list. Each one has a higher number than the one before.
    number: u64,
    pub(super) times: BTreeMap<u128, i64>,
}

impl Revoked {
    /// Reads the list of a file. The list must be one of this authority.
    pub(super) fn read(path: &Path, authority: &Certificate) -> Result<Revoked, Error> {
        let bad = |why: String| Error::Failed(format!("{}: {why}; put it back from a copy", path.display()));
        let no_list = |error: &dyn std::fmt::Display| bad(format!("no list of revoked certificates: {error}"));
        let pem = files::read(path)?;
        let (_, outer) = parse_x509_pem(pem.as_bytes()).map_err(|error| no_list(&error))?;
        let (_, list) = CertificateRevocationList::from_der(&outer.contents).map_err(|error| no_list(&error))?;
        let own = Pem::iter_from_buffer(authority.pem.as_bytes()).next();
        let own = own.and_then(Result::ok).ok_or_else(|| bad("the authority has no certificate".to_owned()))?;
        let own = own.parse_x509().map_err(|error| bad(error.to_string()))?;
        let signed = list.verify_signature(own.public_key());
        signed.map_err(|_| bad("it is not signed by this authority".to_owned()))?;
        let number = list.crl_number().and_then(|number| u64::try_from(number).ok());
        let entry = |entry: &x509_parser::prelude::RevokedCertificate<'_>| {
            Some((u128::try_from(entry.serial()).ok()?, entry.revocation_date.timestamp()))
        };
        let times = list.iter_revoked_certificates().map(entry).collect::<Option<_>>();
        let (number, times) = number.zip(times).ok_or_else(|| bad("its numbers are none of ours".to_owned()))?;
        Ok(Revoked { number, times })
    }

    /// Makes the next list, in PEM. It is good until the authority itself is not.
    pub(super) fn next(&self, validity: Validity, issuer: &Issuer<'_, KeyPair>) -> Result<String, Error> {
        let entry = |(serial, at): (&u128, &i64)| {
            Ok(RevokedCertParams {
                serial_number: SerialNumber::from_slice(&serial.to_be_bytes()),
                revocation_time: time(*at)?.to_datetime(),
                reason_code: None,
                invalidity_date: None,
            })
        };
        let list = CertificateRevocationListParams {
            this_update: time(validity.from)?.to_datetime(),
            next_update: time(validity.until)?.to_datetime(),
            crl_number: SerialNumber::from(self.number + 1),
            issuing_distribution_point: None,
            revoked_certs: self.times.iter().map(entry).collect::<Result<_, Error>>()?,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        Ok(list.signed_by(issuer)?.pem()?)
    }
}
