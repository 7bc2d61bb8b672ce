//! What a certificate says of its holder: its role, and its duties.
//!
//! **Why.** A server must know whether a peer is the manager, an I/O server or somebody's program.
//! The names of a certificate are what its authority vouches for, and every authority can write
//! URIs into one. So the role is a URI, and no server needs a list of its own.
//!
//! **Layout.** These URIs are among the subject alternative names, beside the DNS names and
//! addresses of a server:
//!
//! ```text
//!   pvfs:manager   pvfs:iod/3   pvfs:host/NAME   pvfs:user/NAME           at most one: the role
//!   pvfs:may/admin   pvfs:may/backup   pvfs:may/metrics   pvfs:may/bench  any number: duties
//!   pvfs:uid/1000   pvfs:uid/1000-1999   pvfs:gid/100   pvfs:gid/1-4294967294     whom it may act for
//! ```
//!
//! NAME has 1 to 64 characters of `A-Za-z0-9._-`.
//!
//! **Invariants**
//! 1. A role has one spelling. Two certificates that differ in it are of two holders.
//! 2. Nobody acts for whom his certificate does not list, root included ([`Claims::caller`]).
//! 3. What begins with `pvfs:` and is none of these is an error, never nothing: a right that was
//!    misspelt must not go unnoticed.
//!
//! **Tests.** Here: names that are refused, and names in any order (a property).

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use bmi::PeerIdentity;
use bmi::hooks::mutated;
use serde::{Serialize, Serializer};

use super::caller::{BadName, Caller, Ids, NOBODY};
use super::{Role, Sender};
use crate::error::{ErrorCode, FsError};

const SCHEME: &str = "pvfs:";
/// Longest name of a host or a user.
const MAX_NAME: usize = 64;

/// Who the holder of a certificate is: its role. [`Holder::new`] checks the name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// The manager.
    Manager,
    /// The I/O server with this number.
    Iod(u32),
    /// A machine whose users share a mount.
    Host(String),
    /// A user, or a program.
    User(String),
}

/// What the holder of a certificate may do beside the use of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Duty {
    /// Everything that a duty allows.
    Admin,
    /// Save the metadata.
    Backup,
    /// Read what the servers count.
    Metrics,
    /// Measure the servers.
    Bench,
}

impl Duty {
    /// All duties.
    pub const ALL: &[Duty] = &[Duty::Admin, Duty::Backup, Duty::Metrics, Duty::Bench];

    /// Returns the name, as in a certificate behind `pvfs:may/`.
    pub fn name(self) -> &'static str {
        match self {
            Duty::Admin => "admin",
            Duty::Backup => "backup",
            Duty::Metrics => "metrics",
            Duty::Bench => "bench",
        }
    }
}

/// What the names of a certificate say of its holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The role. A certificate of another authority may have none.
    pub role: Option<Holder>,
    /// The duties, as they are listed: [`Claims::may`] knows what `admin` implies.
    pub duties: BTreeSet<Duty>,
    /// The users that the holder may act for.
    pub uids: Ids,
    /// The groups that these may be in.
    pub gids: Ids,
}

impl Claims {
    /// Reads the names of a certificate, in any order. Names that are not ours say nothing.
    ///
    /// # Errors
    /// If there are two roles, or a name begins with `pvfs:` and is none of ours.
    pub fn of(names: &[impl AsRef<str>]) -> Result<Claims, BadName> {
        let mut claims = Claims::default();
        for name in names.iter().filter_map(|name| name.as_ref().strip_prefix(SCHEME)) {
            if let Some(duty) = name.strip_prefix("may/") {
                claims.duties.insert(duty.parse()?);
            } else if let Some(span) = name.strip_prefix("uid/") {
                claims.uids.add(span.parse()?);
            } else if let Some(span) = name.strip_prefix("gid/") {
                claims.gids.add(span.parse()?);
            } else if let Some(one) = claims.role.replace(parse(name, '/')?) {
                return Err(BadName(format!("the certificate has two roles, {one} and {SCHEME}{name}")));
            }
        }
        Ok(claims)
    }

    /// Returns what the certificate of a peer says. `None` if nothing but the transport tells who
    /// it is: a process of this host, or somebody in the clear, whom a server that has a
    /// certificate never meets over a network.
    ///
    /// # Errors
    /// `Permission` if it says nothing valid, or no role.
    pub fn of_peer(peer: &PeerIdentity) -> Result<Option<Claims>, FsError> {
        let PeerIdentity::Names(names) = peer else { return Ok(None) };
        match Claims::of(names) {
            Ok(Claims { role: None, .. }) => {
                let text = format!("the certificate of {peer} names no role (a URI such as pvfs:user/NAME)");
                Err(FsError::new(ErrorCode::Permission, text))
            }
            Ok(claims) => Ok(Some(claims)),
            Err(error) => Err(FsError::new(ErrorCode::Permission, error.to_string())),
        }
    }

    /// Checks that a peer is the server that it says it is.
    ///
    /// # Errors
    /// `Permission` if its certificate does not say so.
    pub fn check_server(peer: &PeerIdentity, role: Role) -> Result<(), FsError> {
        let Some(claims) = Claims::of_peer(peer)? else { return Ok(()) };
        if claims.role == Some(Holder::from(role)) || mutated("fs/a-certificate-of-another-server") {
            return Ok(());
        }
        Err(FsError::new(ErrorCode::Permission, format!("the certificate of {peer} is not that of {role}")))
    }

    /// Checks that a peer is the sender that it says it is. Every role may be a client.
    ///
    /// # Errors
    /// As [`Claims::check_server`].
    pub fn check_sender(peer: &PeerIdentity, sender: &Sender) -> Result<(), FsError> {
        match sender {
            Sender::Client => Claims::of_peer(peer).map(drop),
            Sender::Server(role, _) => Claims::check_server(peer, *role),
        }
    }

    /// Checks that a peer has a duty. Servers have all.
    ///
    /// # Errors
    /// `Permission` if its certificate lacks it.
    pub fn check_duty(peer: &PeerIdentity, duty: Duty) -> Result<(), FsError> {
        let Some(claims) = Claims::of_peer(peer)? else { return Ok(()) };
        if claims.may(duty) || claims.role.as_ref().is_some_and(Holder::is_server) {
            return Ok(());
        }
        let text = format!("this takes a certificate with pvfs:may/{duty}, and that of {peer} has not");
        Err(FsError::new(ErrorCode::Permission, text))
    }

    /// Returns true if the holder has this duty, or all.
    pub fn may(&self, duty: Duty) -> bool {
        self.duties.contains(&duty) || self.duties.contains(&Duty::Admin)
    }

    /// Returns for whom the holder acts who says that he acts for `asserted`. Servers, and who may
    /// [administer](Duty::Admin), are believed. A host that may not act for somebody acts for
    /// nobody, and a user for himself: the first one that is listed.
    pub fn caller(&self, asserted: &Caller) -> Caller {
        let is_user = match &self.role {
            _ if self.duties.contains(&Duty::Admin) || mutated("fs/whoever-he-says-he-is") => return asserted.clone(),
            Some(role) if role.is_server() => return asserted.clone(),
            role => matches!(role, Some(Holder::User(_))),
        };
        let Caller { uid, gid, groups } = asserted;
        if !is_user && !self.uids.contains(*uid) {
            return Caller::NOBODY;
        }
        let mapped = |ids: &Ids, id: u32| {
            let other = ids.first().filter(|_| is_user).unwrap_or(NOBODY);
            if ids.contains(id) { id } else { other }
        };
        let groups = groups.iter().copied().filter(|group| self.gids.contains(*group));
        Caller::new(mapped(&self.uids, *uid), mapped(&self.gids, *gid), groups)
    }

    /// Returns the names that say this.
    pub fn names(&self) -> Vec<String> {
        let duties = self.duties.iter().map(|duty| format!("{SCHEME}may/{duty}"));
        let uids = self.uids.spans().map(|span| format!("{SCHEME}uid/{span}"));
        let gids = self.gids.spans().map(|span| format!("{SCHEME}gid/{span}"));
        self.role.iter().map(Holder::to_string).chain(duties).chain(uids).chain(gids).collect()
    }
}

/// For whom a peer may speak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Speaker {
    /// For everybody. Over a network in the clear nobody proves anything, and is believed.
    Everybody,
    /// For this one.
    One(Caller),
    /// For those in its certificate.
    Listed(Claims),
}

impl Speaker {
    /// Returns for whom a peer may speak. A process of this host speaks for its own user, unless
    /// that is root or `own`, the user of this process.
    ///
    /// # Errors
    /// As [`Claims::of_peer`].
    pub fn of_peer(peer: &PeerIdentity, own: u32) -> Result<Speaker, FsError> {
        Ok(match (Claims::of_peer(peer)?, peer) {
            (Some(claims), _) => Speaker::Listed(claims),
            // The kernel does not tell its further groups.
            (None, &PeerIdentity::Process { user, group, .. }) if user != 0 && user != own => {
                Speaker::One(Caller::new(user, group, []))
            }
            (None, _) => Speaker::Everybody,
        })
    }

    /// Returns for whom it speaks if it says that it speaks for `asserted`.
    pub fn caller(&self, asserted: &Caller) -> Caller {
        match self {
            Speaker::Everybody => asserted.clone(),
            Speaker::One(caller) => caller.clone(),
            Speaker::Listed(claims) => claims.caller(asserted),
        }
    }
}

impl Holder {
    /// Makes a role of its kind (`manager`, `iod`, `host` or `user`) and the number or name.
    ///
    /// # Errors
    /// If there is no such role.
    pub fn new(kind: &str, name: Option<&str>) -> Result<Holder, BadName> {
        let bad = |why: String| Err(BadName(why));
        match (kind, name) {
            ("manager", None) => Ok(Holder::Manager),
            ("manager", Some(_)) => bad("there is one manager, which has no name".to_owned()),
            ("iod", Some(name)) => match name.parse::<u32>() {
                Ok(number) if number.to_string() == name => Ok(Holder::Iod(number)),
                _ => bad(format!("the name of an I/O server is its number, as in iod 3, not {name:?}")),
            },
            ("iod", None) => bad("which I/O server? Its number follows, as in iod 3".to_owned()),
            ("host" | "user", Some(name)) => {
                let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
                if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_known) {
                    return bad(format!("a name has 1 to {MAX_NAME} characters of A-Z a-z 0-9 . _ -, not {name:?}"));
                }
                let of = if kind == "host" { Holder::Host } else { Holder::User };
                Ok(of(name.to_owned()))
            }
            ("host" | "user", None) => bad(format!("which {kind}? Its name follows, as in {kind} alpha")),
            _ => bad(format!("{kind:?} is no role; the roles are manager, iod, host and user")),
        }
    }

    /// Reads what [`Holder::label`] returns.
    ///
    /// # Errors
    /// If the label is of no role.
    pub fn of_label(label: &str) -> Result<Holder, BadName> {
        parse(label, '-').map_err(|error| BadName(format!("{label:?} names no certificate: {error}")))
    }

    /// Returns a name for files and people: `manager`, `iod-3`, `host-alpha`, `user-anna`.
    pub fn label(&self) -> String {
        self.spelled('-')
    }

    /// Returns true for a server of the cluster.
    pub fn is_server(&self) -> bool {
        matches!(self, Holder::Manager | Holder::Iod(_))
    }

    fn spelled(&self, separator: char) -> String {
        match self {
            Holder::Manager => "manager".to_owned(),
            Holder::Iod(number) => format!("iod{separator}{number}"),
            Holder::Host(name) => format!("host{separator}{name}"),
            Holder::User(name) => format!("user{separator}{name}"),
        }
    }
}

impl From<Role> for Holder {
    fn from(role: Role) -> Holder {
        match role {
            Role::Manager => Holder::Manager,
            Role::Iod(number) => Holder::Iod(number),
        }
    }
}

fn parse(text: &str, separator: char) -> Result<Holder, BadName> {
    match text.split_once(separator) {
        Some((kind, name)) => Holder::new(kind, Some(name)),
        None => Holder::new(text, None),
    }
}

/// As it is in a certificate.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.spelled('/'))
    }
}

impl Serialize for Holder {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.spelled('/'))
    }
}

impl fmt::Display for Duty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Duty {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Duty, BadName> {
        let found = Duty::ALL.iter().find(|duty| duty.to_string() == text);
        found.copied().ok_or_else(|| BadName(format!("{text:?} is no duty; they are admin, backup, metrics and bench")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::caller::Span;
    use super::*;

    #[test]
    fn names_of_ours_that_say_nothing_valid_are_refused() {
        for (names, why) in [
            (&["pvfs:manager", "pvfs:iod/0"][..], "two roles"),
            (&["pvfs:manager", "pvfs:manager"], "two roles"),
            (&["pvfs:"], "no role"),
            (&["pvfs:root"], "no role"),
            (&["pvfs:Manager"], "no role"),
            (&["pvfs:manager/0"], "no name"),
            (&["pvfs:iod"], "number follows"),
            (&["pvfs:iod/"], "its number"),
            (&["pvfs:iod/03"], "its number"),
            (&["pvfs:iod/+3"], "its number"),
            (&["pvfs:iod/4294967296"], "its number"),
            (&["pvfs:user"], "name follows"),
            (&["pvfs:user/"], "characters"),
            (&["pvfs:user/a/b"], "characters"),
            (&["pvfs:user/a b"], "characters"),
            (&["pvfs:host/ä"], "characters"),
            (&["pvfs:may/"], "no duty"),
            (&["pvfs:may/Admin"], "no duty"),
            (&["pvfs:may"], "no role"),
            (&["pvfs:uid/"], "no user or group"),
            (&["pvfs:uid/+1"], "no user or group"),
            (&["pvfs:uid/2-1"], "no user or group"),
            (&["pvfs:gid/1-2-3"], "no user or group"),
            (&["pvfs:gid/4294967295"], "no user or group"),
        ] {
            let error = Claims::of(names).unwrap_err().to_string();
            assert!(error.contains(why), "{names:?}: {error}");
        }
        let long = format!("pvfs:user/{}", "a".repeat(MAX_NAME));
        assert!(Claims::of(&[&long]).is_ok() && Claims::of(&[long + "a"]).is_err());
    }

    #[test]
    fn admin_implies_the_other_duties() {
        let claims = |names: &[&str]| Claims::of(names).unwrap();
        assert!(Duty::ALL.iter().all(|duty| claims(&["pvfs:may/admin"]).may(*duty)));
        let backup = claims(&["pvfs:may/backup", "pvfs:may/backup"]);
        assert!(backup.may(Duty::Backup) && !backup.may(Duty::Admin) && !backup.may(Duty::Bench));
    }

    #[test]
    fn a_peer_is_what_its_certificate_says() {
        let of = |names: &[&str]| PeerIdentity::named(names.iter().copied());
        let code = |result: Result<(), FsError>| result.map_err(|error| error.code);
        let (denied, fine) = (Err(ErrorCode::Permission), Ok(()));
        let iod = |number| Sender::Server(Role::Iod(number), Default::default());
        for (names, sender, expected) in [
            (&["pvfs:iod/3", "iod.example"][..], iod(3), fine),
            (&["pvfs:iod/3"], iod(30), denied),
            (&["pvfs:user/anna"], iod(3), denied),
            (&["pvfs:manager"], iod(3), denied),
            (&["pvfs:user/anna"], Sender::Client, fine),
            (&["a.example"], Sender::Client, denied),
            (&["pvfs:user/anna", "pvfs:manager"], Sender::Client, denied),
        ] {
            assert_eq!(code(Claims::check_sender(&of(names), &sender)), expected, "{names:?} as {sender}");
        }
        // Without certificates nothing is known.
        assert_eq!(code(Claims::check_sender(&PeerIdentity::Nobody, &iod(3))), fine);
        for (names, expected) in [
            (&["pvfs:user/anna"][..], [denied, denied]),
            (&["pvfs:user/anna", "pvfs:may/backup"], [fine, denied]),
            (&["pvfs:user/anna", "pvfs:may/admin"], [fine, fine]),
            (&["pvfs:manager"], [fine, fine]),
        ] {
            let has = [Duty::Backup, Duty::Admin].map(|duty| code(Claims::check_duty(&of(names), duty)));
            assert_eq!(has, expected, "{names:?}");
        }
        assert_eq!(code(Claims::check_duty(&PeerIdentity::Nobody, Duty::Admin)), fine);
    }

    #[test]
    fn nobody_acts_for_whom_his_certificate_does_not_list() {
        let acts = |names: &[&str], uid: u32, gid: u32, groups: &[u32]| {
            let Caller { uid, gid, groups } =
                Claims::of(names).unwrap().caller(&Caller::new(uid, gid, groups.iter().copied()));
            (uid, gid, groups)
        };
        let anna = &["pvfs:user/anna", "pvfs:uid/1000", "pvfs:gid/100", "pvfs:gid/27"];
        assert_eq!(acts(anna, 1000, 100, &[27, 4]), (1000, 100, vec![27]));
        assert_eq!(acts(anna, 0, 0, &[0, 27]), (1000, 100, vec![27]), "she is herself, whoever she says she is");
        assert_eq!(acts(&["pvfs:user/bob"], 0, 0, &[27]), (NOBODY, NOBODY, vec![]));
        let host = &["pvfs:host/a", "pvfs:uid/1000-1999", "pvfs:gid/1-4294967294"];
        assert_eq!(acts(host, 1999, 5, &[0, 6]), (1999, 5, vec![6]));
        assert_eq!(acts(host, 1000, 0, &[]), (1000, NOBODY, vec![]));
        for uid in [0, 999, 2000] {
            assert_eq!(acts(host, uid, 5, &[6]), (NOBODY, NOBODY, vec![]), "{uid}");
        }
        assert_eq!(acts(&["pvfs:user/anna", "pvfs:may/admin"], 0, 0, &[]), (0, 0, vec![]));
        assert_eq!(acts(&["pvfs:user/anna", "pvfs:may/backup"], 0, 0, &[]), (NOBODY, NOBODY, vec![]));
        assert_eq!(acts(&["pvfs:iod/3"], 0, 0, &[]), (0, 0, vec![]));
    }

    fn spans() -> impl Strategy<Value = Ids> {
        let span = (0..u32::MAX, 0..u32::MAX)
            .prop_map(|(one, other)| format!("{}-{}", one.min(other), one.max(other)).parse::<Span>().unwrap());
        let span = prop_oneof![span, (0..u32::MAX).prop_map(Span::from)];
        proptest::collection::vec(span, 0..3).prop_map(|spans| spans.into_iter().collect())
    }

    fn roles() -> impl Strategy<Value = Holder> {
        let name = || "[A-Za-z0-9._-]{1,64}";
        prop_oneof![
            Just(Holder::Manager),
            any::<u32>().prop_map(Holder::Iod),
            name().prop_map(Holder::Host),
            name().prop_map(Holder::User)
        ]
    }

    proptest! {
        /// Claims survive as names, among names of others and in any order.
        #[test]
        fn claims_are_read_as_they_were_written(
            role in proptest::option::of(roles()),
            duties in proptest::collection::btree_set(proptest::sample::select(Duty::ALL), 0..5),
            uids in spans(),
            gids in spans(),
            others in proptest::collection::vec("[a-z.:/0-9]{0,12}", 0..4),
            order in any::<prop::sample::Index>(),
        ) {
            let claims = Claims { role, duties, uids, gids };
            let others = others.into_iter().filter(|other| !other.starts_with(SCHEME));
            let mut names: Vec<String> = claims.names().into_iter().chain(others).collect();
            let at = if names.is_empty() { 0 } else { order.index(names.len()) };
            names.rotate_left(at);
            // The first number counts, of a name that is written first.
            let sorted = |ids: &Ids| ids.spans().collect::<BTreeSet<_>>();
            let read = Claims::of(&names).unwrap();
            prop_assert_eq!((sorted(&read.uids), sorted(&read.gids)), (sorted(&claims.uids), sorted(&claims.gids)));
            prop_assert_eq!(Claims { uids: Ids::default(), gids: Ids::default(), ..read },
                Claims { uids: Ids::default(), gids: Ids::default(), ..claims });
        }

        #[test]
        fn a_role_is_read_as_it_was_written(role in roles()) {
            prop_assert_eq!(Claims::of(&[role.to_string()]).unwrap().role, Some(role.clone()));
            prop_assert_eq!(Holder::of_label(&role.label()).unwrap(), role.clone());
            prop_assert!(!role.label().contains('/'));
        }

        #[test]
        fn other_text_never_panics(text in ".{0,80}") {
            let _ = (Claims::of(&[format!("{SCHEME}{text}")]), Holder::of_label(&text));
        }
    }
}
