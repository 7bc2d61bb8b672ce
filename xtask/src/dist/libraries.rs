//! `cargo xtask dist`: the libraries for programs in C, with their headers and files for
//! pkg-config, laid out as cargo-c does.
//!
//! ```text
//!   DIR/lib/libbmi.a  libbmi.so.0.1.0 <- libbmi.so, libbmi.so.0       DIR/lib/pkgconfig/bmi.pc
//!   DIR/include/bmi.h  bmi-types.h                                    and so on for libpvfs
//! ```

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::command::{Failure, Invocation};

/// The libraries: the package, and the name of the library.
const LIBRARIES: &[(&str, &str)] = &[("bmi-c", "bmi"), ("fs-c", "pvfs")];
/// Time limit for a build in release.
const LIMIT: Duration = Duration::from_secs(1200);

pub(crate) fn main(root: &Path, dir: &Path) -> Result<(), Failure> {
    for (package, name) in LIBRARIES {
        let lay_out = lay_out(root, dir, package, name);
        lay_out.map_err(|error| Failure::new(format!("cannot lay out lib{name} in {}: {error}", dir.display())))?;
    }
    Ok(())
}

fn lay_out(root: &Path, dir: &Path, package: &str, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let failed = |failure: Failure| failure.to_string();
    Invocation::cargo(root, &format!("build --release --package {package}")).run_aside(LIMIT).map_err(failed)?;
    let (lib, include) = (dir.join("lib"), dir.join("include"));
    fs::create_dir_all(lib.join("pkgconfig"))?;
    fs::create_dir_all(&include)?;
    let version = env!("CARGO_PKG_VERSION");
    let major = version.split('.').next().unwrap_or(version);
    let plain = format!("lib{name}.so");
    let (named, full) = (format!("{plain}.{major}"), format!("{plain}.{version}"));
    let built = crate::target(root).join(format!("release/lib{}", package.replace('-', "_")));
    fs::copy(built.with_extension("a"), lib.join(format!("lib{name}.a")))?;
    fs::copy(built.with_extension("so"), lib.join(&full))?;
    for link in [&named, &plain] {
        // There may be one of an earlier run.
        let _ = fs::remove_file(lib.join(link));
        symlink(&full, lib.join(link))?;
    }
    for header in fs::read_dir(root.join(package).join("include"))? {
        let header = header?;
        fs::copy(header.path(), include.join(header.file_name()))?;
    }
    let template = fs::read_to_string(root.join(package).join(format!("{name}.pc.in")))?;
    let prefix = std::path::absolute(dir)?.display().to_string();
    let text = template.replace("@PREFIX@", &prefix).replace("@VERSION@", version);
    fs::write(lib.join(format!("pkgconfig/{name}.pc")), text)?;
    Ok(())
}
