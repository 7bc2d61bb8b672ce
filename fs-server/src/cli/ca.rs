//! `pvfsd ca`: the commands of the authority, and what they print.
//!
//! **Why.** An authority needs no configuration and no server, so these commands read none.
//!
//! **Tests.** Here: a list as text and JSON. Those of the command line: status and every option.

use std::ffi::CString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use fs_proto::{Claims, Ids, Span};
use nix::unistd::{User, getgrouplist};
use rcgen::SanType;
use serde::Serialize;

use super::output::{Failure, print};
use crate::authority::{self, Authority, Duty, EXPIRES_SOON_DAYS, Entry, Holder, Order, State};
use crate::host;

/// The authority's directory, without another.
const DIR: &str = "pvfs-ca";
/// How many days an authority lasts: ten years.
const AUTHORITY_DAYS: u32 = 3652;
/// How many days a certificate lasts.
const DAYS: u32 = 365;
/// Longest life of either: a century.
const MAX_DAYS: i64 = 36_525;

/// Parses a duty, and lists them in the help.
fn duty() -> impl TypedValueParser<Value = Duty> {
    let names = PossibleValuesParser::new(Duty::ALL.iter().map(|duty| PossibleValue::new(duty.name())));
    names.try_map(|name| name.parse::<Duty>())
}

#[derive(Debug, Subcommand)]
pub(super) enum Ca {
    /// Make an authority, in a directory that is nobody else's.
    ///
    /// The directory is made if it is missing. Its list of revoked certificates is empty.
    Init {
        /// The directory.
        #[arg(default_value = DIR)]
        dir: PathBuf,
        /// The authority's name in certificates, which no other one should have [default: "PVFS
        /// authority" and a random number].
        #[arg(long)]
        name: Option<String>,
        /// How many days it lasts. All certificates end with it.
        #[arg(long, default_value_t = AUTHORITY_DAYS, value_parser = clap::value_parser!(u32).range(1..=MAX_DAYS))]
        days: u32,
    },
    /// Issue a certificate, with a new key.
    ///
    /// Writes issued/NAME.pem and issued/NAME.key, where NAME is manager, iod-3, host-alpha or
    /// user-anna. If it was interrupted, do it again.
    Issue {
        #[command(flatten)]
        dir: Dir,
        /// Who gets it: the manager, an I/O server, a machine whose users share a mount, or a user.
        role: Kind,
        /// The number of an I/O server, or the name of a host or user: 1 to 64 of A-Z a-z 0-9 . _ -
        name: Option<String>,
        /// A DNS name or an IP address by which the server is reached. May be repeated; servers
        /// have at least one.
        #[arg(long, value_name = "NAME_OR_ADDRESS", value_parser = authority::place)]
        at: Vec<SanType>,
        /// What the holder may do beside the use of files; admin is all of it. May be repeated.
        #[arg(long, value_name = "DUTY", value_parser = duty())]
        may: Vec<Duty>,
        /// A user for whom a user or a host acts, by number, or a range of them such as 1000-1999.
        /// May be repeated [default: for a user, the account of that name on this machine; for a
        /// host, all but root].
        #[arg(long, value_name = "NUMBERS")]
        uid: Vec<Span>,
        /// A group that they may be in, like --uid.
        #[arg(long, value_name = "NUMBERS")]
        gid: Vec<Span>,
        /// How many days it is good; never longer than the authority.
        #[arg(long, default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=MAX_DAYS))]
        days: u32,
        /// Replace the certificate that is there, by one with a new key. Without --at, --may, --uid
        /// and --gid, all that stays. The old certificate is good until it expires or is revoked.
        #[arg(long)]
        renew: bool,
    },
    /// List the certificates: name, duties, users it acts for, names and addresses, serial number,
    /// from, until, state.
    List {
        #[command(flatten)]
        dir: Dir,
        /// Print one JSON document instead of a line for each certificate.
        #[arg(long)]
        json: bool,
    },
    /// Revoke the certificates of a holder, also those that were replaced.
    ///
    /// Writes revoked.pem anew. Servers refuse the holder once they have that file. Then "issue
    /// --renew" makes another certificate for the name.
    Revoke {
        #[command(flatten)]
        dir: Dir,
        /// The name that "list" shows: manager, iod-3, host-alpha, user-anna.
        #[arg(value_name = "HOLDER")]
        name: String,
        /// Only those that were replaced: after a renewal, when the new one is in use.
        #[arg(long)]
        replaced: bool,
    },
}

#[derive(Debug, Args)]
pub(super) struct Dir {
    /// The authority's directory.
    #[arg(long, default_value = DIR)]
    dir: PathBuf,
}

/// Whose certificate it is.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Kind {
    Manager,
    Iod,
    Host,
    User,
}

impl From<authority::Error> for Failure {
    fn from(error: authority::Error) -> Failure {
        match error {
            authority::Error::Usage(text) => Failure::Usage(text),
            authority::Error::Failed(text) => Failure::Runtime(text),
        }
    }
}

impl Ca {
    /// Carries out the command.
    pub(super) fn run(self) -> Result<(), Failure> {
        let now = Duration::from_nanos(host::wall_clock());
        match self {
            Ca::Init { dir, name, days } => {
                let own = Authority::init(&dir, name.as_deref(), days, now)?.own()?;
                let (name, until, dir) = (own.name, day(&own.until), dir.display());
                print(&format!(
                    "{name} is good until {until}\n{dir}/authority.pem is for all who trust it, {dir}/authority.key for \
                     nobody: keep a copy of the directory in a safe place\n"
                ))
            }
            Ca::Issue { dir, role: kind, name, at, may: duties, uid, gid, days, renew } => {
                let kind = match kind {
                    Kind::Manager => "manager",
                    Kind::Iod => "iod",
                    Kind::Host => "host",
                    Kind::User => "user",
                };
                let role = Holder::new(kind, name.as_deref()).map_err(authority::Error::from)?;
                let (uids, gids) = (uid.into_iter().collect(), gid.into_iter().collect());
                let mut claims = Claims { role: None, duties: duties.into_iter().collect(), uids, gids };
                let is_said = !claims.uids.is_empty() || !claims.gids.is_empty();
                if let (Holder::User(name), false, false) = (&role, is_said, renew) {
                    (claims.uids, claims.gids) = account(name);
                    if claims.uids.is_empty() {
                        let text = format!("this machine has no account {name}, so the holder is nobody: see --uid\n");
                        print(&text)?;
                    }
                }
                let (new, old) = Authority::open(&dir.dir, now)?.issue(Order { role, at, claims, days, renew })?;
                let path = dir.dir.join("issued").join(&new.name);
                let (path, name, until) = (path.display(), &new.name, day(&new.until));
                print(&format!("wrote {path}.pem, good until {until}, and its key {path}.key\n"))?;
                old.map_or(Ok(()), |old| {
                    let until = day(&old.until);
                    print(&format!(
                        "the certificate before it stays good until {until}; once the new one is in use, revoke it: \
                         pvfsd ca revoke --dir {} {name} --replaced\n",
                        dir.dir.display()
                    ))
                })
            }
            Ca::List { dir, json } => {
                let authority = Authority::open(&dir.dir, now)?;
                let list = List { authority: authority.own()?, certificates: authority.list()? };
                print(&if json { list.json()? } else { list.text() })
            }
            Ca::Revoke { dir, name, replaced } => {
                let role = Holder::of_label(&name).map_err(authority::Error::from)?;
                let revoked = Authority::open(&dir.dir, now)?.revoke(&role, replaced)?;
                let line = |one: &Entry| format!("revoked {}, serial number {}\n", one.name, one.serial);
                let lines: String = revoked.iter().map(line).collect();
                print(&format!("{lines}copy {}/revoked.pem to all servers\n", dir.dir.display()))
            }
        }
    }
}

/// Returns user and groups of an account of this machine, if it has that.
fn account(name: &str) -> (Ids, Ids) {
    let Ok(Some(user)) = User::from_name(name) else { return Default::default() };
    let groups = CString::new(name).ok().and_then(|name| getgrouplist(&name, user.gid).ok()).unwrap_or_default();
    let gids = [user.gid].into_iter().chain(groups).map(|gid| Span::from(gid.as_raw()));
    ([Span::from(user.uid.as_raw())].into_iter().collect(), gids.collect())
}

/// What `list` prints.
#[derive(Debug, Serialize)]
struct List {
    authority: Entry,
    certificates: Vec<Entry>,
}

impl List {
    fn json(&self) -> Result<String, Failure> {
        let text = serde_json::to_string(self).map_err(|error| Failure::Runtime(error.to_string()))?;
        Ok(text + "\n")
    }

    /// Returns a line for each certificate, in columns. The authority is the first.
    fn text(&self) -> String {
        let or_dash = |texts: Vec<String>| if texts.is_empty() { "-".to_owned() } else { texts.join(",") };
        let row = |one: &Entry| {
            let duties = or_dash(one.duties.iter().map(Duty::to_string).collect());
            let (from, until) = (day(&one.from).to_owned(), day(&one.until).to_owned());
            let uids = or_dash(one.uids.spans().map(|span| span.to_string()).collect());
            [one.name.clone(), duties, uids, or_dash(one.names.clone()), one.serial.clone(), from, until, state(one)]
        };
        let rows: Vec<_> = [&self.authority].into_iter().chain(&self.certificates).map(row).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let line = |row: &[String; 8]| {
            let cells = row.iter().enumerate().map(|(at, cell)| format!("{cell:0$}", width(at)));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
        };
        rows.iter().map(line).collect()
    }
}

/// Returns the day of a time.
fn day(time: &str) -> &str {
    time.split('T').next().unwrap_or(time)
}

fn state(one: &Entry) -> String {
    let state = match one.state {
        State::Revoked => "revoked".to_owned(),
        State::Expired => "expired".to_owned(),
        State::Valid if one.days_left < EXPIRES_SOON_DAYS => format!("expires in {} days", one.days_left),
        State::Valid => "valid".to_owned(),
    };
    if one.replaced { format!("{state}, replaced") } else { state }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, state: State, days_left: i64, replaced: bool) -> Entry {
        Entry {
            name: name.to_owned(),
            role: Holder::of_label(name).ok(),
            duties: Vec::new(),
            uids: Ids::default(),
            gids: Ids::default(),
            names: vec!["a".to_owned(), "::1".to_owned()],
            serial: "0f".to_owned(),
            from: "2026-01-02T03:04:05Z".to_owned(),
            until: "2027-01-02T03:04:05Z".to_owned(),
            state,
            days_left,
            replaced,
        }
    }

    #[test]
    fn a_certificate_is_a_line_or_an_object() {
        let uids = [Span::from(7)].into_iter().collect();
        let admin =
            Entry { duties: vec![Duty::Admin, Duty::Bench], uids, ..entry("user-anna", State::Valid, 29, false) };
        let mut list = List { authority: entry("The CA", State::Valid, 30, false), certificates: vec![admin] };
        list.certificates.push(entry("iod-3", State::Revoked, 7, true));
        let text = "The CA     -            -  a,::1  0f  2026-01-02  2027-01-02  valid\n\
                    user-anna  admin,bench  7  a,::1  0f  2026-01-02  2027-01-02  expires in 29 days\n\
                    iod-3      -            -  a,::1  0f  2026-01-02  2027-01-02  revoked, replaced\n";
        assert_eq!(list.text(), text);
        let json: serde_json::Value = serde_json::from_str(&list.json().ok().unwrap()).unwrap();
        assert_eq!(json["certificates"][0]["duties"], serde_json::json!(["admin", "bench"]));
        assert_eq!(json["certificates"][1]["role"], "iod/3");
        assert_eq!(json["certificates"][1]["state"], "revoked");
        assert!(json["authority"]["role"].is_null());
    }
}
