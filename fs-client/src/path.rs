//! Paths of the file system, checked before they are sent.
//!
//! **Why.** An invalid path should cost no round trip, and the message should tell the user what is
//! wrong with it. The manager checks paths again, because it does not trust clients.
//!
//! **Invariants**
//! 1. A [`FsPath`] has no empty component. From the root, it begins with `/`, and does not end with
//!    `/` unless it is the root itself. From an object that is known by its handle, it begins with
//!    a name, or is empty.
//! 2. No component is `.` or `..`, is longer than [`MAX_NAME`] bytes, or contains a NUL byte. The
//!    whole path is at most [`MAX_PATH`] bytes long.
//!
//! `.` and `..` are rejected rather than resolved: behind a symbolic link, `a/b/..` need not be
//! `a`. Names are bytes, as in Linux. They are shown as text.

use std::fmt;
use std::str::FromStr;

use bstr::{BStr, BString, ByteSlice};
use fs_proto::limits::{MAX_NAME, MAX_PATH};
use fs_proto::{DirHandle, ErrorCode, Handle, Place};

use crate::error::Error;

/// The root directory.
const ROOT: Handle = Handle::Dir(DirHandle::ROOT);

/// A path in the file system, in normal form: from the root, or from an object whose handle is
/// known.
///
/// ```
/// use fs_client::{DirHandle, FsPath};
/// let path: FsPath = "//data///run-1/".parse()?;
/// assert_eq!(path.to_string(), "/data/run-1");
/// assert_eq!(path.name(), Some("run-1".into()));
/// assert!("data".parse::<FsPath>().is_err());
/// let path = FsPath::of(DirHandle(7)).join("run-1")?;
/// assert_eq!(path.to_string(), "dir:7/run-1");
/// # Ok::<(), fs_client::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FsPath {
    base: Handle,
    path: BString,
}

impl FsPath {
    /// Returns the root directory.
    pub fn root() -> FsPath {
        FsPath { base: ROOT, path: "/".into() }
    }

    /// Returns the path of an object whose handle is known. A request for it needs no lookup, and
    /// leads to this object whatever its name is by then. It has no name that could be moved or
    /// removed.
    pub fn of(handle: impl Into<Handle>) -> FsPath {
        match handle.into() {
            ROOT => FsPath::root(),
            base => FsPath { base, path: BString::default() },
        }
    }

    /// Returns the handle, if the path names nothing but that.
    pub(crate) fn handle(&self) -> Option<Handle> {
        (self.path.is_empty() || self.is_root()).then_some(self.base)
    }

    /// Returns the place that requests name.
    pub(crate) fn place(&self) -> Place {
        Place { dir: DirHandle(self.base.raw()), path: self.path.clone() }
    }

    /// Returns true if this is the root directory.
    pub fn is_root(&self) -> bool {
        self.path == "/"
    }

    /// Returns the names from the beginning on. A path that is nothing but its beginning has none.
    pub fn components(&self) -> impl Iterator<Item = &BStr> {
        self.path.split_str("/").filter(|name| !name.is_empty()).map(BStr::new)
    }

    /// Returns the last name, if there is one.
    pub fn name(&self) -> Option<&BStr> {
        self.components().last()
    }

    /// Returns the parent directory; `None` for the root and for what is known by its handle.
    pub fn parent(&self) -> Option<FsPath> {
        let cut = self.path.len() - self.name()?.len();
        let path: BString = self.path[..cut].trim_end_with(|end| end == '/').into();
        Some(if path.is_empty() { FsPath::of(self.base) } else { FsPath { base: self.base, path } })
    }

    /// Returns the path of the entry `name` of this directory.
    ///
    /// # Errors
    /// `Invalid` if `name` is not a valid name, or if the path becomes too long.
    pub fn join(&self, name: impl AsRef<[u8]>) -> Result<FsPath, Error> {
        let name = BStr::new(name.as_ref());
        if name.contains(&b'/') {
            return Err(bad(name, "a name has no '/'"));
        }
        check_name(name, name)?;
        let slash = if self.path.is_empty() || self.is_root() { "" } else { "/" };
        let path = BString::from(bstr::concat([self.path.as_bytes(), slash.as_bytes(), name]));
        check_length(BStr::new(&path))?;
        Ok(FsPath { base: self.base, path })
    }

    /// Returns true if `other` is this path or is below it.
    pub fn contains(&self, other: &FsPath) -> bool {
        let within = |rest: &[u8]| rest.is_empty() || rest[0] == b'/' || self.path.is_empty();
        self.base == other.base && (self.is_root() || other.path.strip_prefix(self.path.as_slice()).is_some_and(within))
    }
}

impl TryFrom<&BStr> for FsPath {
    type Error = Error;

    fn try_from(text: &BStr) -> Result<FsPath, Error> {
        if !text.starts_with(b"/") {
            return Err(bad(text, "a path begins with '/'"));
        }
        check_length(text)?;
        let mut path = BString::default();
        for name in text.split_str("/").filter(|name| !name.is_empty()) {
            check_name(text, BStr::new(name))?;
            path.push(b'/');
            path.extend_from_slice(name);
        }
        Ok(if path.is_empty() { FsPath::root() } else { FsPath { base: ROOT, path } })
    }
}

impl FromStr for FsPath {
    type Err = Error;

    fn from_str(text: &str) -> Result<FsPath, Error> {
        BStr::new(text).try_into()
    }
}

impl fmt::Display for FsPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.base {
            ROOT => self.path.fmt(f),
            base if self.path.is_empty() => base.fmt(f),
            base => write!(f, "{base}/{}", self.path),
        }
    }
}

fn check_name(text: &BStr, name: &BStr) -> Result<(), Error> {
    match name.as_bytes() {
        b"" => Err(bad(text, "a name has at least one byte")),
        b"." | b".." => Err(bad(text, "'.' and '..' are not supported; write the path in full")),
        _ if name.len() > MAX_NAME => Err(bad(text, &format!("a name has at most {MAX_NAME} bytes"))),
        _ if name.contains(&0) => Err(bad(text, "a name has no NUL byte")),
        _ => Ok(()),
    }
}

fn check_length(text: &BStr) -> Result<(), Error> {
    if text.len() > MAX_PATH {
        return Err(bad(text, &format!("a path has at most {MAX_PATH} bytes")));
    }
    Ok(())
}

fn bad(text: &BStr, why: &str) -> Error {
    let dots = if text.len() > 80 { "…" } else { "" };
    Error::new(ErrorCode::Invalid, format!("path {:?}{dots}: {why}", BStr::new(&text[..text.len().min(80)])))
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
        assert_eq!(path.parent().unwrap().to_string(), "/a");
        assert_eq!(path.parent().unwrap().parent(), Some(FsPath::root()));
        assert_eq!(FsPath::root().parent(), None);
        assert_eq!(FsPath::root().name(), None);
        assert!("/a".parse::<FsPath>().unwrap().contains(&path));
        assert!(!"/a".parse::<FsPath>().unwrap().contains(&"/ab".parse().unwrap()));
    }

    #[test]
    fn a_path_from_a_handle() {
        let dir = FsPath::of(DirHandle(7));
        let file = dir.join(b"a\xff").unwrap();
        assert_eq!((file.parent(), dir.parent(), dir.is_root()), (Some(dir.clone()), None, false));
        assert_eq!(file.join("b").unwrap().parent(), Some(file.clone()));
        assert!(dir.contains(&file) && !file.contains(&dir) && !FsPath::root().contains(&dir));
        assert_eq!((dir.handle(), file.handle()), (Some(Handle::Dir(DirHandle(7))), None));
        assert_eq!(FsPath::of(DirHandle::ROOT), FsPath::root());
    }

    proptest! {
        #[test]
        fn the_normal_form_is_stable(text in "(/{1,3}[a-zé ]{1,5}){0,6}/{0,2}") {
            prop_assume!(text.starts_with('/'));
            let path: FsPath = text.parse().unwrap();
            prop_assert_eq!(path.to_string().parse::<FsPath>().unwrap(), path.clone());
            let rebuilt = path.components().try_fold(FsPath::root(), |path, name| path.join(name)).unwrap();
            prop_assert_eq!(rebuilt, path);
        }
    }
}
