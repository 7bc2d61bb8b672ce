//! Why a channel ends, in words that say what to do.

use std::fmt::Display;

use bmi_backend::{Fault, Violation};
use bmi_core::ErrorKind;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};
use thiserror::Error as ThisError;

/// Why a channel ends.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Breach {
    /// What comes is no TLS.
    #[error("it speaks without TLS, and this side requires it")]
    Clear,
    /// This side does not trust the peer: why.
    #[error("{0}")]
    Untrusted(String),
    /// The peer does not trust this side: why, as far as it says so.
    #[error("it does not let this side in: {0}")]
    Refused(String),
    /// The peer ends the channel.
    #[error("it ended the channel")]
    Ended,
    /// The peer breaks the rules: how.
    #[error("{0}")]
    Violation(&'static str),
    /// Something that neither side is to blame for, or that has no better words.
    #[error("TLS: {0}")]
    Internal(String),
}

impl<R: Display> From<Breach> for Fault<R> {
    fn from(breach: Breach) -> Fault<R> {
        match breach {
            Breach::Clear | Breach::Untrusted(_) | Breach::Refused(_) => Fault::Denied(breach.to_string()),
            Breach::Ended => Fault::Eof,
            Breach::Violation(how) => Violation::Other(how).into(),
            Breach::Internal(_) => Fault::other(ErrorKind::Protocol, breach.to_string()),
        }
    }
}

impl From<Error> for Breach {
    fn from(error: Error) -> Breach {
        match error {
            Error::AlertReceived(alert) => Breach::alert(alert),
            Error::InvalidCertificate(why) => Breach::Untrusted(certificate(&why)),
            Error::NoCertificatesPresented => Breach::Untrusted("it shows no certificate".into()),
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => Breach::Clear,
            Error::InvalidMessage(_) => Breach::Violation("it sent a malformed record"),
            Error::InappropriateHandshakeMessage { .. } | Error::InappropriateMessage { .. } => {
                Breach::Violation("it sent a message of TLS that is not allowed at this point")
            }
            Error::DecryptError => Breach::Violation("it sent a record that its key has not sealed"),
            Error::PeerMisbehaved(how) => {
                tracing::debug!(?how, "a peer misbehaves in the handshake");
                Breach::Violation("it breaks the rules of TLS")
            }
            Error::PeerIncompatible(why) => match why {
                PeerIncompatible::SupportedVersionsExtensionRequired
                | PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled => Breach::old(),
                _ => Breach::Untrusted(format!("it has no cipher or curve in common with this side ({why:?})")),
            },
            error => Breach::Internal(error.to_string()),
        }
    }
}

impl Breach {
    fn old() -> Breach {
        Breach::Untrusted("it speaks an older TLS than 1.3".into())
    }

    /// Returns what an alert of the peer means.
    pub(crate) fn alert(alert: AlertDescription) -> Breach {
        let why = match alert {
            AlertDescription::CloseNotify => return Breach::Ended,
            AlertDescription::CertificateExpired => "its clock says that the certificate is not good at this time",
            AlertDescription::CertificateRevoked => "the certificate is revoked",
            AlertDescription::UnknownCA => "it does not know the authority of the certificate",
            AlertDescription::DecryptError => "the certificate is not signed by the authority that it names",
            AlertDescription::CertificateRequired => "it wants a certificate",
            AlertDescription::AccessDenied => "this one has no access",
            AlertDescription::ProtocolVersion => "it speaks another version of TLS",
            AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate => "the certificate is not good for this",
            AlertDescription::BadRecordMac => return Breach::Internal("a record was changed on its way".into()),
            other => return Breach::Refused(format!("alert {other:?}")),
        };
        Breach::Refused(why.into())
    }
}

/// Says what is wrong with a certificate of the peer.
fn certificate(why: &CertificateError) -> String {
    match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired, by the clock of this host"
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not good yet, by the clock of this host"
        }
        CertificateError::Revoked => "its certificate is revoked",
        CertificateError::UnknownIssuer => "its certificate is of an authority that this side does not trust",
        CertificateError::BadSignature => "its certificate is not signed by the authority that it names",
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is not for this purpose"
        }
        CertificateError::NotValidForName => "its certificate has no name of the host that was asked for",
        CertificateError::NotValidForNameContext { expected, presented } => {
            let [expected, presented] = [expected.to_str().into_owned(), presented.join(", ")];
            return format!("its certificate is not for {expected}, but for: {}", presented.escape_debug());
        }
        other => return format!("its certificate is not good: {other}"),
    }
    .into()
}
