//! Paths of the file system, checked before they are sent.
//!
//! **Why.** An invalid path should cost no round trip, and the message should tell the user what is
//! wrong with it. The manager checks paths again, because it does not trust clients.
//!
//! **Invariants**
//! 1. A [`FsPath`] begins with `/`, has no empty component, and does not end with `/` unless it is
//!    the root.
//! 2. No component is `.` or `..`, is longer than [`MAX_NAME`] bytes, or contains a NUL byte. The
//!    whole path is at most [`MAX_PATH`] bytes long.
//!
//! `.` and `..` are rejected rather than resolved: with links, which a later version may have,
//! `a/b/..` need not be `a`.

use std::fmt;
use std::str::FromStr;

use fs_proto::ErrorCode;
use fs_proto::limits::{MAX_NAME, MAX_PATH};

use crate::error::Error;

/// An absolute path in the file system, in normal form.
///
/// ```
/// use fs_client::FsPath;
/// let path: FsPath = "//data///run-1/".parse()?;
/// assert_eq!(path.as_str(), "/data/run-1");
/// assert_eq!(path.name(), Some("run-1"));
/// assert!("data".parse::<FsPath>().is_err());
/// # Ok::<(), fs_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FsPath(String);

impl FsPath {
    /// Returns the root directory.
    pub fn root() -> FsPath {
        FsPath("/".to_owned())
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if this is the root directory.
    pub fn is_root(&self) -> bool {
        self.0 == "/"
    }

    /// Returns the names from the root on. The root itself has none.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.0.split('/').filter(|name| !name.is_empty())
    }

    /// Returns the last name, or `None` for the root.
    pub fn name(&self) -> Option<&str> {
        self.components().last()
    }

    /// Returns the parent directory, or `None` for the root.
    pub fn parent(&self) -> Option<FsPath> {
        let name = self.name()?;
        let cut = self.0.len() - name.len() - 1;
        Some(if cut == 0 { FsPath::root() } else { FsPath(self.0[..cut].to_owned()) })
    }

    /// Returns the path of the entry `name` of this directory.
    ///
    /// # Errors
    /// `Invalid` if `name` is not a valid name, or if the path becomes too long.
    pub fn join(&self, name: &str) -> Result<FsPath, Error> {
        if name.contains('/') {
            return Err(bad(name, "a name has no '/'"));
        }
        check_name(name, name)?;
        let joined = if self.is_root() { format!("/{name}") } else { format!("{}/{name}", self.0) };
        check_length(&joined)?;
        Ok(FsPath(joined))
    }

    /// Returns true if `other` is this path or is below it.
    pub fn contains(&self, other: &FsPath) -> bool {
        self.is_root() || other.0.strip_prefix(&self.0).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

impl FromStr for FsPath {
    type Err = Error;

    fn from_str(text: &str) -> Result<FsPath, Error> {
        if !text.starts_with('/') {
            return Err(bad(text, "a path begins with '/'"));
        }
        check_length(text)?;
        let mut normal = String::with_capacity(text.len());
        for name in text.split('/').filter(|name| !name.is_empty()) {
            check_name(text, name)?;
            normal.push('/');
            normal.push_str(name);
        }
        Ok(if normal.is_empty() { FsPath::root() } else { FsPath(normal) })
    }
}

impl fmt::Display for FsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check_name(text: &str, name: &str) -> Result<(), Error> {
    match name {
        "" => Err(bad(text, "a name has at least one byte")),
        "." | ".." => Err(bad(text, "'.' and '..' are not supported; write the path in full")),
        _ if name.len() > MAX_NAME => Err(bad(text, &format!("a name has at most {MAX_NAME} bytes"))),
        _ if name.contains('\0') => Err(bad(text, "a name has no NUL byte")),
        _ => Ok(()),
    }
}

fn check_length(text: &str) -> Result<(), Error> {
    if text.len() > MAX_PATH {
        return Err(bad(text, &format!("a path has at most {MAX_PATH} bytes")));
    }
    Ok(())
}

fn bad(text: &str, why: &str) -> Error {
    let shown: String = text.chars().take(80).collect();
    let dots = if shown.len() < text.len() { "…" } else { "" };
    Error::new(ErrorCode::Invalid, format!("path {shown:?}{dots}: {why}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_mistake_is_named() {
        for (text, why) in [
            ("", "begins with '/'"),
            ("a/b", "begins with '/'"),
            ("/a/../b", "'.' and '..'"),
            ("/.", "'.' and '..'"),
            ("/a\0b", "NUL"),
            (&format!("/{}", "x".repeat(256)), "255"),
            (&"/x".repeat(3000), "4096"),
        ] {
            let error = text.parse::<FsPath>().unwrap_err();
            assert!(error.to_string().contains(why), "{text:?}: {error}");
            assert!(error.to_string().len() < 300, "a long path is cut in the message: {error}");
        }
        assert!(FsPath::root().join("a/b").is_err());
        assert!(FsPath::root().join("").is_err());
        assert!(FsPath::root().join("..").is_err());
    }

    #[test]
    fn parents_and_names() {
        let path: FsPath = "/a/b".parse().unwrap();
        assert_eq!(path.parent().unwrap().as_str(), "/a");
        assert_eq!(path.parent().unwrap().parent(), Some(FsPath::root()));
        assert_eq!(FsPath::root().parent(), None);
        assert_eq!(FsPath::root().name(), None);
        assert!("/a".parse::<FsPath>().unwrap().contains(&path));
        assert!(!"/a".parse::<FsPath>().unwrap().contains(&"/ab".parse().unwrap()));
    }

    proptest! {
        #[test]
        fn the_normal_form_is_stable(text in "(/{1,3}[a-zé ]{1,5}){0,6}/{0,2}") {
            prop_assume!(text.starts_with('/'));
            let path: FsPath = text.parse().unwrap();
            prop_assert_eq!(path.as_str().parse::<FsPath>().unwrap(), path.clone());
            let rebuilt = path.components().try_fold(FsPath::root(), |path, name| path.join(name)).unwrap();
            prop_assert_eq!(rebuilt, path);
        }
    }
}
