//! Converts data directories of version 0.1 (format 1), in place.
//!
//! **What changed.** A cluster has a number, a store counts its starts, and a datafile exists
//! before it is used. In version 0.1 a datafile that was never written did not exist, and read as
//! zeros. Now a missing datafile is an error. So the conversion makes empty datafiles for all that
//! the layouts name and that do not exist. Only the manager knows the layouts. So its directory is
//! converted first, and the layouts are written to a file (`layouts`).
//!
//! **Steps** for each directory
//! 1. Lock it, in the way of both versions. A server that runs is refused. All directories are
//!    locked before the first one is changed.
//! 2. Mark it (`upgrading = true` in `identity.toml`), so that version 0.1 does not use it any
//!    more.
//! 3. Convert what is in it (`manager`, `iod`).
//! 4. Remove the lock file of version 0.1, and write the label.
//!
//! **Invariant.** Each step can be repeated, and the label comes last. So after a crash the command
//! is run again and finishes the work.

mod directory;
mod iod;
mod layouts;
mod manager;

#[cfg(any(test, all(fuzzing, feature = "sim")))]
pub use layouts::fuzz_layouts;

use std::path::Path;

use fs_proto::{ErrorCode, FsError, Role};

use crate::config::Config;
use crate::control::ServerName;
use directory::{Found, OldDirectory};
use layouts::Layouts;

/// The file with the layouts, in the manager's directory.
const LAYOUTS: &str = "upgrade-layouts.txt";

/// Converts the directories of these servers that exist on this machine. `named` is true if the
/// user has named them: then all must exist. `layouts` is the file with the layouts if the
/// manager's directory is on another machine. With `check`, nothing is changed. Calls `say` with
/// lines about what was done.
///
/// # Errors
/// `Busy` if a server runs; `Invalid` if a directory is not what it must be; `NotFound`, `Io`,
/// `NoSpace`, `Permission`.
pub(crate) fn upgrade(
    config: &Config,
    names: &[ServerName],
    named: bool,
    layouts: Option<&Path>,
    check: bool,
    say: impl Fn(&str),
) -> Result<(), FsError> {
    let manager_dir = &config.storage.manager;
    let (mut manager, mut iods, mut elsewhere) = (None, Vec::new(), Vec::new());
    for name in names {
        let (dir, role) = match name {
            ServerName::Manager if layouts.is_some() && named => {
                let text = "--layouts is for the I/O servers on machines without the manager's directory";
                return Err(FsError::new(ErrorCode::Invalid, text));
            }
            ServerName::Manager if layouts.is_some() => continue,
            ServerName::Manager => (manager_dir.clone(), Role::Manager),
            ServerName::Iod(index) => (config.iod_dir(*index), Role::Iod(*index as u32)),
        };
        match directory::find(&dir, role)? {
            Found::Nothing if named => {
                let text = format!("{name}: {} is not a data directory on this machine", dir.display());
                return Err(FsError::new(ErrorCode::NotFound, text));
            }
            Found::Nothing => elsewhere.push(*name),
            Found::Current => say(&format!("{name}: {} needs no conversion", dir.display())),
            Found::Old(old) if role == Role::Manager => manager = Some(old),
            Found::Old(old) => iods.push((*name, old)),
        }
    }
    let written = manager_dir.join(LAYOUTS);
    let mut known = None;
    if let Some(old) = manager {
        let dir = manager_dir.display();
        if check {
            let (objects, found) = manager::inspect(&old)?;
            say(&format!("manager: {dir} is of version 0.1; {objects} objects would be converted"));
            known = Some(found);
        } else {
            let (objects, found) = manager::convert(old, &written)?;
            say(&format!("manager: {dir} is converted: {objects} objects, cluster {}", found.cluster));
            known = Some(found);
        }
    }
    if !iods.is_empty() {
        let known = match (known, layouts) {
            (Some(known), _) => known,
            (None, Some(given)) => Layouts::read(given)?,
            (None, None) => Layouts::read(&written).map_err(|error| {
                let hint = "convert the manager's directory first, and give its upgrade-layouts.txt with --layouts";
                FsError::new(error.code, format!("{}; {hint}", error.detail))
            })?,
        };
        for (name, old) in iods {
            convert_iod(name, old, &known, check, &say)?;
        }
    }
    if !check && !elsewhere.is_empty() && written.exists() {
        let list: Vec<String> = elsewhere.iter().map(ServerName::to_string).collect();
        say(&format!(
            "not on this machine: {}; copy {} there and run `pvfsd upgrade --layouts FILE`",
            list.join(", "),
            written.display()
        ));
    }
    Ok(())
}

fn convert_iod(
    name: ServerName,
    old: OldDirectory,
    known: &Layouts,
    check: bool,
    say: &impl Fn(&str),
) -> Result<(), FsError> {
    let dir = old.path.display().to_string();
    let Role::Iod(index) = old.role else { unreachable!("only I/O servers get here") };
    let handles = known.of(index);
    if check {
        let iod::Work { moved, created } = iod::inspect(&old, handles)?;
        say(&format!("{name}: {dir} is of version 0.1; {moved} datafiles would be moved and {created} created"));
    } else {
        let iod::Work { moved, created } = iod::convert(old, known.cluster, handles)?;
        say(&format!("{name}: {dir} is converted: {moved} datafiles moved, {created} created"));
    }
    Ok(())
}
