//! Who is at the other end of a connection, and who is let in.
//!
//! **Why here.** What proves an identity differs: a certificate over TCP, the kernel over shared
//! memory, the world in a simulation. What a program does with it is the same. So a backend reports
//! the identity with the connection (C18 of [`crate::transport`]), and the endpoint asks the
//! program's [`PeerPolicy`], before any message is received or sent.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::addr::Addr;

/// Who is at the other end of a connection, as far as the backend has proved it. Where the other
/// side only says who it is, nothing is proved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PeerIdentity {
    /// Nothing is proved.
    #[default]
    Nobody,
    /// A process of this host, as the kernel says. It is the one that made the connection; a child
    /// of it may have it by now.
    Process {
        /// The process number, or 0 if it is in another namespace.
        process: u32,
        /// The number of its effective user.
        user: u32,
        /// The number of its effective group.
        group: u32,
    },
    /// The holder of a certificate that this side trusts: the names in it, in their order.
    Names(Arc<[String]>),
}

impl PeerIdentity {
    /// Returns the identity that has these names.
    pub fn named<N: Into<String>>(names: impl IntoIterator<Item = N>) -> PeerIdentity {
        PeerIdentity::Names(names.into_iter().map(Into::into).collect())
    }

    /// Returns the user of this host that runs the peer, if that is proved.
    pub fn user(&self) -> Option<u32> {
        match self {
            PeerIdentity::Process { user, .. } => Some(*user),
            _ => None,
        }
    }

    /// Returns true if a certificate gives the peer this name.
    pub fn is_named(&self, name: &str) -> bool {
        matches!(self, PeerIdentity::Names(names) if names.iter().any(|own| own == name))
    }
}

/// For logs and errors. Control characters in names are escaped.
impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeerIdentity::Nobody => f.write_str("nobody"),
            PeerIdentity::Process { process, user, .. } => write!(f, "user {user} (process {process})"),
            PeerIdentity::Names(names) => write!(f, "{}", names.join(", ").escape_debug()),
        }
    }
}

/// A peer that is about to be connected: what an [`PeerPolicy`] decides by.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Newcomer<'a> {
    /// Who it is.
    pub identity: &'a PeerIdentity,
    /// If this side connects, the address that it connects to. Otherwise the address that the peer
    /// gives or that is seen, which proves nothing.
    pub addr: &'a Addr,
    /// Whether this side connects.
    pub outgoing: bool,
}

impl<'a> Newcomer<'a> {
    pub(crate) fn new(identity: &'a PeerIdentity, addr: &'a Addr, outgoing: bool) -> Newcomer<'a> {
        Newcomer { identity, addr, outgoing }
    }
}

type Decide = dyn Fn(&Newcomer<'_>) -> Result<(), String> + Send + Sync;

/// Whom an endpoint lets in: a function of who is there. The default lets in everybody whom the
/// backend lets in.
///
/// The function is called once for each connection, on the thread that drives the endpoint, which
/// is locked meanwhile: it must not wait, and not use the endpoint. If it returns a text, the
/// connection ends with [`Denied`](crate::ErrorKind::Denied) on this side and, with the text, at a
/// peer that has connected here. A peer that this side connects to sees its connection end.
///
/// ```
/// use bmi_core::{Config, PeerIdentity};
///
/// let config = Config::named("iod 3").admit(|peer| match peer.identity.is_named("manager") {
///     true => Ok(()),
///     false => Err(format!("{} is not the manager", peer.identity)),
/// });
/// # assert_ne!(config, Config::named("iod 3"));
/// ```
#[derive(Clone, Default)]
pub struct PeerPolicy(Option<Arc<Decide>>);

impl PeerPolicy {
    /// Lets in whom `decide` does not refuse. The text of a refusal goes to the peer and to logs.
    pub fn new(decide: impl Fn(&Newcomer<'_>) -> Result<(), String> + Send + Sync + 'static) -> PeerPolicy {
        PeerPolicy(Some(Arc::new(decide)))
    }

    /// Who makes the function panic is not let in. The endpoint goes on.
    pub(crate) fn decide(&self, newcomer: &Newcomer<'_>) -> Result<(), String> {
        let Some(decide) = &self.0 else { return Ok(()) };
        let decided = catch_unwind(AssertUnwindSafe(|| decide(newcomer)));
        decided.unwrap_or_else(|_| Err("the policy of this side panicked".to_owned()))
    }
}

impl fmt::Debug for PeerPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "by a function" } else { "everybody" })
    }
}

/// Functions cannot be compared, so two are equal if they are the same one.
impl PartialEq for PeerPolicy {
    fn eq(&self, other: &PeerPolicy) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for PeerPolicy {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_certificate_says_cannot_forge_a_line_of_a_log() {
        let identity = PeerIdentity::named(["user:eve\nWARN nothing happened", "host b"]);
        assert_eq!(identity.to_string(), "user:eve\\nWARN nothing happened, host b");
        assert!(identity.is_named("host b") && !identity.is_named("host") && !PeerIdentity::Nobody.is_named(""));
    }

    #[test]
    fn who_makes_a_policy_panic_is_not_let_in() {
        let policy = PeerPolicy::new(|newcomer| match newcomer.identity {
            PeerIdentity::Names(names) if names[1] == "a" => Ok(()),
            _ => Err("not a".to_owned()),
        });
        let (addr, of) = (Addr::tcp("h", 1), PeerIdentity::named::<&str>);
        let decide = |identity| policy.decide(&Newcomer::new(&identity, &addr, false));
        assert_eq!([decide(of(vec!["", "a"])), decide(of(vec!["a", ""]))], [Ok(()), Err("not a".to_owned())]);
        assert!(decide(of(vec!["a"])).unwrap_err().contains("panicked"));
        assert_eq!(PeerPolicy::default().decide(&Newcomer::new(&PeerIdentity::Nobody, &addr, true)), Ok(()));
    }

    #[test]
    fn a_user_is_no_name() {
        let process = PeerIdentity::Process { process: 7, user: 1000, group: 100 };
        assert_eq!((process.user(), PeerIdentity::named(["1000"]).user()), (Some(1000), None));
        assert!(!process.is_named("1000"));
        assert_eq!(process.to_string(), "user 1000 (process 7)");
    }
}
