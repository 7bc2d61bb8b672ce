//! The directories of servers and logs: absolute, and none inside another one that it would
//! disturb.
//!
//! **Why.** A relative path leads elsewhere if a server is started in another directory. It then
//! finds an empty directory, or another server's. Two servers with one directory would each remove
//! what the other keeps.

use std::path::{Component, Path, PathBuf};

use super::{Config, ConfigError};

/// Checks the directories of the section `[storage]`.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let fail = |text: String| Err(ConfigError(text));
    let storage = &config.storage;
    let written = [("manager", Some(storage.manager.as_path())), ("iod", Some(Path::new(&storage.iod)))];
    for (key, path) in written.into_iter().chain([("logs", storage.logs.as_deref())]) {
        if let Some(path) = path.filter(|path| !path.is_absolute()) {
            return fail(format!(
                "storage.{key} is the relative path {path:?}; make it absolute, because a server may be started in \
                 any directory"
            ));
        }
    }
    let iods = config.cluster.iods.len();
    if iods > 1 && !storage.iod.contains("{index}") {
        return fail("storage.iod: with several I/O servers the path needs {index} in it".to_owned());
    }
    let mut data = vec![("the manager".to_owned(), normal(&storage.manager))];
    data.extend((0..iods).map(|index| (format!("I/O server {index}"), normal(&config.iod_dir(index)))));
    for (at, (name, dir)) in data.iter().enumerate() {
        for (other, there) in &data[..at] {
            if dir == there {
                return fail(format!(
                    "storage: {other} and {name} have one directory, {}; give each one its own",
                    dir.display()
                ));
            }
            if dir.starts_with(there) || there.starts_with(dir) {
                return fail(format!(
                    "storage: the directories of {other} ({}) and {name} ({}) contain one another; put them side by \
                     side",
                    there.display(),
                    dir.display()
                ));
            }
        }
    }
    let logs = normal(&config.logs_dir());
    if let Some((name, dir)) = data.iter().find(|(_, dir)| logs.starts_with(dir)) {
        return fail(format!(
            "storage.logs: {} is inside the directory of {name} ({}); choose one that is not among its data",
            logs.display(),
            dir.display()
        ));
    }
    Ok(())
}

/// Returns an absolute path without `.` and `..`, by its text alone. Links are not followed,
/// because the directories may not exist yet, and may be on another machine.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                normal.pop();
            }
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(iods: &str, storage: &str) -> Result<Config, String> {
        let text = format!("[cluster]\nmanager = \"tcp://a:1\"\niods = [{iods}]\n[storage]\n{storage}\n");
        Config::parse(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn directories_that_servers_would_share_are_refused() {
        let (one, two) = ("\"tcp://a:2\"", "\"tcp://a:2\", \"tcp://a:3\"");
        for (iods, storage, expected) in [
            (one, "manager = \"m\"\niod = \"/i\"", "storage.manager is the relative path \"m\"; make it absolute"),
            (one, "manager = \"/m\"\niod = \"./i\"", "storage.iod is the relative path \"./i\"; make it absolute"),
            (one, "manager = \"/m\"\niod = \"/i\"\nlogs = \"l\"", "storage.logs is the relative path \"l\""),
            (two, "manager = \"/m\"\niod = \"/i\"", "needs {index}"),
            (one, "manager = \"/a\"\niod = \"/a\"", "the manager and I/O server 0 have one directory, /a"),
            (one, "manager = \"/a/b\"\niod = \"/a/./c/../b/\"", "have one directory, /a/b"),
            (two, "manager = \"/a/1\"\niod = \"/a/{index}\"", "the manager and I/O server 1 have one directory"),
            (one, "manager = \"/a\"\niod = \"/a/i\"", "the manager (/a) and I/O server 0 (/a/i) contain one another"),
            (one, "manager = \"/a/m\"\niod = \"/a\"", "contain one another"),
            (two, "manager = \"/m\"\niod = \"/{index}/../i\"", "I/O server 0 and I/O server 1 have one directory"),
            (one, "manager = \"/m\"\niod = \"/i\"\nlogs = \"/i/logs\"", "inside the directory of I/O server 0 (/i)"),
            (one, "manager = \"/m\"\niod = \"/i\"\nlogs = \"/m\"", "inside the directory of the manager"),
        ] {
            let error = checked(iods, storage).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{storage}: {error}");
        }
    }

    #[test]
    fn directories_side_by_side_are_accepted() {
        let config = checked("\"tcp://a:2\"", "manager = \"/srv/i\"\niod = \"/srv/i{index}\"").unwrap();
        assert_eq!(config.logs_dir(), Path::new("/srv/logs"));
        let config = checked("\"tcp://a:2\"", "manager = \"/m\"\niod = \"/i\"\nlogs = \"/var/log/pvfs\"").unwrap();
        assert_eq!(config.logs_dir(), Path::new("/var/log/pvfs"));
        // The logs beside a manager without a parent's name of its own, and around the data.
        assert_eq!(checked("\"tcp://a:2\"", "manager = \"/m\"\niod = \"/i\"").unwrap().logs_dir(), Path::new("/logs"));
        checked("\"tcp://a:2\"", "manager = \"/srv/m\"\niod = \"/srv/i\"\nlogs = \"/srv\"").unwrap();
    }
}
