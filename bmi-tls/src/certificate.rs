//! What is read in a certificate once it is trusted: the names in it, and how long it is good.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use bmi_core::PeerIdentity;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

use crate::Breach;

/// What this library uses of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    /// The alternative names of its subject in their order: of hosts, addresses, URIs, and mail. If
    /// it has none, the common name, as `CN=name`.
    pub(crate) identity: PeerIdentity,
    pub(crate) until: SystemTime,
}

impl Certificate {
    pub(crate) fn parse(der: &[u8]) -> Result<Certificate, Breach> {
        let malformed = || Breach::Untrusted("its certificate is malformed".into());
        let (_, parsed) = parse_x509_certificate(der).map_err(|_| malformed())?;
        let alternative = parsed.subject_alternative_name().map_err(|_| malformed())?;
        let mut names = Vec::new();
        for name in alternative.iter().flat_map(|extension| &extension.value.general_names) {
            match name {
                GeneralName::DNSName(name) | GeneralName::RFC822Name(name) if is_plain(name) => {
                    names.push((*name).to_owned());
                }
                GeneralName::URI(name) => names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => names.extend(address(bytes)),
                _ => {}
            }
        }
        if names.is_empty() {
            let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
            names.extend(common.map(|name| format!("CN={name}")));
        }
        if names.is_empty() {
            return Err(Breach::Untrusted("its certificate has no name".into()));
        }
        let until = parsed.validity().not_after.timestamp();
        let until = SystemTime::UNIX_EPOCH + Duration::from_secs(until.try_into().unwrap_or(0));
        Ok(Certificate { identity: PeerIdentity::named(names), until })
    }
}

/// Returns true unless a name of a host or of a mailbox looks like a URI, an address or a common
/// name. An authority may check less what it writes there, and must not thereby give away what
/// those stand for.
fn is_plain(name: &str) -> bool {
    !name.contains([':', '/', '=']) && name.parse::<IpAddr>().is_err()
}

fn address(bytes: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(|address| address.to_string())
}

/// Returns the time of the system's clock, which certificates are compared with.
#[expect(clippy::disallowed_methods, reason = "certificates are good until a date")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
