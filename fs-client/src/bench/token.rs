//! The secret of a run. A host that joins has to know it.
//!
//! **Why.** A port that is open while a run lasts is reached by port scanners, by followers of
//! another run, and by people who try things. None of them is to change what is measured. The
//! secret is sent in clear, as everything else, so it does not help against those who listen.
//!
//! **Invariants**
//! 1. The secret is on no command line, because all users of a host can see those. It goes by
//!    standard input, a file or the environment. It is in no log ([`fmt::Debug`]).
//! 2. How long a comparison takes does not depend on where the secrets differ.

use std::fmt;
use std::io::{self, BufRead};
use std::path::Path;

use crate::program::{Stop, random_id};

/// The environment variable that has the secret.
pub(crate) const VARIABLE: &str = "PVFS_BENCH_TOKEN";
/// The fewest and the most characters of a secret that a user has chosen.
const SHORTEST: usize = 16;
const LONGEST: usize = 128;

/// The secret of a run, as text.
pub(crate) struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Draws a secret of 128 bits.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub(crate) fn draw() -> Result<Token, Stop> {
        Ok(Token(format!("{:032x}", random_id()?)))
    }

    /// Returns the secret that the user has given: in a file (`-` is standard input), else in the
    /// environment. Returns `None` if there is none.
    ///
    /// # Errors
    /// If the file cannot be read, or what is there cannot be a secret.
    pub(crate) fn given(file: Option<&Path>) -> Result<Option<Token>, Stop> {
        let Some(path) = file else {
            // An empty variable is as good as none.
            let Some(text) = std::env::var_os(VARIABLE).filter(|text| !text.is_empty()) else { return Ok(None) };
            let token = Token::parse(&text.to_string_lossy());
            return token.map(Some).map_err(|why| Stop::usage(format!("{VARIABLE}: {why}")));
        };
        let read = if path == Path::new("-") {
            first_line(io::stdin().lock())
        } else {
            std::fs::File::open(path).and_then(|file| first_line(io::BufReader::new(file)))
        };
        let name = if path == Path::new("-") { "standard input".into() } else { path.display().to_string() };
        let text = read.map_err(|error| Stop::failed(format!("{name}: {error}")))?;
        Token::parse(&text).map(Some).map_err(|why| Stop::failed(format!("{name}: {why}")))
    }

    fn parse(text: &str) -> Result<Token, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err("there is no token".to_owned());
        }
        if !(SHORTEST..=LONGEST).contains(&text.len()) || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(format!("a token has {SHORTEST} to {LONGEST} characters of ASCII, without blanks"));
        }
        Ok(Token(text.to_owned()))
    }

    /// Returns the text, which is for the hosts of the run only.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns true if another secret is the same. Only the length has an influence on the time.
    pub(super) fn is(&self, other: &str) -> bool {
        let pairs = self.0.bytes().zip(other.bytes());
        let difference = pairs.fold(0, |all, (one, other)| std::hint::black_box(all | (one ^ other)));
        self.0.len() == other.len() && difference == 0
    }
}

/// Reads a line that is not much longer than a secret.
fn first_line(reader: impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    reader.take(2 * LONGEST as u64).read_line(&mut line)?;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_are_compared_to_their_end() {
        let (one, other) = (Token::draw().ok().unwrap(), Token::draw().ok().unwrap());
        assert!(one.0.len() == 32 && one.is(one.reveal()) && !one.is(other.reveal()));
        let token = Token::parse("0123456789abcdef\n").unwrap();
        assert!(token.is("0123456789abcdef"));
        for wrong in ["", "0123456789abcde", "0123456789abcdef0", "1123456789abcdef", "0123456789abcdee"] {
            assert!(!token.is(wrong), "{wrong}");
        }
        assert_eq!(format!("{token:?}"), "Token(…)");
    }

    #[test]
    fn a_secret_is_one_word_of_some_length() {
        assert_eq!(Token::parse(" \n").unwrap_err(), "there is no token");
        for bad in ["short", "0123456789 abcdef", "0123456789\u{1b}abcdef", &"x".repeat(129)] {
            assert!(Token::parse(bad).unwrap_err().contains("16 to 128 characters"), "{bad}");
        }
        assert_eq!(first_line(&b"one\ntwo\n"[..]).unwrap(), "one\n");
        assert_eq!(first_line(io::BufReader::new(io::repeat(b'x'))).unwrap().len(), 256);
    }
}
