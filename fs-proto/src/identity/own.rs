//! What a program of a user proves itself with.

use std::env;
use std::path::PathBuf;

use bmi::config::Security;
use bmi::{Error, ErrorKind, OpenOptions};

/// The files of a user, in the folder `pvfs` of his configuration: `~/.config/pvfs`.
const FILES: [&str; 3] = ["user.pem", "user.key", "authority.pem"];
/// If it is `off`, programs of this user prove nothing, and reach clusters in the clear.
const SWITCH: &str = "PVFS_SECURITY";

/// Returns the settings of transports for a program of a user. His certificate is that of the
/// environment (`BMI_CERTIFICATE`, `BMI_KEY`, `BMI_AUTHORITIES`), or else in `~/.config/pvfs`:
/// `user.pem`, `user.key`, `authority.pem`. Without one, connections are in the clear, and with
/// `PVFS_SECURITY=off` too.
///
/// # Errors
/// Those of [`Security::mutual`] if there are files, but they are no good.
pub fn user_transports() -> Result<OpenOptions, Error> {
    let options = OpenOptions::default();
    if env::var_os(SWITCH).is_some_and(|value| value == "off") {
        return Ok(options);
    }
    let security = match Security::from_env()? {
        Some(security) => Some(security),
        None => in_folder()?,
    };
    Ok(security.iter().fold(options, OpenOptions::secure))
}

fn in_folder() -> Result<Option<Security>, Error> {
    let Some(folder) = user_folder() else { return Ok(None) };
    let files = FILES.map(|file| folder.join(file));
    // One that is there and cannot be used, or lacks another, is an error and never the clear.
    let mut any = false;
    for file in &files {
        let looked = |error| Error::new(ErrorKind::Io, format!("{} cannot be read", file.display())).caused_by(error);
        any |= file.try_exists().map_err(looked)?;
    }
    if !any {
        return Ok(None);
    }
    let [certificate, key, authorities] = files;
    let security = Security::mutual(certificate, key, authorities)?;
    security.without_revoked_if_any(folder.join("revoked.pem")).map(Some)
}

/// Returns the folder of this user's certificate, if there is a home.
pub fn user_folder() -> Option<PathBuf> {
    let set = |name| env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let config = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    config.map(|config| config.join("pvfs"))
}
