//! `cargo xtask deb`: the Debian package `pvfs`, with all programs of the file system.
//!
//! cargo-deb makes it, by the table `package.metadata.deb` of `fs-server/Cargo.toml`. What the
//! programs write themselves is laid out before:
//!
//! ```text
//!   target/release/deb/  pvfs.toml  units/  man/  bash/  zsh/  fish/
//! ```
//!
//! The step `deb` checks the package with lintian, and tries it in a bare root (`bare_root.sh`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::command::{Failure, Invocation};
use crate::setup::{self, Need};
use crate::totals::Totals;

/// Time limit for a build in release.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);
/// Time limit for a bare root over a slow link.
const ROOT_LIMIT: Duration = Duration::from_secs(900);
/// Time limit for all else. It takes seconds.
const LIMIT: Duration = Duration::from_secs(120);

const PROGRAMS: [&str; 3] = ["pvfs", "pvfsd", "pvfs-mount"];
/// Where completions are laid out, and the shells' names.
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];
/// Where the package puts the server program and its configuration.
const INSTALLED: [&str; 2] = ["/usr/bin/pvfsd", "/etc/pvfs/pvfs.toml"];

/// Makes the package and prints where it is.
pub(crate) fn main(root: &Path) -> Result<(), Failure> {
    println!("{}", build(root)?.display());
    Ok(())
}

/// Builds the programs and makes the package. Returns where it is.
fn build(root: &Path) -> Result<PathBuf, Failure> {
    if !Invocation::cargo(root, "deb --version").succeeds() {
        return Err(Failure::skip("there is no cargo-deb here; cargo install cargo-deb --locked brings it"));
    }
    let line = "build --release --package fs-server --package fs-client --package fs-mount";
    Invocation::cargo(root, line).run_aside(BUILD_LIMIT)?;
    lay_out(&crate::target(root).join("release"))?;
    let made = Invocation::cargo(root, "deb --package fs-server --no-build --quiet").output(BUILD_LIMIT)?;
    made.lines().last().map(PathBuf::from).ok_or_else(|| Failure::new("cargo-deb names no package"))
}

/// Has the programs write what belongs to them.
fn lay_out(release: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("{}: {error}", release.display()));
    let release = &release.canonicalize().map_err(failed)?;
    let dir = release.join("deb");
    // It may have files of an earlier version.
    let _ = fs::remove_dir_all(&dir);
    for folder in ["units", "man"].iter().chain(&SHELLS) {
        fs::create_dir_all(dir.join(folder)).map_err(failed)?;
    }
    let run = |program: &str, args: &str| Invocation::new(&dir, release.join(program), args).output(LIMIT);
    run("pvfsd", "--config pvfs.toml init --dir /var/lib/pvfs --systemd units")?;
    let own = [release.join("pvfsd"), dir.join("pvfs.toml")].map(|path| path.display().to_string());
    for unit in fs::read_dir(dir.join("units")).map_err(failed)? {
        let unit = unit.map_err(failed)?.path();
        let text = fs::read_to_string(&unit).map_err(failed)?;
        let text = own.iter().zip(INSTALLED).fold(text, |text, (own, installed)| text.replace(own, installed));
        fs::write(&unit, text).map_err(failed)?;
    }
    for program in PROGRAMS {
        run(program, "man man")?;
        for shell in SHELLS {
            let name = match shell {
                "zsh" => format!("_{program}"),
                "fish" => format!("{program}.fish"),
                _ => program.to_owned(),
            };
            let script = run(program, &format!("completions {shell}"))?;
            fs::write(dir.join(shell).join(name), script).map_err(failed)?;
        }
    }
    Invocation::new(&dir, "gzip", "--best --no-name --recursive man").run_aside(LIMIT)
}

/// Makes the package, checks it, and installs, uses and purges it in a bare root, which has its own
/// network and processes. Without root, cargo-deb or Debian's archive, the step is skipped.
pub(crate) fn step(root: &Path) -> Result<Totals, Failure> {
    if !setup::is_root() || !Path::new("/dev/fuse").exists() {
        return Err(Failure::skip("a bare root needs root, and a mount /dev/fuse"));
    }
    setup::install(root, Need::Deb).map_err(|why| Failure::skip(why.reason))?;
    let package = build(root)?;
    // This project has no address for mail yet.
    const NO_ADDRESS: &str = "bogus-mail-host,bogus-mail-host-in-debian-changelog";
    let lint = format!("--allow-root --fail-on error --suppress-tags {NO_ADDRESS}");
    Invocation::new(root, "lintian", &lint).args(&[package.display().to_string()]).run_aside(LIMIT)?;
    let failed = |error: std::io::Error| Failure::new(format!("a bare root: {error}"));
    let folder = tempfile::tempdir().map_err(failed)?;
    let bare = folder.path().join("root");
    let release = fs::read_to_string("/etc/os-release").map_err(failed)?;
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).unwrap_or("stable");
    Invocation::new(root, "debootstrap", &format!("--variant=minbase {codename}"))
        .args(&[bare.display().to_string()])
        .run_aside(ROOT_LIMIT)
        .map_err(|why| Failure::skip(format!("no bare root: {why}")))?;
    fs::copy(package, bare.join("pvfs.deb")).map_err(failed)?;
    fs::write(bare.join("bare_root.sh"), include_str!("bare_root.sh")).map_err(failed)?;
    Invocation::new(root, "unshare", "--mount --net --pid --fork --kill-child sh")
        .args(&[bare.join("bare_root.sh").display().to_string(), bare.display().to_string()])
        .run_aside(LIMIT)?;
    Ok(Totals::PASSED)
}
