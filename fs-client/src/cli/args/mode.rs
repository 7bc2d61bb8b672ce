//! Changes of permission bits, in the words of `chmod`.

use std::str::FromStr;

/// The digits of an octal mode, or clauses such as `u+x,go-w`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModeChange(Vec<Action>);

/// An operator of a clause with what is behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Action {
    /// The bits of those that it is about. `None` for the bits that the umask leaves.
    who: Option<u32>,
    operator: char,
    bits: u32,
    /// Also `x`, for directories and what somebody may execute.
    is_search: bool,
    /// The place of the bits of owner, group or others, which are copied.
    copied: Option<u32>,
}

const OPERATORS: [char; 3] = ['+', '-', '='];
const ALL: u32 = 0o7777;

impl ModeChange {
    /// Returns the bits that `mode` becomes. A clause about nobody sets no bits of `umask`.
    pub(crate) fn apply(&self, mode: u32, is_dir: bool, umask: u32) -> u32 {
        self.0.iter().fold(mode, |mode, action| {
            let search = if action.is_search && (is_dir || mode & 0o111 != 0) { 0o111 } else { 0 };
            let copied = action.copied.map_or(0, |place| (mode >> place & 7) * 0o111);
            let bits = (action.bits | search | copied) & action.who.unwrap_or(!umask);
            match action.operator {
                '+' => mode | bits,
                '-' => mode & !bits,
                _ => mode & !action.who.unwrap_or(ALL) | bits,
            }
        })
    }
}

impl FromStr for ModeChange {
    type Err = String;

    fn from_str(text: &str) -> Result<ModeChange, String> {
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            let (who, operator, bits) = (Some(ALL), '=', super::mode(text)?);
            return Ok(ModeChange(vec![Action { who, operator, bits, is_search: false, copied: None }]));
        }
        let mut actions = Vec::new();
        let parsed = text.split(',').try_for_each(|clause| parse(clause, &mut actions));
        parsed.ok_or_else(|| format!("{text} is no mode; write 644, u+x,go-w or a=rX"))?;
        Ok(ModeChange(actions))
    }
}

/// Adds the actions of a clause. Returns `None` if it is none.
fn parse(clause: &str, actions: &mut Vec<Action>) -> Option<()> {
    let (who, mut rest) = clause.split_at(clause.find(OPERATORS)?);
    let whose = |letter| match letter {
        'u' => Some(0o4700),
        'g' => Some(0o2070),
        'o' => Some(0o1007),
        'a' => Some(ALL),
        _ => None,
    };
    let who = who.chars().try_fold(0, |all, letter| Some(all | whose(letter)?))?;
    let who = (who != 0).then_some(who);
    while let Some(operator) = rest.chars().next() {
        let letters = &rest[1..];
        let (letters, next) = letters.split_at(letters.find(OPERATORS).unwrap_or(letters.len()));
        let mut action = Action { who, operator, bits: 0, is_search: false, copied: None };
        for letter in letters.chars() {
            match letter {
                'r' => action.bits |= 0o444,
                'w' => action.bits |= 0o222,
                'x' => action.bits |= 0o111,
                'X' => action.is_search = true,
                's' => action.bits |= 0o6000,
                't' => action.bits |= 0o1000,
                'u' | 'g' | 'o' if letters.len() == 1 => {
                    action.copied = Some(whose(letter)?.trailing_zeros() / 3 * 3);
                }
                _ => return None,
            }
        }
        actions.push(action);
        rest = next;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(text: &str, mode: u32, is_dir: bool) -> u32 {
        text.parse::<ModeChange>().unwrap_or_else(|error| panic!("{error}")).apply(mode, is_dir, 0o022)
    }

    #[test]
    fn changes_in_words() {
        // What GNU's chmod makes of a file and of a directory, with a umask of 022. It leaves the
        // set-id bits of a directory where they are not named.
        for (text, mode, file, dir) in [
            ("u+x", 0o644, 0o744, 0o744),
            ("u+x,go-w", 0o666, 0o744, 0o744),
            ("a=rX", 0o200, 0o444, 0o555),
            ("a=rX", 0o700, 0o555, 0o555),
            ("a+X", 0o641, 0o751, 0o751),
            ("a+X", 0o640, 0o640, 0o751),
            ("go=", 0o777, 0o700, 0o700),
            ("g=u", 0o640, 0o660, 0o660),
            ("o=g", 0o640, 0o644, 0o644),
            ("u=o", 0o4603, 0o303, 0o303),
            ("ug+s", 0o755, 0o6755, 0o6755),
            ("o+s", 0o755, 0o755, 0o755),
            ("+t", 0o755, 0o1755, 0o1755),
            ("u+t", 0o755, 0o755, 0o755),
            ("+w", 0o444, 0o644, 0o644),
            ("-w", 0o666, 0o466, 0o466),
            ("=rw", 0o6777, 0o644, 0o644),
            ("-x", 0o777, 0o666, 0o666),
            ("u=rw+x-r", 0o000, 0o300, 0o300),
            ("u=rwx,g=u-w", 0o000, 0o750, 0o750),
            ("u+", 0o640, 0o640, 0o640),
            ("640", 0o7777, 0o640, 0o640),
            ("02750", 0o777, 0o2750, 0o2750),
            ("0", 0o777, 0, 0),
        ] {
            for (is_dir, expected) in [(false, file), (true, dir)] {
                let got = change(text, mode, is_dir);
                assert_eq!(got, expected, "{text} of {mode:o}, directory {is_dir}: {got:o}, not {expected:o}");
            }
        }
    }

    #[test]
    fn every_mode_in_octal_and_in_words() {
        for mode in 0..=ALL {
            let class = |shift: u32, special: &str, bit: u32| {
                let letters = [("r", 4), ("w", 2), ("x", 1)].iter().filter(|(_, value)| mode >> shift & value != 0);
                let letters: String = letters.map(|(letter, _)| *letter).collect();
                letters + if mode & bit != 0 { special } else { "" }
            };
            let (user, group, others) = (class(6, "s", 0o4000), class(3, "s", 0o2000), class(0, "t", 0o1000));
            let words = format!("u={user},g={group},o={others}");
            for before in [0, ALL, mode ^ 0o5252] {
                assert_eq!(change(&format!("{mode:o}"), before, false), mode, "{mode:o}");
                assert_eq!(change(&words, before, true), mode, "{words}");
            }
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in ["", "888", "10000", "u", "rw", "u+q", "z+x", "u+x,", ",u+x", "g=uo", "g=ux", "0x1", "7 ", "ü+x"] {
            assert!(text.parse::<ModeChange>().is_err(), "{text}");
        }
    }
}
