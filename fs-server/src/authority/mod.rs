//! A small authority for people who have none: it issues certificates to the servers and the users
//! of a cluster, and revokes them.
//!
//! **Why.** Servers let in who has a certificate of an authority that they trust. Many sites have
//! an authority, and use that. For the others `pvfsd ca` is enough, and is made for this alone: no
//! configuration, one directory, and nothing that serves.
//!
//! **Layout** of the directory, which is no one else's (0700):
//!
//! ```text
//!   authority.pem        the authority's certificate: what servers and users trust
//!   authority.key        its key (0600): whoever has it can be anybody
//!   revoked.pem          the list of revoked certificates: for the servers
//!   issued/NAME.pem      the newest certificate of each holder, as iod-3 or user-anna
//!   issued/NAME.key      and its key (0600)
//!   replaced/…           the certificates that were renewed, without their keys
//! ```
//!
//! **Invariants**
//! 1. A file is complete or not there. A key is written before its certificate, and the list of
//!    revoked certificates before that of the authority. So a certificate is never without them.
//! 2. A certificate is kept as long as it is good, also when it was renewed: it can be revoked.
//! 3. Two programs at once do not lose what one of them revokes: each holds a lock on the
//!    directory.
//! 4. A list of revoked certificates has all that the one before it had. A list that is missing, or
//!    is not signed by this authority, is an error and never an empty one.
//!
//! **Source.** RFC 5280. Keys are ECDSA over P-256, which every TLS library knows.
//!
//! | module | contents |
//! |---|---|
//! | [`fs_proto::Claims`] | what a certificate says of its holder |
//! | `certificate` | certificates and the list of revoked ones, made and read |
//! | `files` | files that are complete, and secret |
//! | `store` | the directory, and what is done in it |
//! | `cluster` | the certificates of a new cluster |
//!
//! **Tests.** `tests`.

mod certificate;
mod cluster;
mod files;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use certificate::place;
pub(crate) use cluster::secure;
pub(crate) use fs_proto::{Duty, Holder};
pub(crate) use store::{Authority, EXPIRES_SOON_DAYS, Entry, Order, State};

/// Why an authority does not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The request is at fault.
    #[error("{0}")]
    Usage(String),
    /// A file, or what is in it.
    #[error("{0}")]
    Failed(String),
}

impl From<fs_proto::BadName> for Error {
    fn from(error: fs_proto::BadName) -> Error {
        Error::Usage(error.to_string())
    }
}

impl From<rcgen::Error> for Error {
    fn from(error: rcgen::Error) -> Error {
        Error::Failed(error.to_string())
    }
}
