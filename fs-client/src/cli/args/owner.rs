//! Owners, in the words of `chown`.

use std::str::FromStr;

use nix::unistd::{Group, User};

/// The user and the group that something gets. `None` leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(text: &str) -> Result<Owner, String> {
        let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
        let account = |name: &str| known("user", name, User::from_name(name));
        let uid = match number(user) {
            _ if user.is_empty() => None,
            Some(uid) => Some(uid),
            None => Some(account(user)?.uid.as_raw()),
        };
        let gid = match group {
            None => None,
            Some("") if user.is_empty() => None,
            Some("") if number(user).is_some() => {
                return Err(format!("{text}: name the group too, such as {user}:100"));
            }
            Some("") => Some(account(user)?.gid.as_raw()),
            Some(group) => match number(group) {
                Some(gid) => Some(gid),
                None => Some(known("group", group, Group::from_name(group))?.gid.as_raw()),
            },
        };
        match (uid, gid) {
            (None, None) => Err(format!("{text:?} names nobody; write alice, alice:users, :users or 1000:100")),
            _ => Ok(Owner { uid, gid }),
        }
    }
}

/// Parses an id. The largest number means no id in system calls.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|id| *id != u32::MAX)
}

fn known<T>(kind: &str, name: &str, found: nix::Result<Option<T>>) -> Result<T, String> {
    let found = found.map_err(|error| format!("{kind} {name}: {error}; its number works as well"))?;
    found.ok_or_else(|| format!("this machine knows no {kind} {name}; write its number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_names_or_numbers() {
        // Every machine has these accounts.
        for (text, uid, gid) in [
            ("root", Some(0), None),
            ("0", Some(0), None),
            ("root:root", Some(0), Some(0)),
            ("root:", Some(0), Some(0)),
            (":root", None, Some(0)),
            ("12345:54321", Some(12345), Some(54321)),
            (":7", None, Some(7)),
            ("4294967294", Some(u32::MAX - 1), None),
        ] {
            assert_eq!(text.parse(), Ok(Owner { uid, gid }), "{text}");
        }
        for (text, why) in [
            ("", "names nobody"),
            (":", "names nobody"),
            ("12:", "name the group"),
            ("no such user", "write its number"),
            ("0:no such group", "write its number"),
            ("4294967295", "write its number"),
            ("a\0b", "number"),
        ] {
            let error = text.parse::<Owner>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
