//! Units of systemd for the servers of a configuration, and what a server says to its service
//! manager.
//!
//! One unit for the manager, and a template for the I/O servers: `pvfs-iod@3` is I/O server 3. A
//! disk that is not mounted does no harm: a server refuses a directory that is not its own.
//!
//! **Source.** systemd.service(5), systemd.unit(5), sd_notify(3).

use std::fs;
use std::io;
use std::path::Path;

use sd_notify::NotifyState;

use super::output::Failure;

/// Where an administrator's units are.
pub(super) const DIR: &str = "/etc/systemd/system";

/// Returns a unit: its name and its text.
fn unit(server: &str, config: &Path, program: &Path) -> (&'static str, String) {
    let (name, what, after) = match server {
        "manager" => ("pvfs-manager.service", "manager", ""),
        _ => ("pvfs-iod@.service", "I/O server %i", " pvfs-manager.service"),
    };
    // A percent sign begins a specifier, and a blank ends an argument.
    let quoted = |path: &Path| format!("\"{}\"", path.display().to_string().replace('%', "%%"));
    let text = format!(
        "# Written by `pvfsd init --systemd`, which writes it anew with --force.
[Unit]
Description=PVFS {what}
Documentation=man:pvfsd(1)
Wants=network-online.target
After=network-online.target{after}
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=notify
ExecStart={} --config {} {server}
Restart=on-failure
RestartSec=2
# A configuration that is wrong does not become right.
RestartPreventExitStatus=2
# It serves when the manager has confirmed its directory, however long that takes.
TimeoutStartSec=infinity
# What is in its memory is written first.
TimeoutStopSec=infinity
LimitNOFILE=1048576
# For adapters, which pin the memory that they use.
LimitMEMLOCK=infinity

[Install]
WantedBy=multi-user.target
",
        quoted(program),
        quoted(config),
    );
    (name, text)
}

/// Writes the units to a directory. Returns what is to be done next. Does not replace a unit that
/// is not the same, unless it is forced to.
pub(super) fn write(dir: &Path, config: &Path, force: bool) -> Result<String, Failure> {
    let usage = |path: &Path, error: &io::Error| Failure::Usage(format!("{}: {error}", path.display()));
    let config = std::path::absolute(config).map_err(|error| usage(config, &error))?;
    let program = std::env::current_exe().map_err(|error| Failure::Runtime(format!("this program: {error}")))?;
    let mut text = String::new();
    for (name, unit) in ["manager", "iod %i"].map(|server| unit(server, &config, &program)) {
        let path = dir.join(name);
        match fs::read_to_string(&path) {
            Ok(old) if old != unit && !force => {
                let text = format!("{} is there already, and differs; --force writes over it", path.display());
                return Err(Failure::Usage(text));
            }
            _ => fs::write(&path, unit).map_err(|error| usage(&path, &error))?,
        }
        text += &format!("wrote {}\n", path.display());
    }
    text += "next, each server on its machine, the manager after `pvfsd format`:
  systemctl daemon-reload
  systemctl enable --now pvfs-manager
  systemctl enable --now pvfs-iod@0
";
    Ok(text)
}

/// Tells the service manager, if there is one, that the server serves.
pub(super) fn serving() {
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

/// Tells the service manager that the server ends.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_names_program_and_configuration() {
        let (name, text) = unit("iod %i", Path::new("/etc/my pvfs/100%.toml"), Path::new("/usr/bin/pvfsd"));
        assert_eq!(name, "pvfs-iod@.service");
        assert!(text.contains("ExecStart=\"/usr/bin/pvfsd\" --config \"/etc/my pvfs/100%%.toml\" iod %i\n"), "{text}");
    }
}
