//! Programs that are installed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the path of an executable file. It is looked for on `PATH`, and in the administrator's
/// directories, which are not on every user's path.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administrator = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    program_in(std::env::split_paths(&path).chain(administrator), name)
}

fn program_in(mut folders: impl Iterator<Item = PathBuf>, name: &str) -> Option<PathBuf> {
    folders.find_map(|folder| Some(folder.join(name)).filter(|file| is_executable(file)))
}

fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// Returns what a program prints on both streams. Returns `None` if there is no such program or it
/// cannot be started.
pub(super) fn said(name: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program(name)?).args(args).stdin(Stdio::null()).output().ok()?;
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// Returns true if a program of this name runs and its answer contains `word`. The exit status does
/// not count.
pub(super) fn answers(name: &str, args: &[&str], word: &str) -> bool {
    said(name, args).is_some_and(|text| text.contains(word))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(program("sh").is_some());
        assert!(program("no-such-program").is_none());
    }

    #[test]
    fn a_file_or_a_folder_of_a_programs_name_is_no_program() {
        let scratch = tempfile::tempdir().unwrap();
        let file = |name: &str, mode: u32| {
            let path = scratch.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        };
        file("a/tool", 0o644);
        file("b/tool/readme", 0o644);
        file("c/tool", 0o755);
        let folders = ["a", "b", "c"].map(|name| scratch.path().join(name));
        assert_eq!(program_in(folders.clone().into_iter(), "tool"), Some(scratch.path().join("c/tool")));
        assert_eq!(program_in(folders[..2].iter().cloned(), "tool"), None);
    }

    #[test]
    fn a_program_of_the_same_name_gives_another_answer() {
        assert!(answers("sh", &["-c", "echo iproute2-6.1"], "iproute2"));
        assert!(!answers("sh", &["-c", "echo BusyBox v1.35"], "iproute2"));
        assert!(!answers("no-such-program", &[], ""));
    }
}
