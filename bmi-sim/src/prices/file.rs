//! Profiles in files: TOML, one key for each parameter, checked completely before a run uses it.
//!
//! **Layout.** A file has every key of [`Profile`]. Or it has a key like `base = "vapi-2003"` and
//! the keys that differ from the base. `disk` is the name of a disk, or a table with every key of
//! [`DiskProfile`]; without it the base's disk is used. Unknown keys are errors, so a run depends
//! only on known keys.
//!
//! ```
//! use bmi_sim::Profile;
//!
//! let slow = Profile::parse("base = \"vapi-2003\"\nlink_latency_ns = 20_000\ndisk = \"nvme\"\n")?;
//! assert_eq!(slow.cpu_post_ns, Profile::vapi_2003().cpu_post_ns);
//! let wrong = Profile::parse("base = \"vapi-2003\"\nlink_latency = 20\n").unwrap_err();
//! assert!(wrong.to_string().contains("link_latency"), "{wrong}");
//! # Ok::<(), bmi_sim::ProfileError>(())
//! ```

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::profile::{DiskProfile, Profile};

/// The reason why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// The text is not TOML, has an unknown or a missing key, or a value of the wrong type. The
    /// message names it.
    #[error("{0}")]
    Malformed(String),
    /// A value makes no sense.
    #[error("`{key}` {why}")]
    Nonsense {
        /// The parameter.
        key: String,
        /// What is wrong with it; follows its name in the message.
        why: String,
    },
    /// No profile or disk of that name comes with the crate.
    #[error("no {what} is called {name:?}; there are {}", known.join(", "))]
    Unknown {
        /// `profile` or `disk`.
        what: &'static str,
        /// The requested name.
        name: String,
        /// The existing names.
        known: Vec<&'static str>,
    },
    /// A text that should be a name or a file is neither.
    #[error("there is no {what} {name:?}: it is no file that exists, and the names are {}", known.join(", "))]
    NoNameNoFile {
        /// `profile` or `disk`.
        what: &'static str,
        /// The requested name or path.
        name: String,
        /// The existing names.
        known: Vec<&'static str>,
    },
    /// A file was read, and its contents cannot be used.
    #[error("{0}: {1}")]
    InFile(PathBuf, Box<ProfileError>),
}

macro_rules! files {
    ($($name:literal),*) => { &[$(($name, include_str!(concat!("../../profiles/", $name, ".toml")))),*] };
}

const PROFILES: &[(&str, &str)] =
    files!("vapi-2003", "ibnice-2003", "ibnice-uncached-2003", "elan4-2005", "gige-2008", "cx7-400");
const DISKS: &[(&str, &str)] =
    files!("ramfs-2003", "ramfs-uncached-2003", "ramfs-uncached-2005", "ext3-ide-2003", "nvme");

/// Maximum depth of bases that have a base.
const DEPTH: usize = 8;

fn find(what: &'static str, files: &[(&'static str, &'static str)], name: &str) -> Result<&'static str, ProfileError> {
    let known = || files.iter().map(|(name, _)| *name).collect();
    let found = files.iter().find(|(known, _)| *known == name);
    found.map(|(_, text)| *text).ok_or_else(|| ProfileError::Unknown { what, name: name.to_owned(), known: known() })
}

fn is_name(files: &[(&'static str, &'static str)], text: &str) -> bool {
    files.iter().any(|(name, _)| *name == text)
}

/// Parses the built-in file of this name, or else the file at this path.
fn name_or_file<T>(
    what: &'static str,
    files: &[(&'static str, &'static str)],
    text: &str,
    parse: fn(&str) -> Result<T, ProfileError>,
) -> Result<T, ProfileError> {
    if is_name(files, text) {
        return parse(find(what, files, text)?);
    }
    if !Path::new(text).exists() {
        let known = files.iter().map(|(name, _)| *name).collect();
        return Err(ProfileError::NoNameNoFile { what, name: text.to_owned(), known });
    }
    load(text.as_ref(), parse)
}

fn load<T>(path: &Path, parse: fn(&str) -> Result<T, ProfileError>) -> Result<T, ProfileError> {
    let text = std::fs::read_to_string(path).map_err(|error| ProfileError::Unreadable(path.to_owned(), error))?;
    parse(&text).map_err(|error| ProfileError::InFile(path.to_owned(), Box::new(error)))
}

fn table(text: &str) -> Result<Table, ProfileError> {
    text.parse().map_err(|error: toml::de::Error| ProfileError::Malformed(error.to_string()))
}

fn filled<T: DeserializeOwned>(table: Table) -> Result<T, ProfileError> {
    Value::Table(table).try_into().map_err(|error: toml::de::Error| ProfileError::Malformed(error.to_string()))
}

/// Returns the keys of a file and of its bases.
fn resolve(text: &str, depth: usize) -> Result<Table, ProfileError> {
    let mut own = table(text)?;
    let mut merged = match own.remove("base") {
        None => Table::new(),
        Some(Value::String(name)) if depth > 0 => resolve(find("profile", PROFILES, &name)?, depth - 1)?,
        Some(other) => return Err(nonsense("base", format!("has to be the name of a profile, not {other}"))),
    };
    if let Some(Value::String(name)) = own.get("disk") {
        let disk = table(find("disk", DISKS, name)?)?;
        own.insert("disk".to_owned(), Value::Table(disk));
    }
    merged.extend(own);
    Ok(merged)
}

fn nonsense(key: impl Into<String>, why: impl Into<String>) -> ProfileError {
    ProfileError::Nonsense { key: key.into(), why: why.into() }
}

/// Returns the greatest value of a parameter, from its unit, so that no sum of a run overflows: an
/// hour, a millisecond per byte, a terabyte.
fn greatest(key: &str) -> i64 {
    match key {
        key if key.ends_with("_ns") => 3_600_000_000_000,
        key if key.ends_with("_ps_per_byte") => 1_000_000_000,
        "cpu_cores" | "lock_lines" => 64,
        "outstanding_reads" | "queue_depth" => 1 << 16,
        "read_crossings" | "write_crossings" => 8,
        _ => 1 << 40,
    }
}

fn check(table: &Table, prefix: &str) -> Result<(), ProfileError> {
    for (key, value) in table {
        match value {
            Value::Table(inner) => check(inner, &format!("{prefix}{key}."))?,
            Value::Integer(number) if *number < 0 => {
                return Err(nonsense(format!("{prefix}{key}"), format!("cannot be negative ({number})")));
            }
            Value::Integer(number) if *number > greatest(key) => {
                return Err(nonsense(format!("{prefix}{key}"), format!("is beyond {} ({number})", greatest(key))));
            }
            Value::Integer(0)
                if ["wire_unit_bytes", "packet_bytes", "cpu_cores", "queue_depth"].contains(&key.as_str()) =>
            {
                return Err(nonsense(format!("{prefix}{key}"), "cannot be zero"));
            }
            _ => {}
        }
    }
    Ok(())
}

impl Profile {
    /// Returns a profile that comes with the crate: `vapi-2003`, `ibnice-2003`,
    /// `ibnice-uncached-2003`, `elan4-2005`, `gige-2008`, `cx7-400`.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`], which lists them.
    pub fn named(name: &str) -> Result<Profile, ProfileError> {
        Profile::parse(find("profile", PROFILES, name)?)
    }

    /// Returns the names that [`Profile::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PROFILES.iter().map(|(name, _)| *name)
    }

    /// Reads a profile from a file, in the format that [`Profile::to_toml`] writes.
    ///
    /// # Errors
    /// [`ProfileError`], naming the key at fault.
    pub fn load(path: impl AsRef<Path>) -> Result<Profile, ProfileError> {
        load(path.as_ref(), Profile::parse)
    }

    /// Reads a profile as a command line gives it: a name that [`Profile::named`] knows or the path
    /// of a file. After a `+` follows another disk, again a name or a path: `vapi-2003`,
    /// `mine.toml`, `gige-2008+nvme`, `mine.toml+slow-disk.toml`.
    ///
    /// A name takes precedence over a file. No name contains a dot or a slash, so `./vapi-2003` is
    /// always the file. A path may contain a `+`: the longest text that is a name or an existing
    /// file is the profile.
    ///
    /// # Errors
    /// [`ProfileError`]: for a text that is neither, it lists the names; for a file, it names file
    /// and key.
    pub fn from_name_or_file(text: &str) -> Result<Profile, ProfileError> {
        let is_one = |text: &str| is_name(PROFILES, text) || Path::new(text).exists();
        let split = || text.match_indices('+').map(|(at, _)| (&text[..at], Some(&text[at + 1..])));
        let whole = std::iter::once((text, None));
        let known = whole.chain(split().collect::<Vec<_>>().into_iter().rev()).find(|(profile, _)| is_one(profile));
        let (profile, disk) = known.or_else(|| split().next()).unwrap_or((text, None));
        let profile = name_or_file("profile", PROFILES, profile, Profile::parse)?;
        Ok(match disk {
            None => profile,
            Some(disk) => profile.with_disk(DiskProfile::from_name_or_file(disk)?),
        })
    }

    /// Reads a profile from TOML text: every parameter, or `base = "NAME"` and the parameters that
    /// differ. `disk` may be a disk's name.
    ///
    /// # Errors
    /// [`ProfileError`], naming the key at fault.
    pub fn parse(text: &str) -> Result<Profile, ProfileError> {
        let table = resolve(text, DEPTH)?;
        check(&table, "")?;
        let profile: Profile = filled(table)?;
        if profile.switch_port_drops && profile.retransmit_ns == 0 {
            return Err(nonsense("retransmit_ns", "cannot be zero where a full port loses what comes"));
        }
        Ok(profile)
    }

    /// Returns every parameter as TOML, which [`Profile::parse`] reads back.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("numbers, truth values and one table")
    }
}

impl DiskProfile {
    /// Returns a disk that comes with the crate: `ramfs-2003`, `ramfs-uncached-2003`,
    /// `ramfs-uncached-2005`, `ext3-ide-2003`, `nvme`.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`], which lists them.
    pub fn named(name: &str) -> Result<DiskProfile, ProfileError> {
        DiskProfile::parse(find("disk", DISKS, name)?)
    }

    /// Reads a disk as a command line gives it: a name that [`DiskProfile::named`] knows, or the
    /// path of a file that has every parameter. A name takes precedence over a file; `./nvme` is
    /// always the file.
    ///
    /// # Errors
    /// [`ProfileError`]: for a text that is neither, it lists the names; for a file, it names file
    /// and key.
    pub fn from_name_or_file(text: &str) -> Result<DiskProfile, ProfileError> {
        name_or_file("disk", DISKS, text, DiskProfile::parse)
    }

    /// Reads a disk from TOML text that has every parameter.
    ///
    /// # Errors
    /// [`ProfileError`], naming the key at fault.
    pub fn parse(text: &str) -> Result<DiskProfile, ProfileError> {
        let table = table(text)?;
        check(&table, "disk.")?;
        filled(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Profile::parse(text).expect_err(text).to_string()
    }

    #[test]
    fn every_file_of_the_crate_is_whole() {
        for (name, text) in PROFILES {
            let profile = Profile::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(Profile::parse(&profile.to_toml()).expect(name), profile, "{name}");
            let bare = text.lines().filter(|line| line.contains(" = ") && !line.contains('#'));
            assert_eq!(bare.count(), 0, "{name}: every parameter names its source");
        }
        for (name, text) in DISKS {
            DiskProfile::named(name).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(text.lines().all(|line| !line.contains(" = ") || line.contains('#')), "{name}");
        }
        let default = Profile::default();
        assert_eq!(Profile::parse(&default.to_toml()).expect("default"), default);
    }

    /// Regression: `calibrate` wrote profiles that no command accepted: `--over x.toml` failed with
    /// "no profile is called x.toml".
    #[test]
    fn a_profile_is_a_name_or_a_file_and_so_is_its_disk() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
        // A `+` in a path is not a separator.
        let (mine, disk, plus) = (path("mine.toml"), path("disk.toml"), path("c++.toml"));
        let slow = Profile { link_latency_ns: 20_000, ..Profile::vapi_2003() };
        let nvme = DiskProfile::named("nvme").expect("a name");
        let slow_disk = DiskProfile { sync_ns: 1_000_000, ..nvme.clone() };
        for path in [&mine, &plus] {
            std::fs::write(path, slow.to_toml()).expect("written");
        }
        std::fs::write(&disk, toml::to_string(&slow_disk).expect("numbers")).expect("written");
        for (text, profile) in [
            ("vapi-2003".to_owned(), Profile::vapi_2003()),
            ("vapi-2003+nvme".to_owned(), Profile::vapi_2003().with_disk(nvme.clone())),
            (format!("vapi-2003+{disk}"), Profile::vapi_2003().with_disk(slow_disk.clone())),
            (mine.clone(), slow.clone()),
            (format!("{mine}+nvme"), slow.clone().with_disk(nvme.clone())),
            (format!("{mine}+{disk}"), slow.clone().with_disk(slow_disk.clone())),
            (plus.clone(), slow.clone()),
            (format!("{plus}+nvme"), slow.clone().with_disk(nvme.clone())),
        ] {
            assert_eq!(Profile::from_name_or_file(&text).unwrap_or_else(|error| panic!("{text}: {error}")), profile);
        }
    }

    #[test]
    fn what_is_neither_a_name_nor_a_file_is_answered_with_the_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let broken = dir.path().join("broken.toml").to_str().expect("UTF-8").to_owned();
        std::fs::write(&broken, "link_latency = 20\n").expect("written");
        for (text, says) in [
            ("abacus".to_owned(), ["no profile \"abacus\"", "no file", "vapi-2003, ibnice-2003"]),
            ("abacus.toml".to_owned(), ["no profile \"abacus.toml\"", "no file", "cx7-400"]),
            ("abacus+nvme".to_owned(), ["no profile \"abacus\"", "no file", "cx7-400"]),
            ("vapi-2003+floppy".to_owned(), ["no disk \"floppy\"", "no file", "ext3-ide-2003, nvme"]),
            ("vapi-2003+".to_owned(), ["no disk \"\"", "no file", "nvme"]),
            (broken.clone(), [&broken, "link_latency", ""]),
            (format!("vapi-2003+{broken}"), [&broken, "link_latency", ""]),
        ] {
            let error = Profile::from_name_or_file(&text).expect_err(&text).to_string();
            assert!(says.iter().all(|says| error.contains(says)), "{text}: {error}");
        }
    }

    /// So that a text with one of these characters is a path.
    #[test]
    fn no_name_has_a_dot_a_slash_or_a_plus() {
        for (name, _) in PROFILES.iter().chain(DISKS) {
            assert!(!name.contains(['.', '/', '+', ',']), "{name}");
        }
    }

    #[test]
    fn errors_name_the_key() {
        for (line, says) in [
            ("link_latency = 20", "link_latency"),
            ("cpu_post_ns = \"fast\"", "cpu_post_ns"),
            ("cpu_post_ns = -1", "`cpu_post_ns` cannot be negative"),
            ("wire_unit_bytes = 0", "`wire_unit_bytes` cannot be zero"),
            ("cpu_cores = 1000", "`cpu_cores` is beyond 64"),
            ("link_latency_ns = 9_000_000_000_000_000_000", "`link_latency_ns` is beyond"),
            ("adapter_ps_per_byte = 99_999_999_999", "`adapter_ps_per_byte` is beyond"),
            ("switch_port_drops = true", "`retransmit_ns` cannot be zero"),
            ("disk = \"floppy\"", "ramfs-uncached-2005, ext3-ide-2003, nvme"),
            ("cpu_post_ns = ", "line 2"),
        ] {
            let error = refused(&format!("base = \"vapi-2003\"\n{line}\n"));
            assert!(error.contains(says), "{line}: {error}");
        }
        assert!(refused("base = \"abacus\"").contains("vapi-2003"));
        assert!(refused("base = 7").contains("`base`"));
        assert!(refused("link_latency_ns = 20").contains("missing field"));
        assert!(refused("base = \"vapi-2003\"\n[disk]\nsync_ns = -4").contains("`disk.sync_ns`"));
        assert!(Profile::load("/nonexistent").expect_err("not there").to_string().contains("/nonexistent"));
    }
}
